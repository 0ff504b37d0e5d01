"""What users get from the package, as named arrays and texts: the cases that `golden.py` compares between two trees.

Only what users know is used: `import labelwise`, the command line, and folders on disk, since internal modules may move
between the trees. Run by `golden.py`, as `golden_cases.py --tree TREE --group GROUP --out FOLDER --base FOLDER`.
"""

from __future__ import annotations

import argparse
import fnmatch
import itertools
import json
import os
import pickle
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel

import labelwise as lw
from golden_commands import COMMAND_GROUPS
from golden_world import Place, facts_of, folder_facts, planted, write_csv
from labelwise.errors import LabelwiseError

ADAM = {"name": "adam", "rate": 0.01}
TINY = {"model": "tiny", "max_length": 12, "pooling": "mean", "vocabulary": 80}
STEPS = {"epochs": None, "steps": 3, "batch_size": 16, "optimiser": ADAM}
IMAGE = {"size": 12, "channels": 1, "fit": "pad", "interpolation": "nearest"}
TREE = {"trees": 2, "leaf_size": 5, "branching": 3}
WORD_NETWORK = {"words": {"width": 8, "max_length": 20}, "recurrent": {"width": 8}, "training": STEPS}
SMALL: dict[str, dict[str, Any]] = {
    "popularity": {},
    "linear_tree": TREE,
    "linear_flat": {},
    "ensemble": {"members": [{"method": "linear_tree", "trees": 1}, {"method": "linear_flat"}]},
    "mach": {"repetitions": 2, "buckets": 16, "hidden": [8], "training": STEPS},
    "hybrid_linear": {"encoder": TINY, **TREE, "trees": 1},
    "xr_transformer": {
        "encoder": TINY, **TREE, "trees": 1,
        "fine_tuning": {
            "leaf_size": 4, "branching": 3, "top_nodes": 3, "beam": 2,
            "training": {**STEPS, "validate_every": None},
        },
    },
    "text_encoder": {"encoder": TINY, "training": STEPS, "valid_fraction": 0.1},
    "mhe_text": {
        "encoder": {**TINY, "layers": 2}, "num_group": 4, "groups": 2, "beam": 3, "bottleneck": 8, "dropout": 0.1,
        "training": STEPS, "valid_fraction": 0.1,
    },
    "attention_xml": {**WORD_NETWORK, "hidden": [8], "cluster_size": 4, "beam_width": 2},
    "bigru": WORD_NETWORK,
    "mhe_image": {
        "image": IMAGE, "backbone": {"name": "tiny", "channels": 4}, "head": {"loss": "bce"}, "training": STEPS,
    },
    "mhe_face": {
        "image": IMAGE, "network": {"network": "r10", "width_factor": 0.125, "dimension": 8},
        "head": {"margin": 0.1, "scale": 16.0}, "training": STEPS, "valid_fraction": 0.0,
        "monitor": {"enabled": False, "attention": False},
    },
}  # fmt: skip
CLASSES = {
    "popularity": "Popularity", "linear_tree": "LinearTree", "linear_flat": "LinearFlat", "ensemble": "Ensemble",
    "mach": "Mach", "hybrid_linear": "HybridLinear", "xr_transformer": "XRTransformer", "text_encoder": "TextEncoder",
    "mhe_text": "MheText", "attention_xml": "AttentionXML", "bigru": "BiGRU", "mhe_image": "MheImage",
    "mhe_face": "MheFace",
}  # fmt: skip
TEXTS, MATRICES, IMAGES = ("texts",), ("csr", "dense", "blocks"), ("arrays", "paths")
KINDS = dict.fromkeys(("linear_tree", "linear_flat", "mach"), (*TEXTS, *MATRICES)) | {
    "popularity": (*TEXTS, "csr", *IMAGES), "ensemble": (*TEXTS, "csr"), "mhe_image": IMAGES, "mhe_face": IMAGES,
}  # fmt: skip

# --- fitting and predicting -------------------------------------------------------------------------------------------


