"""Corpora built from packages that the tests make themselves."""

import importlib.metadata
import json

import pytest

import labelwise as lw
from labelwise.data.builders import pydocs
from labelwise.data.builders.corpus import Document, write_corpus
from labelwise.data.builders.pydocs import build_pydocs
from labelwise.data.hashing import hash_fraction
from labelwise.errors import DataError

TEN = "one two three four five six seven eight nine ten"


def read_all(folder):
    """{text: labels} over both parts, and the parts' texts."""
    found, split = {}, {}
    for part in ("train", "test"):
        texts = (folder / f"{part}_texts.txt").read_text().splitlines()
        rows = (folder / f"{part}_labels.txt").read_text().splitlines()
        assert len(texts) == len(rows)
        found.update(zip(texts, (set(row.split()) for row in rows), strict=True))
        split[part] = texts
    return found, split


# --- the corpus --------------------------------------------------------------------------------------------------


def documents(count, begin=0):
    return [Document(f"text number {n}", (f"a{n % 3}", f"b{n}")) for n in range(begin, begin + count)]


def test_the_split_depends_on_nothing_but_text_and_seed(tmp_path):
    write_corpus(tmp_path / "a", documents(200), {})
    write_corpus(tmp_path / "b", documents(300, 50), {})
    write_corpus(tmp_path / "c", documents(200), {}, seed=1)
    split = {name: read_all(tmp_path / name)[1] for name in "abc"}
    test = set(split["a"]["test"])
    common = {f"text number {n}" for n in range(50, 200)}
    assert test & common == set(split["b"]["test"]) & common
    assert test != set(split["c"]["test"])
    assert 20 <= len(test) <= 60
    assert split["a"]["train"] == [d.text for d in documents(200) if d.text not in test]
    assert test == {d.text for d in documents(200) if hash_fraction(d.text, 0) < 0.2}


def test_repeated_texts_rare_labels_and_limits(tmp_path):
    again = [*documents(60), Document("text number 3", ("late",)), Document("lonely", ("rare",))]
    built = write_corpus(tmp_path / "a", again, {"builder": "test"}, min_label_count=2)
    found, _ = read_all(tmp_path / "a")
    assert found["text number 3"] == {"a0"}
    assert "lonely" not in found
    assert (built.documents, built.labels, built.mean_labels) == (60, 3, 1.0)
    limited = write_corpus(tmp_path / "b", documents(200), {}, limit=50)
    assert limited.documents == 50
    more = write_corpus(tmp_path / "c", documents(200), {}, limit=80)
    assert set(read_all(tmp_path / "b")[0]) < set(read_all(tmp_path / "c")[0])
    assert more.documents == 80


