"""The rooms of the design: a room imports only from rooms above it, and start-up stays light."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import labelwise

SOURCE = Path(labelwise.__file__).parent
# From the ground up, as in docs/design.md. Single files beside these folders are below all of them.
ROOMS = [
    "io", "runtime", "kernels", "data", "metrics", "features", "labelspace", "linear", "nn", "model",
    "ensembles", "methods", "testing", "report", "runs", "commands", "planning", "tuning", "interop", "serve", "cli",
]  # fmt: skip
FILES = sorted(SOURCE.rglob("*.py"))
HAND_OUT_ROOMS = ("__init__.py", "__main__.py", "registry.py")
"""Single files that hand out what rooms hold: they import it when it is asked for, and name its types."""


def room_of(parts):
    return parts[0] if parts and parts[0] in ROOMS else None


def imported_modules(path):
    """Dotted names of all labelwise imports in a file, those inside functions and those for types only too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            pytest.fail(f"{path}:{node.lineno}: relative import")
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "labelwise":
            yield node.lineno, node.module.split(".")[1:] or [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "labelwise":
                    yield node.lineno, alias.name.split(".")[1:]


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.relative_to(SOURCE).as_posix() not in HAND_OUT_ROOMS],
    ids=lambda p: str(p.relative_to(SOURCE)),
)  # fmt: skip
def test_imports_go_only_upwards(path):
    own = room_of(path.relative_to(SOURCE).parts)
    for line, parts in imported_modules(path):
        other = room_of(parts)
        if own is None:
            assert other is None, f"{path.name}:{line}: a single file imports the room {other}"
        elif other is not None:
            assert ROOMS.index(other) <= ROOMS.index(own), f"{path}:{line}: {own} imports {other}"


def test_every_folder_is_a_room():
    folders = {p.name for p in SOURCE.iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert folders <= set(ROOMS)


def test_the_design_lists_the_rooms_and_files_there_are():
    design = (SOURCE.parents[1] / "docs" / "design.md").read_text(encoding="utf-8")
    table = design[design.index("| room |") : design.index("### ")]
    folders = {p.name for p in SOURCE.iterdir() if p.is_dir() and p.name != "__pycache__"}
    first_cells = "".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `"))
    assert re.findall(r"`(\w+)/`", first_cells) == [room for room in ROOMS if room in folders]
    single = next(line for line in table.splitlines() if line.startswith("| single files"))
    assert set(re.findall(r"`(\w+)`", single)) == {p.stem for p in SOURCE.glob("*.py")} - {"__init__"}


HEAVY = ("torch", "sklearn", "numba", "matplotlib", "jinja2", "transformers", "scipy")


@pytest.mark.parametrize("statement", ["import labelwise", "import labelwise.cli.main"])
def test_start_up_imports_nothing_heavy(statement):
    code = f"import sys, json; {statement}; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)
    assert [name for name in loaded if name.split(".")[0] in HEAVY] == []


def test_public_names_exist():
    for name in labelwise.__all__:
        assert getattr(labelwise, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = labelwise.nothing