def small(name: str, changes: Mapping[str, Any] | None = None) -> Any:
    """A method with small parameters and some changed ones, by dotted names."""
    values = json.loads(json.dumps(SMALL[name]))
    for path, value in (changes or {}).items():
        *sections, last = path.split(".")
        where = values
        for section in sections:
            if not isinstance(where.get(section), dict):
                where[section] = {}
            where = where[section]
        if value == "REMOVE":
            where.pop(last, None)
        else:
            where[last] = value
    return getattr(lw, CLASSES[name])(**values)


def attempt(function: Callable[[], Any]) -> Any:
    """The result, or the message of a refusal, which users read as well."""
    try:
        return function()
    except (ValueError, TypeError, RuntimeError, OSError, LabelwiseError) as error:
        return f"{type(error).__name__}: {error}"


def uses(model: Any, test: Any, held_out: Any, folder: Path, base: Path) -> dict[str, Any]:
    """Everything that can be done with a fitted model; `base` is where the base commit has saved the same model."""
    model.save(folder)
    names = list(model.label_names_)
    found = {
        "predict": model.predict(test, k=5),
        "saved": folder_facts(folder),
        "counts": model.label_counts_,
        "encode": attempt(lambda: model.encode(test)),
        "explain": attempt(lambda: [str(one) for one in model.explain(test.take(slice(0, 1)), k=2)]),
        "explained": attempt(lambda: [vars(one) for one in model.explain(test.take(slice(1, 2)), labels=names[:2])]),
        "attention": attempt(lambda: [vars(one) for one in model.attention(test.take(slice(0, 2)))]),
        "labels": attempt(lambda: model.predict(test, k=3, labels=names[::2])),
        "weights": attempt(lambda: model.predict(test, k=3, label_weights={names[0]: 0.1, names[3]: 2.0})),
        "above": attempt(lambda: model.predict(test, threshold=0.2)),
        "shrunk": attempt(lambda: model.shrink(threshold=0.2).predict(test, k=3)),
        "score": attempt(lambda: model.score(test)),
        "loaded": lw.load(folder).predict(test, k=5),
        "of base": attempt(lambda: lw.load(base).predict(test, k=5)),
    }
    found["report"] = attempt(lambda: str(model.calibrate(held_out)))
    found["calibrated"] = attempt(lambda: model.predict(test, k=5))
    found["threshold"] = model.threshold_
    found["auto"] = attempt(lambda: model.predict(test, threshold="auto"))
    return found


def method_cases(names: tuple[str, ...]) -> Callable[[Place], Iterator[tuple[str, Callable[[], Any]]]]:
    def cases(place: Place) -> Iterator[tuple[str, Callable[[], Any]]]:
        for name in names:
            for kind in KINDS.get(name, TEXTS):
                train, test, held_out = (planted(kind, n, seed, place.work) for n, seed in ((90, 0), (12, 1), (40, 2)))

                def case(name: str, kind: str, train: Any, test: Any, held_out: Any) -> Any:
                    model = small(name).fit(train, valid=held_out)
                    folder = place.models / f"{name}-{kind}"
                    return uses(model, test, held_out, folder, place.base_models / f"{name}-{kind}")

                yield f"{name}/{kind}", partial(case, name, kind, train, test, held_out)
            yield f"{name}/schema", lambda name=name: getattr(lw, CLASSES[name]).Config.model_json_schema()
        for name in names:
            yield from field_cases(name, place)

    return cases


# --- one field off its default ----------------------------------------------------------------------------------------

NOT_DECIDING = {"memory", "time_budget", "seconds", "log_every", "load_ahead", "tensorboard", "repetitions_folder"}
BY_HAND = yaml.safe_load(Path(__file__).with_name("golden_fields.yml").read_text())


OTHER_KINDS = {"feature_norm": "csr", "vector_scale": "both"}
"""Fields that matter for other documents than those a method prefers."""


