"""Mixtures of drawn class probabilities: compiled against the reference, and that against the predictive."""

import pytest
import torch
from kernel_checks import assert_all_close, randn

from compound.ops.class_parts import class_parts, classes_loop, reference
from compound.ops.jit import launch
from compound.predictive import CategoricalPredictive


@pytest.mark.parametrize(
    "sizes", [(5, 16, 32, 2, 8), (3, 8, 16, 7, 4), (2, 4, 16, 3, 4), (1, 1, 16, 2, 1)], ids=str
)
@pytest.mark.parametrize("spread", [0.01, 1.0, 30.0])
def test_parts_are_those_of_the_reference(sizes, spread):
    members, draws, rows, classes, paired = sizes
    logits = 3 * randn(1, 1, rows, classes) + spread * randn(members, draws, rows, classes, seed=1)
    with torch.no_grad():
        ours = class_parts(logits.float(), paired)
        exact = reference(logits.float().double(), paired)
    for one, other in zip(ours, exact, strict=True):
        assert (one - other).abs().max() < 2e-6
    # the difference, which is the mixing part, is small beside them where draws agree
    gap = exact.conditional - exact.component
    assert ((ours.conditional - ours.component) - gap).abs().max() < 2e-6


def test_the_reference_is_the_split_of_the_predictive():
    logits = randn(4, 6, 9, 3)
    parts = reference(logits, 2)
    logs = torch.log_softmax(logits, -1).unsqueeze(1).flatten(0, 1)
    predictive = CategoricalPredictive.from_draws(logs, 4, 2)
    ours = CategoricalPredictive.from_parts(*parts)
    assert (ours.posterior > 0).any()
    names = ("probs", "component", "mixing", "posterior")
    assert_all_close([getattr(ours, n) for n in names], [getattr(predictive, n) for n in names], 1e-12)


def test_a_row_does_not_depend_on_the_others():
    logits = randn(2, 4, 32, 3).float()
    with torch.no_grad():
        together, alone = class_parts(logits, 2), class_parts(logits[:, :, 16:].contiguous(), 2)
    for one, both in zip(alone, together, strict=True):
        assert torch.equal(one, both[16:])


@pytest.mark.parametrize(("draws", "rows"), [(5, 16), (4, 17)])
def test_loop_refuses_parts_of_groups_and_of_vectors(draws, rows):
    logits, probs, values = torch.randn(1, draws, 3, rows), torch.empty(3, rows), torch.empty(2, rows)
    with pytest.raises(ValueError, match="whole groups"):
        launch(classes_loop, (logits, probs, *values.unbind()), 1, draws, rows, 3, 2)