def test_only_our_own_folders_are_replaced(tmp_path):
    write_corpus(tmp_path / "a", documents(100), {})
    with pytest.raises(DataError, match="exists already"):
        write_corpus(tmp_path / "a", documents(50), {})
    assert len(read_all(tmp_path / "a")[0]) == 100
    write_corpus(tmp_path / "a", documents(50), {}, force=True)
    assert len(read_all(tmp_path / "a")[0]) == 50
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(DataError, match="not written by labelwise"):
        write_corpus(tmp_path / "mine", documents(50), {}, force=True)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]
    with pytest.raises(DataError, match="too few"):
        write_corpus(tmp_path / "none", [], {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "mine"]


# --- docstrings --------------------------------------------------------------------------------------------------

MODULE = f'''"""Module. {TEN}"""
raise SystemExit("this module must not be imported")

def function(first, /, second, *rest, keyword=1, _hidden=2, **options):
    """Function. {TEN}
    second line	with a tab
    """
    def inner(deep):
        """Inner. {TEN}"""

def short(x):
    """Too short."""

if True:
    try:
        class Thing:
            """Class. {TEN}"""
            @classmethod
            def method(cls, value): """Method. {TEN}"""
            async def waits(self, self_made): """Waits. {TEN}"""
            def same(self, other): """Method. {TEN}"""
    except ImportError:
        def fallback(error_only): """Fallback. {TEN}"""

def odd(surrogate):
    """Odd \\ud800 {TEN}"""

not_a_docstring = """Not. {TEN}"""
'''


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Two installed distributions in a folder of their own, seen by the builder alone."""
    site = tmp_path / "site"

    def install(name, files, version="1.0"):
        for path, text in files.items():
            (site / path).parent.mkdir(parents=True, exist_ok=True)
            (site / path).write_text(text)
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "RECORD").write_text("".join(f"{path},,\n" for path in files))

    many = "\n".join(f'def f{n}(p{n}):\n    """Many {n}. {TEN}"""' for n in range(60))
    install(
        "Fine-Package",
        {
            "fine/__init__.py": f'"""Package. {TEN}"""',
            "fine/_inner/mod.py": MODULE,
            "fine/broken.py": "def (:",
            "fine/tests/helpers.py": f'"""Tests. {TEN}"""',
            "fine/test_it.py": f'"""A test. {TEN}"""',
            "fine/_vendor/other.py": f'"""Vendored. {TEN}"""',
            "fine/data.json": "{}",
            "fine/zmany.py": many,
        },
    )
    install("other", {"other.py": f'"""Other. {TEN}"""\n' + many.replace("Many", "More")}, "2.0")
    found = importlib.metadata.distributions
    monkeypatch.setattr(pydocs, "distributions", lambda: found(path=[str(site)]))


def test_docstrings_and_their_labels(packages, tmp_path):
    built = build_pydocs(tmp_path / "corpus", ["fine_package"])
    found, _ = read_all(tmp_path / "corpus")
    own = {text.split(".")[0]: labels for text, labels in found.items() if not text.startswith("Many")}
    path = {"fine", "inner", "mod"}
    assert own == {
        "Package": {"fine"},
        "Module": path,
        "Function": path | {"first", "second", "rest", "keyword", "hidden", "options"},
        "Inner": path | {"deep"},
        "Class": path,
        "Method": path | {"value"},
        "Waits": path | {"self_made"},
        "Fallback": path | {"error_only"},
    }
    assert f"Function. {TEN} second line with a tab" in found
    assert found[f"Many 7. {TEN}"] == {"fine", "zmany", "p7"}
    assert built.documents == len(found) == 68
    assert built.labels == len(set().union(*found.values()))
    source = json.loads((tmp_path / "corpus" / "source.json").read_text())
    assert source["packages"] == {"Fine-Package": "1.0"}
    assert source["files_not_parsed"] == 1
    assert source["train"] + source["test"] == 68


def test_all_packages_and_equal_results(packages, tmp_path):
    build_pydocs(tmp_path / "a", ["all"])
    build_pydocs(tmp_path / "b", ["other", "Fine.Package", "other"])
    for name in ("train_texts.txt", "train_labels.txt", "test_texts.txt", "test_labels.txt"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert any(text.startswith("More") for text in read_all(tmp_path / "a")[0])


def test_packages_that_are_not_there(packages, tmp_path):
    with pytest.raises(DataError, match=r"'othr' is not installed here; did you mean 'other'\?"):
        build_pydocs(tmp_path / "corpus", ["othr"])
    with pytest.raises(DataError, match="too few"):
        build_pydocs(tmp_path / "corpus")
    assert not (tmp_path / "corpus").exists()


def test_the_packages_of_this_environment(tmp_path):
    built = build_pydocs(tmp_path / "corpus", ["rich", "typer"])
    parts = {split: lw.read(tmp_path / "corpus", split=split) for split in ("train", "test")}
    assert len(parts["train"]) == built.train > 100
    assert "console" in parts["train"].label_names.positions
    assert set(built.source["packages"]) == {"rich", "typer"}
