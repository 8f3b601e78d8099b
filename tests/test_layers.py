"""Compound layers for any network against oracles that draw every weight of every example."""

import copy
import pickle
import threading
from functools import partial

import layers as oracle
import pytest
import torch
from layers import far_from_start, rows_of
from test_nn import moments_agree
from torch import Tensor, nn
from torch.distributions import kl_divergence
from torch.testing import assert_close

from compound.distributions import MatrixNormal
from compound.nn import (
    CompoundConv1d,
    CompoundConv2d,
    CompoundGRU,
    CompoundGRUCell,
    CompoundLinear,
    CompoundLSTM,
    CompoundLSTMCell,
    FixedDraws,
    Gaussian,
    convert,
    sampling,
)
from compound.random import named_generator

GROUPS = {"stride": 2, "padding": (1, 2), "dilation": (2, 1), "groups": 2}
LAYERS = {  # layer, shape of a row, oracle
    "linear": (partial(CompoundLinear, 3, 2), (3,), oracle.linear),
    "conv1d": (partial(CompoundConv1d, 2, 2, 3, padding="same"), (2, 4), oracle.convolution),
    "conv2d": (partial(CompoundConv2d, 2, 2, 2, bias=False), (2, 3, 3), oracle.convolution),
    "conv2d with groups": (partial(CompoundConv2d, 4, 2, 2, **GROUPS), (4, 3, 3), oracle.convolution),
    "gru per step": (partial(CompoundGRU, 2, 2, True, draw="step"), (3, 2), oracle.recurrence),
    "gru per sequence": (partial(CompoundGRU, 2, 2, True, draw="sequence"), (3, 2), oracle.recurrence),
    "lstm per step": (partial(CompoundLSTM, 2, 2, True, draw="step"), (3, 2), oracle.recurrence),
    "lstm per sequence": (partial(CompoundLSTM, 2, 2, True, draw="sequence"), (3, 2), oracle.recurrence),
}
CASES = [(name, bayes) for name in LAYERS for bayes in (False, True)]


def layer_of(name: str, bayes: bool = False) -> nn.Module:
    make, _, _ = LAYERS[name]
    return far_from_start(make(hidden=(3,), bayes=bayes, log_col=-1.0, generator=named_generator(0)), name)


def output_of(layer: nn.Module, x: Tensor) -> Tensor:
    out = layer(x)
    return out[0] if isinstance(out, tuple) else out


def part_of(layer: nn.Module) -> nn.Module:
    return getattr(layer, "cell", layer)


@pytest.mark.parametrize("name, bayes", CASES)
def test_draws_have_the_law_of_weights_drawn_per_example(name, bayes):
    """Means and covariances over positions and steps; one row of a pass, as rows share a noise matrix."""
    layer, n = layer_of(name, bayes), 700
    x = rows_of(*LAYERS[name][1])
    with torch.no_grad():
        fast = []
        for k in range(n):
            with sampling(named_generator(3, k), kl=False):
                fast.append(output_of(layer, x.expand(2, *x.shape))[1].flatten())
        slow = LAYERS[name][2](part_of(layer), x.expand(8 * n, *x.shape), named_generator(4)).flatten(1)
    moments_agree(torch.stack(fast), slow)


@pytest.mark.parametrize("name, bayes", CASES)
def test_eval_mode_is_the_network_of_mean_weights(name, bayes, monkeypatch):
    """The oracle with every matrix, that of a row and those of its ψ, at its mean; scales are far from 1."""
    layer, x = layer_of(name, bayes).eval(), rows_of(4, *LAYERS[name][1])
    monkeypatch.setattr(MatrixNormal, "rsample", at_mean)
    with torch.no_grad():
        assert_close(output_of(layer, x), LAYERS[name][2](part_of(layer), x, named_generator(0)))


def at_mean(q: MatrixNormal, shape: tuple[int, ...] = (), generator: object = None) -> Tensor:
    return q.mean.expand(*shape, *q.mean.shape)


@pytest.mark.parametrize("reset, std", [(-50.0, 0.5), (50.0, (0.5**2 + 2.0**2) ** 0.5)])
def test_the_reset_gate_scales_the_noise_of_the_state(reset, std):
    """Closed, it leaves the noise of the input in the new gate; open, that of both."""
    cell = CompoundGRUCell(1, 1).double()
    x = Gaussian(torch.tensor([[reset, -50.0, 0.0]]), torch.tensor([[0.0, 0.0, 0.5]]), torch.empty(0))
    h = Gaussian(torch.zeros(1, 3), torch.tensor([[0.0, 0.0, 2.0]]), torch.empty(0))
    (new,) = cell.draw_update(x, h, torch.tensor([[0.0, 0.0, 0.3]]), (torch.full((1, 1), 7.0),))
    assert_close(new, torch.tensor([[0.3 * std]]).tanh())


