"""Heads: the loss of every method on features, its gradient for the backbone, and what training gives."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from compound import Head, Method, Task, named_generator
from compound.models import METHODS
from compound.network.head import UNSUITABLE

CLASSES, TARGETS = Task("classification", 3), Task("regression", 2)
SMALL = {"ml-cdn": {"members": 2, "hyper": (4,)}, "vb-cdn": {"members": 2, "hyper": (4,)}}
HEADS = [name for name in METHODS if name not in UNSUITABLE]


def small(name: str) -> Method:
    return Method(name, widths=(5,), **SMALL.get(name, {}))


def rows(task: Task, count: int = 12, features: int = 4) -> tuple[Tensor, Tensor]:
    g = named_generator(0, task.kind)
    h = torch.randn(count, features, generator=g)
    y = (
        torch.randint(3, (count,), generator=g)
        if task == CLASSES
        else 5 + 2 * torch.randn(count, 2, generator=g)
    )
    return h, y


def started(name: str, task: Task) -> tuple[Head, Tensor, Tensor]:
    h, y = rows(task)
    head = Head(small(name), features=4, task=task, seed=1)
    head.start(y)
    return head, h, y


def noise(head: Head) -> list[torch.Generator]:
    return [named_generator(2, k) for k in range(head.model.members)]


@pytest.mark.parametrize("task", [CLASSES, TARGETS], ids=lambda task: task.kind)
@pytest.mark.parametrize("name", HEADS)
def test_backbone_gets_the_gradient_of_the_loss(name: str, task: Task):
    """Against central differences along random directions of the features, with the same noise."""
    head, h, y = started(name, task)
    h.requires_grad_()
    (gradient,) = torch.autograd.grad(head(h, y, generator=noise(head)), h)
    for k in range(2):
        direction = torch.randn(h.shape, generator=named_generator(3, k))
        with torch.no_grad():
            up, down = (float(head(h + e * direction, y, generator=noise(head))) for e in (1e-2, -1e-2))
        slope = (up - down) / 2e-2
        exact = float((gradient * direction).sum())
        # ReLU kinks and float32: an error of the step squared, and of rounding over the step
        assert abs(slope - exact) < 0.03 * float((gradient * direction).abs().sum()) + 1e-3


@pytest.mark.parametrize("name", ["ml-cdn", "vb-cdn", "deep-ensemble"])
def test_members_average_their_gradients_for_the_backbone(name: str):
    """Equal members, who all see the same noise, give the backbone the gradient of one of them."""
    gradients = []
    for members in (1, 4):
        options = {**SMALL.get(name, {}), "members": members}
        head = Head(Method(name, widths=(5,), **options), features=4, task=CLASSES, rows=12)
        with torch.no_grad():
            for parameter in head.model.parameters():
                if members > 1:
                    parameter.copy_(parameter[:1].expand_as(parameter))
        h, y = rows(CLASSES)
        loss = head(h.requires_grad_(), y, generator=[named_generator(4) for _ in range(members)])
        gradients.append(torch.autograd.grad(loss, h)[0])
    assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-6)
    assert gradients[0].abs().max() > 1e-4


@pytest.mark.parametrize("task", [CLASSES, TARGETS], ids=lambda task: task.kind)
def test_rows_may_have_any_shape_and_weights(task: Task):
    head, h, y = started("map", task)
    whole = head(h, y)
    shaped = head(h.reshape(3, 4, 4), y.reshape(3, 4, *y.shape[1:]))
    assert_close(shaped, whole)
    doubled = head(torch.cat([h, h[:5]]), torch.cat([y, y[:5]]))
    weight = torch.ones(12)
    weight[:5] = 2
    assert_close(head(h, y, weight), doubled)
    assert_close(head(h.reshape(3, 4, 4), y.reshape(3, 4, *y.shape[1:]), weight.reshape(3, 4)), doubled)


@pytest.mark.parametrize("name", HEADS)
def test_only_terms_of_the_weights_need_the_number_of_rows(name: str):
    head = Head(small(name), features=4, task=CLASSES)
    h, y = rows(CLASSES)
    if name in ("ml-cdn", "mdn", "deep-ensemble", "vib", "mc-dropout"):
        assert math.isfinite(float(head(h, y).detach()))
        return
    with pytest.raises(ValueError, match="rows is not known"):
        head(h, y)
    again = Head(small(name), features=4, task=CLASSES, rows=12)
    assert math.isfinite(float(again(h, y).detach()))


@pytest.mark.parametrize("name", UNSUITABLE)
def test_methods_that_cannot_are_refused_before_any_work(name: str):
    with pytest.raises(ValueError, match=f"{name} cannot be a head: it"):
        Head(name, features=10**9, task=CLASSES)


def test_bad_input_is_refused_in_one_sentence():
    head = Head("map", features=4, task=TARGETS)
    h, y = rows(TARGETS)
    with pytest.raises(ValueError, match="call start with the training targets"):
        head(h, y)
    head.start(y)
    with pytest.raises(ValueError, match=r"must be \(batch, ..., 4\)"):
        head(h[:, :3], y)
    with pytest.raises(ValueError, match="12 rows of features and 6 of targets"):
        head(h, y[:6])
    with pytest.raises(ValueError, match="passed through once only"):
        head.fit(nn.Identity(), iter([(h, y)]))
    with pytest.raises(ValueError, match="12 of 12 rows of val_loader are rows of train_loader"):
        head.finish(nn.Identity(), [(h, y)], [(h, y)])
    with pytest.raises(ValueError, match="attack"):
        Head(Method("deep-ensemble", adversarial=0.01), features=4, task=CLASSES)


def test_noise_follows_from_the_seed_and_the_state():
    head, h, y = started("ml-cdn", CLASSES)
    again = copy.deepcopy(head)
    first, second = head(h, y).item(), head(h, y).item()
    assert first != second
    assert first == again(h, y).item()
    resumed = Head(small("ml-cdn"), features=4, task=CLASSES, seed=1)
    resumed.load_state_dict(again.state_dict())
    assert second == resumed(h, y).item()
    assert head(h, y, generator=noise(head)).item() == head(h, y, generator=noise(head)).item()


class Moons(nn.Module):
    """A backbone that takes its inputs by name, as those of dictionaries are given."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(2, 16), nn.ReLU())

    def forward(self, points: Tensor) -> Tensor:
        return self.net(points)


