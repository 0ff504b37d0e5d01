"""The planner's parameters are those of the heads it proposes, and its numbers of groups are the cheapest."""

import numpy as np
import pytest

from labelwise.errors import ConfigError
from labelwise.planning.proposals import best_groups, plan_heads


@pytest.mark.parametrize(("n_labels", "width"), [(2, 3), (29, 8), (1000, 16)])
def test_parameters_are_those_of_the_heads(n_labels, width):
    pytest.importorskip("torch")
    from labelwise.nn.config import DigitHeadConfig
    from labelwise.nn.heads.make_head import make_head

    for plan in plan_heads(n_labels, width, bottleneck=5):
        settings = {"kind": plan.kind}
        if plan.kind != "one_hot":
            settings["radices"] = plan.radices
        if plan.kind == "cascade":
            settings["bottleneck"] = 5
        head = make_head(width, n_labels, DigitHeadConfig.model_validate(settings), np.ones(n_labels), 0)
        assert plan.parameters == sum(parameter.numel() for parameter in head.parameters()), plan
        assert plan.training_bytes > 4 * plan.parameters


def test_the_number_of_groups_is_the_cheapest():
    n_labels, width, bottleneck, groups = 100_000, 768, 300, 10

    def operations(count):
        return width * count + bottleneck * groups * n_labels / count

    best = best_groups(n_labels, width, bottleneck, groups)
    assert operations(best) <= min(operations(count) for count in range(1, n_labels, 7)) * 1.001


def test_what_cannot_be_planned_is_refused():
    with pytest.raises(ConfigError, match="width"):
        plan_heads(100, 0)
    with pytest.raises(ConfigError, match="2 labels"):
        plan_heads(1, 8)
