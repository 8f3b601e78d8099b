"""The out-of-distribution and attack experiments on a few made-up pictures, from grid to page."""

import csv

import pytest
import torch
from torch.testing import assert_close

from compound import experiments
from compound.datasets import images
from compound.experiments import fgsm_page, ood, robust
from compound.experiments.ood_page import grouped, shown
from compound.experiments.runs import Result, Run
from compound.models import Method, build
from compound.random import named_generator
from compound.train.config import TrainConfig
from compound.train.loop import fit
from compound.types import make_dataset


def test_pictures_of_another_kind(few, tmp_path):
    runs = experiments.plan("ood-mnist", "quick", 1, ["ml-cdn", "map", "dpn"])
    assert [run.data for run in runs] == [
        "mnist",
        "mnist, one member",
        "mnist, as published",
        "mnist",
        "mnist",
    ]
    results = experiments.perform_all(runs, tmp_path / "runs", None, 1)
    own, one, published, plain, prior = (result.metrics for result in results)
    assert set(own) == set(one) == set(plain) == {"plain", "far"} and set(published) == set(prior) == {
        "plain"
    }
    assert plain["plain"]["accuracy"] > 0.8
    for metrics in (own, plain):
        assert metrics["far"]["notmnist"]["auroc"] > 0.99  # far noise knows them at once
        assert metrics["far"]["notmnist"]["mmc_out"] < metrics["plain"]["notmnist"]["mmc_out"]
    entropy = results[3].arrays["entropy far notmnist"]
    assert entropy.shape == (40,) and entropy.min() >= 0 and entropy.max() <= 2.3027
    bars = experiments.publish(results, tmp_path / "page")
    text = (tmp_path / "page" / "index.html").read_text()
    assert all(bar.claim in text for bar in bars) and len(bars) == 8  # those of ml-cdn
    assert (
        "map + far noise" in text
        and "ml-cdn, published" in text
        and (tmp_path / "page" / "ood-mnist.png").exists()
    )
    with (tmp_path / "page" / "ood-mnist.csv").open() as file:
        lines = [
            line
            for line in csv.DictReader(file)
            if line["form"] == "map + far noise" and line["pictures"] == "notmnist"
        ]
    assert sorted(entropy) == pytest.approx(
        [float(line["entropy"]) for line in lines]
    )  # as few as these are all kept
    assert [float(line["share"]) for line in lines] == pytest.approx([(k + 1) / 40 for k in range(40)])
    with (tmp_path / "page" / "ood-mnist-table-1.csv").open() as file:
        first = {line["form"]: line for line in csv.DictReader(file)}
    assert (
        float(first["map"]["auroc"]) == plain["plain"]["notmnist"]["auroc"]
        and first["map"]["auroc_error"] == ""
    )
    assert 'download="ood-mnist.csv"' in text


def test_far_noise_is_told_apart_from_the_same_draws(few):
    task, train = ood.TASK, images.load("mnist", "train")
    for method, options in (("ml-cdn", {}), ("map", {"far": 3.0})):
        model = build(Method(method, **options), 784, task)
        fit(model, make_dataset(train.x, train.y, task), TrainConfig(steps=20, n_evals=0))
        x = images.load("notmnist", "test").x
        found = ood.answers(model, x, 3)
        assert torch.equal(found["far"].probs, model.predict(x, 100, named_generator(3, "predict")).probs)
        assert (found["plain"].probs - found["far"].probs).abs().max() > 0.01
        plain, far = found["plain"], found["far"]
        believed = (far.probs - 0.1).abs().sum(1) / (plain.probs - 0.1).abs().sum(
            1
        )  # 1 - π: far noise draws w.r.t. a tenth
        assert_close(far.aleatoric, believed * plain.aleatoric, rtol=0, atol=1e-5)


