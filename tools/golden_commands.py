"""Cases of `golden.py` on the command line: runs, ranks, tasks, kills, messages, help, the service."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import re
import runpy
import shlex
import signal
import socket
import sys
import threading
import time
import traceback
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

import labelwise as lw
from golden_foreign import write_omikuji, write_pecos
from golden_world import Place, folder_facts, planted, run_facts

Cases = Iterator[tuple[str, Callable[[], Any]]]


# --- commands in forked processes, which have everything imported -----------------------------------------------------


class Renames:
    """Counts names given to finished files and folders below a folder, and kills the process at one of them."""

    def __init__(self, below: Path, kill_at: int | None) -> None:
        self.below, self.kill_at, self.count, self.process = str(below), kill_at, 0, os.getpid()

    def __call__(self, event: str, arguments: tuple) -> None:
        if (
            event == "os.rename"
            and self.below in os.path.abspath(os.fsdecode(arguments[1]))
            and os.getpid() == self.process
        ):
            self.count += 1
            if self.count == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)


def start(
    words: list[str], cwd: Path, name: str, env: Mapping[str, str] | None = None, stdin: str = "",
    watch: tuple[Path, int | None] | None = None,
) -> int:  # fmt: skip
    """`labelwise WORDS` in a fork; its output goes to NAME.out and NAME.err."""
    sys.stdout.flush()
    process = os.fork()
    if process:
        return process
    code = 99
    try:
        os.chdir(cwd)
        os.environ.update(env or {})
        (cwd / f"{name}.in").write_text(stdin)
        for number, ending in enumerate(("in", "out", "err")):
            os.dup2(os.open(f"{name}.{ending}", os.O_RDWR | os.O_CREAT | (os.O_TRUNC if number else 0)), number)
        sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        sys.argv = ["labelwise", *words]
        renames = Renames(watch[0], watch[1]) if watch else None
        if renames:
            sys.addaudithook(renames)
        try:
            runpy.run_module("labelwise", run_name="__main__")
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        if renames and watch and watch[1] is None:
            (cwd / f"{name}.renames").write_text(str(renames.count))
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def end(process: int, seconds: float = 120) -> int:
    """The exit code of a fork, below 0 if a signal has ended it; one that hangs is ended."""
    for _ in range(int(seconds * 100)):
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return -999


def command(words: list[str] | str, cwd: Path, stdin: str = "", **more: Any) -> dict[str, Any]:
    """Exit code and output of a command that has ended."""
    given = shlex.split(words) if isinstance(words, str) else words
    code = end(start(given, cwd, "command", stdin=stdin, **more))
    out, err = ((cwd / f"command.{ending}").read_text() for ending in ("out", "err"))
    return {"code": code, "out": json_or_lines(out), "err": [line for line in err.splitlines() if not unsteady(line)]}


def unsteady(line: str) -> bool:
    """Lines that depend on how fast the machine is."""
    return bool(re.search(r"left|ETA|compil|it/s|slow", line))


def json_or_lines(text: str) -> Any:
    from golden_world import without_moments

    try:
        return without_moments(json.loads(text))
    except ValueError:
        return text.splitlines()


def write_run(folder: Path, model: Mapping[str, Any], data: Mapping[str, Any] | None = None, **sections: Any) -> None:
    values = {
        "data": data or {"train": "../data.csv", "test_fraction": 0.2}, "model": model,
        "evaluate": {"bootstrap": 0, "metrics": ["P@1", "P@3"]}, "inspect": {"enabled": False},
        "calibrate": {"enabled": False}, "run": {"report": False, "threads": 1, "folder": "run"}, **sections,
    }  # fmt: skip
    folder.mkdir(exist_ok=True)
    (folder / "run.yml").write_text(json.dumps(values))


# --- runs -------------------------------------------------------------------------------------------------------------

STEADY = {
    "epochs": 2,
    "steps": None,
    "batch_size": 16,
    "checkpoint_every": {"steps": 2},
    "optimiser": {"name": "adam", "rate": 0.003, "eps": 1e-3},
}


def neural(name: str) -> dict[str, Any]:
    """Parameters without dropout, whose steps do not amplify rounding."""
    from golden_cases import SMALL

    model = json.loads(json.dumps(SMALL[name]))
    if name == "xr_transformer":
        model["fine_tuning"] |= {"dropout": 0.0, "training": {**STEADY, "epochs": None, "steps": 6}}
    else:
        model["training"] = STEADY
    if name == "text_encoder":
        model["head"] = {"dropout": 0.0}
    if name == "attention_xml":
        model["recurrent"] |= {"word_dropout": 0.0, "dropout": 0.0}
    return {"method": name, **model}


NEURAL = ("text_encoder", "mach", "xr_transformer", "attention_xml")
LINEAR = {"method": "linear_tree", "trees": 2, "leaf_size": 5, "branching": 3}


def run_cases(place: Place) -> Cases:
    from golden_cases import small

    for name in ("linear_tree", *NEURAL):  # what these import and compile is there in all forks
        small(name).fit(planted("texts", 40, 0)).predict(["word1x1"])
    fresh = (place.work / f"run{number}" for number in itertools.count())

    def trained(model: Mapping[str, Any], *words: str, **more: Any) -> Any:
        folder = next(fresh)
        write_run(folder, model, more.pop("data", None), **more)
        found = command(["train", "run.yml", *words], folder)
        return {**{key: found[key] for key in ("code", "out")}, "run": run_facts(folder / "run")}

    def ranks(name: str) -> Any:
        folder = next(fresh)
        write_run(folder, neural(name))
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        common = {
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "ACCELERATE_USE_CPU": "true",
        }
        processes = [
            start(["train", "run.yml"], folder, f"rank{rank}", {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in range(2)
        ]
        codes = [end(process) for process in processes]
        assert codes == [0, 0], (folder / "rank0.err").read_text()[-2000:]
        return {"run": run_facts(folder / "run")}

    def killed(model: Mapping[str, Any]) -> Any:
        """Killed three times, at moments that a whole run has shown, and resumed each time; both runs must be equal."""
        whole, folder = next(fresh), next(fresh)
        write_run(whole, model)
        write_run(folder, model)
        command("train run.yml", whole, watch=(whole / "run", None))
        renames = int((whole / "command.renames").read_text())
        codes = []
        for part in (0.25, 0.4, 0.55):  # in one folder, each time later, if work is kept
            codes.append(command("train run.yml", folder, watch=(folder / "run", max(1, int(part * renames))))["code"])
        command("train run.yml", folder)
        if codes[0] != -signal.SIGKILL:
            raise AssertionError(f"the run was not killed: {codes}")
        first, second = (folder_facts(one / "run" / "model") for one in (whole, folder))
        same = all(
            np.array_equal(array, second["state.safetensors"][key]) for key, array in first["state.safetensors"].items()
        )
        return {"resumed run equals the whole one": str(same), "run": run_facts(folder / "run")}

    def mapped() -> Any:
        folder = next(fresh)
        write_run(folder, LINEAR, {"train": "shards", "test": "test-shards", "mapped": True})
        shards = command("data shard ../data.csv shards --documents 30", folder)
        command("data shard ../data.csv test-shards --split test", folder)
        found = command("train run.yml", folder)
        return {"shards": shards, "code": found["code"], "out": found["out"], "run": run_facts(folder / "run")}

    full = {"run": {"folder": "run", "threads": 1}, "calibrate": {}, "inspect": {}, "evaluate": {"bootstrap": 20}}
    yield "run/linear_tree-report", lambda: trained(LINEAR, **full)
    yield "run/text_encoder-report", lambda: trained(neural("text_encoder"), **full)
    yield "run/straight-from-data", lambda: straight(next(fresh))
    yield "run/mapped", mapped
    for model in (LINEAR, neural("mach")):
        yield (
            f"run/processes-{model['method']}",
            lambda model=model: trained(model, "--launcher", "processes", "--workers", "2"),
        )
    for name in NEURAL:
        yield f"ranks/{name}", lambda name=name: ranks(name)
    for model in (LINEAR, *map(neural, NEURAL)):
        yield f"killed/{model['method']}", lambda model=model: killed(model)


def straight(folder: Path) -> Any:
    folder.mkdir()
    found = command("train ../data.csv -o run --set model.trees=1", folder)
    return {"code": found["code"], "out": found["out"], "run": run_facts(folder / "run")}


# --- single commands --------------------------------------------------------------------------------------------------


def shop(place: Place) -> Path:
    """A folder with data, models and broken files, for the commands of `golden_lines.txt`."""
    folder = place.work / "shop"
    folder.mkdir()
    train = planted("texts", 90, 0)
    for name in ("train.jsonl", "train.svm"):
        with contextlib.suppress(Exception):
            lw.write(train, folder / name)
    (folder / "train.csv").write_text((place.work / "data.csv").read_text())
    (folder / "more.csv").write_text("id,text,labels\nn1,word1x1 word1x2 fresh,L1;new\nn2,word2x1 fresh other,new\n")
    (folder / "plain.txt").write_text("word1x1 word2x2 noise3\nword5x1 word5x2\n\n")
    (folder / "labels.txt").write_text("L1\nL2\nL3\n")
    (folder / "weights.tsv").write_text("L1\t0.5\nL2\t2\n")
    (folder / "empty.csv").write_text("")
    (folder / "header.csv").write_text("id,text,labels\n")
    (folder / "strange.csv").write_text("isbn,title,subject\n1,Fish,food\n2,Socks,knitting\n")
    (folder / "latin.csv").write_bytes(b"text,labels\ncaf\xe9,a\n")
    (folder / "broken.jsonl").write_text('{"text": "a", "labels": ["x"]}\n{"text": \n')
    (folder / "broken.svm").write_text("3 4 5\n0 1:x\n")
    (folder / "nothing").mkdir()
    (folder / "sub").mkdir()
    models = {"tree": lw.LinearTree(trees=2, leaf_size=5, branching=3), "flat": lw.LinearFlat(), "pop": lw.Popularity()}
    for name, model in models.items():
        model.fit(train)
        if name == "flat":
            model.calibrate(planted("texts", 40, 2))
        model.save(folder / name)
    lw.LinearTree(trees=1).fit(planted("csr", 60, 0)).save(folder / "csr")
    for name, broken in (("manifest.json", "{"), ("config.json", '{"trees": "many"}'), ("state.safetensors", "abc")):
        (folder / f"bad-{name.split('.')[0]}").mkdir()
        for path in (folder / "tree").iterdir():
            (folder / f"bad-{name.split('.')[0]}" / path.name).write_bytes(path.read_bytes())
        (folder / f"bad-{name.split('.')[0]}" / name).write_text(broken)
    (folder / "study.yml").write_text("base: run.yml\nvary: {model.trees: [1, 2]}\nmetric: P@1\n")
    write_run(folder, LINEAR, {"train": "train.csv", "test_fraction": 0.2})
    for name, text in {
        "unknown-method": "data: {train: train.csv}\nmodel: {method: linear_tre}",
        "unknown-key": "data: {train: train.csv}\nmodel: {method: linear_tree, tres: 3}",
        "wrong-type": "data: {train: train.csv}\nmodel: {method: linear_tree, trees: many}",
        "no-model": "data: {train: train.csv}",
        "no-data": "model: {method: popularity}",
        "not-yaml": "data: {train: [",
        "a-list": "- one\n- two",
        "twice": "data: {train: train.csv}\ndata: {train: train.csv}\nmodel: {method: popularity}",
        "wrong-section": "data: {path: x, text_column: t}\nmodel: {method: popularity}",
        "section-value": "data: x\nmodel: {method: popularity}",
        "metric": "data: {train: train.csv}\nmodel: {method: popularity}\nevaluate: {metrics: [P@50], k: 20}",
        "hierarchy": "data: {train: train.csv}\nmodel: {method: linear_tree, tree: hierarchy}",
        "images": "data: {train: train.csv}\nmodel: {method: mhe_image}",
        "encoder": "data: {train: train.csv}\nmodel: {method: text_encoder, encoder: {model: nowhere/nothing}}",
        "checkpoint": "data: {path: x}\nmodel: {method: text_encoder, training: {checkpoint_every: 5}}",
    }.items():
        (folder / f"{name}.yml").write_text(text + "\n")
    return folder


def command_cases(place: Place) -> Cases:
    folder = shop(place)
    script = Path(__file__).with_name("golden_lines.txt").read_text()
    lines = [line for line in script.splitlines() if line and not line.startswith("#")]
    for number, line in enumerate(lines):
        words, _, stdin = line.partition(" <<< ")
        found = command(words, folder, stdin=stdin + "\n" if stdin else "")  # in order: some use what others write
        produced = re.search(r" (?:-o|--output) (\S+)", words)
        path = folder / produced[1] if produced else None
        if path is not None and (path / "manifest.json").exists():
            found["saved"] = folder_facts(path)
        elif path is not None and path.suffix in (".csv", ".jsonl", ".tsv", ".json") and path.exists():
            found["written"] = path.read_text().splitlines()
        elif path is not None and path.suffix == ".npy" and path.exists():
            found["written"] = np.load(path)
        yield f"command/{number:03} {words.replace('/', '|')[:150]}", lambda found=found: found
    yield from ((f"help/{' '.join(words)}", lambda out=out: out) for words, out in help_pages(folder, ()))
    yield from imports(folder)
    yield "serve/api", lambda: served(folder)


def help_pages(folder: Path, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The help of a command and of all that are below it."""
    page = command([*words, "--help"], folder)["out"]
    yield words, page
    if "Commands:" in page:
        for line in page[page.index("Commands:") + 1 :]:
            if match := re.match(r"  ([a-z]\S*)", line):
                yield from help_pages(folder, (*words, match[1]))


