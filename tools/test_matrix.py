"""Builds wheel and sdist, and tries both in empty virtual environments: the oldest and the newest supported versions.

    python tools/test_matrix.py [--pythons PYTHON...] [--all] [--only CELL] [--work FOLDER]

The oldest cell has the oldest Python found and the lowest versions that pyproject.toml allows, from the sdist; the
newest cell the newest of all, from the wheel; --all adds the Pythons in between. In each, `labelwise demo` runs, its
model and model folders of earlier versions are loaded, two worker processes serve it, and nothing may need torch.
Packages come from wherever pip is configured to find them. Exit code 1 if a cell fails.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / "tests" / "models"
WITHOUT_TORCH = ("ensemble", "linear_flat", "linear_tree", "popularity")
"""Methods of saved models that the core installation loads."""
SERVE = """
import json, subprocess, sys, time, urllib.request
command = [sys.executable, "-m", "labelwise", "serve", f"model={sys.argv[1]}", "--workers", "2", "--port", "0"]
server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
try:
    address = json.loads(server.stderr.readline())["address"]
    end, ready = time.monotonic() + 120, 0
    while not ready and time.monotonic() < end and server.poll() is None:
        try:
            ready = urllib.request.urlopen(f"{address}/ready", timeout=10).status
        except OSError:
            time.sleep(0.5)
    body = json.dumps({"text": "some text", "k": 1}).encode()
    asked = urllib.request.Request(f"{address}/v1/models/model/predict", body, {"Content-Type": "application/json"})
    assert len(json.load(urllib.request.urlopen(asked, timeout=60))["results"]) == 1
    server.terminate()
    assert server.wait(60) == 0
finally:
    server.kill()
"""
SHOWN = ("numpy", "scipy", "numba", "pydantic", "typer", "matplotlib", "fastapi", "uvicorn")
CHECK = """
import importlib.metadata as metadata, json, sys
import labelwise as lw
names, *paths = sys.argv[1:]
for path in paths:
    assert len(lw.load(path).predict(["a text about trees and their leaves"], k=1)) == 1, path
assert "torch" not in sys.modules
print(json.dumps({"loaded": len(paths), **{name: metadata.version(name) for name in names.split()}}))
"""


def project() -> dict:
    """The table `project` of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def found_pythons() -> list[str]:
    """Every Python on PATH and under pyenv, named by version or not."""
    folders = [Path(part) for part in os.environ.get("PATH", "").split(os.pathsep) if part]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    folders += sorted(pyenv.glob("*/bin"))
    names = re.compile(r"python3(\.\d+)?")
    paths = [path for folder in folders if folder.is_dir() for path in folder.iterdir() if names.fullmatch(path.name)]
    return [sys.executable, *map(str, paths)]


def supported(paths: list[str]) -> dict[tuple[int, int], str]:
    """The interpreters that run and are new enough, by version; the first of each."""
    lowest = tuple(map(int, re.findall(r"\d+", project()["requires-python"])))
    found: dict[tuple[int, int], str] = {}
    for path in dict.fromkeys(paths):
        program = "import sys, venv, ensurepip; print(*sys.version_info[:2])"
        done = subprocess.run([path, "-c", program], capture_output=True, text=True, check=False)
        version = tuple(map(int, done.stdout.split())) if done.returncode == 0 else ()
        if len(version) == 2 and version >= lowest:
            found.setdefault((version[0], version[1]), path)
    return dict(sorted(found.items()))


def lowest_versions() -> list[str]:
    """Constraints with the lowest version of every dependency of the core install, of reports and of the service."""
    about = project()
    extras = about["optional-dependencies"]
    needed = [*about["dependencies"], *extras["report"], *extras["serve"]]
    return [re.sub(r">=", "==", one) for one in needed]