def test_sound_attacks_look_past_far_noise(few):
    """Aimed at the model as it is, the attack runs after distance; aimed at the network, it changes labels."""
    task, train = ood.TASK, images.load("mnist", "train")
    model = build(Method("map", far=3.0), 784, task)
    fit(model, make_dataset(train.x, train.y, task), TrainConfig(steps=150, n_evals=0))
    silent = ood.without_far_noise(model)
    assert not silent.far.fitted and model.far.fitted and ood.without_far_noise(silent) is silent
    x, y = images.load("mnist", "test")  # rows that no centre was fitted to
    past, at = (
        robust.sound(model, aim, x, y, (0.0, 0.4, 0.6), named_generator(0)) for aim in (silent, model)
    )
    assert past.accuracy[0] == at.accuracy[0] and sum(past.accuracy) < sum(at.accuracy)
    assert (
        robust.sound(silent, silent, x, y, (0.6,), named_generator(0)).accuracy == past.accuracy[2:]
    )  # far noise changes no label


def test_attacks_share_the_fits_of_the_pictures(few, tmp_path):
    experiments.perform_all(experiments.plan("ood-mnist", "quick", 1, ["map"]), tmp_path / "runs", None, 1)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("checkpoint.safetensors")}
    assert len(before) == 1
    for name, protocols in (
        ("fgsm-mnist", {"published", "sound"}),
        ("fgsm-strong", {"many steps", "transferred", "random signs"}),
    ):
        results = experiments.perform_all(
            experiments.plan(name, "quick", 1, ["map"]), tmp_path / "runs", None, 1
        )
        assert protocols < set(results[0].metrics)
        experiments.publish(results, tmp_path / name)
        assert "strength" in (tmp_path / name / "index.html").read_text()
    assert before == {
        path: path.stat().st_mtime_ns for path in tmp_path.rglob("checkpoint.safetensors")
    }  # nothing trained again
    curve = results[0].metrics["sound, 10 draws"]["accuracy"]
    assert len(curve) == 11 and curve[0] > 0.7 > curve[-1]
    assert (
        results[0].metrics["transferred"]["accuracy"] == curve
    )  # from the same plain network, past its far noise


def test_numbers_of_samples_are_runs_of_their_own(few):
    runs = experiments.plan("fgsm-samples", "paper", 1, ["vmg"])
    assert [run.options.get("samples") for run in runs] == [None, 3, 5, 10]
    assert runs[0].fit_key == experiments.plan("ood-mnist", "paper", 1, ["vmg"])[0].fit_key  # trained once
    both = experiments.plan("fgsm-samples", "paper", 1, ["vb-cdn"])
    assert [run.data for run in both] == 4 * ["mnist"] + 4 * ["mnist, as published"]
    assert all(run.options["members"] == 1 for run in both) and both[4].options["parametrization"] == "paper"


def test_strong_attacks_meet_the_published_forms_with_most_draws_too(few):
    strong = experiments.plan("fgsm-strong", "paper", 1, ["ml-cdn", "bnn-lv"])
    assert [run.options.get("samples") for run in strong if "published" in run.data] == [None, 10]
    fits = {run.fit_key for run in experiments.plan("fgsm-samples", "paper", 1, ["ml-cdn"])}
    assert strong[-1].fit_key in fits  # trained once
    labels = fgsm_page.grouped([Result(run, {}, {}, {}) for run in strong])
    assert list(labels) == ["ml-cdn", "ml-cdn, published", "bnn-lv", "ml-cdn, published, S=10"]


def test_groups_and_means_over_seeds():
    def result(seed: int, value: float, data: str = "mnist") -> Result:
        return Result(
            Run("ood-mnist", "map", data, seed), {"plain": {"nll": value}, "far": {"nll": value + 1}}, {}, {}
        )

    groups = grouped([result(0, 1.0), result(1, 3.0), result(0, 5.0, "mnist, as published")])
    assert list(groups) == ["map", "map + far noise", "map, published", "map, published + far noise"]
    assert shown(groups["map"], lambda m: m["nll"]) == "2.0000 ± 1.0000"
    assert shown(groups["map, published"], lambda m: m["nll"]) == "5.0000"
