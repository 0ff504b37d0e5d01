"""How texts become words and words become states; free of torch, so that configs can be checked without it."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from labelwise.config import Config

Share = Annotated[float, Field(ge=0, lt=1)]
MOST_WIDTH = 1 << 16
"""Numbers in a layer at most; a bound for the settings of saved models, before they are compared with the weights."""
Width = Annotated[int, Field(ge=1, le=MOST_WIDTH)]


class WordsConfig(Config):
    """The vocabulary, and a vector for each word of it."""

    max_length: Annotated[int, Field(ge=1)] = 500
    """Words of a text that are read, from its start."""
    min_frequency: Annotated[int, Field(ge=1)] = 1
    """Leave out words in fewer training texts than this."""
    max_size: Annotated[int, Field(ge=1)] = 500_000
    """Words at most: those in most texts, of equals the first by alphabet."""
    lowercase: bool = True
    """Take upper and lower case for the same."""
    numbers: bool = False
    """Read words that are digits only; otherwise they are ignored."""
    vectors: str | None = None
    """File with pretrained vectors: text with a word and its numbers in each line (GloVe, word2vec, fastText; gzip is
    fine), or a .npy array with `vectors_words`. null draws them at random."""
    vectors_words: str | None = None
    """With a .npy of vectors: the word of each row, one a line."""
    width: Annotated[int, Field(ge=1)] | None = None
    """Length of random vectors; null is 300. A file of vectors says it itself."""
    normalise: bool = False
    """Bring the file's vectors to length 1."""
    frozen: bool | None = None
    """Leave the vectors as they are; null does so when they come from a file."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.vectors is None:
            for field in ("vectors_words", "normalise"):
                if getattr(self, field):
                    raise ValueError(f"{field} goes with a file of vectors; there is none")
            if self.frozen:
                raise ValueError("frozen random vectors know nothing; give a file of vectors")
        elif self.width is not None:
            raise ValueError("width is for random vectors; the file of vectors has its own")
        elif (self.vectors_words is not None) != self.vectors.endswith(".npy"):
            raise ValueError("a .npy of vectors and vectors_words go together; a text file has its words inside")
        return self

    @property
    def is_frozen(self) -> bool:
        """Whether the vectors stay as they are."""
        return self.vectors is not None if self.frozen is None else self.frozen


class RecurrentConfig(Config):
    """A bidirectional recurrent layer over the words."""

    cell: Literal["lstm", "gru"] = "lstm"
    """The kind of cell."""
    width: Annotated[int, Field(ge=2, le=MOST_WIDTH, multiple_of=2)] = 512
    """Numbers of a state, both directions together."""
    word_dropout: Share = 0.2
    """Fraction of the entries of word vectors that is left out in each training step."""
    dropout: Share = 0.5
    """The same for the states."""
    learned_start: bool = False
    """Learn the states that the directions begin with; otherwise they are zero."""
