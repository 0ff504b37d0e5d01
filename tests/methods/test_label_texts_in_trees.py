"""Names of labels in the clustering of linear_tree: `label_text_weight`."""

import dataclasses

import numpy as np
import pytest
from scipy import sparse

import labelwise as lw
from labelwise.data.csr import Blocks
from labelwise.errors import ConfigError
from labelwise.features.labels import with_label_texts
from labelwise.runtime.job import Job
from labelwise.strings import Strings

N = 8
BY_DOCUMENT, BY_NAME = np.arange(N) // 4, np.arange(N) % 2
"""Documents say that labels 0 to 3 belong together, names that even ones do."""


@pytest.fixture(scope="module")
def data():
    topics = ("sea wave shore tide sand", "fish net boat hook bait")
    texts = [f"{topics[group]} own{label}" for label, group in enumerate(BY_DOCUMENT)] * 2
    texts += ["iron bread"]  # the words of the names are in the vocabulary
    matrix = sparse.vstack([sparse.eye_array(N)] * 2 + [sparse.csr_array((1, N))], format="csr")
    names = [("iron", "bread")[g] for g in BY_NAME]
    return lw.Dataset(texts=texts, labels=matrix, label_names=Strings.of(f"L{i}" for i in range(N)), label_texts=names)


def together(model):
    """Whether two labels have the same parent, for all pairs."""
    leaves = model.trees_[0][0].ancestors(0)
    return leaves[:, None] == leaves


def fitted(data, weight, job=None, **given):
    return lw.LinearTree(tree="kway", branching=2, trees=1, leaf_size=4, label_text_weight=weight, **given).fit(
        data, job=job
    )


@pytest.mark.parametrize(("weight", "groups"), [(0, BY_DOCUMENT), (0.01, BY_DOCUMENT), (0.9, BY_NAME), (1, BY_NAME)])
def test_the_weight_decides_what_labels_are_clustered_by(data, weight, groups):
    assert (together(fitted(data, weight)) == (groups[:, None] == groups)).all()


def test_names_of_a_vocabulary_count_where_documents_have_them(data, tmp_path):
    rows = "".join(f"L{i}\t{('iron', 'bread')[i // 2 % 2]}\n" for i in range(N))
    (tmp_path / "names.tsv").write_text("name\ttext\n" + rows)
    model = fitted(data, 1, label_documents=str(tmp_path / "names.tsv"))
    groups = np.arange(N) // 2 % 2
    assert (together(model) == (groups[:, None] == groups)).all()


def test_names_are_clustered_next_to_vectors(data):
    vectors = np.random.default_rng(0).normal(size=(len(data), 5)).astype(np.float32)
    both = dataclasses.replace(data, features=vectors)
    assert (together(fitted(both, 0.95, vector_scale=0.3)) == (BY_NAME[:, None] == BY_NAME)).all()


def test_finished_work_with_other_names_is_not_resumed(data, tmp_path):
    fitted(data, 1, Job(folder=tmp_path))
    renamed = dataclasses.replace(data, label_texts=[("iron", "bread")[g] for g in BY_DOCUMENT])
    model = fitted(renamed, 1, Job(folder=tmp_path))
    assert (together(model) == (BY_DOCUMENT[:, None] == BY_DOCUMENT)).all()


def test_features_follow_the_formula():
    random = np.random.default_rng(1)
    documents, texts = (random.random((6, 4)) * (random.random((6, 4)) < 0.6) for _ in range(2))
    documents[2], texts[3] = 0, 0
    vectors = random.random((6, 3)).astype(np.float32)
    norms = np.linalg.norm(texts, axis=1, keepdims=True)
    expected = 0.7 * documents + 0.3 * texts / np.where(norms > 0, norms, 1)
    given = sparse.csr_array(documents.astype(np.float32)), sparse.csr_array(texts.astype(np.float32))
    np.testing.assert_allclose(with_label_texts(*given, 0.3).toarray(), expected, rtol=1e-5)
    mixed = with_label_texts(Blocks(given[0], vectors), given[1], 0.3)
    np.testing.assert_allclose(mixed.sparse.toarray(), expected, rtol=1e-5)
    np.testing.assert_allclose(mixed.dense, 0.7 * vectors, rtol=1e-5)


def test_what_is_refused(data):
    with pytest.raises(ConfigError, match=r"label_text_weight: label names are texts, but .* is read as features"):
        fitted(dataclasses.replace(data, texts=None, features=np.eye(len(data), dtype=np.float32)), 0.5)
    with pytest.raises(ConfigError, match="`label_text_weight` is for clustering"):
        lw.LinearTree(tree="hierarchy", hierarchy="tree.tsv", label_text_weight=0.5)
    with pytest.raises(ConfigError, match="less than or equal to 1"):
        lw.LinearTree(label_text_weight=2)