def imports(folder: Path) -> Cases:
    rng = np.random.default_rng(5)
    rows = rng.random((12, 30)) * (rng.random((12, 30)) < 0.3)
    data = lw.Dataset(features=sparse.csr_array(rows.astype(np.float32)))
    for name, write in (("pecos", write_pecos), ("omikuji", write_omikuji)):
        write(folder / f"foreign-{name}")

        def case(name: str) -> Any:
            found = command(f"import foreign-{name} -o imported-{name}", folder)
            return {
                **found,
                "saved": folder_facts(folder / f"imported-{name}"),
                "predict": lw.load(folder / f"imported-{name}").predict(data, k=5),
            }

        yield f"import/{name}", partial(case, name)


def served(folder: Path) -> Any:
    """What the service answers."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = start(["serve", "tree", "laws=flat", "--port", str(port), "-q"], folder, "serve")
    found = {}
    try:
        questions: list[tuple[str, Any]] = [
            ("/openapi.json", None), ("/v1/models", None), ("/v1/models/tree", None), ("/nothing", None),
            *((f"/v1/models/{model}/predict", body) for model in ("tree", "laws", "none")
              for body in ({"texts": ["word1x1 word2x2"], "k": 3}, {"texts": []}, {"text": 5}, {})),
        ]  # fmt: skip
        while "loading" in str(answer(f"http://127.0.0.1:{port}/v1/models", None)):
            time.sleep(0.1)
        for number, (path, body) in enumerate(questions):
            found[f"{number} {path}"] = answer(f"http://127.0.0.1:{port}{path}", body)
    finally:
        os.kill(process, signal.SIGTERM)
        found["code"] = end(process, 20)
    return found


def answer(url: str, body: Any) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    for _ in range(300):
        try:
            with urllib.request.urlopen(request, timeout=20) as reply:
                return {"status": reply.status, "body": json_or_lines(reply.read().decode())}
        except urllib.error.HTTPError as error:
            return {"status": error.code, "body": json_or_lines(error.read().decode())}
        except OSError:
            time.sleep(0.1)  # it is still starting
    raise AssertionError("the service does not answer")


COMMAND_GROUPS = {"runs": run_cases, "commands": command_cases}
