"""Our Adam against torch's: the same bits, step by step, whoever made the state."""

import torch
from torch import nn

from compound.models.adam import Adam
from compound.random import named_generator


def test_the_same_bits_as_torch_also_after_the_states_are_swapped() -> None:
    start = [torch.randn(shape, generator=named_generator(k)) for k, shape in enumerate([(7, 3), (5,), (1,)])]
    ours, theirs = ([nn.Parameter(value.clone()) for value in start] for _ in range(2))
    groups = [
        [{"params": values[:2], "lr": 3e-3}, {"params": values[2:], "lr": 1e-2}] for values in (ours, theirs)
    ]
    first, second = Adam(groups[0], fused=True), torch.optim.Adam(groups[1], fused=True)
    for step in range(6):
        for k, pair in enumerate(zip(ours, theirs, strict=True)):
            gradient = (
                None
                if k == 1 and step in (0, 3)
                else torch.randn(pair[0].shape, generator=named_generator(step, k))
            )  # some steps miss one
            for parameter in pair:
                parameter.grad = gradient
        first.param_groups[0]["lr"] = second.param_groups[0]["lr"] = 3e-3 / (
            1 + step
        )  # rates change from step to step
        first.step()
        second.step()
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)), step
        if step == 2:
            states = first.state_dict(), second.state_dict()
            first.load_state_dict(states[1])
            second.load_state_dict(states[0])