def run(command: list[str], log: Path, **more: object) -> str:
    """Run a command whose output is added to a log; raises with its end if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **more)  # type: ignore[call-overload]
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {' '.join(command)}\n{done.stdout}{done.stderr}\n")
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:6])} ... ended with {done.returncode}:\n{done.stderr[-1500:]}")
    return done.stdout


def build(python: str, work: Path) -> tuple[Path, Path]:
    """Wheel and sdist, built by the package `build` in an environment of its own."""
    log, folder = work / "build.log", work / "build-env"
    run([python, "-m", "venv", str(folder)], log)
    run([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "build"], log)
    run([str(folder / "bin" / "python"), "-m", "build", "--outdir", str(work / "dist"), str(ROOT)], log)
    (wheel,), (sdist,) = (work / "dist").glob("*.whl"), (work / "dist").glob("*.tar.gz")
    return wheel, sdist


def missing_from(wheel: Path) -> list[str]:
    """Files of the package that are tracked or there, and not in the wheel."""
    inside = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src"
    files = [path for path in (source / "labelwise").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return sorted(str(path.relative_to(source)) for path in files if str(path.relative_to(source)) not in inside)


def try_cell(name: str, python: str, package: Path, constraints: list[str], work: Path) -> dict:
    """Install the package into an empty environment and use it; returns the versions."""
    folder, log = work / name, work / f"{name}.log"
    run([python, "-m", "venv", str(folder)], log)
    bin, limits = folder / "bin", work / f"{name}.constraints"
    limits.write_text("".join(f"{line}\n" for line in constraints), encoding="utf-8")
    install = [str(bin / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--only-binary"]
    install += [":all:", "--no-binary", "labelwise"] if package.suffix == ".gz" else [":all:"]
    run([*install, "--constraint", str(limits), f"{package}[report,serve]"], log)
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    used = {"cwd": str(work), "env": clean}
    run([str(bin / "labelwise"), "train", "--help"], log, **used)
    demo = work / f"{name}-demo"
    printed = run([str(bin / "labelwise"), "demo", str(demo)], log, **used)
    if not (demo / "linear_tree" / "report.html").is_file() or "linear_tree" not in printed:
        raise RuntimeError("the demo has written no report")
    run([str(bin / "labelwise"), "predict", str(demo / "linear_tree"), "some text"], log, **used)
    run([str(bin / "python"), "-c", SERVE, str(demo / "linear_tree")], log, **used)
    saved = [
        str(path.parent) for path in sorted(MODELS.glob("v*/manifest.json")) if path.parent.name.endswith(WITHOUT_TORCH)
    ]
    models = [str(demo / "linear_tree"), *saved]
    return json.loads(run([str(bin / "python"), "-c", CHECK, " ".join(SHOWN), *models], log, **used).splitlines()[-1])


def main() -> int:
    """Run the matrix and print a table."""
    parser = argparse.ArgumentParser(description="Try wheel and sdist with the oldest and newest supported versions.")
    parser.add_argument("--pythons", nargs="*", default=[], help="interpreters; not given: those on PATH and of pyenv")
    parser.add_argument("--all", action="store_true", help="also the Pythons between the oldest and the newest")
    parser.add_argument("--only", help="the name of one cell: oldest, newest, python3.12 ...")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "matrix", help="folder, replaced")
    options = parser.parse_args()
    shutil.rmtree(options.work, ignore_errors=True)
    options.work.mkdir(parents=True)
    pythons = supported(options.pythons or found_pythons())
    if not pythons:
        print(f"no Python {project()['requires-python']} with venv was found; name some with PYTHONS=...")
        return 1
    versions = list(pythons)
    wheel, sdist = build(pythons[versions[0]], options.work)
    failed = 0
    if missing := missing_from(wheel):
        print(f"FAILED  not in the wheel: {', '.join(missing)}")
        failed += 1
    cells = [("oldest", versions[0], sdist, lowest_versions()), ("newest", versions[-1], wheel, [])]
    cells += [(f"python{v[0]}.{v[1]}", v, wheel, []) for v in versions[1:-1] if options.all or options.only]
    for name, version, package, constraints in cells:
        if options.only not in (None, name):
            continue
        begin = time.monotonic()
        python = f"Python {version[0]}.{version[1]}, {package.suffix.lstrip('.').replace('gz', 'sdist')}"
        try:
            about = try_cell(name, pythons[version], package, constraints, options.work)
        except (RuntimeError, OSError) as error:
            failed += 1
            print(f"FAILED  {name}: {python}; all output: {options.work / name}.log\n{error}")
            continue
        listed = ", ".join(f"{key} {about[key]}" for key in SHOWN)
        print(
            f"passed  {name}: {python}; {listed}; {about['loaded']} models; {time.monotonic() - begin:.0f} s",
            flush=True,
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
