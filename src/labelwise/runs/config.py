"""The config of a run: which data, which method with which parameters, how to judge it, where to put it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from labelwise.config import Config, ConfigSource, to_yaml, validated
from labelwise.data.options import ReadOptions
from labelwise.errors import ConfigError
from labelwise.methods.base import Method
from labelwise.metrics.groups import check_boundaries
from labelwise.metrics.names import parse_metrics
from labelwise.metrics.propensity import propensity_constants
from labelwise.metrics.thresholded import check_threshold
from labelwise.registry import method_class, method_names
from labelwise.result_fields import Decides, Scope, fields_beside, without
from labelwise.run_schema import CONFIG, is_run_folder

Fraction = Annotated[float, Field(gt=0, lt=1)]


class DataSection(Config):
    """Which data. Either `path`, or `train` with the other parts."""

    path: str | None = None
    """A folder with its parts (train, valid, test), or the name of a known data set."""
    train: str | None = None
    """File or folder with the training documents."""
    valid: str | None = None
    """Held-out documents for methods that stop early."""
    test: str | None = None
    """Documents to judge the model on."""
    format: str = "auto"
    """Format of the files; `labelwise data convert --help` lists them."""
    test_fraction: Fraction | None = None
    """Without a test part: hold out this share of the training documents as the test set."""
    valid_fraction: Fraction | None = None
    """Without a valid part: hold out this share of the training documents for validation."""
    split_seed: Annotated[int, Field(ge=0)] = 0
    """Seed of these random splits."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Use only the first so many training documents."""
    mapped: Annotated[bool, Decides.NOTHING] = False
    """Put the rows into files of the run's folder while they are read, and map them from there: for sparse files larger
    than memory. The files are gone when the run ends."""
    options: ReadOptions = ReadOptions()
    """How to read the files, where they do not tell."""

    @model_validator(mode="after")
    def _one_source(self) -> DataSection:
        if (self.path is None) == (self.train is None):
            raise ValueError("give either `path` (a folder with its parts) or `train` (a file)")
        if self.path is not None and (self.valid is not None or self.test is not None):
            raise ValueError("`valid` and `test` go with `train`; with `path` they are found in the folder")
        return self


class EvaluateSection(Config):
    """How to judge the model."""

    metrics: list[str] | None = None
    """Names like P@1, nDCG@5, PSP@3. Not given: the usual ones."""
    propensity: str | tuple[float, float] | None = None
    """For PSP: [A, B] or the name of a known data set. Not given: 0.55 and 1.5."""
    threshold: float | None = None
    """For F1 without @k: a label counts as predicted when its score is not below this."""
    groups: tuple[int, ...] = (10, 100)
    """Training documents at which a label passes from tail to torso and from torso to head."""
    bootstrap: Annotated[int, Field(ge=0, le=100_000)] = 200
    """Resamples for the intervals; 0 leaves them out."""
    examples: Annotated[int, Field(ge=0)] = 20
    """Test documents shown in the report."""
    k: Annotated[int, Field(ge=1, le=100_000)] = 10
    """Labels predicted a document."""

    @field_validator("metrics", mode="before")
    @classmethod
    def _one_metric(cls, given: Any) -> Any:
        return [given] if isinstance(given, str) else given

    @model_validator(mode="after")
    def _can_be_computed(self) -> EvaluateSection:
        """Find out before training that the scores wanted at its end cannot be had."""
        try:
            metrics = parse_metrics(self.metrics) if self.metrics is not None else []
            deepest = max((metric.k or 0 for metric in metrics), default=0)
            if deepest > self.k:
                raise ValueError(f"@{deepest} needs {deepest} predicted labels a document; set evaluate.k to that")
            check_threshold(self.threshold, [])  # whether it may be missing depends on the calibration
            propensity_constants(self.propensity)
            check_boundaries(self.groups)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    def check_threshold(self, calibrated: bool) -> None:
        """Refuse metrics that need a threshold when there is none, neither given nor from a calibration."""
        if self.threshold is None and not calibrated and self.metrics is not None:
            needing = [metric.name for metric in parse_metrics(self.metrics) if metric.needs_threshold]
            if needing:
                raise ConfigError(
                    f"{needing[0]} needs a threshold, the score from which on a label is predicted: set "
                    "evaluate.threshold, or calibrate the model, which chooses one"
                )


class CalibrateSection(Config):
    """Turn scores into probabilities, and choose the threshold from which on labels are given out."""

    enabled: bool | Literal["auto"] = "auto"
    """auto: when there are held-out documents to learn it from, a valid part or a `fraction`."""
    fraction: Fraction | None = None
    """Hold out this share of the training documents for it. Not given: the valid part is used."""
    precision: Annotated[float, Field(gt=0, le=1)] | None = None
    """Choose the threshold so that this share of the labels above it is right. Not given: for the best micro-F1."""
    k: Annotated[int, Field(ge=1, le=100_000)] = 20
    """Predicted labels a document to learn from."""