def leaves(config: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Dotted name, annotation and present value of every field; sections that are absent count with their defaults."""
    kind = config if isinstance(config, type) else type(config)
    for name, field in kind.model_fields.items():
        value = field.default if isinstance(config, type) else getattr(config, name)
        options = (field.annotation, *get_args(field.annotation))
        section = next((one for one in options if isinstance(one, type) and issubclass(one, BaseModel)), None)
        if section is not None:
            yield from leaves(section if value is None else value, f"{prefix}{name}.")
        else:
            yield prefix + name, field.annotation, value


def literals(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [value for part in get_args(annotation) for value in literals(part)]


def second_values(name: str, path: str, annotation: Any, value: Any) -> list[dict[str, Any]]:
    """Changes of parameters that set a field to other values than its present one."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        ending = ".".join(parts[-length:])
        key = f"{name}.{ending}" if f"{name}.{ending}" in BY_HAND else ending
        if key in BY_HAND:
            prefix = path[: len(path) - len(ending)]
            return [
                {prefix + other: new for other, new in given.items()} if isinstance(given, dict) else {path: given}
                for given in BY_HAND[key]
                if given != value
            ]
    if isinstance(value, bool) or annotation is bool:
        return [{path: not value}]
    others = [one for one in literals(annotation) if one != value]
    others += [None] if type(None) in get_args(annotation) and value is not None else []
    if others:
        return [{path: one} for one in others]
    if isinstance(value, int):
        return [{path: value + 1}]
    if isinstance(value, float):
        return [{path: value / 2 or 0.25}]
    raise LookupError(f"{name}.{path}: no second value for {annotation}, now {value!r}; add one to BY_HAND")


def field_cases(name: str, place: Place) -> Iterator[tuple[str, Callable[[], Any]]]:
    files = place.files()
    kind = KINDS.get(name, TEXTS)[0]
    documents = {
        field: [planted(which, n, seed, place.work, described=True) for n, seed in ((90, 0), (8, 1))]
        for field, which in {"": kind, **OTHER_KINDS}.items()
    }
    for path, annotation, value in leaves(small(name).config):
        if path.split(".")[-1] in NOT_DECIDING and not path.startswith("image."):
            continue
        for number, changes in enumerate(second_values(name, path, annotation, value)):
            given = {
                key: files[new[1:-1]] if isinstance(new, str) and new.startswith("{") else new
                for key, new in changes.items()
            }

            def case(given: dict[str, Any], path: str) -> Any:
                data, test = documents[path if path in OTHER_KINDS else ""]
                model = small(name, given).fit(data)
                folder = place.work / f"field-{name}"
                model.save(folder)
                found = {"predict": model.predict(test, k=4), "saved": folder_facts(folder)}
                shutil.rmtree(folder)
                return found

            yield f"{name}/field/{path}/{number}", partial(attempt, partial(case, given, path))


# --- other things that are done in Python -----------------------------------------------------------------------------


def linear_extras(place: Place) -> Iterator[tuple[str, Callable[[], Any]]]:
    train, more, test = planted("texts", 90, 0), planted("texts", 12, 5, labels=28), planted("texts", 12, 1)

    def learned(name: str, old: bool) -> Any:
        model = small(name).fit(train)
        report = model.learn(more, old=train if old else None)
        model.save(place.work / f"learned-{name}-{old}")
        return {
            "report": str(report),
            "predict": model.predict(test, k=5),
            "saved": folder_facts(place.work / f"learned-{name}-{old}"),
        }

    def shrunk(**how: Any) -> Any:
        model = small("linear_tree", {"precision": "float32"}).fit(train).shrink(**how)
        folder = place.work / f"shrunk-{'-'.join(map(str, how.values()))}"
        model.save(folder)
        return {"predict": model.predict(test, k=5), "saved": folder_facts(folder)}

    def vectors_beside_texts() -> Any:
        both = [planted("both", n, seed) for n, seed in ((90, 0), (12, 1))]
        model = small("linear_tree", {"vector_scale": 0.5}).fit(both[0])
        return {
            "predict": model.predict(both[1], k=5),
            "explain": [str(one) for one in model.explain(both[1].take([0]))],
        }

    def plugin() -> Any:
        folder = place.work / "plugin"
        about = folder / "knn_method-0.1.0.dist-info"
        about.mkdir(parents=True)
        shutil.copy(place.tree / "docs/examples/knn_method/knn_method.py", folder)
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: knn-method\nVersion: 0.1.0\n")
        (about / "entry_points.txt").write_text("[labelwise.methods]\nknn = knn_method:Knn\n")
        sys.path.insert(0, str(folder))
        from knn_method import Knn  # type: ignore[import-not-found]

        found = {}
        for kind in ("texts", "csr"):
            model = Knn().fit(planted(kind, 90, 0))
            found[kind] = uses(
                model, planted(kind, 12, 1), planted(kind, 40, 2), folder / kind, place.base_models / f"knn-{kind}"
            )
            shutil.copytree(folder / kind, place.models / f"knn-{kind}", dirs_exist_ok=True)
        return found

    def evaluated() -> Any:
        top = small("linear_flat").fit(train).predict(test, k=10)
        names = ["P@1", "P@3", "P@5", "R@5", "nDCG@5", "PSP@3", "micro-F1", "macro-F1"]
        return {name: attempt(lambda name=name: lw.evaluate(top, test, metrics=[name])[name]) for name in names}

    def read_back() -> Any:
        found = {}
        for ending in ("csv", "jsonl", "tsv", "txt", "npz"):
            path = place.work / f"back.{ending}"

            def there_and_back(path: Path) -> Any:
                lw.write(train, path)
                data = lw.read(path)
                return {"texts": list(data.texts), "labels": data.labels.toarray(), "names": list(data.label_names)}

            found[ending] = attempt(partial(there_and_back, path))
        return found

    for name, old in itertools.product(("linear_tree", "linear_flat"), (False, True)):
        yield f"learn/{name}-{'with' if old else 'without'}", lambda name=name, old=old: learned(name, old)
    for how in ({"precision": "int8"}, {"precision": "float16"}, {"threshold": 0.2}):
        yield f"shrink/{'-'.join(map(str, how.values()))}", lambda how=how: shrunk(**how)
    yield "linear_tree/vectors-beside-texts", vectors_beside_texts
    yield "plugin/knn", plugin
    yield "evaluate/metrics", evaluated
    yield "data/read-back", read_back


GROUPS: dict[str, Callable[[Place], Iterator[tuple[str, Callable[[], Any]]]]] = {
    "trees": method_cases(("xr_transformer", "hybrid_linear")),
    "encoders": method_cases(("text_encoder", "mhe_text")),
    **COMMAND_GROUPS,
    "images": method_cases(("mhe_image", "mhe_face")),
    "words": method_cases(("attention_xml", "bigru", "mach")),
    "linear": method_cases(("popularity", "linear_tree", "linear_flat", "ensemble")),
    "extras": linear_extras,
}
"""Groups of cases, each for one process; the longest first."""


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--tree", "--out", "--base"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--group", choices=GROUPS)
    parser.add_argument("--only", default="*")
    options = parser.parse_args()
    place = Place(options.tree.resolve(), options.out.resolve(), options.base.resolve(), options.group)
    write_csv(place.work / "data.csv", planted("texts", 90, 0))
    os.chdir(place.work)
    for name, case in GROUPS[options.group](place):
        if not fnmatch.fnmatch(name, options.only):
            continue
        begin = time.monotonic()
        try:
            found = dict(facts_of(case(), place))
        except Exception as error:  # a broken case must not end the others; the base commit may not have any
            found = {"BROKEN": f"{type(error).__name__}: {error}"}
        found["seconds"] = time.monotonic() - begin
        path = place.out / "facts" / f"{options.group}~{name.replace(chr(47), chr(126))}.pickle"
        path.write_bytes(pickle.dumps(found))
    os.chdir(place.tree)
    shutil.rmtree(place.work)


if __name__ == "__main__":
    main()