@pytest.mark.parametrize("name, bayes", [("conv2d", False), ("linear", True), ("gru per sequence", True)])
def test_rows_of_a_pass_are_uncorrelated(name, bayes):
    layer, n = layer_of(name, bayes), 600
    x = rows_of(*LAYERS[name][1])
    draws = []
    with torch.no_grad():
        for k in range(n):
            with sampling(named_generator(5, k), kl=False):
                draws.append(output_of(layer, x.expand(2, *x.shape)).flatten(1))
    first, second = (part - part.mean(0) for part in torch.stack(draws).unbind(1))
    products = first.unsqueeze(2) * second.unsqueeze(1)
    assert (products.mean(0).abs() < 5 * products.std(0) / n**0.5).all()


def test_noise_of_positions_is_correlated_so_that_pooling_keeps_it():
    layer = CompoundConv2d(1, 1, 1, log_col=0.0, generator=named_generator(0)).double()
    with torch.no_grad(), sampling(named_generator(1), kl=False):
        noisy = layer(torch.ones(400, 1, 5, 5).double())
    assert (noisy.std((2, 3)) < 1e-12).all() and noisy.mean((2, 3)).std() > 0.1


@pytest.mark.parametrize("name", ["linear", "conv1d", "conv2d", "conv2d with groups"])
def test_kl_of_maximum_likelihood_is_that_of_matrix_normals(name):
    layer, x = layer_of(name), rows_of(4, *LAYERS[name][1])
    with sampling(named_generator(0)) as draws:
        layer(x)
    context = x if x.ndim == 2 else x.flatten(2).mean(2)
    normals = oracle.linear_normals if name == "linear" else oracle.kernel_normals
    laws = normals(layer, oracle.draw_heads(layer, context, named_generator(0)))
    assert_close(draws.kl, sum(oracle.kl_to_prior(q) for q in laws).mean(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["gru per step", "gru per sequence", "lstm per step", "lstm per sequence"])
def test_kl_of_recurrent_weights_is_that_of_matrix_normals(name):
    """Rows of one step in a longer batch: the KL of further steps depends on drawn states."""
    layer, x = layer_of(name), rows_of(4, 3, 2)
    with sampling(named_generator(0)) as draws:
        layer(x, lengths=torch.ones(4))
    context = x[:, 0]
    if layer.cell.draw == "step":
        context = torch.cat([x[:, 0], torch.ones(4, 1), torch.zeros(4, 2)], 1)
    (q,) = oracle.cell_normals(layer.cell, oracle.draw_heads(layer.cell, context, named_generator(0)))
    assert_close(draws.kl, oracle.kl_to_prior(q).mean(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", LAYERS)
def test_kl_of_variational_bayes_is_that_of_the_posterior(name):
    layer = layer_of(name, bayes=True)
    with sampling(named_generator(0)) as draws:
        layer(rows_of(4, *LAYERS[name][1]))
    maps = part_of(layer).hyper.maps
    pairs = [pair for m in maps for pair in zip(m.posterior(), m.prior(), strict=True)]
    assert_close(draws.kl, sum(kl_divergence(q, p) for q, p in pairs), rtol=1e-10, atol=1e-10)


def test_kl_of_a_row_sums_over_its_positions_and_steps():
    layer, x = layer_of("linear"), rows_of(4, 5, 3)
    kls = []
    for rows in (x, x.flatten(0, 1)):
        with sampling(named_generator(0)) as draws:
            layer(rows)
        kls.append(draws.kl)
    assert_close(kls[0], 5 * kls[1])
    layer = layer_of("gru per step")
    with torch.no_grad():  # without noise: the state after a step is known
        layer.cell.hyper.maps[-1].weight[-1, 6:] = -1e9
    x, both, singles = rows_of(4, 2, 2), [], []
    with sampling(named_generator(0)) as draws:
        layer(x)
    both.append(draws.kl)
    state = None
    for t in range(2):
        with sampling(named_generator(0)) as draws:
            _, state = layer(x[:, t : t + 1], state)
        singles.append(draws.kl)
    assert_close(both[0], sum(singles), rtol=1e-3, atol=0)


PLAIN = {
    "linear": (nn.Linear(3, 4), CompoundLinear, (3,)),
    "linear without bias": (nn.Linear(3, 4, bias=False), CompoundLinear, (5, 3)),
    "conv1d": (nn.Conv1d(4, 6, 3, stride=2, padding=1, dilation=2, groups=2), CompoundConv1d, (4, 9)),
    "conv2d": (nn.Conv2d(3, 2, (3, 1), padding="same", bias=False), CompoundConv2d, (3, 5, 5)),
    "conv2d with groups": (nn.Conv2d(4, 4, 3, groups=4), CompoundConv2d, (4, 5, 5)),
    "gru cell": (nn.GRUCell(3, 4), CompoundGRUCell, (3,)),
    "lstm cell": (nn.LSTMCell(3, 4), CompoundLSTMCell, (3,)),
    "gru": (nn.GRU(3, 4), CompoundGRU, (5, 3)),
    "lstm": (nn.LSTM(3, 4, batch_first=True), CompoundLSTM, (5, 3)),
}


@pytest.mark.parametrize("bayes", [False, True])
@pytest.mark.parametrize("name", PLAIN)
def test_converted_layer_starts_at_the_plain_one(name, bayes):
    plain, kind, shape = copy.deepcopy(PLAIN[name])
    plain.double().eval()
    x = rows_of(6, *shape)
    layer = convert(plain, {type(plain): kind}, bayes=bayes)
    assert type(layer) is kind and not layer.training
    assert_close(layer(x), plain(x))  # the mean of the weights
    near = convert(plain, {type(plain): kind}, bayes=bayes)
    hyper = part_of(near).hyper
    with torch.no_grad():  # log-variances at their lower bound, ψ next to its mean
        last = hyper.maps[-1]
        (last.mean if bayes else last.weight)[-1, hyper.heads[0] :] = -100
        for each in hyper.maps if bayes else ():
            each.log_col.fill_(-30)
    with sampling(named_generator(0)):
        assert_close(near(x), plain(x), rtol=0, atol=5e-3)


@pytest.mark.parametrize("name", ["linear", "conv2d", "conv2d with groups"])
def test_noise_vanishes_with_the_square_root_of_its_variance(name):
    plain, kind, shape = copy.deepcopy(PLAIN[name])
    plain.double()
    x = rows_of(6, *shape)
    deviations = []
    for log_col in (-4.0, -6.0):
        layer = convert(plain, {type(plain): kind}, log_col=log_col, generator=named_generator(1))
        with sampling(named_generator(0)):
            deviations.append(layer(x) - plain(x))
    assert_close(deviations[0], torch.e * deviations[1], rtol=1e-9, atol=1e-9)


# Composition


def network() -> nn.Sequential:
    g = named_generator(0)
    conv = CompoundConv2d(1, 4, 3, hidden=(5,), generator=g)
    last = CompoundLinear(4, 3, hidden=(5,), bayes=True, generator=g)
    return nn.Sequential(conv, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), last).double()


IMAGES = rows_of(6, 1, 5, 5)


def test_outside_of_sampling_training_is_refused_and_eval_is_the_mean():
    net = network()
    with pytest.raises(RuntimeError, match="inside `with sampling"):
        net(IMAGES)
    assert net.eval()(IMAGES).equal(net(IMAGES))
    with (
        pytest.raises(RuntimeError, match="already"),
        sampling(named_generator(0)),
        sampling(named_generator(0)),
    ):
        pass
    with sampling(named_generator(0)) as draws:  # the refused block has left nothing behind
        net(IMAGES)
    assert draws.kl > 0


def test_an_error_inside_closes_the_block():
    with pytest.raises(ZeroDivisionError), sampling(named_generator(0)):
        raise ZeroDivisionError
    with sampling(named_generator(0)) as draws:
        pass
    with pytest.raises(RuntimeError, match="no compound layer was called"):
        _ = draws.kl
    with sampling(named_generator(0), kl=False) as draws:
        network()(IMAGES)
    with pytest.raises(RuntimeError, match="leave out kl=False"):
        _ = draws.kl


def test_a_pass_depends_on_the_generator_alone():
    net, state = network(), torch.get_rng_state()
    outputs = []
    for generator in (named_generator(0), named_generator(0), named_generator(1)):
        with sampling(generator):
            outputs.append(net(IMAGES))
    assert outputs[0].equal(outputs[1]) and not outputs[0].equal(outputs[2])
    with sampling(generator):
        assert not outputs[2].equal(net(IMAGES))
    assert torch.get_rng_state().equal(state)


def test_threads_have_passes_of_their_own():
    net, outputs, meet = network(), {}, threading.Barrier(2, timeout=20)

    def work(k: int) -> None:
        with sampling(named_generator(k)) as draws:
            meet.wait()
            outputs[k] = net(IMAGES), draws.kl
            meet.wait()

    threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k in range(2):
        with sampling(named_generator(k)) as draws:
            assert outputs[k][0].equal(net(IMAGES)) and outputs[k][1].equal(draws.kl)


def test_a_repeated_layer_has_one_posterior_and_weights_for_every_call():
    x = rows_of(4, 3)
    for bayes, factor in ((True, 1), (False, 2)):
        layer = far_from_start(CompoundLinear(3, 3, bayes=bayes, generator=named_generator(0)), "repeated")
        once, twice = [], []
        with sampling(named_generator(1)) as draws:
            once = layer(x)
        kl = draws.kl
        with sampling(named_generator(1)) as draws:
            twice = layer(x), layer(x)
        assert_close(draws.kl, factor * kl)
        assert twice[0].equal(once) and not twice[1].equal(once)
    silent = far_from_start(CompoundLinear(3, 3, bayes=True, generator=named_generator(0)), "repeated")
    with torch.no_grad():  # no noise of W is left: what differs is ψ
        silent.hyper.maps[-1].mean[:, 4:] = 0
        silent.hyper.maps[-1].mean[-1, 4:] = -1e9
    results = []
    for k in range(2):
        with sampling(named_generator(k)):
            results += [silent(x), silent(x)]
    assert_close(results[0], results[1], rtol=0, atol=1e-3)
    assert (results[0] - results[2]).abs().max() > 0.03


@pytest.mark.parametrize("name, bayes", CASES)
def test_part_of_a_batch_gets_its_rows_of_the_noise(name, bayes):
    layer, x = layer_of(name, bayes), rows_of(6, *LAYERS[name][1])
    with sampling(named_generator(0)) as draws:
        whole = output_of(layer, x)
    kl, parts, kls = draws.kl, [], []
    for rows in (slice(0, 2), slice(2, 4), slice(4, 6)):
        with sampling(named_generator(0), rows=rows, total=6) as draws:
            parts.append(output_of(layer, x[rows]))
        kls.append(draws.kl)
    assert_close(torch.cat(parts), whole, rtol=1e-12, atol=1e-12)
    assert_close(sum(kls) / 3, kl, rtol=1e-12, atol=1e-12)
    part = sampling(named_generator(0), rows=slice(0, 2), total=6)
    with pytest.raises(ValueError, match="called with 6 rows"), part:
        layer(x)


@pytest.mark.parametrize("name, bayes", CASES)
def test_shared_noise_leaves_neighbours_out(name, bayes):
    layer, x = layer_of(name, bayes), rows_of(6, *LAYERS[name][1])
    outputs = []
    for rows in (x, x[2:3]):
        with sampling(named_generator(0), shared=True):
            outputs.append(output_of(layer, rows))
    assert_close(outputs[0][2:3], outputs[1], rtol=1e-12, atol=1e-12)
    same = x[:1].expand(3, *x.shape[1:])
    with sampling(named_generator(0), shared=True):
        out = output_of(layer, same)
    assert_close(out[0], out[2])


@pytest.mark.parametrize("name, bayes", CASES)
def test_gradients_are_those_of_finite_differences(name, bayes):
    layer, x = layer_of(name, bayes), rows_of(2, *LAYERS[name][1])

    def loss(*parameters: Tensor) -> Tensor:
        names = [each for each, _ in layer.named_parameters()]
        with sampling(named_generator(0)) as draws:
            out = torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))
        out = out[0] if isinstance(out, tuple) else out
        return out.square().mean() + 0.1 * draws.kl

    parameters = [p.detach().clone().requires_grad_() for p in layer.parameters()]
    assert torch.autograd.gradcheck(loss, parameters, fast_mode=True, atol=1e-5)