def moons(count: int, form: str) -> list:
    from sklearn.datasets import make_moons

    x, y = make_moons(count, noise=0.15, random_state=0)
    x, y = torch.tensor(x).float(), torch.tensor(y)
    pairs = list(zip(x.split(25), y.split(25), strict=True))
    return pairs if form == "pairs" else [{"points": a, "labels": b} for a, b in pairs]


@pytest.mark.parametrize("form", ["pairs", "dictionaries"])
def test_fit_learns_and_finds_the_far(form: str):
    loader = moons(400, form)
    head, backbone = Head("ml-cdn", features=16, task=Task("classification", 2)), Moons()
    losses = head.fit(backbone, loader[:12], loader[12:], epochs=12, lr=1e-2)
    assert losses[-1] < 0.5 * losses[0]
    p = head.predict(loader[12:], backbone)
    y = torch.cat([batch["labels"] if form == "dictionaries" else batch[1] for batch in loader[12:]])
    assert (p.label == y).float().mean() > 0.9
    assert p.is_ood.float().mean() < 0.1
    assert p.sets(0.9).gather(1, y[:, None]).float().mean() > 0.85
    saved = Head("ml-cdn", features=16, task=Task("classification", 2))
    saved.load_state_dict(head.state_dict())
    same = saved.predict(loader[12:], backbone)
    assert_close(same.probs, p.probs, rtol=0, atol=0)
    assert same.is_ood.equal(p.is_ood)
    assert same.sets(0.8).equal(p.sets(0.8))


