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


def same(results: list[list[torch.Tensor]], name: str, drawn: bool = False) -> None:
    """Equal results; where noise was `drawn` in another order, up to the error of a hundred draws."""
    limits = {"rtol": 0.25, "atol": 0.15} if drawn else {"rtol": 2e-2, "atol": 5e-3}
    for k, (a, b) in enumerate(zip(*results, strict=True)):
        assert_close(a, b, **limits, msg=lambda text, k=k: f"{name}, part {k}: {text}")


for task in (CLASSES, TARGETS):
    x, y = rows(task)
    for name, options in METHODS.items():
        results = []
        for device in ("cpu", "npu"):
            net = network(6)[:2].to(device)
            head = Head(Method(name, widths=(5,), **options), features=6, task=task, inputs=4).to(device)
            loader = [
                (a.to(device), b.to(device)) for a, b in zip(x[:80].split(40), y[:80].split(40), strict=True)
            ]
            val = [(x[80:].to(device), y[80:].to(device))]
            losses = head.fit(net, loader, val, epochs=2)
            loss = head(net(x[:40].to(device)), y[:40].to(device))
            assert loss.device.type == device
            p = head.predict([(x[80:].to(device),)], net)
            assert p.epistemic.device.type == device, (name, p.epistemic.device)
            again = Head(Method(name, widths=(5,), **options), features=6, task=task, inputs=4)
            again.load_state_dict(load(save({k: v.cpu() for k, v in head.state_dict().items()})))
            on_cpu = again.predict([(x[80:],)], copy.deepcopy(net).to("cpu"))
            same([numbers(p), numbers(on_cpu)], name, drawn=True)
            results.append([torch.tensor(losses), loss.detach().cpu(), *numbers(p.to("cpu"))])
        # losses alone: compiled loops draw in another order, and the ramp of far noise is one of a grid
        same([part[:2] for part in results], f"{name}, {task.kind}", drawn=True)
    for method in (None, "laplace", "map"):
        results = []
        for device in ("cpu", "npu"):
            net = network(task.size).to(device)
            loader = [(x[:80].to(device), y[:80].to(device))]
            model = posthoc(net, "1", task, method).fit(loader, [(x[80:].to(device), y[80:].to(device))])
            results.append(numbers(model.predict(x[80:].to(device))))
            assert all(v.device.type == device for v in net.parameters())
        same(results, f"posthoc {method}, {task.kind}")
    results = []
    for device in ("cpu", "npu"):
        net = convert(
            network(task.size).to(device), {nn.Linear: CompoundLinear}, generator=named_generator(1)
        )
        loader = [(x[:80].to(device), y[:80].to(device))]
        model = posthoc(net.eval(), "1", task).fit(loader, [(x[80:].to(device), y[80:].to(device))])
        results.append(numbers(model.predict(x[80:].to(device))))
    same(results, f"posthoc of a converted network, {task.kind}", drawn=True)

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
    assert_close(other, outputs[0], rtol=0, atol=0)
