"""Parameters of methods as help(), inspect and editors show them."""

import ast
import inspect
import pydoc
import sys
from pathlib import Path

import pytest

import labelwise as lw
from labelwise.registry import METHODS, method_class

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from signatures import STUB, stub_text


@pytest.mark.parametrize("name", METHODS)
def test_signatures_list_the_parameters_of_the_config(name):
    method = method_class(name)
    parameters = inspect.signature(method).parameters
    assert list(parameters) == list(method.Config.model_fields)
    config = method.Config()
    for key, parameter in parameters.items():
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
        assert parameter.default == getattr(config, key)
        assert method.Config.model_fields[key].description.split()[0] in method.__doc__


def test_help_shows_types_defaults_and_sentences():
    shown = pydoc.plain(pydoc.render_doc(lw.LinearTree))
    assert "trees: int = 3" in shown
    assert "precision: Literal['float32', 'float16', 'int8'] = 'int8'" in shown
    assert "Maximum number of labels per leaf cluster." in shown
    assert "Keys: loss, cost_positive" in shown
    assert str(inspect.signature(lw.Popularity)) == "()"


def test_editors_see_the_same_without_running_the_code():
    expected = stub_text(method_class(name) for name in METHODS)
    assert STUB.read_text(encoding="utf-8") == expected, "run python tools/signatures.py"
    classes = {node.name: node for node in ast.parse(expected).body if isinstance(node, ast.ClassDef)}
    for name in METHODS:
        method = method_class(name)
        constructor = next(n for n in classes[method.__name__].body if isinstance(n, ast.FunctionDef))
        assert [argument.arg for argument in constructor.args.kwonlyargs] == list(method.Config.model_fields)
    source = (STUB.parent / "__init__.py").read_text(encoding="utf-8")
    for name in classes:
        assert f"from labelwise.signatures import {name} as {name}" in source
