"""Heads, `posthoc` and predictives on the pretend device give what they give on the CPU.

Run by test_layers_elsewhere.py.
"""

import copy
import io
import warnings

warnings.filterwarnings("ignore")
import pretend_device  # noqa: E402, F401
import torch  # noqa: E402
from safetensors.torch import load, save  # noqa: E402
from torch import nn  # noqa: E402
from torch.testing import assert_close  # noqa: E402

from compound import Head, Method, Task, named_generator, posthoc  # noqa: E402
from compound.nn import CompoundLinear, convert, sampling  # noqa: E402

CLASSES, TARGETS = Task("classification", 3), Task("regression", 2)
METHODS = {
    "ml-cdn": {"members": 2, "hyper": (4,)},
    "vb-cdn": {"members": 2, "hyper": (4,)},
    "deep-ensemble": {"members": 2},
    "mc-dropout": {},
    "laplace": {},
    "vmg": {},
}
DETERMINISTIC = ("deep-ensemble",)  # nothing is drawn, neither for a loss nor for a prediction
SEEDS = 12  # generators of a sample of drawn numbers


def rows(task: Task) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(120, 4, generator=named_generator(0, "x"))
    y = torch.randint(3, (120,), generator=named_generator(0, "y"))
    return x, y if task == CLASSES else x[:, :2] + 0.1 * torch.randn(
        120, 2, generator=named_generator(0, "z")
    )


def network(outputs: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, outputs))


def numbers(p) -> list[torch.Tensor]:
    values = [p.probs] if hasattr(p, "probs") else [p.mean, p.std]
    return [v.detach().cpu() for v in (*values, p.epistemic, p.ood.scores)]


def same(first: list[torch.Tensor], second: list[torch.Tensor], name: str) -> None:
    """Equal but for the rounding of float32, which distances and quantiles make larger."""
    for k, (a, b) in enumerate(zip(first, second, strict=True)):
        assert_close(a, b, rtol=2e-3, atol=2e-4, msg=lambda text, k=k: f"{name}, part {k}: {text}")


def same_law(first: list[torch.Tensor], second: list[torch.Tensor], name: str) -> None:
    """Two samples (SEEDS, ...) of each number: means within eight standard errors of their difference."""
    for k, (a, b) in enumerate(zip(first, second, strict=True)):
        error = ((a.var(0) + b.var(0)) / SEEDS).sqrt() + 1e-4
        worst = ((a.mean(0) - b.mean(0)).abs() / error).max()
        assert worst < 8, f"{name}, part {k}: means differ by {worst:.1f} standard errors"


def sample(draw) -> list[torch.Tensor]:
    """The numbers that `draw` gives for SEEDS generators, (SEEDS, ...) each."""
    return [torch.stack(v) for v in zip(*(draw(named_generator(9, k)) for k in range(SEEDS)), strict=True)]


for task in (CLASSES, TARGETS):
    x, y = rows(task)
    for name, options in METHODS.items():
        net = network(6)[:2].to("npu")
        method = Method(name, widths=(5,), **options)
        head = Head(method, features=6, task=task, inputs=4).to("npu")
        loader = [(a.to("npu"), b.to("npu")) for a, b in zip(x[:80].split(40), y[:80].split(40), strict=True)]
        head.fit(net, loader, [(x[80:].to("npu"), y[80:].to("npu"))], epochs=2)
        assert head.predict([(x[80:].to("npu"),)], net).epistemic.device.type == "npu", name
        # the same weights on the CPU
        again = Head(method, features=6, task=task, inputs=4)
        again.load_state_dict(load(save({k: v.cpu() for k, v in head.state_dict().items()})))
        on_cpu = copy.deepcopy(net).to("cpu")
        found = []
        for device, h, backbone in (("npu", head, net), ("cpu", again, on_cpu)):
            inputs, targets = x[80:].to(device), y[80:].to(device)

            def draw(generator, h=h, backbone=backbone, inputs=inputs, targets=targets, device=device):
                loss = h(backbone(inputs), targets, generator=generator)
                assert loss.device.type == device
                p = h.predict([(inputs,)], backbone, generator=generator, n_samples=20)
                return [loss.detach().cpu(), *numbers(p)]

            found.append(sample(draw))
        *drawn, scores = zip(*found, strict=True)
        same(*([part[0]] for part in scores), f"{name}, {task.kind}, scores")
        if name in DETERMINISTIC:
            same(*([part[0] for part in side] for side in zip(*drawn, strict=True)), f"{name}, {task.kind}")
        else:  # compiled loops draw in another order
            same_law(*zip(*drawn, strict=True), f"{name}, {task.kind}")
    for method in (None, "laplace", "map"):
        results = []
        for device in ("cpu", "npu"):
            net = network(task.size).to(device)
            loader = [(x[:80].to(device), y[:80].to(device))]
            model = posthoc(net, "1", task, method).fit(loader, [(x[80:].to(device), y[80:].to(device))])
            results.append(numbers(model.predict(x[80:].to(device))))
            assert all(v.device.type == device for v in net.parameters())
        same(*results, f"posthoc {method}, {task.kind}")
    found = []
    for device in ("cpu", "npu"):
        net = network(task.size).to(device)
        net = convert(net, {nn.Linear: CompoundLinear}, generator=named_generator(1)).eval()
        held_out = x[80:].to(device), y[80:].to(device)
        answers = []
        for seed in range(SEEDS):
            model = posthoc(net, "1", task, seed=seed).fit(
                [(x[:80].to(device), y[:80].to(device))], [held_out]
            )
            answers.append(numbers(model.predict(held_out[0])))
        found.append([torch.stack(v) for v in zip(*answers, strict=True)])
    same_law(*found, f"posthoc of a converted network, {task.kind}")

# a pickled, copied or reloaded network of layers draws the same, wherever it went in between
x, _ = rows(CLASSES)
net = convert(network(3), {nn.Linear: CompoundLinear}, generator=named_generator(1))
outputs = []
for made in (net, copy.deepcopy(net).to("npu").to("cpu"), copy.deepcopy(net).double().float()):
    file = io.BytesIO()
    torch.save(made, file)
    file.seek(0)
    for form in (made, torch.load(file, weights_only=False)):
        with sampling(named_generator(2)):
            outputs.append(form(x).detach())
for other in outputs[1:]:
    # memory of another layout rounds products differently
    assert_close(other, outputs[0], rtol=1e-4, atol=1e-6)