def test_frozen_backbone_stays_and_targets_come_back_in_their_units():
    g = named_generator(5)
    x = torch.randn(300, 3, generator=g)
    y = 1000 + 50 * x[:, :1] + 5 * torch.randn(300, 1, generator=g)
    backbone = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Dropout(0.5)).train()
    before = copy.deepcopy(backbone.state_dict())
    head = Head("deep-ensemble", features=32, task=Task("regression", 1))
    pairs = list(zip(x.split(50), y.split(50), strict=True))
    head.fit(backbone, pairs[:4], pairs[4:5], epochs=60, lr=1e-2, frozen=True)
    assert backbone.training
    assert all(value.equal(before[name]) for name, value in backbone.state_dict().items())
    p = head.predict(pairs[5:], backbone)
    assert (p.mean - y[250:]).square().mean().sqrt() < 20  # the standard deviation of y is 50
    low, high = p.sets(0.9)
    assert ((low < y[250:]) & (y[250:] < high)).float().mean() > 0.7  # 50 rows, calibrated on 50


class Both(nn.Module):
    """Backbone and head in one module, as Lightning, DDP and the compiler want them."""

    def __init__(self):
        super().__init__()
        self.backbone, self.head = Moons(), Head("ml-cdn", features=16, task=Task("classification", 2))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.head(self.backbone(x), y)


def test_loss_works_in_distributed_data_parallel(tmp_path):
    from torch import distributed

    (x, y), *_ = moons(50, "pairs")
    plain = Both()
    plain(x, y).backward()
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        parallel = nn.parallel.DistributedDataParallel(Both())
        parallel(x, y).backward()
    finally:
        distributed.destroy_process_group()
    for expected, actual in zip(plain.parameters(), parallel.parameters(), strict=True):
        assert_close(actual.grad, expected.grad)


@pytest.mark.filterwarnings("ignore")  # of the compiler itself
def test_loss_works_in_a_compiled_module():
    (x, y), *_ = moons(50, "pairs")
    plain, compiled = Both(), torch.compile(Both(), backend="eager")
    for _ in range(2):
        assert_close(compiled(x, y), plain(x, y))


def test_laplace_head_has_the_posterior_of_its_features():
    """It is `compound.fit`'s model: the same curvature from the same network and rows."""
    from compound import build, make_dataset

    h, y = rows(CLASSES, 60)
    head = Head(small("laplace"), features=4, task=CLASSES)
    head.fit(nn.Identity(), [(h[:40], y[:40])], [(h[40:], y[40:])], epochs=3)
    model = build(small("laplace"), 4, CLASSES)
    inner = head.model.inner
    model.base_model.load_state_dict(inner.base_model.state_dict())
    model.on_fit_end(make_dataset(h[:40], y[:40], CLASSES), named_generator(0))
    assert_close(inner.delta, model.delta, rtol=1e-3, atol=0)
    assert float(inner.size) == 40


def test_inputs_are_a_second_view():
    """With `inputs`, rows with ordinary features and strange inputs are out of distribution."""
    g = named_generator(8)
    x = torch.randn(600, 4, generator=g)
    y = (x[:, 0] > 0).long()
    backbone = nn.Linear(4, 3)
    with torch.no_grad():
        backbone.weight.copy_(torch.eye(4)[:3])  # blind to the last input
        backbone.bias.zero_()
    train, val = [(x[:400], y[:400])], [(x[400:], y[400:])]
    strange = x[400:410] + torch.tensor([0.0, 0.0, 0.0, 30.0])
    found = []
    for inputs in (0, 4):
        head = Head("map", features=3, task=Task("classification", 2), inputs=inputs)
        head.fit(backbone, train, val, epochs=2, frozen=True)
        found.append(head.predict(strange, backbone).is_ood.tolist())
        assert head.predict([(strange, None)], backbone).is_ood.tolist() == found[-1]
    assert not any(found[0]) and all(found[1])
    with pytest.raises(ValueError, match="give them, and the backbone"):
        head.predict(backbone(x[:5]))
    again = Head("map", features=3, task=Task("classification", 2), inputs=4, seed=1)
    again.load_state_dict(head.state_dict())
    assert again.predict(strange, backbone).probs.equal(head.predict(strange, backbone).probs)
