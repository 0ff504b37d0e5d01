"""What makes methods readable: one class deep, one hook, and nothing in them of how work is divided or kept."""

import ast
import inspect
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import labelwise
from labelwise import registry
from labelwise.config import Config
from labelwise.model.method import Method

SOURCE = Path(labelwise.__file__).parent
METHODS = sorted(registry.METHODS)
FILES = sorted((SOURCE / "methods").glob("*.py"))
DIVIDED = {"tasks", "ranks", "budget"}
"""Modules of `runtime` that divide, limit or keep work: the job does that for methods."""
APPLICATIONS = {"report", "runs", "commands", "planning", "tuning", "interop", "serve", "cli"}
TOGETHER = {"runs", "commands"}
"""Applications that others may import."""

# what does not hold yet; each of these tables must become empty
HELPERS_IN_METHODS: set[str] = set()
UNFINISHED_METHODS: set[str] = set()


def imports_of(path, only_when_loaded=False):
    """Dotted names below labelwise of the imports in a file; without those in functions and for types, if wanted."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = list(tree.body) if only_when_loaded else list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "labelwise":
            for alias in node.names:
                yield [*node.module.split(".")[1:], alias.name]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "labelwise":
                    yield alias.name.split(".")[1:]


def test_the_tables_of_exceptions_name_what_is_there():
    assert {path.stem for path in FILES} >= HELPERS_IN_METHODS
    assert set(METHODS) >= UNFINISHED_METHODS


def test_the_folder_of_methods_has_one_file_per_method():
    stems = {path.stem for path in FILES} - {"__init__"}
    assert stems - set(METHODS) == HELPERS_IN_METHODS
    modules = {name: target.partition(":")[0].rpartition(".")[2] for name, target in registry.METHODS.items()}
    assert all(modules[name] == name for name in METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_one_class_deep_and_has_one_hook(name):
    method = registry.method_class(name)
    deep = [base for base in method.__mro__[1:] if base.__module__.startswith("labelwise.methods")]
    assert (method.__base__ is Method and not deep) == (name not in UNFINISHED_METHODS)
    if name in UNFINISHED_METHODS:
        return
    hooks = {attribute for attribute in vars(Method) if attribute.startswith("_") and not attribute.startswith("__")}
    assert hooks & set(vars(method)) == {"_fit"} | ({"_loaded_from"} & set(vars(method)))


@pytest.mark.parametrize("name", sorted(set(METHODS) - UNFINISHED_METHODS))
def test_fit_sets_nothing_on_the_method(name):
    method = registry.method_class(name)
    tree = ast.parse(textwrap.dedent(inspect.getsource(method._fit)))
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else [getattr(node, "target", None)]
        for target in targets:
            for part in ast.walk(target) if isinstance(target, ast.AST) else ():
                own = isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "self"
                assert not own, f"{name}: _fit sets self.{part.attr}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_classes_in_methods_are_not_deep(path):
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and path.stem not in HELPERS_IN_METHODS:
            assert len(node.bases) <= 1, f"{node.name} has several bases"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_methods_do_not_divide_or_keep_work(path):
    for parts in imports_of(path):
        assert not (parts[0] == "runtime" and parts[1] in DIVIDED), f"{path.name} imports {'.'.join(parts)}"
        assert parts[:2] != ["runtime", "job"] or parts[2:] == ["Job"], f"{path.name} imports {'.'.join(parts)}"


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_core_imports_no_application_and_applications_few_others(path):
    own = path.relative_to(SOURCE).parts[0]
    if path.parent == SOURCE and path.name in ("__init__.py", "__main__.py"):
        return
    for parts in imports_of(path):
        if own not in APPLICATIONS:
            assert parts[0] not in APPLICATIONS, f"{path}: imports {'.'.join(parts)}"


def test_modules_import_each_other_without_a_cycle_when_they_are_loaded():
    modules = {
        path.relative_to(SOURCE).with_suffix("").as_posix().replace("/", "."): path for path in SOURCE.rglob("*.py")
    }
    needed = {}
    for name, path in modules.items():
        found = set()
        for parts in imports_of(path, only_when_loaded=True):
            dotted = next(
                (".".join(parts[:n]) for n in (len(parts), len(parts) - 1) if ".".join(parts[:n]) in modules), None
            )
            if dotted is not None and dotted != name:
                found.add(dotted)
        needed[name] = found
    done, path_to = set(), []

    def visit(name):
        if name in done:
            return
        assert name not in path_to, " > ".join([*path_to[path_to.index(name) :], name])
        path_to.append(name)
        for other in sorted(needed[name]):
            visit(other)
        path_to.pop()
        done.add(name)

    for name in sorted(modules):
        visit(name)


def test_sections_of_configs_are_configs():
    """Classes in method files are methods, configs and what was learned: nothing else has a base of ours."""
    for path in FILES:
        module = __import__(f"labelwise.methods.{path.stem}", fromlist=["_"]) if path.stem != "__init__" else None
        for kind in vars(module).values() if module else ():
            if inspect.isclass(kind) and kind.__module__ == module.__name__ and not issubclass(kind, Method | Config):
                assert kind.__bases__ == (object,), kind


def test_no_fit_goes_through_more_files():
    """In a process of its own: what other tests have imported and cached makes a difference."""
    tool = SOURCE.parents[1] / "tools" / "walks.py"
    printed = subprocess.run([sys.executable, tool, "--check"], capture_output=True, text=True)
    assert printed.returncode == 0, printed.stdout + printed.stderr
