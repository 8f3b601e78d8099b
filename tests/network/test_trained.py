"""Uncertainty after training: the network stays as it is, and what is added holds on new rows."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from compound import Task, metrics, named_generator, posthoc
from compound.network.batches import unpack
from compound.network.calibrator import RAMPS
from compound.network.features import FeatureReader, collect, no_inputs
from compound.nn import CompoundLinear, convert, sampling
from compound.ood import CombinedNoise, Distance, NormalizedDistance

DIGITS = Task("classification", 10)


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return torch.tensor(x).float().reshape(-1, 1, 8, 8) / 16, torch.tensor(y)


@pytest.fixture(scope="module")
def cnn(digits) -> nn.Sequential:
    """A network with batch norm and dropout, so that modes and running averages matter."""
    x, y = digits
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(),
        nn.Linear(576, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    for _ in range(8):
        for rows in torch.randperm(1000).split(50):
            loss = nn.functional.cross_entropy(net(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return net


def loaders(digits) -> tuple[list, list]:
    x, y = digits
    pairs = list(zip(x[:1400].split(100), y[:1400].split(100), strict=True))
    return pairs[:10], pairs[10:]


def hooks(net: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in net.modules())


@pytest.mark.parametrize("method", [None, "laplace", "map"])
def test_network_is_not_changed(cnn, digits, method):
    net = copy.deepcopy(cnn).train()
    net[1].eval()  # somebody froze the averages
    before, modes = copy.deepcopy(net.state_dict()), [module.training for module in net.modules()]
    state = torch.get_rng_state()
    model = posthoc(net, "5", DIGITS, method).fit(*loaders(digits))
    p = model.predict(digits[0][1400:])
    assert all(value.equal(before[name]) for name, value in net.state_dict().items())
    assert [module.training for module in net.modules()] == modes
    assert hooks(net) == 0
    assert all(parameter.grad is None for parameter in net.parameters())
    assert torch.get_rng_state().equal(state)
    y = digits[1][1400:]
    assert metrics.accuracy(p, y) > 0.9
    if method is None:
        assert p.label.equal(net.eval()(digits[0][1400:]).argmax(-1))  # temperature and far noise keep labels


def test_hook_is_removed_and_modes_are_back_after_an_error(cnn):
    net = copy.deepcopy(cnn).train()
    with pytest.raises(RuntimeError):
        FeatureReader(net, "5")(torch.zeros(3, 1, 5, 5))
    assert hooks(net) == 0
    assert all(module.training for module in net.modules())


def test_what_it_promises_holds_on_new_rows(cnn, digits):
    x, y = digits[0][1400:], digits[1][1400:]
    model = posthoc(cnn, "5", DIGITS, false_positive_rate=0.05)
    p = model.fit(*loaders(digits)).predict([(x[:200], y[:200]), (x[200:], y[200:])])
    assert len(p) == len(x)
    with torch.no_grad():
        plain = torch.log_softmax(copy.deepcopy(cnn).eval()(x), -1)
    assert metrics.nll(p, y) < -float(plain.gather(1, y[:, None]).mean()) + 0.02
    error = 4 * math.sqrt(0.25 / 400)  # of rates from 400 rows, that calibrate and that are judged
    assert p.sets(0.9).gather(1, y[:, None]).float().mean() > 0.9 - error
    assert p.is_ood.float().mean() < 0.05 + error
    noise = model.predict(torch.rand(100, 1, 8, 8, generator=named_generator(0, "noise")))
    assert noise.is_ood.float().mean() > 0.95
    assert noise.entropy().mean() > math.log(10) - 0.1
    # known entropy stays the network's, what is added is epistemic
    assert (noise.epistemic / noise.total).mean() > 0.9


def test_temperature_undoes_overconfidence(cnn, digits):
    """Logits multiplied by 4 need 4 times the temperature, up to the grid and its prior."""
    x = digits[0][1400:]
    net = copy.deepcopy(cnn).eval()
    models = [posthoc(nn.Sequential(net), "0.5", DIGITS, strength=0.0).fit(*loaders(digits))]
    with torch.no_grad():
        net[7].weight.mul_(4)
        net[7].bias.mul_(4)
    models.append(posthoc(nn.Sequential(net), "0.5", DIGITS, strength=0.0).fit(*loaders(digits)))
    temperatures = [float(model.calibrator.temperature) for model in models]
    assert abs(temperatures[1] / temperatures[0] / 4 - 1) < 0.1
    with torch.no_grad():
        expected = torch.softmax(net(x) / temperatures[1], -1)
    assert_close(models[1].predict(x).probs, expected, rtol=1e-4, atol=1e-6)


def test_laplace_takes_the_last_layer_and_doubts_more(cnn, digits):
    train, val = loaders(digits)
    net = copy.deepcopy(cnn).eval()
    model = posthoc(net, "5", DIGITS, "laplace", strength=0.0).fit(train, val)
    layer = model.source.model.base_model.network.layers[0]
    assert_close(layer.weight[0].T, net[7].weight, rtol=0, atol=0)
    p = model.predict(digits[0][1400:])
    assert (p.epistemic > 0).all()
    with pytest.raises(ValueError, match=r"no nn.Linear of the network maps these features"):
        posthoc(net, "3", DIGITS, "laplace").fit(train, val)


def test_targets_get_a_variance_intervals_and_far_noise():
    g = named_generator(1)
    x = torch.randn(1200, 3, generator=g)
    y = 10 * x[:, :2] + torch.tensor([1.0, 3.0]) * torch.randn(1200, 2, generator=g)
    net = nn.Linear(3, 2, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[10.0, 0, 0], [0, 10, 0]]))
    model = posthoc(nn.Sequential(nn.Identity(), net), "0", Task("regression", 2), far_noise=("inputs",))
    model.fit([(x[:600], y[:600])], [(x[600:900], y[600:900])])
    p = model.predict(x[900:])
    assert_close(p.std.median(0).values, torch.tensor([1.0, 3.0]), rtol=0.15, atol=0)
    low, high = p.sets(0.8)
    inside = ((low < y[900:]) & (y[900:] < high)).float().mean(0)
    assert ((inside - 0.8).abs() < 4 * math.sqrt(0.16 / 150)).all()
    far = model.predict(torch.full((1, 3), 30.0))
    assert_close(far.std[0], 3 * y[:600].std(0), rtol=0.02, atol=0)
    assert bool(far.is_ood)


def test_rows_the_network_was_trained_on_do_not_calibrate(cnn, digits):
    train, _ = loaders(digits)
    model = posthoc(cnn, "5", DIGITS)
    with pytest.raises(ValueError, match="300 of 300 rows of val_loader are rows of train_loader"):
        model.fit(train, [(torch.cat([a for a, _ in train[:3]]), torch.cat([b for _, b in train[:3]]))])
    for val in (None, train):
        with pytest.raises(ValueError, match="rows that the network was not trained on"):
            model.fit(train, val)
    with pytest.raises(ValueError, match="call fit with a loader"):
        model.predict(train)


def test_bad_options_are_refused_before_any_work(cnn):
    with pytest.raises(ValueError, match="features is 'layer9': the network has 0, 1"):
        posthoc(cnn, "layer9", DIGITS)
    with pytest.raises(ValueError, match="dpn cannot be a head"):
        posthoc(cnn, "5", DIGITS, "dpn")
    with pytest.raises(ValueError, match="choose from 'features', 'inputs'"):
        posthoc(cnn, "5", DIGITS, far_noise=("pixels",))
    with pytest.raises(ValueError, match=r"it must be 3"):
        posthoc(cnn, "5", Task("classification", 3)).fit(
            [(torch.zeros(4, 1, 8, 8), torch.zeros(4))], [(torch.ones(2, 1, 8, 8), torch.zeros(2))]
        )


def test_sample_of_a_stream_is_uniform():
    """Every row is kept with the same probability, wherever it stands in the stream."""
    counts = torch.zeros(90)
    batches = torch.arange(90.0).unsqueeze(1).split(7)
    for seed in range(400):
        kept = collect(lambda x: (x, x), batches, no_inputs, 10, named_generator(seed)).features
        assert len(kept) == len(kept.unique()) == 10
        counts[kept[:, 0].long()] += 1
    expected = 400 * 10 / 90
    chi_squared = float(((counts - expected).square() / (expected * (1 - 10 / 90))).sum())
    assert abs(chi_squared - 90) < 5 * math.sqrt(2 * 90)


def test_batches_have_the_forms_of_loaders():
    x, y, w = torch.zeros(2, 3), torch.ones(2), torch.ones(2)
    assert unpack(x).targets is None
    assert unpack([x, y]).targets is y
    assert unpack((x, y, w)).weight is w
    inputs, targets, weight = unpack({"input_ids": x, "labels": y, "weight": w})
    assert set(inputs) == {"input_ids"} and targets is y and weight is w
    with pytest.raises(ValueError, match="a batch is a str"):
        unpack("rows")


def test_directions_do_not_depend_on_lengths():
    g = named_generator(2)
    x = torch.randn(300, 5, generator=g) + 2
    distance = NormalizedDistance(5)
    distance.fit(x, named_generator(3))
    lengths = torch.rand(300, 1, generator=g) * 10 + 0.1
    assert_close(distance(lengths * x), distance(x), rtol=1e-3, atol=1e-4)
    plain = Distance(5)
    plain.fit(x / x.norm(dim=1, keepdim=True) * 5**0.5, named_generator(3))
    assert_close(distance(x), plain(x / x.norm(dim=1, keepdim=True) * 5**0.5), rtol=1e-4, atol=1e-5)


def test_far_noise_is_the_largest_of_all_views_and_scores_add_up():
    g = named_generator(4)
    train, new = torch.randn(400, 2, generator=g), torch.randn(200, 2, generator=g)
    noise = CombinedNoise([1, 1], [False, False])
    distances = noise.fit(*([x[:, :1], x[:, 1:]] for x in (train, new)), named_generator(5))
    for view in noise.views:
        view.set_ramp(-8.0, 4.0, 14.0)
    t = noise.from_distance(distances)
    each = [view.from_distance(d) for view, d in zip(noise.views, distances, strict=True)]
    assert_close(t, torch.maximum(*each), rtol=0, atol=0)
    expected = torch.zeros(200, dtype=torch.float64)
    for k, view in enumerate(noise.views):
        d50, d99 = torch.quantile(distances[k].double(), torch.tensor([0.5, 0.99]).double())
        assert_close(view.distance.quantiles[:2].double(), torch.stack([d50, d99]), rtol=1e-5, atol=1e-6)
        for row, d in enumerate(distances[k].double()):
            rank = (d - d50) / (d99 - d50)
            expected[row] += rank if rank > 0 else rank / 10
    assert_close(noise.scores(distances).double(), expected, rtol=1e-4, atol=1e-5)


def test_a_further_view_takes_no_noise_away():
    """Far noise of the first view is what it would be alone."""
    g = named_generator(6)
    train, new = torch.randn(600, 2, generator=g), torch.randn(300, 2, generator=g)
    wrong = torch.rand(300, generator=g) < 0.1  # how sure the network is of what it gets wrong
    log_p = torch.where(wrong, math.log(0.02), math.log(0.98)).expand(1, -1)

    def log_densities(t: Tensor | None) -> Tensor:  # (1, rows) of a mixture with one half
        if t is None:
            return log_p
        return torch.logaddexp(
            log_p + nn.functional.logsigmoid(-t), math.log(0.5) + nn.functional.logsigmoid(t)
        )

    grid = RAMPS["classification"]
    alone, both = CombinedNoise([1], [False]), CombinedNoise([1, 1], [False, False])
    first = alone.fit([train[:, :1]], [new[:, :1]], named_generator(7))
    alone.choose_ramps(grid, first, log_densities, [0.002])
    distances = both.fit(*([x[:, :1], x[:, 1:]] for x in (train, new)), named_generator(7))
    both.choose_ramps(grid, distances, log_densities, [0.002, 0.001])
    t = alone.from_distance(first)
    assert (both.from_distance(distances) >= t).all()
    assert_close(both.views[0].ramp, alone.views[0].ramp, rtol=0, atol=0)
    cost = (log_densities(t) - log_densities(both.from_distance(distances))).mean()
    assert float(cost) <= 0.001 + 1e-6


def test_inputs_count_by_default_where_all_rows_have_as_many(cnn, digits):
    train, val = loaders(digits)
    x = digits[0][1400:1500]
    assert posthoc(cnn, "5", DIGITS).fit(train, val).views == ("features", "inputs")
    assert posthoc(cnn, "5", DIGITS, far_noise=("features",)).fit(train, val).views == ("features",)
    forward = cnn.forward

    def padded(pairs: list) -> list:  # rows that other batches make longer
        return [(nn.functional.pad(a, (0, k % 2)), b) for k, (a, b) in enumerate(pairs)]

    class Cropped(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return forward(x[..., :8].float())

    net = Cropped(*cnn)
    model = posthoc(net, "5", DIGITS).fit(padded(train), padded(val))
    assert model.views == ("features",) and len(model.predict(x)) == 100
    with pytest.raises(ValueError, match="inputs of different sizes"):
        posthoc(net, "5", DIGITS, far_noise=("inputs",)).fit(padded(train), padded(val))
    whole = [[((16 * a).long(), b) for a, b in pairs] for pairs in (train, val)]  # such as tokens
    assert posthoc(net, "5", DIGITS).fit(*whole).views == ("features",)
    large = [[(nn.functional.pad(a, (0, 600)), b) for a, b in pairs] for pairs in (train, val)]
    assert posthoc(net, "5", DIGITS).fit(*large).views == ("features",)
    model = posthoc(net, "5", DIGITS).fit(train, val)
    with pytest.raises(ValueError, match=r"\(64, 72\) features and inputs, they had \(64, 64\)"):
        model.predict(nn.functional.pad(x, (0, 1)))


@pytest.mark.parametrize("bayes", [False, True])
def test_draws_of_compound_layers_are_the_predictive(cnn, digits, bayes):
    """Against draws written out, with the noise that rows share."""
    torch.manual_seed(0)
    net = convert(copy.deepcopy(cnn).eval(), {nn.Linear: CompoundLinear}, bayes=bayes, log_col=-3.0)
    x = digits[0][1400:1500]
    model = posthoc(net, "5", DIGITS, strength=0.0).fit(*loaders(digits))
    model.calibrator.temperature.fill_(1.0)
    p, again = model.predict(x), model.predict([x[:40], x[40:]])
    assert_close(again.probs, p.probs, rtol=1e-4, atol=1e-5)
    generator, samples = named_generator(0, "draws"), []
    with torch.no_grad():
        for _ in range(20):
            with sampling(generator, shared=True, kl=False):
                samples.append(net(x).softmax(-1))
    probs = torch.stack(samples)
    assert_close(p.probs, probs.mean(0), rtol=1e-3, atol=1e-5)
    between = torch.special.entr(probs.mean(0)).sum(-1) - torch.special.entr(probs).sum(-1).mean(0)
    assert between.mean() > 1e-3
    assert_close(p.posterior if bayes else p.mixing, between, rtol=0.1, atol=2e-3)  # corrected for few draws
    assert (p.mixing if bayes else p.posterior).abs().max() < 1e-5