class InspectSection(Config):
    """Look into the trained model for the report: documents as points in a plane, and attention by layer.

    Only for methods that have vectors or attention; costs one pass over `vectors` documents of the valid part (else of
    the test part, else of the training part).
    """

    enabled: bool = True
    """Write inspection.json."""
    documents: Annotated[int, Field(ge=0, le=20)] | list[Annotated[int, Field(ge=0)]] = 2
    """Documents whose attention is shown: how many, or which ones by their place, the first is 0."""
    tokens: Annotated[int, Field(ge=4, le=64)] = 32
    """Tokens of each that are shown at most."""
    vectors: Annotated[int, Field(ge=0, le=5000)] = 200
    """Documents that are shown as points."""


class RunSection(Config):
    """Where the run goes and what it may use."""

    folder: str | None = None
    """Folder of the run. Not given: `runs/` and the config file's name."""
    threads: Annotated[int, Field(ge=1)] | None = None
    """Threads. Not given: all cores."""
    report: bool = True
    """Write report.html (needs the extra `report`)."""

    @field_validator("folder")
    @classmethod
    def _can_be_a_path(cls, folder: str | None) -> str | None:
        if folder is not None and (not folder or "\0" in folder):
            raise ValueError("a folder's name is needed: not empty, and without the character NUL")
        return folder


class RunConfig(Config):
    """A whole run."""

    data: DataSection
    model: dict[str, Any]
    """`method` and the parameters of that method."""
    calibrate: CalibrateSection = CalibrateSection()
    evaluate: EvaluateSection = EvaluateSection()
    inspect: Annotated[InspectSection, Decides.NOTHING] = InspectSection()
    run: Annotated[RunSection, Decides.NOTHING] = RunSection()

    @field_validator("model")
    @classmethod
    def _has_method(cls, model: dict[str, Any]) -> dict[str, Any]:
        if "method" not in model:
            given = ", ".join(map(str, model)) or "nothing"
            raise ValueError(f"`method` is missing (found: {given}); it names one of {', '.join(method_names())}")
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
        values["model"] = {"method": self.model["method"], **self.make_method().config.model_dump(mode="json")}
        return values

    def to_yaml(self) -> str:
        """The resolved config as YAML."""
        return to_yaml(self.resolved())


def run_config(source: ConfigSource) -> RunConfig:
    """A checked run config; faults name file, line and key, those inside the method's parameters too."""
    config = validated(RunConfig, source.values, source)
    try:
        kind = method_class(config.model["method"])
    except ConfigError as error:
        raise ConfigError(f"{source.where(('model', 'method'))}: model.method: {error}") from None
    params = {key: value for key, value in config.model.items() if key != "method"}
    validated(kind.Config, params, source, ("model",))
    return config.model_copy(update={"run": config.run.model_copy(update={"folder": _folder(config, source)})})


def _folder(config: RunConfig, source: ConfigSource) -> str:
    """Where the run goes. A run folder's own config.yml means the folder it lies in, wherever that was before."""
    path = Path(source.name)
    if ("run", "folder") not in source.overridden and path.name == CONFIG and is_run_folder(path.parent):
        return str(path.parent)
    return config.run.folder or str(Path("runs") / (path.stem or "run"))


def deciding_values(run: Mapping[str, Any], scope: Scope) -> dict[str, Any]:
    """What of a run's config, given as plain values, decides the result in this scope."""
    fields, model = fields_beside(RunConfig, scope), run.get("model")
    if isinstance(model, Mapping):
        with suppress(ConfigError):  # a method that is not known here is compared as a whole
            fields["model"] = fields_beside(method_class(str(model.get("method"))).Config, scope)
    return without(run, fields)


def json_schema() -> dict[str, Any]:
    """JSON schema of run configs, with the parameters of every method, for editors that complete YAML."""
    schema = RunConfig.model_json_schema()
    definitions = schema.setdefault("$defs", {})
    choices: list[Mapping[str, Any]] = []
    for name in method_names():
        parameters = method_class(name).Config.model_json_schema(ref_template="#/$defs/{model}")
        definitions.update(parameters.pop("$defs", {}))
        parameters["properties"] = {"method": {"const": name}, **parameters.get("properties", {})}
        parameters["required"] = ["method", *parameters.get("required", [])]
        parameters["title"] = name
        choices.append(parameters)
    schema["properties"]["model"] = {"anyOf": choices, "title": "Model"}
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return schema
