"""Study folders as a sweep would leave them, with made-up courses of trainings for every verdict."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import mean, stdev

import yaml

FLOOR = 0.009
WORDS = {
    "healthy": ("the loss is 31% of the floor, 60 different first labels", ""),
    "on the plateau": ("the loss is 101% of the floor, vectors still differ", "Continue: good runs pass through it"),
    "under-trained": ("the loss is 900% of the floor and hardly falling", "Use a rate ten times higher"),
    "collapsed": (
        "the vectors of all documents are one point (mean cosine 1.0000)",
        "It will not recover. Start again",
    ),
    "diverged": (
        "the loss is nan, it was 0.69 at the start",
        "Use a rate ten times lower, a warm-up, or clip gradients",
    ),
}
OPTIMISER = "model.training.optimiser"


def course(verdict: str, epochs: int = 5, best: float = 0.8, validated: bool = True) -> list[dict]:
    """Lines of metrics.jsonl: two of the loss an epoch (30 and 10 steps), then one of the validation."""
    lines: list[dict] = [{"time": 0.1, "stage": "read", "seconds": 0.1, "done": True}]
    for epoch in range(1, epochs + 1):
        done = epoch / epochs
        level = {
            "healthy": 0.02 * 0.1**done,
            "on the plateau": 0.7 * 0.0129**done,
            "under-trained": 0.7 - 0.4 * done,
            "collapsed": FLOOR * (1 + 0.5 * 0.1**epoch),
            "diverged": 0.7 * 10**epoch if epoch < epochs else None,
        }[verdict]
        for part, more in ((30, 1.2), (40, 0.6)):
            loss = None if level is None else level * more
            lines.append(line(40 * (epoch - 1) + part, epoch - 1 + part / 40, loss=loss, rate=1e-3))
        reached = {"healthy": best * (1 - 0.3**epoch), "on the plateau": 0.07}.get(verdict, 0.0592)
        seen = {
            "probe_loss": level,
            "floor": FLOOR,
            "cosine": {"collapsed": 1 - 1e-7, "healthy": 0.5 - 0.2 * done}.get(verdict, 0.97),
            "effective_rank": {"collapsed": 1.0, "healthy": 10 + 30 * done}.get(verdict, 2.5),
            "distinct": {"collapsed": 1, "healthy": 20 + epoch}.get(verdict, 3),
            "commonest": {"collapsed": 1.0, "healthy": 0.3 - 0.2 * done}.get(verdict, 0.9),
            "attention_entropy": [0.6, 1.0] if verdict == "collapsed" else [0.6, 0.7],
            "verdict": verdict,
            "reason": WORDS[verdict][0],
            "remedy": WORDS[verdict][1],
        }
        if level is None:
            seen = {key: value for key, value in seen.items() if key not in ("cosine", "effective_rank")}
        measured = {"P@1": reached, "valid_loss": level} if validated else {}
        lines.append(line(40 * epoch, float(epoch), split="valid", **measured, **seen))
    lines.append({"time": 60.0, "stage": "fit", "seconds": 60.0, "done": True})
    return lines


def line(step: int, epoch: float, **numbers) -> dict:
    return {"time": float(step), "stage": "fit", "part": "train", "step": step, "epoch": epoch, **numbers}


def inspection(verdict: str, documents: int = 2, tokens: int = 12, layers: int = 6) -> dict:
    """A made-up look inside: points in three clusters, or nearly one point; attention along the diagonal, or flat."""
    size = 1e-4 if verdict == "collapsed" else 0.5
    places = [(place % 3, place) for place in range(60)]
    points = {
        "x": [round(size * (math.cos(2.1 * c) + 0.3 * math.sin(17.3 * p)), 6) for c, p in places],
        "y": [round(size * (math.sin(2.1 * c) + 0.3 * math.cos(11.7 * p)), 6) for c, p in places],
        "shares": [0.4, 0.2],
        "cosine": 1.0 if verdict == "collapsed" else 0.31,
        "colours": [c if c < 2 else -1 for c, _ in places],
        "labels": ["fruit & <vegetable>", "import licence"],
    }
    words = ["[CLS]", "commission", "regulation", "on", "##is", "the", "import", "of", "fruit", ",", "$x$", "[SEP]"]
    maps = []
    for layer in range(layers):
        sharp = 0.0 if verdict == "collapsed" and layer else 2.0
        rows = [[math.exp(-sharp * abs(i - j)) for j in range(tokens)] for i in range(tokens)]
        maps.append([[round(value / sum(row), 4) for value in row] for row in rows])
    one = {"tokens": (words * 4)[:tokens], "n_tokens": tokens, "weights": maps, "entropy": [0.5] * layers}
    found = [{**one, "document": f"doc {place}"} for place in range(documents)]
    return {"wishes": {}, "part": "valid", "points": points, "attention": found}


def add_trial(folder: Path, name: str, values: dict, lines: list[dict] | None, inside: dict | None = None) -> None:
    """The files of one trial; without lines it is one that never began."""
    trials = folder / "trials"
    trials.mkdir(parents=True, exist_ok=True)
    config: dict = {"model": {"method": "text_encoder", "training": {"schedule": {"kind": "constant", "warmup": 0}}}}
    for path, value in values.items():
        where = config
        *sections, last = path.split(".")
        for section in sections:
            where = where.setdefault(section, {})
        where[last] = value
    (trials / f"{name}.yml").write_text(yaml.safe_dump(config))
    if lines is not None:
        (trials / name).mkdir()
        text = "".join(json.dumps(one) + "\n" for one in lines)
        (trials / name / "metrics.jsonl").write_text(text)
    if inside is not None:
        (trials / name / "inspection.json").write_text(json.dumps(inside))


def write_results(folder: Path, metric: str, settings: list[tuple[str, dict, dict[str, dict]]]) -> Path:
    """results.json of settings, each a group, its values, and trials by name with value, verdict and more."""
    paths = list(dict.fromkeys(path for _, values, _ in settings for path in values))
    rows, trials = [], {}
    for group, values, own in settings:
        found = [trial["value"] for trial in own.values() if trial.get("value") is not None]
        rows.append(
            {
                **({"group": group} if group else {}),
                **{path: values.get(path) for path in paths},
                metric: mean(found) if found else None,
                "deviation": stdev(found) if len(found) > 1 else None,
                "trials": list(own),
            }
        )
        for name, trial in own.items():
            trials[name] = {"folder": f"trials/{name}", "group": group, "values": values, "seed": None, **trial}
    whole = {"study": "study.yml", "metric": metric, "split": "valid", "rows": rows, "trials": trials}
    (folder / "results.json").write_text(json.dumps(whole))
    return folder


VERDICT_OF_RATE = {1e-1: "diverged", 1e-2: "collapsed", 1e-3: "on the plateau", 1e-4: "healthy", 1e-6: "under-trained"}


def every_verdict(folder: Path, inside: bool = True) -> Path:
    """Five rates of one optimiser, one for each verdict."""
    settings = []
    for place, (rate, verdict) in enumerate(VERDICT_OF_RATE.items()):
        values, lines = {f"{OPTIMISER}.rate": rate}, course(verdict)
        seen = inside and verdict in ("healthy", "collapsed", "under-trained")
        looked_into = inspection(verdict, documents=1, tokens=8, layers=4) if seen else None
        add_trial(folder, f"trial{place}", values, lines, looked_into)
        reached = [one["P@1"] for one in lines if "P@1" in one]
        trial = {"status": "finished", "value": reached[-1], "test": 0.5, "seconds": 60.0, "verdict": verdict}
        settings.append(("", values, {f"trial{place}": trial}))
    return write_results(folder, "P@1", settings)


def optimiser_study(folder: Path, seeds: tuple[int, ...] = (0, 1)) -> Path:
    """Optimisers at multiples of their default rates and a weight-decay ablation, with seeds and a trial in two groups."""
    defaults = {"adam": 1e-3, "adamw": 1e-3, "adagrad": 1e-2}
    wanted: list[tuple[str, dict]] = []
    for name in defaults:
        decay = {"adam": 0, "adamw": 0.01}.get(name)
        for factor in (10, 1, 0.1, 0.01, 0.001):
            wanted.append((name, {"name": name, "rate": None, "rate_factor": factor, "weight_decay": decay}))
    for name in ("adam", "adamw"):
        for decay in (0, 0.01, 0.1):
            values = {"name": name, "rate": None, "rate_factor": 0.1, "weight_decay": decay}
            wanted.append(("weight decay", values))
    settings, known = [], set()
    for group, short in wanted:
        values = {f"{OPTIMISER}.{key}": value for key, value in short.items()}
        rate = defaults[short["name"]] * short["rate_factor"]
        nearest = min(VERDICT_OF_RATE, key=lambda known: abs(math.log(known / rate)))
        verdict = VERDICT_OF_RATE[nearest]
        if short["name"] == "adam" and short["weight_decay"]:
            verdict = "collapsed"
        own = {}
        for seed in seeds:
            trial = f"{short['name']}-{short['rate_factor']}-{short['weight_decay']}-{seed}"
            lines = course(verdict, best=0.75 + 0.02 * seed + 0.01 * (short["name"] == "adamw"))
            for one in lines:
                if "rate" in one:
                    one["rate"] = rate
            if trial not in known:
                add_trial(folder, trial, values, lines)
                known.add(trial)
            value = [one["P@1"] for one in lines if "P@1" in one][-1]
            own[trial] = {"status": "finished", "seed": seed, "value": value, "seconds": 60.0, "verdict": verdict}
        settings.append((group, values, own))
    return write_results(folder, "P@1", settings)
