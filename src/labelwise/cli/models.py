"""labelwise learn MODEL DATA"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labelwise.cli.options import ForceOption, ReadSetOption, VectorsOption
from labelwise.cli.terminal import echo, echo_json
from labelwise.formatting import duration, number, percent, size

if TYPE_CHECKING:
    from pydantic import BaseModel

    from labelwise.commands.small import Size
    from labelwise.config import ConfigSource
    from labelwise.data.dataset import Dataset


def learn_command(
    model: Annotated[str, typer.Argument(help="Model folder or run folder.")],
    data: Annotated[str, typer.Argument(help="More labelled documents; their labels may be new.")],
    old: Annotated[
        str | None, typer.Option("--with", metavar="OLD", help="Documents that the model was trained on; see below.")
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="Write a new model folder. Not given: replace the model.")
    ] = None,
    split: Annotated[str, typer.Option(help="Part to use when DATA or OLD is a folder.")] = "train",
    format: Annotated[str, typer.Option(help="Format of the data.")] = "auto",
    overrides: ReadSetOption = None,
    force: ForceOption = False,
) -> None:
    """Train a model on more documents, in a fraction of the time of training it again.

    For linear_tree and linear_flat. The model is replaced at the end: a stopped command leaves it as it was. With
    --with OLD, documents in both are skipped unless their labels have changed, and new labels are learned as well as in
    a full training. The command says when a full training is due.
    """
    from labelwise.cli.train import refuse_existing
    from labelwise.commands.predict import read_options
    from labelwise.config import ConfigSource
    from labelwise.io.folder import model_folder
    from labelwise.model.fitted import require
    from labelwise.model.method import load
    from labelwise.runs.data import read_part

    target = model_folder(model) if output is None else refuse_existing(output, force)
    fitted = load(model)
    require(fitted, "learned")
    source = ConfigSource({}, "learn").override(overrides or [])
    new, known = (
        None if path is None else read_part(path, format, split, read_options(model, path, source.values, source))
        for path in (data, old)
    )
    report = fitted.learn(new, old=known)
    if report.n_documents or output is not None:
        fitted.save(target, force=True)
    echo(str(report))
    if report.n_documents and output is None and target != Path(model):
        echo("the scores of the run are those of the model before; labelwise evaluate measures it again")
    echo(f"model: {target}" if report.n_documents or output is not None else f"{target} is unchanged")


# --- calibrate ---
# labelwise calibrate MODEL DATA

log = logging.getLogger("labelwise")
BIASED_SPLITS = {
    "train": "if the model was trained on these documents, probabilities and threshold will be far too high",
    "test": "if the model is evaluated on these documents, its metrics at the threshold will be too optimistic",
}


def calibrate_command(
    model: Annotated[str, typer.Argument(help="Model folder or run folder.")],
    data: Annotated[str, typer.Argument(help="Labelled documents used neither for training nor for evaluation.")],
    split: Annotated[str, typer.Option(help="Part to use when DATA is a folder.")] = "valid",
    precision: Annotated[
        float | None, typer.Option(help="Precision to reach at the threshold. Not given: the best micro-F1.")
    ] = None,
    k: Annotated[
        int | None,
        typer.Option("-k", "--k", help="Predicted labels per document to fit on. Not given: as many as needed."),
    ] = None,
    format: Annotated[str, typer.Option(help="Format of the data.")] = "auto",
    features: VectorsOption = None,
    overrides: ReadSetOption = None,
    force: ForceOption = False,
) -> None:
    """Turn a model's scores into probabilities and choose a threshold.

    The ranking of labels does not change. The calibration is saved in the model folder: predict then returns
    probabilities, and predict --threshold auto only labels above the threshold.
    """
    from labelwise.cli.output import show_calibration
    from labelwise.commands.predict import read_options
    from labelwise.config import ConfigSource
    from labelwise.errors import DataError
    from labelwise.io.folder import model_folder
    from labelwise.model.method import load
    from labelwise.runs.data import known_name, read_part
    from labelwise.runs.folder import RunFolder
    from labelwise.runs.train import write_calibration
    from labelwise.runs.vectors import check_reads_vectors, with_vectors

    source = ConfigSource({}, "calibrate").override(overrides or [])
    options = read_options(model, data, source.values, source)
    if not Path(data).exists():
        known_name(data, "data")
    fitted = load(model)
    if fitted.calibration_ is not None and not force:
        raise DataError(f"{model_folder(model)} is calibrated already; --force calibrates it again")
    if split in BIASED_SPLITS:
        log.warning("--split %s: %s", split, BIASED_SPLITS[split])
    documents = read_part(data, format, split, options)
    if features is not None:
        check_reads_vectors(fitted)
        documents = with_vectors(documents, features)
    report = fitted.calibrate(documents, k=k, precision=precision)
    fitted.save_calibration(model_folder(model))
    if model_folder(model) != Path(model):
        write_calibration(RunFolder(model), report)
    show_calibration(model, report.to_dict())


# --- shrink ---
# labelwise shrink MODEL --precision int8


def shrink_command(
    model: Annotated[str, typer.Argument(help="Model folder or run folder.")],
    precision: Annotated[str | None, typer.Option(help="Store the weights as float16 or int8.")] = None,
    threshold: Annotated[float | None, typer.Option(help="Drop weights with an absolute value below this.")] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="Folder of the smaller model. Not given: MODEL-small.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Labelled documents to compare both models on. Not given: those of the run.")
    ] = None,
    split: Annotated[str, typer.Option(help="Part to use when DATA is a folder.")] = "test",
    format: Annotated[str, typer.Option(help="Format of the data.")] = "auto",
    overrides: ReadSetOption = None,
    force: ForceOption = False,
) -> None:
    """Make a trained model smaller, without training.

    Prints sizes before and after. With --data, or if MODEL is a run whose data is still there, also metrics and
    documents per second of both. MODEL itself stays as it is, unless it is named with -o and --force.
    """
    from labelwise.cli.output import print_table, show_remarks
    from labelwise.commands.predict import section_of_run
    from labelwise.commands.small import shrink_model
    from labelwise.config import ConfigSource, validated
    from labelwise.errors import ConfigError
    from labelwise.io.folder import model_folder
    from labelwise.model.method import load
    from labelwise.runs.config import EvaluateSection

    source = ConfigSource({}, "shrink").override(overrides or [])
    if precision is None and threshold is None:
        raise ConfigError("give --threshold 0.2, --precision int8 (or float16) for weights of more bits, or both")
    target = Path(output) if output is not None else _beside(model)
    if target.exists() and not force:
        raise ConfigError(f"{target} exists already; --force replaces it, -o names another folder")
    section = validated(EvaluateSection, section_of_run(model, "evaluate"), source)
    documents = _documents(model, data, split, format, source)
    before, after = shrink_model(model, target, precision, threshold, documents, section, force)
    on = "" if documents is None else f", on {len(documents):,} documents of {documents.name}"
    print_table(f"{model_folder(model)} and {target}{on}", ["", "before", "after"], _rows(before, after))
    show_remarks(after.remarks)
    echo(f"model: {target}")
    if load(target, verify=False).calibration_ is not None:
        echo(
            "the calibration was kept, although scores differ slightly; "
            f"labelwise calibrate {target} DATA --force fits it again"
        )


def _beside(model: str) -> Path:
    path = Path(model).resolve() if Path(model).name in ("", ".", "..") else Path(model)
    return path.with_name(f"{path.name}-small")


def _documents(model: str, data: str | None, split: str, format: str, source: ConfigSource) -> Dataset | None:
    from labelwise.commands.predict import read_options
    from labelwise.commands.small import data_of_run
    from labelwise.errors import LabelwiseError
    from labelwise.runs.data import read_part

    if data is not None:
        return read_part(data, format, split, read_options(model, data, source.values, source))
    try:
        documents = data_of_run(model)
    except LabelwiseError as error:
        log.warning("only sizes are compared, because the data of the run cannot be read: %s", error)
        return None
    if documents is None:
        log.info("only sizes are compared; --data gives documents to compare both models on")
    return documents


def _rows(before: Size, after: Size) -> list[list[str]]:
    from labelwise.formatting import number, percent, size

    smaller = f"{size(after.bytes)} ({after.bytes / before.bytes:.0%})"
    rows = [["size", size(before.bytes), smaller]]
    rows += [[f"{name}, %", percent(value), percent(after.values.get(name))] for name, value in before.values.items()]
    if before.documents_per_second is not None:
        rates = (before.documents_per_second, after.documents_per_second)
        rows.append(["documents per second", *(number(rate, 0) for rate in rates)])
    return rows


# --- import model ---
# labelwise import SOURCE -o MODEL


def import_command(
    source: Annotated[str, typer.Argument(help="Model folder of PECOS (XR-Linear, text2text) or omikuji.")],
    output: Annotated[str, typer.Option("--output", "-o", metavar="MODEL", help="Folder of the imported model.")],
    labels: Annotated[
        str | None, typer.Option(metavar="FILE", help="Label names, one per line in the order of label numbers.")
    ] = None,
    tfidf: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="A labelwise model whose TF-IDF the features are; the result then reads texts."
        ),
    ] = None,
    force: ForceOption = False,
) -> None:
    """Import a model that PECOS or omikuji has trained, to predict with it here.

    The result is a linear_tree (or linear_flat) model that ranks labels as SOURCE does. It reads features with the
    columns that SOURCE was trained on or, with --tfidf, texts. Nothing in SOURCE is executed.
    """
    from labelwise.commands.predict import read_label_names
    from labelwise.errors import ConfigError
    from labelwise.interop.models import import_model, read_foreign_model, tfidf_of

    if Path(output).exists() and not force:
        raise ConfigError(f"{output} exists already; --force replaces it, -o names another folder")
    names = None if labels is None else read_label_names(labels)
    foreign = read_foreign_model(source)
    model = import_model(foreign, names, None if tfidf is None else tfidf_of(tfidf))
    model.save(output, force)
    for note in foreign.notes:
        log.info("%s", note)
    sizes = "; ".join(" > ".join(f"{size:,}" for size in tree.sizes) for tree, _ in model.trees_)
    reads = "texts" if tfidf is not None else f"{foreign.n_features:,} features"
    echo(f"{foreign.origin}: {len(model.label_names_):,} labels, {reads}, {len(model.trees_)} trees ({sizes})")
    echo(f"model: {output}")


# --- info ---
# labelwise info MODEL

WIDTH, INDENT = 100, 14
SHOWN = 12
"""Most parameters and groups of arrays that are listed."""


def info_command(
    folder: Annotated[str, typer.Argument(metavar="MODEL", help="Model folder or run folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print all of it as JSON.")] = False,
) -> None:
    """Show what a model is, what it was trained on, how good it is, and how to use it.

    Works for unfinished runs too. Nothing but the folder itself is needed: no data, and no package of the method. All
    files of the model are compared with their checksums; if one is damaged, it is named, and the exit code is 2.
    """
    from labelwise.commands.describe import describe, find_damages

    about = describe(folder)
    damages = find_damages(folder) if "model" in about else []
    if as_json:
        echo_json({**about, "damages": damages})
    else:
        _print_rows(about)
    for damage in damages:
        echo(f"labelwise: {damage}", err=True)
    if damages:
        raise typer.Exit(2)


def _print_rows(about: Mapping[str, Any]) -> None:
    rows = [
        *(_search_rows(about) if "search" in about else ()),
        *(_run_rows(about) if "run" in about else ()),
        *(_model_rows(about) if "model" in about else ()),
    ]
    for name, value in rows:
        _print_row(name, value)


def _print_row(name: str, value: str) -> None:
    from textwrap import wrap

    whole = {"break_long_words": False, "break_on_hyphens": False}  # paths in commands stay in one piece
    lines = [part for line in value.splitlines() for part in wrap(line, WIDTH - INDENT, **whole)]
    for position, line in enumerate(lines or [""]):
        echo(f"{name if position == 0 else '':<{INDENT}}{line}".rstrip())


def _search_rows(about: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """A search of `labelwise auto` that has chosen no model yet."""
    search = about["search"]
    yield "search", str(about["folder"])
    yield "status", f"{search['status']}: {'a model is chosen' if search['chosen'] else 'no model is chosen yet'}"
    yield "tried", _listed(f"{name} {percent(value)}" for name, value in search["tried"].items()) or "nothing yet"
    if search["budget"] is not None:
        yield "asked for", f"the best {search['metric']} within {duration(search['budget'])}"
    if search["status"] != "running":
        yield "resume", "run the same labelwise auto command again, without --force; what was trained is kept"


def _run_rows(about: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    run, folder = about["run"], about["folder"]
    yield "run", str(folder)
    done = ", ".join(run["done"]) or "nothing is finished yet"
    if run["status"] == "finished":
        yield "status", f"finished {_date(run['finished'])}: {done}"
    elif run["status"] == "clearing":
        yield "status", "stopped while it was replaced (--force)"
        if "replacement" not in about:
            yield "resume", "the train command that was stopped"
    else:
        last = f"; last stage: {run['last_stage']}" if run["last_stage"] else ""
        if run["missing"]:
            last = f"; missing: {', '.join(run['missing'])} (training on all documents)"
        if run["unfinished_bytes"]:
            last += f"; unfinished training in checkpoints: {size(run['unfinished_bytes'])}"
        yield "status", f"{run['status']}, started {_date(run['started'])}: {done}{last}"
        if run["error"]:
            yield "error", run["error"]
        if "replacement" not in about:
            yield "resume", f"labelwise train {folder}/config.yml"
    if "replacement" in about:
        yield from _replacement_rows(about["replacement"])


def _replacement_rows(new: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The run of `--force` that has not replaced this one."""
    from shlex import quote

    config = quote(f"{new['folder']}/config.yml")
    if new["status"] == "finished":
        yield "replacement", "finished, and stopped while it took the place of this run"
        yield "resume", f"labelwise train {config} completes that"
        return
    done = ", ".join(new["done"]) or "nothing is finished yet"
    searching = new["status"] == "searching"
    yield "replacement", "a search of labelwise auto" if searching else f"{new['status']}: {done}"
    if new["error"]:
        yield "error", new["error"]
    yield "resume", "the auto command without --force" if searching else f"labelwise train {config}"
    yield "keep this run", f"remove {new['folder']}"


