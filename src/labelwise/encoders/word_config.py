"""Settings of vocabulary, word vectors and recurrent layer. Does not import torch, so that configs need none."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from labelwise.config import Config

Fraction = Annotated[float, Field(ge=0, lt=1)]
MAX_WIDTH = 1 << 16
"""Maximum width of a layer; bounds the settings of saved models before they are compared with the weights."""
Width = Annotated[int, Field(ge=1, le=MAX_WIDTH)]


class WordsConfig(Config):
    """The vocabulary and its word vectors."""

    max_length: Annotated[int, Field(ge=1)] = 500
    """Words read per text, from its start."""
    min_frequency: Annotated[int, Field(ge=1)] = 1
    """Leave out words that occur in fewer training texts."""
    max_size: Annotated[int, Field(ge=1)] = 500_000
    """Maximum vocabulary size: the words that occur in most texts, ties in alphabetical order."""
    lowercase: bool = True
    """Convert texts to lower case."""
    numbers: bool = False
    """Include words of digits only; otherwise they are ignored."""
    vectors: str | None = None
    """File with pretrained vectors: text with a word and its numbers per line (GloVe, word2vec, fastText; also
    gzip), or a .npy array with `vectors_words`. null: see `initial`."""
    vectors_words: str | None = None
    """With a .npy of vectors: a file with the word of each row, one per line."""
    initial: Literal["random", "labels"] = "random"
    """Initial vectors without a file: drawn at random, or computed from the labels that each word occurs with (a
    truncated SVD), with which networks learn from few documents."""
    width: Annotated[int, Field(ge=1)] | None = None
    """Dimension of vectors without a file; null is 300. A file of vectors has its own."""
    normalise: bool = False
    """Scale the file's vectors to norm 1."""
    frozen: bool | None = None
    """Do not train the vectors; null does so when they come from a file."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.vectors is None:
            for field in ("vectors_words", "normalise"):
                if getattr(self, field):
                    raise ValueError(f"{field} needs a file of vectors: set vectors")
            if self.frozen and self.initial == "random":
                raise ValueError("random vectors cannot be frozen; give a file of vectors, or set initial to labels")
        elif self.width is not None:
            raise ValueError("width is for vectors without a file; the file of vectors has its own")
        elif self.initial != "random":
            raise ValueError("initial is for vectors without a file; leave out initial or vectors")
        elif (self.vectors_words is not None) != self.vectors.endswith(".npy"):
            raise ValueError("a .npy of vectors and vectors_words go together; a text file has its words inside")
        return self

    @property
    def is_frozen(self) -> bool:
        """Whether the vectors are not trained."""
        return self.vectors is not None if self.frozen is None else self.frozen


class RecurrentConfig(Config):
    """A bidirectional recurrent layer over the words."""

    cell: Literal["lstm", "gru"] = "lstm"
    """The type of cell."""
    width: Annotated[int, Field(ge=2, le=MAX_WIDTH, multiple_of=2)] = 512
    """Dimension of the hidden state, both directions together."""
    word_dropout: Fraction = 0.2
    """Dropout rate of word vectors."""
    dropout: Fraction = 0.5
    """Dropout rate of hidden states."""
    learned_start: bool = False
    """Learn the initial states of both directions; otherwise they are zero."""