def test_convert_copies_and_keeps_what_is_tied_shared_and_frozen():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(7, 3)
            self.body = nn.ModuleDict({"a": nn.Linear(3, 3)})
            self.again = self.body["a"]
            self.pair = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
            self.head = nn.Linear(3, 7, bias=False)
            self.head.weight = self.embed.weight
            self.attention = nn.MultiheadAttention(3, 1)  # its map of outputs is of a derived type

        def forward(self, x):
            return self.head(self.pair(self.again(self.body["a"](self.embed(x)))))

    net = Net().eval()
    net.pair[0].weight.requires_grad_(False)
    x, before = torch.arange(7), copy.deepcopy(net.state_dict())
    made = convert(net, {nn.Linear: partial(CompoundLinear.from_layer, hidden=(4,))})
    assert_close(made(x), net(x))
    assert made.again is made.body["a"] and made.head.weight is made.embed.weight
    assert not made.pair[0].weight.requires_grad and type(made.attention.out_proj) is not CompoundLinear
    with torch.no_grad():
        made.body["a"].weight.zero_()
    assert all(value.equal(before[name]) for name, value in net.state_dict().items())
    with pytest.raises(ValueError, match="nothing to convert"):
        convert(net, {nn.Conv2d: CompoundConv2d})
    with pytest.raises(TypeError, match="CompoundConv2d replaces Conv2d, not Linear"):
        convert(net, {nn.Linear: CompoundConv2d})
    with pytest.raises(ValueError, match="pad with zeros"):
        convert(nn.Conv1d(1, 1, 1, padding_mode="circular"), {nn.Conv1d: CompoundConv1d})
    with pytest.raises(ValueError, match="2 layers"):
        convert(nn.GRU(1, 1, 2), {nn.GRU: CompoundGRU})


