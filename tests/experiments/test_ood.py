"""The out-of-distribution and attack experiments on a few synthetic images, from grid to page."""

import csv

import pytest
import torch
from torch.testing import assert_close

from compound import experiments
from compound.datasets import images
from compound.experiments import ood
from compound.experiments.fgsm import page as fgsm_page
from compound.experiments.fgsm.protocols import sound_protocol
from compound.experiments.forms import ModelForm
from compound.experiments.identity import ONE_MEMBER, PUBLISHED, Run
from compound.experiments.ood.page import grouped, mean_of
from compound.experiments.pages import publish
from compound.experiments.runs import Result
from compound.models import Method, build
from compound.random import named_generator
from compound.train.config import TrainConfig
from compound.train.loop import fit
from compound.types import make_dataset


def test_out_of_distribution_images(few, tmp_path):
    runs = experiments.plan("ood-mnist", "quick", 1, ["ml-cdn", "map", "dpn"])
    assert [run.variant for run in runs] == ["", ONE_MEMBER, PUBLISHED, "", ""]
    results = experiments.perform_all(runs, tmp_path / "runs", None, 1)
    default, one, published, plain, prior = (result.metrics for result in results)
    assert set(default) == set(one) == set(plain) == {"plain", "far"}
    assert set(published) == set(prior) == {"plain"}
    assert plain["plain"]["accuracy"] > 0.8
    for metrics in (default, plain):
        assert metrics["far"]["notmnist"]["auroc"] > 0.99  # far noise detects them
        assert metrics["far"]["notmnist"]["mmc_out"] < metrics["plain"]["notmnist"]["mmc_out"]
    entropy = results[3].arrays["entropy far notmnist"]
    assert entropy.shape == (40,) and entropy.min() >= 0 and entropy.max() <= 2.3027
    claims = publish(results, tmp_path / "page")
    text = (tmp_path / "page" / "index.html").read_text()
    assert all(claim.claim in text for claim in claims) and len(claims) == 8  # those of ml-cdn
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
    )  # so few are not thinned
    assert [float(line["share"]) for line in lines] == pytest.approx([(k + 1) / 40 for k in range(40)])
    with (tmp_path / "page" / "ood-mnist-table-1.csv").open() as file:
        first = {line["form"]: line for line in csv.DictReader(file)}
    assert (
        float(first["map"]["auroc"]) == plain["plain"]["notmnist"]["auroc"]
        and first["map"]["auroc_error"] == ""
    )
    assert 'download="ood-mnist.csv"' in text


def test_far_noise_is_separated_from_the_same_draws(few):
    task, train = ood.TASK, images.load("mnist", "train")
    for method, options in (("ml-cdn", {}), ("map", {"far": 3.0})):
        model = build(Method(method, **options), 784, task)
        fit(model, make_dataset(train.x, train.y, task), TrainConfig(steps=20, n_evals=0))
        x = images.load("notmnist", "test").x
        forms = ood.predict_forms(model, x, 3)
        plain, far = forms["plain"], forms["far"]
        assert torch.equal(far.probs, model.predict(x, named_generator(3, "predict")).probs)
        assert (plain.probs - far.probs).abs().max() > 0.01
        # 1 - π: far noise mixes with the uniform distribution, a tenth for each class
        weight = (far.probs - 0.1).abs().sum(1) / (plain.probs - 0.1).abs().sum(1)
        assert_close(far.aleatoric, weight * plain.aleatoric, rtol=0, atol=1e-5)


def test_sound_attacks_leave_far_noise_out_of_the_gradient(few):
    """Gradients of the model with far noise increase distance; those of the network alone change labels."""
    task, train = ood.TASK, images.load("mnist", "train")
    model = build(Method("map", far=3.0), 784, task)
    fit(model, make_dataset(train.x, train.y, task), TrainConfig(steps=150, n_evals=0))
    network = ood.without_far_noise(model)
    assert not network.far.fitted and model.far.fitted and ood.without_far_noise(network) is network
    x, y = images.load("mnist", "test")  # rows that no centre was fitted to
    strengths = (0.0, 0.4, 0.6)
    without, with_far_noise = (
        sound_protocol(model, surrogate, x, y, strengths, named_generator(0)).accuracy
        for surrogate in (network, model)
    )
    assert without[0] == with_far_noise[0] and sum(without) < sum(with_far_noise)
    alone = sound_protocol(network, network, x, y, strengths[2:], named_generator(0)).accuracy
    assert alone == without[2:]  # far noise changes no label


def test_attacks_share_the_fits_of_the_out_of_distribution_experiments(few, tmp_path):
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
        publish(results, tmp_path / name)
        assert "strength" in (tmp_path / name / "index.html").read_text()
    assert before == {
        path: path.stat().st_mtime_ns for path in tmp_path.rglob("checkpoint.safetensors")
    }  # nothing trained again
    curve = results[0].metrics["sound, 10 draws"]["accuracy"]
    assert len(curve) == 11 and curve[0] > 0.7 > curve[-1]
    assert (
        results[0].metrics["transferred"]["accuracy"] == curve
    )  # from the same network, without its far noise


def test_numbers_of_samples_are_runs_of_their_own(few):
    runs = experiments.plan("fgsm-samples", "paper", 1, ["vmg"])
    assert [run.options.get("samples") for run in runs] == [None, 3, 5, 10]
    assert runs[0].fit_key == experiments.plan("ood-mnist", "paper", 1, ["vmg"])[0].fit_key  # trained once
    both = experiments.plan("fgsm-samples", "paper", 1, ["vb-cdn"])
    assert [run.variant for run in both] == 4 * [""] + 4 * [PUBLISHED]
    assert all(run.options["members"] == 1 for run in both) and both[4].options["parametrization"] == "paper"


def test_strong_attacks_include_the_published_forms_with_most_samples(few):
    strong = experiments.plan("fgsm-strong", "paper", 1, ["ml-cdn", "bnn-lv"])
    assert [run.options.get("samples") for run in strong if run.variant == PUBLISHED] == [None, 10]
    fits = {run.fit_key for run in experiments.plan("fgsm-samples", "paper", 1, ["ml-cdn"])}
    assert strong[-1].fit_key in fits  # trained once
    groups = fgsm_page.grouped([Result(run, {}, {}, {}) for run in strong])
    assert [str(form) for form in groups] == [
        "ml-cdn",
        "ml-cdn, published",
        "bnn-lv",
        "ml-cdn, published, S=10",
    ]


def test_groups_and_means_over_seeds():
    def result(seed: int, value: float, variant: str = "") -> Result:
        run = Run("ood-mnist", "map", "mnist", seed, variant=variant)
        return Result(run, {"plain": {"nll": value}, "far": {"nll": value + 1}}, {}, {})

    groups = grouped([result(0, 1.0), result(1, 3.0), result(0, 5.0, PUBLISHED)])
    assert [str(form) for form in groups] == [
        "map",
        "map + far noise",
        "map, published",
        "map, published + far noise",
    ]
    assert mean_of(groups[ModelForm("map")], "nll").text(4) == "2.0000 ± 1.0000"
    assert mean_of(groups[ModelForm("map", PUBLISHED)], "nll").text(4) == "5.0000"
