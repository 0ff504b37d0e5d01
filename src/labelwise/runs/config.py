"""The config of a run: which data, which method with which parameters, how to evaluate it, where to write it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from labelwise.config import (
    Config,
    ConfigSource,
    Decides,
    Scope,
    ignored_fields,
    to_yaml,
    validated,
    without_fields,
)
from labelwise.data.options import ReadOptions
from labelwise.errors import ConfigError
from labelwise.io.folder import CONFIG, MOVING, REPLACEMENT, is_run_folder
from labelwise.metrics.evaluate import check_threshold
from labelwise.metrics.formulas import check_boundaries, propensity_constants
from labelwise.metrics.names import parse_metrics
from labelwise.model.estimator import PRESET, with_preset
from labelwise.model.inputs import TrainingDocuments
from labelwise.model.method import Method
from labelwise.model.predictions import DEFAULT_K, k_from_data
from labelwise.registry import METHODS, method_class, method_names
from labelwise.runs.vectors import vectors_file
from labelwise.runtime.device import checked_device

Fraction = Annotated[float, Field(gt=0, lt=1)]


def _check_paths(given: Any) -> Any:
    """Refuse anything but a path or a list of paths, in one message for both."""
    if isinstance(given, list) and given and all(isinstance(path, str) for path in given):
        return given
    if not isinstance(given, str):
        raise PydanticCustomError("string_type", "a path or a list of paths is needed")
    return given


Paths = Annotated[str | list[str], BeforeValidator(_check_paths)]


class DataSection(Config):
    """Which data. Either `path`, or `train` with the other parts."""

    path: str | None = None
    """A folder with its parts (train, valid, test), a file, or the name of a known data set."""
    train: Paths | None = None
    """File or folder with the training documents; a list of them, or a pattern (`parts/*.csv`), is read as one."""
    valid: Paths | None = None
    """Held-out documents for methods that stop early, given in the same way."""
    test: Paths | None = None
    """Documents to evaluate the model on, given in the same way."""
    features: list[str] | None = None
    """`[tfidf, vectors-{split}.npy]`: vectors next to TF-IDF of the texts, for linear methods; a row per document, and
    a file per part, whose name (train, valid, test) stands for {split}. `model.vector_scale` weights them."""
    format: str = "auto"
    """Format of the files; `labelwise data convert --help` lists them."""
    test_fraction: Fraction | None = None
    """Without a test part: hold out this fraction of the training documents as the test set."""
    valid_fraction: Fraction | None = None
    """Without a valid part: hold out this fraction of the training documents for validation."""
    split_seed: Annotated[int, Field(ge=0)] = 0
    """Seed of these splits and of `calibrate.fraction`."""
    split_by: Literal["random", "hash"] = "random"
    """How these splits choose documents. `hash`: the content of a document decides, so that it is in the same part when
    the data grows, and duplicates are in one part."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Use only this many training documents, the first ones."""
    mapped: Annotated[bool, Decides.NOTHING] = False
    """Write texts and sparse features to files in the run's folder while reading, and memory-map them: for data larger
    than memory. The files are removed when the run ends."""
    options: ReadOptions = ReadOptions()
    """How to read the files, where they do not specify it."""

    @model_validator(mode="after")
    def _one_file_of_vectors(self) -> DataSection:
        if self.features is not None:
            if self.mapped:
                raise ValueError("`features` and `mapped` cannot be combined")
            try:
                vectors_file(self.features)
            except ConfigError as error:
                raise ValueError(f"`features`: {error}") from None
        return self

    @model_validator(mode="after")
    def _one_source(self) -> DataSection:
        if (self.path is None) == (self.train is None):
            raise ValueError("give either `path` (a folder with its parts) or `train` (a file)")
        if self.path is not None and (self.valid is not None or self.test is not None):
            raise ValueError("`valid` and `test` are used with `train`; with `path` they are read from the folder")
        return self

    @property
    def training_path(self) -> str:
        """The path, or name, of the training documents; the first of several."""
        return str(self.train[0] if isinstance(self.train, list) else self.train or self.path)


