"""Prediction does not import the training room, with any method."""

import os
import subprocess
import sys

import numpy as np

from conformance.planted import planted
from conformance.small import small_and_short
from labelwise.registry import METHODS, method_class
from labelwise.runtime.threads import using_threads

PREDICT = """
import sys
import numpy as np
import labelwise as lw
from conformance.planted import planted
lw.set_threads(2)
for name, kind in (given.split(":") for given in sys.argv[1:]):
    top = lw.load(f"{name}/model").predict(planted(kind, n_documents=60, n_labels=12), k=5)
    held = [one for one in sys.modules if one.startswith("labelwise.nn.train")]
    assert held == [], (name, held)
    np.savez(f"{name}/top.npz", ids=top.ids, scores=top.scores)
"""


def test_saved_models_predict_without_training_code(tmp_path):
    expected = {}
    for name in METHODS:
        kind, settings = method_class(name).inputs[0], small_and_short(name)
        data = planted(kind, n_documents=60, n_labels=12)
        with using_threads(2):
            model = method_class(name)(**settings).fit(data)
            expected[f"{name}:{kind}"] = model.predict(data, k=5)
        model.save(tmp_path / name / "model")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PREDICT, *expected]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    for given, top in expected.items():
        found = np.load(tmp_path / given.split(":")[0] / "top.npz")
        # networks: sums depend on where their memory begins, which differs between processes
        np.testing.assert_allclose(found["scores"], top.scores, rtol=1e-6, err_msg=given)
        assert (found["ids"] == top.ids).mean() > 0.99, given
