"""labelwise info MODEL"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from labelwise.cli.terminal import echo, echo_json
from labelwise.formatting import duration, number, percent, size

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
    from labelwise.runs.describe import describe, find_damages

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
    from labelwise.methods.model_folder import STATE_FILE

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

    from labelwise.methods.card_page import example_documents

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