class EvaluateSection(Config):
    """How to evaluate the model."""

    metrics: list[str] | None = None
    """Names like P@1, nDCG@5, PSP@3. Not given: the default ones."""
    propensity: str | tuple[float, float] | None = None
    """For PSP: [A, B] or the name of a known data set. Not given: 0.55 and 1.5."""
    threshold: float | None = None
    """For F1 without @k: a label counts as predicted when its score is not below this."""
    groups: tuple[int, ...] = (10, 100)
    """Numbers of training documents at which the groups torso and head begin (below the first: tail)."""
    bootstrap: Annotated[int, Field(ge=0, le=100_000)] = 200
    """Bootstrap resamples for the confidence intervals; 0 disables them."""
    examples: Annotated[int, Field(ge=0)] = 60
    """Test documents shown in the report."""
    k: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Labels predicted per document. Not given: at least 10, as many as the metrics need and as 99 % of the training
    documents have (at most 100); F1 without @k then counts all labels that reach the threshold. If given, it cuts
    these too."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Evaluate on a random sample of this many test documents, always the same ones."""

    @field_validator("metrics", mode="before")
    @classmethod
    def _one_metric(cls, given: Any) -> Any:
        return [given] if isinstance(given, str) else given

    @model_validator(mode="after")
    def _can_be_computed(self) -> EvaluateSection:
        """Check before training that the requested metrics can be computed after it."""
        try:
            deepest = self._deepest()
            if self.k is not None and deepest > self.k:
                raise ValueError(f"@{deepest} needs {deepest} predicted labels per document; set evaluate.k to that")
            check_threshold(self.threshold, [])  # whether it may be missing depends on the calibration
            propensity_constants(self.propensity)
            check_boundaries(self.groups)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    def _deepest(self) -> int:
        metrics = parse_metrics(self.metrics) if self.metrics is not None else []
        return max((metric.k or 0 for metric in metrics), default=0)

    def ranks(self, trained_on: TrainingDocuments | None) -> int:
        """Labels to rank per document: as given, or as the training data and the metrics need."""
        return self.k if self.k is not None else k_from_data(max(DEFAULT_K, self._deepest()), trained_on)

    def check_threshold(self, calibrated: bool) -> None:
        """Refuse metrics that need a threshold when there is none, neither given nor from a calibration."""
        if self.threshold is None and not calibrated and self.metrics is not None:
            affected = [metric.name for metric in parse_metrics(self.metrics) if metric.needs_threshold]
            if affected:
                raise ConfigError(
                    f"{affected[0]} needs a threshold, the lowest score of a predicted label: set "
                    "evaluate.threshold, or calibrate the model, which chooses one"
                )


class CalibrateSection(Config):
    """Turn scores into probabilities, and choose the threshold above which labels are predicted."""

    enabled: bool | Literal["auto"] = "auto"
    """auto: if there are held-out documents to fit it on, a valid part or a `fraction`."""
    fraction: Fraction | None = None
    """Hold out this fraction of the training documents for it. Not given: the valid part is used."""
    precision: Annotated[float, Field(gt=0, le=1)] | None = None
    """Choose the threshold for this precision. Not given: for the best micro-F1."""
    k: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Predicted labels per document that the calibration is fitted on. Not given: at least 20 and as many as 99 % of
    the training documents have (at most 100), and all that reach the threshold."""


class InspectSection(Config):
    """Inspect the trained model for the report: documents as points in a plane, and attention per layer.

    Only for methods with document vectors or attention; costs one pass over `vectors` documents of the valid part (else
    the test part, else the training part).
    """

    enabled: bool = True
    """Write inspection.json."""
    documents: Annotated[int, Field(ge=0, le=20)] | list[Annotated[int, Field(ge=0)]] = 2
    """Documents whose attention is shown: a number, or a list of indices, the first is 0."""
    tokens: Annotated[int, Field(ge=4, le=64)] = 32
    """Maximum number of tokens shown per document."""
    vectors: Annotated[int, Field(ge=0, le=5000)] = 200
    """Number of documents shown as points."""


class RunSection(Config):
    """Where the run is written and what it may use."""

    folder: Annotated[str | None, Decides.NOTHING] = None
    """Folder of the run. Not given: `runs/` and the config file's name."""
    threads: Annotated[Annotated[int, Field(ge=1)] | None, Decides.NOTHING] = None
    """Threads. Not given: all cores."""
    device: Annotated[str | None, Decides.NOTHING] = None
    """Where networks compute: auto (a GPU if there is one), cpu, cuda, or cuda:1. Not given: LABELWISE_DEVICE, else
    auto. Linear methods compute on the CPU."""
    refit: Annotated[bool, Decides.NOTHING] = False
    """After the scores are known, train the saved model on all documents, also the held-out ones."""
    report: Annotated[bool, Decides.NOTHING] = True
    """Write report.html (needs the extra `report`)."""
    time_budget: Annotated[Annotated[float, Field(gt=0)] | None, Decides.END] = None
    """Wall-clock seconds for the whole run, including time before an interruption. Training gets about four fifths;
    calibration and evaluation use as many documents as there is time for, drawn at random. Not given: no limit."""

    @field_validator("device")
    @classmethod
    def _is_a_device(cls, device: str | None) -> str | None:
        try:
            return None if device is None else checked_device(device)
        except ConfigError as error:
            raise ValueError(str(error)) from None

    @field_validator("folder")
    @classmethod
    def _can_be_a_path(cls, folder: str | None) -> str | None:
        if folder is not None and (not folder or "\0" in folder):
            raise ValueError("a folder name is needed, not empty and without the character NUL")
        return folder


