"""Small models behind the service."""

import numpy as np
import pytest

import labelwise as lw
from serve.running import make_data, running_client


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """The folder of a calibrated model."""
    path = tmp_path_factory.mktemp("serve") / "topics"
    data = make_data()
    model = lw.LinearTree(trees=1).fit(data.take(slice(0, 110)))
    model.calibrate(data.take(slice(110, 150)))
    model.save(path)
    return path


@pytest.fixture(scope="session")
def plain_folder(tmp_path_factory):
    """The folder of a model without calibration, explanations or texts of labels."""
    path = tmp_path_factory.mktemp("serve") / "plain"
    lw.Popularity().fit(lw.Dataset(np.array([[1, 1], [1, 0]]), ["first", "second"], texts=["a b", "c d"])).save(path)
    return path


@pytest.fixture(scope="session")
def client(folder, plain_folder):
    """A client of two models."""
    with running_client(
        {"topics": folder, "plain": plain_folder}, max_text=2000, max_documents=20, max_request=50_000
    ) as one:
        yield one
