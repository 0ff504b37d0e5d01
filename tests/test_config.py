from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from labelwise.config import Config, ConfigSource, to_yaml, validated
from labelwise.errors import ConfigError


class Inner(Config):
    beam: Annotated[int, Field(ge=1)] = 10
    rate: float = 1e-4


class Outer(Config):
    inner: Inner = Inner()
    word: str = "x"
    needed: bool


YAML = """\
# a comment
inner:
  beam: 20
  rate: 1e-3
word: no
needed: true
"""


def check(text, *overrides):
    source = ConfigSource.from_yaml(text, "run.yml").override(overrides)
    return validated(Outer, source.values, source)


def test_numbers_and_words_are_read_as_people_expect():
    config = check(YAML)
    assert config.inner == Inner(beam=20, rate=0.001)
    assert config.word == "no"
    assert config.needed is True


def test_overrides_are_typed_and_win():
    config = check(YAML, "inner.beam=3", "inner.rate=5e-5", "word=[a", "needed=false")
    assert (config.inner.beam, config.inner.rate, config.word, config.needed) == (3, 5e-5, "[a", False)


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        (YAML.replace("beam", "beem"), [], "run.yml:3: inner.beem: there is no such key; did you mean 'beam'?"),
        (YAML.replace("20", "0"), [], "run.yml:3: inner.beam: should be greater than or equal to 1, got 0"),
        (YAML.replace("20", "many"), [], "run.yml:3: inner.beam: should be a valid integer"),
        (YAML.replace("needed: true", ""), [], "needed: this key is needed"),
        (YAML, ["inner.beam=zero"], "--set inner.beam=zero: inner.beam: should be a valid integer"),
        (YAML, ["innner.beam=1"], "--set innner.beam=1: innner: there is no such key; did you mean 'inner'?"),
        (YAML, ["inner.rate=.inf"], "should be a finite number"),
        (YAML, ["inner"], "section.key=value"),
        (YAML, ["word.letter=1"], "word is a value, not a section"),
        ("a: [1", [], "run.yml:"),
        ("- 1", [], "run.yml:1: a config is a mapping"),
        (YAML + "word: yes\n", [], "run.yml:7: not valid YAML: duplicate key 'word'"),
        ("{a: 1}: 2", [], "not valid YAML"),
        ("a: !!python/object/apply:os.system [ls]", [], "not valid YAML"),
        ("&a [*a]", [], "run.yml"),
        ("word: &x a\nneeded: *x", [], "run.yml:2: not valid YAML: aliases"),
        ("word: \x00", [], "not valid YAML"),
    ],
)
def test_faults_name_their_place(text, overrides, message):
    with pytest.raises(ConfigError) as caught:
        check(text, *overrides)
    assert message in str(caught.value)


def test_all_faults_are_told_at_once():
    with pytest.raises(ConfigError) as caught:
        check("inner: {beam: 0, rate: x}")
    assert len(str(caught.value).splitlines()) == 3


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "Zs", "S"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abcdefg_", min_size=1), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(st.dictionaries(st.text("abcxyz", min_size=1), plain, max_size=4))
def test_written_yaml_reads_back_equal(values):
    assert ConfigSource.from_yaml(to_yaml(values), "x").values == values
    # the same object several times, as in ensembles of similar models
    twice = {"a": values, "b": [values, values]}
    assert ConfigSource.from_yaml(to_yaml(twice), "x").values == twice


def test_missing_file_is_told():
    with pytest.raises(ConfigError, match="no such config file"):
        ConfigSource.from_file("nowhere.yml")


@pytest.mark.parametrize("text", ["1.10", "0777", "2020", "1e5", "2001-01-01", "007"])
def test_words_that_look_like_numbers_stay_as_they_are_written(text):
    assert check(YAML, f"word={text}").word == text
    assert check(YAML.replace("word: no", f"word: {text}")).word == text


def test_impossible_dates_are_words():
    assert check(YAML, "word=2001-99-99").word == "2001-99-99"
