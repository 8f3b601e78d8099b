"""Compound layers on the pretend device give what they give on the CPU; run by test_layers_elsewhere.py."""

import copy
import warnings

warnings.filterwarnings("ignore")
import pretend_device  # noqa: E402, F401
import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.testing import assert_close  # noqa: E402

from compound.nn import (  # noqa: E402
    CompoundConv1d,
    CompoundConv2d,
    CompoundGRU,
    CompoundLinear,
    CompoundLSTM,
    FixedDraws,
    convert,
    sampling,
)
from compound.random import named_generator  # noqa: E402

try:
    nn.Linear(3, 2).to("npu")(torch.ones(1, 3))
    raise SystemExit("a mixture of devices was not refused")
except RuntimeError as error:
    assert "same device" in str(error)

MAKE = {
    "linear": (lambda bayes: CompoundLinear(3, 2, bayes=bayes, generator=named_generator(0)), (5, 3)),
    "conv1d": (lambda bayes: CompoundConv1d(2, 2, 3, bayes=bayes, generator=named_generator(0)), (5, 2, 6)),
    "conv2d": (
        lambda bayes: CompoundConv2d(2, 2, 3, groups=2, bayes=bayes, generator=named_generator(0)),
        (5, 2, 6, 6),
    ),
    "gru": (lambda bayes: CompoundGRU(3, 2, bayes=bayes, generator=named_generator(0)), (4, 5, 3)),
    "lstm": (
        lambda bayes: CompoundLSTM(3, 2, draw="step", bayes=bayes, generator=named_generator(0)),
        (4, 5, 3),
    ),
}
for name, (make, shape) in MAKE.items():
    for bayes in (False, True):
        results = []
        for device in ("cpu", "npu"):
            layer = make(bayes).double().to(device)
            x = torch.randn(shape, generator=named_generator(1), dtype=torch.float64).to(device)
            kwargs = {"lengths": torch.tensor([4, 3, 2, 1, 4])} if name in ("gru", "lstm") else {}
            with sampling(named_generator(2)) as draws:
                out = layer(x, **kwargs)
            out = out[0] if isinstance(out, tuple) else out
            assert out.device.type == draws.kl.device.type == device
            (out.square().sum() + draws.kl).backward()
            values = [out.detach(), draws.kl.detach(), *(p.grad for p in layer.parameters())]
            assert all(v.device.type == device for v in values)
            results.append([v.cpu() for v in values])
        for a, b in zip(*results, strict=True):
            assert_close(a, b)

network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
x = torch.randn(5, 3, generator=named_generator(1), dtype=torch.float64)
results = []
for device in ("cpu", "npu"):
    made = convert(
        copy.deepcopy(network).to(device), {nn.Linear: CompoundLinear}, generator=named_generator(0)
    )
    assert all(p.device.type == device for p in made.parameters())
    fixed = FixedDraws(made, x.to(device), named_generator(3), n_samples=2)
    results.append(fixed(x.to(device)).detach().cpu())
assert_close(*results)