def _model_rows(about: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    model = about["model"]
    card = model["card"]
    plugin = model["plugin"]
    source = f" of the package {plugin['package']} {plugin['version']}" if plugin else ""
    unknown = "" if model["known"] else " (not installed here)"
    yield "method", f"{model['method']}{source}{unknown}"
    if model["parameters"]:
        yield "parameters", _listed(f"{key} {_plain(value)}" for key, value in model["parameters"].items())
    if model["members"]:
        yield "members", "\n".join(_member(number, one) for number, one in enumerate(model["members"]))
    yield "data", _data(model, card)
    yield "created", _date(card.get("created"))
    for change in card.get("changes", []):
        yield "changed", f"{_date(change.get('at'))}: {change['what']}"
    yield "size", _sizes(model)
    if "scores" in card:
        changed = model["changed_since_judged"]
        yield "scores, %", _scores(card["scores"]) + (f"\n{changed}" if changed else "")
    if model["threshold"] is not None:
        yield "threshold", _threshold(model, card.get("calibration", {}))
    if "reading" in card and card["reading"].get("options"):
        reading = card["reading"]
        options = _listed(f"{key}={value}" for key, value in reading["options"].items())
        yield "reads", f"{reading.get('extension') or 'files'} with {options}"
    packages = card.get("packages") or {"labelwise": model["labelwise_version"]}
    yield "versions", _listed(f"{name} {version}" for name, version in packages.items())
    if model["known"]:
        yield "can", ", ".join(["predict", "calibrate", *model["can"]])
        yield "use", "\n".join(_commands(about, model, card))


def _member(place: int, member: Mapping[str, Any]) -> str:
    weight = "" if member["weight"] is None else f", weight {member['weight']:.3g}"
    name = member["card"].get("data", {}).get("name")
    trained = f"; {name}: " if name else "; "
    counts = f"{number(member['documents'])} documents, {number(member['labels'])} labels"
    return f"{place} {member['method']}{weight}{trained}{counts}"


def _data(model: Mapping[str, Any], card: Mapping[str, Any]) -> str:
    data = card.get("data", {})
    name = f"{data['name']}: " if "name" in data else ""
    features = "" if model["features"] is None else f" of {number(model['features'])} columns"
    documents = f"{number(model['documents'])} documents" if model["documents"] else "documents that are not known"
    counts = f"{documents}, {number(model['labels'])} labels"
    known = f" (hash {data['hash']})" if "hash" in data else ""
    return f"{name}{counts}; {model['reads']}{features}{known}"


def _sizes(model: Mapping[str, Any]) -> str:
    from labelwise.model.folder import STATE_FILE

    groups = dict(model["bytes"])
    whole = size(sum(groups.values()))
    groups.pop(STATE_FILE, None)
    parts = {**model["state_bytes"], **groups}
    large = sorted(((count, name) for name, count in parts.items()), reverse=True)
    return f"{whole}: " + _listed(f"{name} {size(count)}" for count, name in large[:6])


def _scores(scores: Mapping[str, Any]) -> str:
    intervals = scores.get("intervals", {})
    cells = []
    for name, value in scores["values"].items():
        low, high = intervals.get(name) or (None, None)
        interval = "" if low is None else f" ({percent(low)} - {percent(high)})"
        cells.append(f"{name} {percent(value)}{interval}")
    width = max(map(len, cells), default=0) + 2
    columns = max(1, (WIDTH - INDENT) // width)
    lines = [cells[begin : begin + columns] for begin in range(0, len(cells), columns)]
    table = "\n".join("".join(cell.ljust(width) for cell in line) for line in lines)
    on = f"on {scores.get('data', 'test data')}, {number(scores.get('documents'))} documents, {_date(scores.get('at'))}"
    return f"{table}\n{on}"


def _threshold(model: Mapping[str, Any], note: Mapping[str, Any]) -> str:
    expected = ", ".join(f"{name} {percent(value)}" for name, value in model["expected"].items())
    on = f" (calibrated on {note['data']}, {number(note.get('documents'))} documents)" if "data" in note else ""
    return f"{model['threshold']:.4g}: expect {expected}{on}"


def _commands(about: Mapping[str, Any], model: Mapping[str, Any], card: Mapping[str, Any]) -> Iterator[str]:
    from shlex import quote

    from labelwise.model.card import example_documents

    folder = quote(about["folder"])
    documents = example_documents(model["reads"], card.get("reading", {}))
    threshold = " --threshold auto" if model["threshold"] is not None else ""
    yield f"labelwise predict {folder} {documents} -o suggestions.csv{threshold}"
    if "explain" in model["can"] and model["reads"] == "texts":
        yield f'labelwise explain {folder} "a text"'
    yield f"labelwise.load({about['folder']!r})  # in Python"


def _listed(parts: Any) -> str:
    items = list(parts)
    more = [f"and {len(items) - SHOWN} more (--json)"] if len(items) > SHOWN else []
    return ", ".join(items[:SHOWN] + more)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _date(value: str | None) -> str:
    """2026-11-17 15:42 UTC"""
    return "at an unknown time" if value is None else f"{value[:10]} {value[11:16]} UTC"


# --- models ---
# labelwise models [NAME]

MODELS_WIDTH, MIN_WIDTH = 100, 60
MAX_DEFAULT_WIDTH, MIN_MEANING_WIDTH = 20, 30
Row = tuple[str, str, str]


def models_command(
    name: Annotated[str | None, typer.Argument(help="Show the parameters of this method.")] = None,
) -> None:
    """List the methods, or show one with its parameters."""
    import shutil
    import sys
    from textwrap import fill

    from labelwise.registry import method_class, method_names

    width = (
        max(shutil.get_terminal_size((MODELS_WIDTH, 24)).columns, MIN_WIDTH) if sys.stdout.isatty() else MODELS_WIDTH
    )
    if name is None:
        for line in overview_lines(method_names(), width):
            echo(line)
        return
    method_type = method_class(name)
    about = (sys.modules[method_type.__module__].__doc__ or "").strip()
    echo("\n\n".join(fill(paragraph, width) for paragraph in about.split("\n\n")))
    rows = list(parameter_rows(method_type.Config, None))
    echo("\nparameters\n" if rows else "\nNo parameters.")
    for line in table_lines([("name", "default", "meaning"), *rows], width) if rows else ():
        echo(line)
    for preset, parameters in method_type.presets.items():
        echo(f"\npreset {preset}")
        echo(fill(_shown(parameters), width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False))


def overview_lines(names: list[str], width: int) -> Iterator[str]:
    """Per method its description, what it suits and how fast it is, what it reads and needs; folded to the width."""
    from inspect import getdoc
    from textwrap import wrap

    from labelwise.registry import method_class, method_package

    before = max(map(len, names)) + 2
    for name in names:
        method, package = method_class(name), method_package(name)
        about = {
            "": (getdoc(method) or "").splitlines()[0],
            "good for": method.good_for,
            "speed": method.speed,
            "reads": ", ".join(method.inputs),
            "needs": ", ".join(method.needs) or "nothing else",
            "package": "" if package is None else " ".join(package),
        }
        for key, text in about.items():
            head = f"{key:<9}" if key else ""
            for line in wrap(text, width - before - len(head), break_on_hyphens=False) if text else ():
                yield f"{name if not key else '':<{before}}{head}{line}".rstrip()
                name, head = "", " " * len(head)


def parameter_rows(config_class: type[BaseModel], given: BaseModel | None, prefix: str = "") -> Iterator[Row]:
    """One row per field, fields of a section after the section, with the defaults of that section."""
    from pydantic import BaseModel

    for key, field in config_class.model_fields.items():
        default: Any = getattr(given, key) if given is not None else field.get_default(call_default_factory=True)
        about = " ".join((field.description or "").split())
        if isinstance(default, BaseModel):
            yield prefix + key, "", about
            yield from parameter_rows(type(default), default, f"{prefix}{key}.")
            continue
        yield prefix + key, _shown(default) if not field.is_required() else "required", about
        for section in _sections(field.annotation):
            yield from parameter_rows(section, None, f"{prefix}{key}.")


def _sections(annotation: Any) -> list[type[BaseModel]]:
    """The config class a field may hold instead of its default."""
    from pydantic import BaseModel

    options = [annotation, *getattr(annotation, "__args__", ())]
    return [option for option in options if isinstance(option, type) and issubclass(option, BaseModel)]


def _shown(value: Any) -> str:
    """A value as it is written in a config."""
    import json

    return value if isinstance(value, str) else json.dumps(value, default=str)


def table_lines(rows: list[Row], width: int) -> Iterator[str]:
    """Rows in three columns with folded meanings; on a narrow terminal the meaning is on the next line."""
    from textwrap import wrap

    longest = max(len(name) for name, _, _ in rows)
    second = min(max(len(default) for _, default, _ in rows), MAX_DEFAULT_WIDTH)
    before = longest + second + 4
    if width - before < MIN_MEANING_WIDTH:
        before = 4
    for name, default, about in rows:
        first = f"{name:<{longest}}  {default:<{second}}  "
        meaning = wrap(about, width - before, break_on_hyphens=False)
        if len(first) == before and meaning:  # a long default is not cut, so that it can be copied
            first += meaning.pop(0)
        yield first.rstrip() if len(first.rstrip()) <= width else f"{name}  {default}"
        for line in meaning:
            yield " " * before + line
