"""Data sets: file formats, the order of folders, downloads complete or absent."""

import gzip
import hashlib
import io
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

from compound.cli.app import main
from compound.datasets import catalogue, images, uci
from compound.datasets.catalogue import SETS, DataSet, File, require_file
from compound.datasets.fetch import fetch, listing
from compound.datasets.idx import read_idx
from compound.datasets.strips import read_cifar, read_strips


def idx(array: np.ndarray) -> bytes:
    return (
        bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()
    )


NUMBERS = np.random.default_rng(0).integers(0, 256, (5, 3, 2), dtype=np.uint8)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_idx_comes_back(tmp_path, pack):
    (tmp_path / "a").write_bytes(pack(idx(NUMBERS)))
    assert (read_idx(tmp_path / "a", hashlib.sha256(idx(NUMBERS)).hexdigest()) == NUMBERS).all()


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "not an idx file"),
        (b"\0\0\x0d\x01", "not an idx file"),
        (idx(NUMBERS)[:-1], "fetch it again"),
        (idx(NUMBERS) + b"x", "fetch it again"),
        (gzip.compress(idx(NUMBERS), mtime=0)[:-9], "damaged gzip"),
    ],
    ids=["empty", "other numbers", "short", "long", "damaged"],
)
def test_damaged_idx_is_refused(tmp_path, raw, message):
    (tmp_path / "a").write_bytes(raw)
    with pytest.raises(ValueError, match=message):
        read_idx(tmp_path / "a")
    with pytest.raises(ValueError, match=r"checksum|damaged"):
        read_idx(tmp_path / "a", "0" * 64)


def test_strips_come_back_without_loss(tmp_path):
    pixels = np.random.default_rng(1).integers(0, 256, (7, 32, 32, 3), dtype=np.uint8)
    strips = {}
    for number, part in enumerate((pixels[:4], pixels[4:])):
        buffer = io.BytesIO()
        Image.fromarray(part.reshape(-1, 32, 3)).save(buffer, "webp", lossless=True, exact=True)
        strips[f"webp_{number:03}"] = np.frombuffer(buffer.getvalue(), np.uint8)
    np.savez(tmp_path / "a.npz", labels=np.arange(7, dtype=np.uint8), **strips)
    images, labels = read_strips(tmp_path / "a.npz")
    assert (images == pixels).all() and labels.tolist() == list(range(7))
    np.savez(tmp_path / "b.npz", labels=np.arange(6, dtype=np.uint8), **strips)
    with pytest.raises(ValueError, match="7 images but 6 labels"):
        read_strips(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", labels=np.arange(6))
    with pytest.raises(ValueError, match="no images"):
        read_strips(tmp_path / "c.npz")


def test_binary_cifar_has_planes_of_colour(tmp_path):
    pixels = np.random.default_rng(2).integers(0, 256, (6, 32, 32, 3), dtype=np.uint8)
    rows = [bytes([label]) + image.transpose(2, 0, 1).tobytes() for label, image in enumerate(pixels)]
    (tmp_path / "a.bin").write_bytes(b"".join(rows[:2]))
    (tmp_path / "b.bin").write_bytes(b"".join(rows[2:]))
    images, labels = read_cifar([tmp_path / "a.bin", tmp_path / "b.bin"])
    assert (images == pixels).all() and labels.tolist() == list(range(6))
    (tmp_path / "b.bin").write_bytes(rows[0][:-1])
    with pytest.raises(ValueError, match="multiple of 3073"):
        read_cifar([tmp_path / "b.bin"])


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """A named folder, COMPOUND_DATA and a cache, all empty."""
    folders = [tmp_path / name for name in ("named", "environment", "cache")]
    monkeypatch.setenv("COMPOUND_DATA", str(folders[1]))
    monkeypatch.setattr(catalogue, "cache", lambda: folders[2])
    monkeypatch.setattr(catalogue, "DEBIAN", {"fashion-mnist": (tmp_path / "debian",)})
    return [*folders, tmp_path / "debian"]


def test_files_are_looked_for_in_order(folders):
    path = "fashion-mnist/t10k-labels-idx1-ubyte.gz"
    with pytest.raises(
        ValueError, match=r"fashion-mnist is missing: put .* at .*named.*compound data fetch fashion-mnist"
    ):
        require_file(path, folders[0])
    for home in (
        folders[3],
        *(folder / "fashion-mnist" for folder in folders[2::-1]),
    ):  # each comes before the ones so far
        home.mkdir(parents=True)
        file = home / "t10k-labels-idx1-ubyte"
        file.touch()
        assert require_file(path, folders[0]) == file
    (folders[0] / path).touch()
    assert require_file(path, folders[0]) == folders[0] / path  # compressed first


@pytest.fixture
def server(tmp_path):
    (tmp_path / "web").mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path / "web")) as web:
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        yield tmp_path / "web", f"http://127.0.0.1:{web.server_port}"
        web.shutdown()
        thread.join()


