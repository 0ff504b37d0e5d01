"""Pages do what they say: the code of the page on scikit-learn runs, and the reference has every public name."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import labelwise as lw
from labelwise.testing.subject import planted_texts
from labelwise.topk import TopK

DOCS = Path(__file__).parents[1] / "docs"


def test_the_code_with_scikit_learn_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lw.write(planted_texts(60, 8), tmp_path / "train.jsonl")
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / "scikit-learn.md").read_text(encoding="utf-8"), re.M | re.S)
    names = {"__name__": "page"}
    for block in blocks:
        if "to_frame" in block:  # pandas is not among our dependencies
            monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=dict))
        exec(compile(block, "scikit-learn.md", "exec"), names)
    assert isinstance(names["top"], TopK)
    assert len(names["top"]) == 60
    assert names["search"].best_score_ > 0.3
    assert names["probabilities"].shape == names["scores"].shape == (2, 8)


def test_the_reference_has_every_public_name():
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\.\. auto\w+:: labelwise\.(\w+)$", page, re.M))
    assert documented >= set(lw.__all__) - {"__version__"}
