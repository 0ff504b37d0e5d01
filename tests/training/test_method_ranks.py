"""Methods with row-sparse gradients, trees and rankers on two ranks: the weights of one process, on every rank."""

import numpy as np
import pytest
from forked_ranks import run_ranks
from torchrun_cases import MODELS

from conformance.planted import planted_texts
from labelwise.registry import method_class
from labelwise.runtime.threads import using_threads

NAMES = ("mach", "attention_xml", "xr_transformer")


def fitted(name):
    settings = {key: value for key, value in MODELS[name].items() if key != "method"}
    return method_class(name)(**settings).fit(planted_texts(60, 12))


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")

    def work(number):
        for name in NAMES:
            np.savez(folder / f"{name}-{number}.npz", **fitted(name).fitted_.tensors())

    codes, printed = run_ranks(work)
    assert codes == [0, 0], printed[-4000:]
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_give_the_weights_of_one_process(states, name):
    with using_threads(1):
        alone = fitted(name).fitted_.tensors()
    ranks = [np.load(states / f"{name}-{number}.npz") for number in range(2)]
    for key, array in alone.items():
        np.testing.assert_allclose(ranks[0][key], array, rtol=1e-3, atol=1e-5, err_msg=key)
        np.testing.assert_array_equal(ranks[0][key], ranks[1][key], err_msg=key)