class RunConfig(Config):
    """Config of a run."""

    data: DataSection
    model: dict[str, Any]
    """`method` and the parameters of that method; `preset` names a set of them to start from."""
    calibrate: CalibrateSection = CalibrateSection()
    evaluate: EvaluateSection = EvaluateSection()
    inspect: Annotated[InspectSection, Decides.NOTHING] = InspectSection()
    run: RunSection = RunSection()

    @field_validator("model")
    @classmethod
    def _has_method(cls, model: dict[str, Any]) -> dict[str, Any]:
        if "method" not in model:
            given = ", ".join(map(str, model)) or "nothing"
            raise ValueError(f"`method` is missing (given: {given}); accepted: {', '.join(method_names())}")
        if not isinstance(model["method"], str):
            raise ValueError(f"`method` must be one of {', '.join(method_names())}, got {model['method']!r}")
        return model

    @model_validator(mode="after")
    def _has_threshold(self) -> RunConfig:
        try:
            self.evaluate.check_threshold(calibrated=self.calibrate.enabled is not False)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    def make_method(self) -> Method:
        """A fresh, unfitted method."""
        params = {key: value for key, value in self.model.items() if key != "method"}
        return method_class(self.model["method"])(**params)

    def resolved(self) -> dict[str, Any]:
        """All values, defaults included, as plain data."""
        values = self.model_dump(mode="json")
        values["model"] = {"method": self.model["method"], **self.make_method().config.resolved()}
        return values

    def to_yaml(self) -> str:
        """The resolved config as YAML."""
        return to_yaml(self.resolved())


def run_config(source: ConfigSource) -> RunConfig:
    """A validated run config; errors name file, line and key, also inside the method's parameters."""
    config = validated(RunConfig, source.values, source)
    try:
        method = method_class(config.model["method"])
    except ConfigError as error:
        raise ConfigError(f"{source.where(('model', 'method'))}: model.method: {error}") from None
    given = {key: value for key, value in config.model.items() if key != "method"}
    try:
        params = with_preset(method, given)
    except ConfigError as error:
        raise ConfigError(f"{source.where(('model', PRESET))}: model.{error}") from None
    _refuse_keys_of_another(method, params, source)
    vectors = config.data.features is not None
    if vectors and "vector_scale" in method.Config.model_fields:
        params = {"vector_scale": 1.0} | params
    model = validated(method.Config, method.Config.filled_in(params), source, ("model",), method.name)
    if vectors and not getattr(model, "reads_vectors", False):
        raise ConfigError(
            f"{source.where(('data', 'features'))}: data.features: {method.name} cannot read vectors next to "
            "TF-IDF; linear_tree and linear_flat can"
        )
    run = config.run.model_copy(update={"folder": _folder(config, source)})
    return config.model_copy(update={"model": {"method": config.model["method"], **params}, "run": run})


def _refuse_keys_of_another(method: type[Method], params: Mapping[str, Any], source: ConfigSource) -> None:
    """Refuse parameters of another method in one message: the method was changed, and they were left."""
    unknown = [key for key in params if key not in method.Config.model_fields]
    if len(unknown) < (1 if ("model", "method") in source.overridden else 2):
        return
    fields = {name: method_class(name).Config.model_fields for name in METHODS}
    others = sorted((len(own), name) for name, own in fields.items() if set(unknown) <= own.keys())
    if others:  # methods that extend another have its parameters and more
        fewest = [name for count, name in others if count == others[0][0]]
        whose = f"parameters of {fewest[0]}" if len(fewest) == 1 else "parameters of other methods"
        raise ConfigError(
            f"{source.where(('model', 'method'))}: model: {method.name} does not have {', '.join(unknown)}, {whose}; "
            f"remove them. `labelwise models {method.name}` lists what it has"
        )


def _folder(config: RunConfig, source: ConfigSource) -> str:
    """The folder of the run. For the config.yml of a run folder it is that folder, even if it was moved.

    The config.yml of a run that is to replace another one names the folder of both.
    """
    path = Path(source.name)
    if ("run", "folder") not in source.overridden and path.name == CONFIG and is_run_folder(path.parent):
        whole = path.parent.resolve()
        replaces = whole.name in (REPLACEMENT, MOVING) and is_run_folder(whole.parent)
        return str(whole.parent if replaces else path.parent)
    return config.run.folder or str(Path("runs") / (path.stem or "run"))


def deciding_values(run: Mapping[str, Any], scope: Scope) -> dict[str, Any]:
    """The values of a run's config, given as plain data, that decide the result in this scope."""
    fields, model = ignored_fields(RunConfig, scope), run.get("model")
    if isinstance(model, Mapping):
        with suppress(ConfigError):  # the parameters of an unknown method are all compared
            fields["model"] = ignored_fields(method_class(str(model.get("method"))).Config, scope)
    return without_fields(run, fields)


def json_schema() -> dict[str, Any]:
    """JSON schema of run configs, with the parameters of every method, for editors that complete YAML."""
    schema = RunConfig.model_json_schema()
    definitions = schema.setdefault("$defs", {})
    choices: list[Mapping[str, Any]] = []
    for name in method_names():
        parameters = method_class(name).Config.model_json_schema(ref_template="#/$defs/{model}")
        definitions.update(parameters.pop("$defs", {}))
        presets = method_class(name).presets
        preset = {PRESET: {"enum": [*presets], "description": "Parameters to start from."}} if presets else {}
        parameters["properties"] = {"method": {"const": name}, **preset, **parameters.get("properties", {})}
        parameters["required"] = ["method", *parameters.get("required", [])]
        parameters["title"] = name
        choices.append(parameters)
    schema["properties"]["model"] = {"anyOf": choices, "title": "Model"}
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return schema