def test_lengths_end_sequences():
    for name in ("gru per step", "gru per sequence", "lstm per sequence"):
        layer, x = layer_of(name).eval(), rows_of(3, 4, 2)
        output, last = layer(x, lengths=torch.tensor([4, 2, 1]))
        short, state = layer(x[1:2, :2])
        state, last = (s[0] if isinstance(s, tuple) else s for s in (state, last))
        assert_close(output[1:2, :2], short)
        assert_close(last[:, 1:2], state)
        assert not output[1, 2:].any()


# Copies, precision, export


@pytest.mark.parametrize("name, bayes", CASES)
def test_copies_states_and_dtypes(name, bayes):
    layer, x = layer_of(name, bayes), rows_of(3, *LAYERS[name][1])

    def output(module: nn.Module, x: Tensor = x) -> Tensor:
        with sampling(named_generator(0)):
            return output_of(module, x)

    reference = output(layer)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert output(other).equal(reference)
    single = LAYERS[name][0](hidden=(3,), bayes=bayes)
    single.load_state_dict(layer.state_dict())  # float64 into float32
    x32 = x.float()
    with torch.no_grad():
        mean = output_of(layer.eval(), x)
        assert_close(output_of(single.eval(), x32).double(), mean, rtol=1e-3, atol=1e-4)
    single.train()
    exact = output(single, x32)
    with torch.autocast("cpu", torch.bfloat16):
        reduced = output(single, x32)
    assert reduced.dtype is torch.float32 and reduced.equal(exact)
    assert output(single.bfloat16(), x.bfloat16()).dtype is torch.bfloat16


