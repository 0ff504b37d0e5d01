"""The models that `auto` tries, from cheap to expensive, and what it needs to know of the data to propose them.

Settings are those that won in our measurements (linear_tree_defaults.md, label_texts.md and methods.md of
benchmarks/results). Some are traits: tried first with one tree, and used by all later models if they are better there.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.data.dataset import Dataset
from labelwise.ensembles.combine import (
    Candidates,
    Combination,
    Combine,
    normalized,
    side_by_side,
)
from labelwise.ensembles.learn import Held, fitted_calibrations, learned
from labelwise.ensembles.model import ensemble_of
from labelwise.errors import ConfigError, DataError, LabelwiseError
from labelwise.features.settings import LANGUAGES
from labelwise.features.words import STOP_WORDS
from labelwise.io.atomic import replacing
from labelwise.io.folder import CHECKPOINTS, MODEL
from labelwise.io.tensors import in_range
from labelwise.methods.ensemble import Ensemble
from labelwise.metrics.evaluate import Evaluator
from labelwise.metrics.names import Metric, parse_metric
from labelwise.metrics.result import Difference, PairedScores, ResamplingSums
from labelwise.model.calibration import are_right, choose_threshold
from labelwise.model.inputs import predict_in_blocks
from labelwise.model.method import Method, load
from labelwise.nn.text.files import saved_folder
from labelwise.registry import method_class
from labelwise.runs.folder import folder_bytes
from labelwise.runs.stopwatch import stopwatch
from labelwise.runtime.budget import Budget
from labelwise.runtime.job import (
    SAMPLED,
    Job,
    find_finished,
    fingerprint,
    finished_folder,
)
from labelwise.topk import NO_LABEL, TopK

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


# --- trials ---
# One model of the ladder: trained, saved and asked about the validation documents; or read from an earlier attempt.
#
# A folder per trial: `checkpoints` while it is trained, `model`, and last of all `outcome`, a store folder with the
# predictions for the validation documents under the fingerprint of data and parameters. An interrupted training
# resumes. One that the time budget has ended is continued by an attempt with more time; until then its checkpoints
# stay.

log = logging.getLogger("labelwise")

KIND, OUTCOME, TENSORS, FIT = "auto-trial", "outcome", "top.safetensors", "fit.json"


@dataclass(frozen=True, eq=False)
class Trial:
    """A trained model and what it predicts for the validation documents."""

    name: str
    model: Mapping[str, Any]
    """The section `model` of a config."""
    folder: Path
    top: TopK
    seconds: float
    predict_seconds: float
    bytes: int
    cut: bool
    """Whether the time budget has ended the training early."""
    left: float = 0.0
    """Seconds that were left when the training ended."""

    def can_continue(self, budget: Budget) -> bool:
        """Whether the training was ended early and has more time now."""
        return self.cut and _has_more_time(budget, self.seconds, self.left)

    def load(self) -> Method:
        """The model."""
        return load(self.folder / MODEL)


def make_method(model: Mapping[str, Any]) -> Method:
    """An unfitted method from the section `model` of a config."""
    return method_class(model["method"])(**{key: value for key, value in model.items() if key != "method"})


def trial_folder(workspace: Path, name: str, model: Mapping[str, Any], data: str) -> tuple[Path, str]:
    """Where a trial is kept, and its fingerprint."""
    own = fingerprint("auto trial", data, make_method(model).config.resolved(), model["method"])
    return workspace / f"{name}-{own[:8]}", own


def run_trial(
    workspace: Path,
    name: str,
    model: Mapping[str, Any],
    data: str,
    train: Dataset,
    valid: Dataset,
    k: int,
    budget: Budget,
) -> Trial:
    """Train a model and predict for the validation documents, which it never sees with their labels."""
    folder, own = trial_folder(workspace, name, model, data)
    shutil.rmtree(folder / OUTCOME, ignore_errors=True)
    before = _remove_unfinished_model(folder, budget)
    method = _trained(folder / MODEL)
    if method is None:
        method, own_budget = make_method(model), budget.for_new_work()
        folder.mkdir(parents=True, exist_ok=True)
        with stopwatch() as fitting:
            method.fit(train, job=Job(folder / CHECKPOINTS, budget=own_budget))
        with replacing(folder / FIT) as file:
            spent, cut = before + fitting.seconds, own_budget.ended_early
            json.dump({"seconds": spent, "left": budget.remaining() if cut else 0.0, "cut": cut}, file)
        method.save(folder / MODEL, force=True)
        if cut:
            budget.write_records()  # or an attempt after a kill would seem to have more time
    spent, left, cut = _fit_record(folder / FIT)
    count = min(k, len(method.label_names_))
    with stopwatch() as predicting:
        top = predict_in_blocks(lambda part: method.predict(part, count), valid, f"{name}, validation documents")
    size = folder_bytes(folder / MODEL)
    about = {"seconds": spent, "predict_seconds": predicting.seconds, "cut": cut, "left": left, "bytes": size}
    with finished_folder(folder / OUTCOME, KIND, own, about) as kept_folder:
        kept_folder.write_tensors(TENSORS, {"ids": top.ids, "scores": top.scores})
    if not cut:
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    return Trial(name, model, folder, top, spent, predicting.seconds, size, cut, left)


def remove_checkpoints(workspace: Path) -> None:
    """Remove the unfinished work of all trials."""
    for path in workspace.glob(f"*/{CHECKPOINTS}"):
        shutil.rmtree(path, ignore_errors=True)


def _has_more_time(budget: Budget, seconds: float, left: float) -> bool:
    """Whether there is more time than was left when a training was ended, and as much as it had."""
    return budget.remaining() > max(seconds, left)


def _remove_unfinished_model(folder: Path, budget: Budget) -> float:
    """Remove the model of a training that was ended early and can continue; the seconds that it has taken."""
    if not (folder / MODEL).exists():
        return 0.0
    seconds, left, cut = _fit_record(folder / FIT)
    if not cut or not _has_more_time(budget, seconds, left):
        return 0.0
    shutil.rmtree(folder / MODEL)
    shutil.rmtree(folder / CHECKPOINTS / SAMPLED, ignore_errors=True)  # there is time for more documents
    return seconds


def _fit_record(path: Path) -> tuple[float, float, bool]:
    """Seconds of a training and those that were left, and whether the time budget has ended it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return float(content["seconds"]), float(content.get("left", 0.0)), bool(content["cut"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"cannot be read: {error}; remove the folder to train this model again", path) from None


def _trained(folder: Path) -> Method | None:
    """The model of an attempt that was interrupted after it was saved."""
    if not folder.exists():
        return None
    try:
        return load(folder)
    except LabelwiseError as error:
        log.warning("%s: not used: %s", folder, error)
        shutil.rmtree(folder)
        return None


def read_trial(folder: Path, own: str, name: str, model: Mapping[str, Any], k: int) -> Trial | None:
    """A finished trial; None if there is none, or if it has too few predictions for another metric."""
    found = find_finished(folder / OUTCOME, KIND, own)
    if found is None or not (folder / MODEL).exists():
        return None
    try:
        tensors, about = found.tensors(TENSORS), found.manifest
        top = TopK(tensors["ids"], tensors["scores"])
        numbers = [float(about[key]) for key in ("seconds", "predict_seconds", "bytes")]
        left, n_labels = float(about.get("left", 0.0)), len(load(folder / MODEL, verify=False).label_names_)
    except (KeyError, TypeError, ValueError, LabelwiseError) as error:
        log.warning("%s: not used: %s", folder, error)
        return None
    if top.k < min(k, n_labels) or not in_range(top.ids.reshape(-1) + 1, n_labels + 1):
        return None
    return Trial(name, model, folder, top, numbers[0], numbers[1], int(numbers[2]), bool(about.get("cut")), left)


# --- judge ---
# Judges predictions for the validation documents, and chooses: the cheapest model within noise of the best.
#
# Noise is one standard error of the paired difference on the same documents (the one-standard-error rule of Breiman et
# al., 1984). F1 without @k needs a threshold: each half of the documents gets the one that suits the other half best.

CANDIDATES = 50
"""Labels that are predicted per document, as many as an ensemble reads of each member."""
STANDARD_ERRORS = 2 * 1.959964
"""Width of a 95 % interval (`bootstrap.LEVEL`) in standard errors."""


def checked_metric(name: str) -> Metric:
    """A metric that models can be compared by on the same documents."""
    metric = parse_metric(name)
    if not metric.is_sum:
        raise ConfigError(f"--metric: {metric.name} is not a mean over documents, so differences cannot be judged; "
                          "P@5, nDCG@5, PSP@5 or micro-F1 can")  # fmt: skip
    return metric


@dataclass(frozen=True, eq=False)
class Judge:
    """The validation documents with the metric.

    Parameters
    ----------
    valid
        Held-out documents, in the label space of the training documents; columns after those are unknown labels.
    label_counts
        Training documents per label.
    n_train
        Training documents.
    metric
        What is compared.
    propensity
        As in the section `evaluate` of a config.
    """

    valid: Dataset
    label_counts: np.ndarray
    n_train: int
    metric: Metric
    propensity: str | tuple[float, float] | None = None

    @property
    def k(self) -> int:
        """Labels to predict per document."""
        return max(CANDIDATES, self.metric.k or 0)

    def halves(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows of every other document, and the rest: what is learned on one half is judged on the other."""
        rows = np.arange(len(self.valid))
        return rows[::2], rows[1::2]

    def sums(self, top: TopK) -> ResamplingSums:
        """The metric per resampling group."""
        threshold = None
        if self.metric.needs_threshold:
            top, threshold = self._relative_to_threshold(top), 0.0
        counts = np.zeros(self.valid.n_labels, np.int64)
        counts[: len(self.label_counts)] = self.label_counts
        evaluator = Evaluator(
            [self.metric.name], self.valid.n_labels, train=counts, train_documents=self.n_train,
            propensity=self.propensity, threshold=threshold, groups=(), n_known=len(self.label_counts),
        )  # fmt: skip
        evaluator.update(top.padded(len(self.label_counts) + 1) if threshold is not None else top, self.valid.labels)
        sums = evaluator.result(warn=False).sums
        assert sums is not None
        return sums

    def _relative_to_threshold(self, top: TopK) -> TopK:
        """Scores minus the threshold that suits the other half of the documents best."""
        right, first, second = are_right(top.ids, self.valid.labels), *self.halves()
        scores = top.scores.astype(np.float64)
        relative = scores.copy()
        for rows, others in ((first, second), (second, first)):
            filled = top.ids[others] != NO_LABEL
            values = scores[others][filled]
            order = np.argsort(values, kind="stable")
            n_true = int(np.diff(self.valid.labels.indptr)[others].sum())
            threshold = choose_threshold(values[order], right[others][filled][order], n_true)[0] if len(values) else 0.0
            relative[rows] -= threshold
        return TopK(top.ids, np.where(top.ids == NO_LABEL, -np.inf, relative).astype(np.float32), top.label_names)


def standard_error(difference: Difference) -> float:
    """The standard error of a difference, from its bootstrap interval."""
    return (difference.high - difference.low) / STANDARD_ERRORS


def is_better(one: ResamplingSums, other: ResamplingSums) -> bool:
    """Whether the first is more than one standard error better."""
    difference = PairedScores([one, other]).difference(0, 1, one.metrics[0])
    assert difference is not None
    return difference.value > standard_error(difference)


@dataclass(frozen=True)
class Verdict:
    """The comparison of all options."""

    chosen: str
    best: str
    behind: dict[str, Difference]
    """The best value minus that of each option."""
    intervals: dict[str, tuple[float, float]]

    def within_noise(self, name: str) -> bool:
        """Whether an option is as good as the best, as far as the documents can show."""
        return self.behind[name].value <= standard_error(self.behind[name])


def choose(sums: Mapping[str, ResamplingSums]) -> Verdict:
    """The first option, in the order from cheap to expensive, that is within noise of the best."""
    names: Sequence[str] = list(sums)
    paired = PairedScores(list(sums.values()))
    values = [float(one.values()[0]) for one in sums.values()]
    best = max(range(len(names)), key=lambda index: (values[index], -index))
    metric = sums[names[best]].metrics[0]
    behind, intervals = {}, {}
    for index, name in enumerate(names):
        difference, interval = paired.difference(best, index, metric), paired.interval(index, metric)
        assert difference is not None
        assert interval is not None
        behind[name], intervals[name] = difference, interval
    verdict = Verdict(names[best], names[best], behind, intervals)
    chosen = next(name for name in names if verdict.within_noise(name))
    return Verdict(chosen, names[best], behind, intervals)


# --- ensembles ---
# Ensembles of tried models, from the predictions that the trials have kept.
#
# What is learned (calibrations, weights, coefficients) is learned on one half of the validation documents and judged on
# the other, both ways, so that the figure is that of new documents; the final combination is learned on all of them.

LOGISTIC: Combine = "logistic"
AVERAGE: Combine = "probability_average"
MANY_DOCUMENTS = 1000
"""With so many validation documents a logistic combination is always better than an average of probabilities."""
MOST_MEMBERS, MOST_ALONE = 5, 3
"""Members of an ensemble, and models that are ranked again on their own."""
LEAST_OF_BEST = 0.85
"""Members have at least this fraction of the best value."""
FEWEST_DOCUMENTS = 40
"""With fewer validation documents nothing is learned."""


@dataclass(frozen=True, eq=False)
class TriedEnsemble:
    """An ensemble and its cross-fitted predictions."""

    name: str
    rule: Combine
    members: tuple[Trial, ...]
    top: TopK

    def model(self, metric: Metric) -> dict[str, Any]:
        """The section `model` of a config: members are given by method and parameters."""
        return {"method": Ensemble.name, "members": [dict(one.model) for one in self.members],
                **_settings(self.rule, metric)}  # fmt: skip

    def fitted(self, judge: Judge) -> Method:
        """The ensemble of the trained models, with a combination learned on all validation documents."""
        held = _held(self.members, judge)
        combination = _learned(held, self.rule, judge.metric)
        members = [one.load() for one in self.members]
        settings = self.model(judge.metric)
        del settings["method"]
        return ensemble_of(members, combination, len(judge.valid), settings)


def rules_for(members: int, documents: int) -> tuple[Combine, ...]:
    """How so many members are combined, with so many validation documents to learn on."""
    return (LOGISTIC,) if members == 1 or documents >= MANY_DOCUMENTS else (LOGISTIC, AVERAGE)


def sets_of_members(trials: Sequence[Trial], values: Sequence[float], replaced: set[str]) -> list[tuple[Trial, ...]]:
    """The best of the distinct good models alone, then the two best, three best, ...; each from cheap to expensive.

    A logistic combination of one model ranks its labels again by their probability and frequency.
    """
    best = max(values, default=0.0)
    good = [
        (value, -number, one)
        for number, (one, value) in enumerate(zip(trials, values, strict=True))
        if one.name not in replaced and value >= LEAST_OF_BEST * best
    ]
    ranked = [one for _, _, one in sorted(good, key=lambda entry: entry[:2], reverse=True)][:MOST_MEMBERS]
    sets: list[tuple[Trial, ...]] = [(one,) for one in trials if one in ranked[:MOST_ALONE]]
    for count in range(2, len(ranked) + 1):
        chosen = {one.name for one in ranked[:count]}
        sets.append(tuple(one for one in trials if one.name in chosen))
    return sets


def cross_fitted(members: Sequence[Trial], rule: Combine, judge: Judge) -> TriedEnsemble:
    """An ensemble whose predictions for each half of the documents are learned on the other half."""
    held = _held(members, judge)
    first, second = judge.halves()
    ids = np.empty((len(judge.valid), judge.k), np.int32)
    scores = np.empty((len(judge.valid), judge.k), np.float32)
    for rows, others in ((first, second), (second, first)):
        combination = _learned(_some(held, others), rule, judge.metric)
        top = combination.best(_some(held, rows).candidates, judge.k)
        ids[rows], scores[rows] = top.ids, top.scores
    return TriedEnsemble(ensemble_name(members, rule), rule, tuple(members), TopK(ids, scores))


def ensemble_name(members: Sequence[Trial], rule: str) -> str:
    """A name from those of the members."""
    if len(members) == 1:
        return f"{members[0].name}, ranked again"
    how = "" if rule == LOGISTIC else f" ({rule.replace('_', ' ')})"
    return " + ".join(one.name for one in members) + how


def _settings(rule: Combine, metric: Metric) -> dict[str, Any]:
    if rule == LOGISTIC:
        return {"combine": rule, "candidates": CANDIDATES}
    return {"combine": rule, "weights": "learn", "metric": _learned_metric(metric).name, "candidates": CANDIDATES}


def _learned_metric(metric: Metric) -> Metric:
    """What weights are learned for: the metric itself if they can be."""
    fits = metric.kind in ("P", "RP", "nDCG") and (metric.k or 0) <= 100
    return metric if fits else parse_metric("nDCG@5")


def _held(members: Sequence[Trial], judge: Judge) -> Held:
    candidates = side_by_side([one.top for one in members])
    labels = judge.valid.labels
    return Held(candidates, are_right(candidates.labels, labels), np.diff(labels.indptr), judge.label_counts)


def _some(held: Held, rows: np.ndarray) -> Held:
    every = held.candidates
    some = Candidates(every.labels[rows], every.scores[rows], every.ranks[rows])
    return Held(some, held.right[rows], held.n_true[rows], held.label_counts)


def _learned(held: Held, rule: Combine, metric: Metric) -> Combination:
    start = Combination(rule, normalized([1.0] * held.members), fitted_calibrations(held, [None] * held.members))
    with _fewer_lines():
        return learned(held, start, _learned_metric(metric))


@contextmanager
def _fewer_lines() -> Iterator[None]:
    """Without a line of the log per combination: many are tried."""
    level = log.level
    log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(level)
