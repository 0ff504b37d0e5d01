"""The models that `auto` tries, from cheap to expensive, and what it needs to know of the data to propose them.

Settings are those that won in our measurements (linear_tree_defaults.md, label_texts.md and methods.md of
benchmarks/results). Some are traits: tried first with one tree, and used by all later models if they are better there.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from labelwise.data.dataset import Dataset
from labelwise.encoders.saved_encoder import saved_folder
from labelwise.errors import LabelwiseError
from labelwise.features.stemming import LANGUAGES
from labelwise.features.stop_words import STOP_WORDS
from labelwise.registry import method_class

TEXTS, FEATURES = "texts", "features"
IMAGES = ("paths", "arrays")
MOST_FLAT_LABELS = 20_000
"""A classifier per label takes hours with more."""
SAMPLE, STOP_WORD_SHARE = 500, 0.12
"""Texts that the language is guessed from, and the least fraction of their words that are its function words."""
FIRST_TREE = (1.0, 1e-4, 4e-7)
"""Before anything is measured: seconds for one tree, per document, and per word."""
ENCODER_TOKENS = 64
"""Tokens that an encoder reads of a text: the title says most, and more take longer."""
TRAITS: dict[str, dict[str, Any]] = {
    "names": {"label_documents": "texts", "label_text_weight": 0.5},
    "norm": {"feature_norm": "l2"},
    "soft": {"solver": {"cost_positive": 0.5, "cost_negative": 0.5}},
}


@dataclass(frozen=True)
class Facts:
    """What decides which models are proposed."""

    kind: str
    """What the documents are: texts, features, paths or arrays."""
    n_documents: int
    n_labels: int
    n_words: int
    label_texts: bool
    vectors: bool
    """Whether there are vectors next to texts."""
    language: str | None
    encoder: str | None
    gpu: bool
    """Whether networks are to compute on a GPU, as the run says; torch is not asked."""

    @classmethod
    def of(cls, train: Dataset, vectors: bool, encoder: str | None, gpu: bool = False) -> Facts:
        """The facts of training documents."""
        kinds = (TEXTS, FEATURES) if vectors else (FEATURES, TEXTS)
        kind = next(kind for kind in (*kinds, *IMAGES) if getattr(train, kind) is not None)
        texts = train.texts if kind == TEXTS and train.texts is not None else ()
        some = [texts[row] for row in range(0, len(texts), max(len(texts) // SAMPLE, 1))]
        words = [re.findall(r"\w\w+", text.lower()) for text in some]
        counted = sum(map(len, words))
        return cls(
            kind, len(train), train.n_labels, round(counted / max(len(some), 1) * len(texts)),
            train.label_texts is not None, vectors, _language(words, counted), encoder, gpu,
        )  # fmt: skip


def _language(texts: list[list[str]], total: int) -> str | None:
    """The language whose function words are most frequent; None if no language has many."""
    counts = {
        language: sum(word in STOP_WORDS[language] for words in texts for word in words)
        for language in STOP_WORDS
        if language in LANGUAGES
    }
    best = max(counts, key=lambda language: counts[language])
    return best if counts[best] > STOP_WORD_SHARE * total else None


@dataclass(frozen=True)
class Rung:
    """A model to try."""

    name: str
    about: str
    method: str
    params: Mapping[str, Any] = field(default_factory=dict)
    reads: tuple[str, ...] = (TEXTS, FEATURES)
    like: str | None = None
    """The model whose measured time the estimate scales."""
    ratio: float = 1.0
    seconds_per_document: float = 0.0
    """Added to the estimate: an encoder, or a network."""
    takes: tuple[str, ...] = ("names", "norm", "soft")
    """Traits that it uses if they were better."""
    trait: str | None = None
    """The trait that it tries: it is compared with `like`."""
    replaces: tuple[str, ...] = ()
    """Smaller models of the same features, which are no members of an ensemble once this one is trained."""

    def model(self, traits: Collection[str], facts: Facts) -> dict[str, Any]:
        """The section `model` of a config."""
        fields = method_class(self.method).Config.model_fields
        found: dict[str, Any] = {"method": self.method}
        if facts.vectors and "vector_scale" in fields:
            found["vector_scale"] = 1.0
        for trait in [*(trait for trait in self.takes if trait in traits), *([self.trait] if self.trait else [])]:
            found |= {key: value for key, value in TRAITS[trait].items() if key in fields}
        for key, value in self.params.items():  # sections of a trait and of the rung are merged
            before = found.get(key)
            found[key] = {**before, **value} if isinstance(before, dict) and isinstance(value, Mapping) else value
        return found

    def obstacle(self, facts: Facts) -> str | None:
        """Why it cannot be tried on this data, or with what is installed."""
        if facts.kind not in self.reads:
            return f"reads {' or '.join(self.reads)}; the data has {facts.kind}"
        if self.trait == "names" and not facts.label_texts:
            return "the labels have no texts, only names"
        if self.method == "linear_flat" and facts.n_labels > MOST_FLAT_LABELS:
            return f"for at most {MOST_FLAT_LABELS:,} labels; the data has {facts.n_labels:,}"
        if "encoder" in self.params and facts.encoder is None:
            return "needs a pretrained encoder: --encoder FOLDER or LABELWISE_ENCODER"
        if "encoder" in self.params and facts.vectors:
            return "the data has vectors of its own"
        try:
            method_class(self.method)(**{k: v for k, v in self.model((), facts).items() if k != "method"}).check_needs()
        except LabelwiseError as error:
            return str(error)
        return None


def first_estimate(facts: Facts) -> float:
    """Seconds of one tree before anything is measured."""
    once, per_document, per_word = FIRST_TREE
    return once + per_document * facts.n_documents + per_word * facts.n_words


def ladder(facts: Facts) -> list[Rung]:
    """All models, from cheap to expensive."""
    words = {} if facts.language is None else {"stop_words": facts.language, "stemmer": facts.language}
    pairs = {"ngrams": [1, 2], "min_df": 2, **words}
    encoder: dict[str, Any] = {"model": facts.encoder or ""}
    if facts.encoder is not None and saved_folder(facts.encoder) is None:  # a saved model's encoder has its own length
        encoder["max_length"] = ENCODER_TOKENS
    stems = f", {facts.language} stems" if facts.language else ""
    everything = (TEXTS, FEATURES, *IMAGES)
    return [
        Rung("popularity", "the most frequent labels, for every document", "popularity", reads=everything, takes=()),
        Rung("tree", "one linear tree", "linear_tree", {"trees": 1}, takes=()),
        Rung(
            "names", "one tree, label texts as documents and in the clustering", "linear_tree", {"trees": 1},
            (TEXTS,), "tree", 1.1, takes=(), trait="names",
        ),
        Rung(
            "norm", "one tree, documents scaled to norm 1", "linear_tree", {"trees": 1},
            (FEATURES,), "tree", 1.1, takes=(), trait="norm",
        ),
        Rung(
            "soft", "one tree, stronger regularisation", "linear_tree", {"trees": 1},
            like="tree", takes=("names", "norm"), trait="soft",
        ),
        Rung(
            "trees", "three trees", "linear_tree", {"trees": 3}, like="tree", ratio=3.0,
            replaces=("tree", "names", "norm", "soft"),
        ),
        Rung(
            "pairs", f"one tree, words and word pairs{stems}", "linear_tree", {"trees": 1, "tfidf": pairs},
            (TEXTS,), "tree", 4.5,
        ),
        Rung(
            "pair_trees", f"three trees, words and word pairs{stems}", "linear_tree", {"trees": 3, "tfidf": pairs},
            (TEXTS,), "pairs", 3.0, replaces=("pairs",),
        ),
        Rung(
            "flat", "a classifier per label", "linear_flat", {}, like="tree", ratio=max(3.0, facts.n_labels / 400),
            replaces=("tree", "names", "norm", "soft"),
        ),
        Rung(
            "flat_pairs", f"a classifier per label, words and word pairs{stems}", "linear_flat", {"tfidf": pairs},
            (TEXTS,), "flat", 3.5, replaces=("pairs",),
        ),
        Rung(
            "hybrid", "three trees, words and vectors of an encoder", "hybrid_linear",
            {"trees": 3, "encoder": encoder}, (TEXTS,), "trees", 2.5, 0.008,
        ),
        Rung(
            "hybrid_pairs", f"three trees, word pairs{stems} and vectors of an encoder", "hybrid_linear",
            {"trees": 3, "encoder": encoder, "tfidf": pairs}, (TEXTS,), "pair_trees", 2.0, 0.002,
        ),
        Rung("bigru", "a recurrent network with attention per label", "bigru", {"attention": "label"}, (TEXTS,),
             seconds_per_document=0.02 if facts.gpu else 0.5, takes=()),
        Rung("image_network", "an image network", "mhe_image", {}, IMAGES,
             seconds_per_document=0.005 if facts.gpu else 0.05, takes=()),
    ]  # fmt: skip