def test_fixed_draws_are_those_of_passes_and_export():
    net = network().float()
    x = IMAGES.float()
    generator = named_generator(7)
    passes = []
    for _ in range(3):
        with sampling(generator, shared=True, kl=False), torch.no_grad():
            passes.append(net(x))
    fixed = FixedDraws(net, x[:1], named_generator(7), n_samples=3)
    assert_close(fixed(x), torch.stack(passes))
    rows = {0: torch.export.Dim("rows", min=2)}
    program = torch.export.export(fixed, (x,), dynamic_shapes=(rows,))
    assert "compound" not in str(program.graph)  # torch's own operations alone
    assert_close(program.module()(x[:4]), torch.stack(passes)[:, :4])
    mean = torch.export.export(net.eval(), (x,), dynamic_shapes=(rows,))
    assert_close(mean.module()(x[:4]), net(x)[:4])


@pytest.mark.parametrize("name, bayes", [("linear", False), ("conv2d", True), ("gru per step", True)])
def test_layers_are_captured_as_one_graph(name, bayes):
    layer, x = layer_of(name, bayes), rows_of(3, *LAYERS[name][1])
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for k in range(2):
        results = []
        for module in (layer, compiled):
            layer.zero_grad()
            with sampling(named_generator(k)) as draws:
                out = output_of(module, x)
            (out.sum() + draws.kl).backward()
            results.append([out, draws.kl, *(p.grad for p in layer.parameters())])
        for a, b in zip(*results, strict=True):
            assert_close(a, b)


@pytest.mark.parametrize("name", ["linear", "gru per step"])
def test_a_compiled_layer_in_float32_gives_what_the_eager_one_gives(name):
    """There the moments are an operation of their own, with a gradient of its own."""
    layer, x = layer_of(name).float(), rows_of(3, *LAYERS[name][1]).float().requires_grad_()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    results = []
    for module in (layer, compiled):
        layer.zero_grad()
        x.grad = None
        with sampling(named_generator(0)) as draws:
            out = output_of(module, x)
        (out.square().sum() + draws.kl).backward()
        results.append([out, draws.kl, x.grad, *(p.grad for p in layer.parameters())])
    for a, b in zip(*results, strict=True):
        assert_close(a, b, rtol=1e-4, atol=1e-4)