def test_downloads_are_complete_or_absent(folders, server, monkeypatch):
    folder, address = server
    raw = idx(NUMBERS)
    good, bad = gzip.compress(raw), gzip.compress(raw[:-1] + b"?")
    file = File("few/images.gz", hashlib.sha256(raw).hexdigest(), f"{address}/images.gz")
    monkeypatch.setitem(SETS, "few", DataSet("a few", (file,)))
    home = folders[0] / "few"
    for content, message in ((None, "cannot be reached"), (bad, "checksum differs"), (good[:20], "damaged")):
        if content is not None:
            (folder / "images.gz").write_bytes(content)
        with pytest.raises(ValueError, match=message):
            fetch("few", folders[0])
        assert list(home.iterdir()) == []  # nothing half done stays behind
    (folder / "images.gz").write_bytes(good)
    reported = []
    assert fetch("few", folders[0], lambda *progress: reported.append(progress)) == [home / "images.gz"]
    assert reported[-1] == ("few/images.gz", len(good), len(good))
    assert (read_idx(require_file("few/images.gz", folders[0]), file.sha256) == NUMBERS).all()
    assert fetch("few", folders[0]) == []  # what is here is not fetched again
    (state,) = [state for state in listing(folders[0]) if state.name == "few"]
    assert (state.n_found, state.n_files, state.folder) == (1, 1, str(home))


def test_errors_of_fetch(folders):
    with pytest.raises(ValueError, match=r"put notmnist/images-idx3-ubyte.gz at .* sha256 59fe38"):
        fetch("notmnist", folders[0])
    with pytest.raises(ValueError, match="choose one of mnist"):
        fetch("nomnist", folders[0])


def test_command_lists_every_set(folders):
    done = CliRunner().invoke(main, ["data", "list"], env={"COLUMNS": "200"})
    assert done.exit_code == 0 and all(name in done.output for name in SETS)
    assert "compound data fetch mnist" in done.output
    done = CliRunner().invoke(main, ["data", "fetch", "uci"])
    assert done.exit_code == 2 and "put uci/bostonHousing.npz" in done.output


def test_wrong_names_are_refused():
    with pytest.raises(ValueError, match="choose one of mnist train"):
        images.load("mnist", "all")
    with pytest.raises(ValueError, match="choose one of bostonHousing"):
        uci.load("boston", 0)
    with pytest.raises(ValueError, match=r"protein-tertiary-structure has 0\.\.4"):
        uci.load("protein-tertiary-structure", 5)


def test_every_file_of_the_folder_is_the_one_it_should_be(data_dir):
    for name, parts in images.PARTS.items():
        for part in parts:
            data = images.load(name, part, data_dir)
            assert len(data.x) == len(data.y) and data.x.min() >= 0 and data.x.max() == 1
    for name in ("cifar10", "svhn", "gtsrb", "uci"):
        for file in SETS[name].files:
            assert hashlib.sha256(require_file(file.path, data_dir).read_bytes()).hexdigest() == file.sha256


def test_digits_are_counted_as_published(data_dir):
    assert images.load("mnist", "test", data_dir).y.bincount().tolist() == [
        980,
        1135,
        1032,
        1010,
        982,
        892,
        958,
        1028,
        974,
        1009,
    ]
    assert len(images.load("notmnist", "all", data_dir).x) == 18_724


@pytest.mark.parametrize(
    ("name", "rows", "features"), [("yacht", 277, 6), ("naval-propulsion-plant", 10_741, 16)]
)
def test_splits_are_standard_in_their_training_rows(data_dir, name, rows, features):
    split = uci.load(name, 1, data_dir)
    assert split.x.shape == (rows, features) and split.y.shape == (rows, 1)
    moving = split.x.std(0, correction=0) > 0
    assert torch.allclose(split.x[:, moving].std(0, correction=0), torch.ones(int(moving.sum())), atol=1e-4)
    assert split.x.mean(0).abs().max() < 1e-4 and torch.isfinite(split.x_test).all()
    with np.load(require_file(f"uci/{name}.npz", data_dir)) as file:
        target = file["data"][file["index_test_1"]][:, file["index_target"]][:, 0]
    ours = split.scale * split.y_test[:, 0].double().numpy()
    assert np.allclose(ours - ours.mean(), target - target.mean(), atol=1e-4 * np.abs(target).max())


def test_upside_down_twice_is_upright():
    x = torch.rand(3, 784)
    assert torch.equal(images.flipped(images.flipped(x)), x)
    assert torch.equal(images.flipped(x).view(3, 28, 28)[:, 0], x.view(3, 28, 28)[:, 27])


def test_cache_is_the_platforms(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    monkeypatch.setattr("sys.platform", "linux")
    assert catalogue.cache() == Path("/somewhere/compound/data")
