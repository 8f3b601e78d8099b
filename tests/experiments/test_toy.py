"""The numbers of the toy experiment where they are known."""

import math

import pytest
import torch

from compound.datasets.toy import TOY_SETS, Toy
from compound.experiments import toy
from compound.experiments.identity import PUBLISHED
from compound.models import Method, build
from compound.random import named_generator


def test_weight_variances_are_those_of_the_layers():
    model = build(Method("vb-cdn", **toy.OPTIONS["vb-cdn"].published), 1, toy.TASK)
    logs = ((-1.0, 0.5), (0.3, -2.0))  # row and column log-variances, constant in each layer
    with torch.no_grad():
        for layer, (log_row, log_col) in zip(model.layers, logs, strict=True):
            first, heads = layer.hyper.maps
            first.log_row.fill_(-1.5)
            first.log_col.fill_(0.2)
            heads.log_row.fill_(
                -40
            )  # no posterior variance in the heads: every draw of ψ gives the same variances
            heads.log_col.fill_(-40)
            heads.mean.zero_()
            scale, rows, _ = layer.hyper.heads
            heads.mean[0, -1, scale : scale + rows] = log_row
            heads.mean[0, -1, scale + rows :] = log_col
    variances = toy.weight_variances(model, 6.0, named_generator(0), points=20, draws=3)
    mixing = (200 * math.exp(-0.5) + 101 * math.exp(-1.7)) / 301  # 2 x 100 weights, then 101 x 1
    for name in ("mixing", "mixing_left", "mixing_right"):
        assert variances[name] == pytest.approx({"mean": mixing, "median": mixing}, rel=1e-5)
    hidden, heads = (2 + 101) * 10, 11 * (2 + 2 + 100 + 101 + 101 + 1)  # weights of the maps of both layers
    assert variances["posterior"]["mean"] == pytest.approx(
        math.exp(-1.3) * hidden / (hidden + heads), rel=1e-5
    )
    assert variances["posterior"]["median"] == pytest.approx(math.exp(-80), rel=1e-4)


def evaluate_known_band(name: str) -> dict[str, float]:
    view = TOY_SETS[name].view
    x = torch.linspace(-view, view, 481, dtype=torch.float64)
    band = torch.where(x.abs() < 4, 2.0, 10.0) if name == "set 1" else torch.where(x < 0, 15.0, 3.0)
    parts = {"aleatoric": 0.75 * band.square(), "epistemic": 0.25 * band.square()}
    data = Toy(torch.tensor([[-1.0], [1.0]]), torch.tensor([[-1.0], [1.0]]))
    return toy.evaluate(TOY_SETS[name], data, {"x": x, "mean": x**3 + 1, "band": band, **parts})


def test_metrics_of_a_known_band():
    one, two = (evaluate_known_band(name) for name in TOY_SETS)
    assert one["error"] == pytest.approx(1)
    assert (one["std_inside"], one["std_outside"], one["ratio"]) == pytest.approx((2, 10, 5))
    assert one["outside_to_target"] == pytest.approx(10 / math.sqrt(2))
    assert one["epistemic_share"] == pytest.approx(0.25)
    assert (two["std_left"], two["std_right"], two["ratio"], two["aleatoric_ratio"]) == pytest.approx(
        (15, 3, 5, 5)
    )
    assert two["aleatoric_left"] == pytest.approx(15 * math.sqrt(0.75))


def test_published_runs_have_the_published_settings():
    experiment = toy.EXPERIMENTS["toy"]
    grid = experiment.grid("paper", 1, experiment.methods)
    runs = {run.method: run for run in grid if run.variant == PUBLISHED}
    for method, clip in (("ml-cdn", None), ("vb-cdn", 5.0)):
        settings, options = runs[method].settings, runs[method].options
        assert (settings["steps"], settings["lr"], settings["final_lr_ratio"], settings["clip_value"]) == (
            10_000,
            1e-3,
            1.0,
            clip,
        )
        assert (settings["clip_norm"], settings["ema_decay"], settings["n_evals"]) == (None, 0.0, 0)
        assert (options["hyper"], options["widths"], options["samples"], options["far"]) == (
            (10,),
            (100,),
            3,
            0.0,
        )
        assert options["noise"] == pytest.approx(1 / math.sqrt(2))
