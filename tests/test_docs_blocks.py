"""Every command and every Python block of README and docs is run, or says next to it why it is not.

Blocks of a page run in order, in one folder that holds the files they name (`docs_world.py`). A block that cannot run
here has a comment in the line before it: `<!-- not run: reason -->`.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

import docs_world

sys.path.insert(0, str(Path(__file__).parent / "cli"))
from commands import labelwise

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^(?:<!-- (not run: [^>]+?) -->\n)?^```(bash|console|python)\n(.*?)^```", re.M | re.S)
OWN_TESTS = {"scikit-learn.md": "test_docs_pages.py", "README.md of knn_method": "conformance/test_check_method.py"}
NETWORKS = {"linear-tree.md"}
IMAGES = {"images.md", "quickstart.md"}
MACH = {"mach.md"}
CALIBRATING = {"probabilities.md"}
SLOW = {"quickstart.md", "images.md"}


def pages() -> list[Path]:
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    generated = ROOT / "docs" / "reference"
    with_blocks = [one for one in found if generated not in one.parents and BLOCK.search(one.read_text("utf-8"))]
    return [one for one in with_blocks if one.name != "scikit-learn.md" and "knn_method" not in one.parts]


def commands(block: str, console: bool) -> list[str]:
    """The commands of a block: continued lines joined, comments left out, here-documents kept whole."""
    lines = block.splitlines()
    if console:
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    found: list[str] = []
    end = None
    for line in lines:
        if end is not None:
            found[-1] += "\n" + line
            end = None if line == end else end
        elif found and found[-1].endswith("\\"):
            found[-1] = found[-1][:-1] + line.strip()
        elif line.strip() and not line.startswith("#"):
            found.append(line)
            here = re.search(r"<<'?(\w+)'?$", line)
            end = here.group(1) if here else None
    return found


def run_command(command: str, folder: Path) -> None:
    """labelwise in this process; `cat > FILE <<END` writes a file; anything else is not for a page that is run."""
    here = re.match(r"cat > (\S+) <<'?(\w+)'?\n(.*)\n\2$", command, re.S)
    if here:
        (folder / here.group(1)).write_text(here.group(3) + "\n", encoding="utf-8")
        return
    words = shlex.split(command, comments=True)
    if words[:2] == [".", ".venv/bin/activate"]:
        return  # whoever runs the tests has activated something already
    assert words[0] == "labelwise", f"only labelwise is run here; say why not next to the block: {command}"
    labelwise(*words[1:], cwd=folder)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    docs_world.write_tables(folder)
    docs_world.write_corpus(folder)
    docs_world.write_thesaurus(folder)
    docs_world.write_foreign_files(folder)
    docs_world.train_models(folder, lambda *words: labelwise(*words, cwd=folder))
    (folder / "configs").symlink_to(ROOT / "configs")
    return folder


@pytest.mark.parametrize(
    "page", [pytest.param(one, marks=[pytest.mark.slow] * (one.name in SLOW), id=one.name) for one in pages()]
)
def test_the_blocks_of_a_page_run(page, world, tmp_path, monkeypatch):
    folder = tmp_path / "here"
    shutil.copytree(world, folder, symlinks=True)
    if page.name in NETWORKS:
        pytest.importorskip("transformers")
        docs_world.write_encoder(folder)
    if page.name in MACH:
        pytest.importorskip("torch")
        docs_world.write_mach(folder)
    if page.name in IMAGES:
        pytest.importorskip("torch")
        pytest.importorskip("PIL")
        docs_world.write_images(folder)
    if page.name in CALIBRATING:
        docs_world.without_calibration(folder)
    for saved in re.findall(r'\.save\("(\w+)"\)', page.read_text(encoding="utf-8")):
        shutil.rmtree(folder / saved, ignore_errors=True)
    monkeypatch.chdir(folder)
    names = None
    for reason, kind, block in BLOCK.findall(page.read_text(encoding="utf-8")):
        if reason:
            continue
        if kind == "python":
            names = docs_world.names_of(folder) if names is None else names
            exec(compile(block, page.name, "exec", dont_inherit=True), names)  # not the annotations of this file
        else:
            for command in commands(block, kind == "console"):
                run_command(command, folder)


def test_reasons_are_reasons_and_every_page_is_known():
    for page in pages():
        for reason, _, _ in BLOCK.findall(page.read_text(encoding="utf-8")):
            assert not reason or len(reason.split()) >= 4, (page.name, reason)
    for name, test in OWN_TESTS.items():
        assert (ROOT / "tests" / test).exists(), name
