"""Prediction needs neither the training room nor Accelerate, with any method."""

import subprocess
import sys

import numpy as np
import pytest

from conformance.planted import planted
from conformance.small import SMALL
from labelwise.parallel import using_threads
from labelwise.registry import METHODS, method_class

# Accelerate is hidden as if it were not installed: transformers imports it by itself where it finds it.
PREDICT = """
import importlib.util, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name.split(".")[0] == "accelerate" else found(name, *rest)
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "accelerate":
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
sys.meta_path.insert(0, Hidden())
import numpy as np
import labelwise as lw
from conformance.planted import planted
kind, model, out = sys.argv[1:]
lw.set_threads(2)
top = lw.load(model).predict(planted(kind), k=5)
np.savez(out, ids=top.ids, scores=top.scores)
held = [name for name in sys.modules if name.split(".")[0] == "accelerate" or name.startswith("labelwise.training")]
assert held == [], held
"""


@pytest.mark.parametrize("name", METHODS)
def test_a_saved_model_predicts_without_training_code(name, tmp_path):
    cls = method_class(name)
    kind = cls.inputs[0]
    with using_threads(2):
        model = cls(**SMALL.get(name, {})).fit(planted(kind))
        expected = model.predict(planted(kind), k=5)
    model.save(tmp_path / "model")
    command = [sys.executable, "-c", PREDICT, kind, str(tmp_path / "model"), str(tmp_path / "top.npz")]
    done = subprocess.run(command, capture_output=True, text=True, cwd="tests")
    assert done.returncode == 0, done.stderr
    found = np.load(tmp_path / "top.npz")
    np.testing.assert_array_equal(found["ids"], expected.ids)
    np.testing.assert_array_equal(found["scores"], expected.scores)
