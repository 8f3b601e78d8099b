"""The data sets: their files with checksums, and the folders in which files are searched.

A file is searched as <folder>/<set>/<file>, with or without .gz: in the folders given by --data-dir and
COMPOUND_DATA, in the user's cache, and where Debian's package installs Fashion-MNIST. `fetch` downloads
missing files from their publishers.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple


class File(NamedTuple):
    """One file of a data set."""

    path: str  # relative to a data folder; the file may also be there uncompressed, without .gz
    sha256: str  # of the uncompressed content; for npz, of the file itself
    url: str = ""  # of its publisher; "" if it cannot be downloaded


class DataSet(NamedTuple):
    description: str
    files: tuple[File, ...]
    note: str = ""  # how the files were made, where there is no URL


def _idx_files(folder: str, base_url: str, checksums: dict[str, str]) -> tuple[File, ...]:
    """Gzipped idx files, from SHA-256 checksums by name; `base_url` is "" if there is no download."""
    return tuple(
        File(f"{folder}/{name}.gz", sha256, f"{base_url}/{name}.gz" if base_url else "")
        for name, sha256 in checksums.items()
    )


UCI_CHECKSUMS = {
    "bostonHousing": "a212dc918a958f2fd76ade5eab84da31f14ba78dd25489293b4e3aba87a22ee4",
    "concrete": "5b92d334cf9c8f798701a389acc37d06e888ead042645aff3ee9b9c0b8624f72",
    "energy": "fefa3e1791e41a2bf13524a9236ce117bc9939399149fd14d544b00c002cc131",
    "kin8nm": "54aa5a0414f25f36c5c0d9f4cacccdeeb66bd0dde570a22bc81637a622b18083",
    "naval-propulsion-plant": "d5d8b0ca18eeb221beee4923dfb4f0546d075a64841738b42310297c7691d1e2",
    "power-plant": "3760c09c886f43770767e0db5ce09f1e7b5e13977cc59f5b8d6ab55867900926",
    "protein-tertiary-structure": "af1dc8e643a5d4a5a58ceaea66728fbcc112f2720bf2b5aca017ef2bd6158ef6",
    "wine-quality-red": "8e3d0c15975072ccff2eebe286ad3579711c662bef3135e20ddf060e49650e9f",
    "yacht": "fbfbd594b9b32c7967e28d09c0176309265f590b49b9760aaca9b2b325400c6b",
}
TABLES_CHECKSUMS = {
    "tables/adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    "tables/adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
    "tables/diamonds.csv": "9574730b03aba241d899c4a97511c5061b19358fab89510774fb6c24168345c4",
    "tables2/computers.csv": "171fd84b814689c4da4c3b8bdfe3bc646802034440205f2651fecf0fe14a55c4",
    "tables2/credit.csv": "43a7ba23cbd75bc7a87ca4894de189a6321931d6dfa498b5edaca036f571a21d",
    "tables2/deliveries.csv": "0b6f428c4bf22f6455743b310c2109a6884cb14509f296f51682569703a6984d",
    "tables2/flights.csv": "17f891a0d2dc0191ba7a0706d0c8f0bf7c3fc51d3bc3771d8765d85a1c118e8e",
    "tables2/hotel.csv": "78dc8d077285ce09761cf015d99da1ac404e39cf6636a70cf38ffe3d372e2248",
    "tables2/hpc.csv": "5ecc6d956fca848ac54d524d8b4fdd56d99d7a234d02fd8a5fa27f758b44039a",
    "tables2/lending.csv": "3dbe4d83e6efc20a42c349480fdf8e710b06cc4273eedf96896d137c9771537c",
    "tables2/loans.csv": "45e7c5fb12ab18aa0913dcc61d863daaaa031e5c59f6e48611b9c74d5d96ce52",
    "tables2/stackoverflow.csv": "513b4920dfcc40a5b95d9f9fd385dbdde72f32b99afdd27cbfb8896328e069ad",
    "tables2/storms.csv": "bfac2a2f8d44e4092006fd3463047a19bf3e2453f411fe9ef8e3275674f6e949",
    "tables2/txhousing.csv": "fb90c84057655e7a0533a4892484c170177a7fb4251de95c3103a0a5b44e03a8",
    "tables2/wachurn.csv": "e9ea3330a9f2982ba3ea8af1a368a74c814d6bf3148a62752c0f1de5b91e42d1",
}


def _table_files(folder: str) -> tuple[File, ...]:
    """The gzipped text tables of a folder."""
    files = [item for item in TABLES_CHECKSUMS.items() if item[0].startswith(f"{folder}/")]
    return tuple(File(f"{path}.gz", sha256) for path, sha256 in files)


SETS: dict[str, DataSet] = {
    "mnist": DataSet(
        "handwritten digits, 60,000 + 10,000, 28x28",
        _idx_files(
            "mnist",
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            {
                "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            },
        ),
    ),
    "fashion-mnist": DataSet(
        "articles of clothing, 60,000 + 10,000, 28x28",
        _idx_files(
            "fashion-mnist",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
            {
                "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            },
        ),
    ),
    "notmnist": DataSet(
        "letters A to J in many fonts, 18,724, 28x28",
        _idx_files(
            "notmnist",
            "",
            {
                "images-idx3-ubyte": "59fe38159136f66e2e88103ee317146a15311676a501177ddb5850be451d972d",
                "labels-idx1-ubyte": "a9bc5225a5455d5559f6a0a39d67e4354dfff3b97d7076bcbd38a235b3598c0b",
            },
        ),
        "an idx pair made from the PNG files of notMNIST_small, by letter and then by file name, "
        "without the two unreadable ones",
    ),
    "omniglot": DataSet(
        "characters of eight alphabets, 4,840, 28x28",
        _idx_files(
            "omniglot",
            "",
            {
                "images-idx3-ubyte": "40a8a98954793328d5750a05bf99c18f503dff96c6f4417d64b7f90f7c3b87cf",
                "labels-idx1-ubyte": "4d4dd00185f3d2daeef734eb097b1c48b9a007ffef8dc1ee9836cba0d694b4c7",
            },
        ),
        "an idx pair made from the small background sets, ink bright, 28x28 with a box filter",
    ),
    "cifar10": DataSet(
        "ten kinds of things, 20,000 + 10,000, 32x32 in colour",
        (
            File("cifar10/train20k.npz", "f814d0357701333cc0d3dbf9e60c2ff681ae29e84144ab6424b2365abac3623e"),
            File("cifar10/test.npz", "a1de269dc2c5a8ecf0f657757b650a1ec2841b9c1d0eb18843480da20140f94e"),
        ),
        "npz files of WebP strips",
    ),
    "svhn": DataSet(
        "house numbers, 5,000, 32x32 in colour",
        (File("svhn/test5k.npz", "1fd5dfd14483c6b2e9d69f6479dc9d4806ea4e483bbca041732c7dff97121762"),),
        "an npz file of WebP strips",
    ),
    "gtsrb": DataSet(
        "traffic signs, 1,776, 32x32 in colour",
        (File("gtsrb/gtsrb32.npz", "595f3a88b503afb0da1539b0718bfe61c99dca842a5d534f845431bc96172ca8"),),
        "an npz file of WebP strips",
    ),
    "uci": DataSet(
        "nine regression tables with their standard splits",
        tuple(File(f"uci/{name}.npz", sha256) for name, sha256 in UCI_CHECKSUMS.items()),
        "npz files with data, index_features, index_target and the indices of every split",
    ),
    "tables": DataSet(
        "tables of mixed columns: Adult and diamonds",
        _table_files("tables"),
        "the files of UCI's Adult, and diamonds of seaborn-data as CSV, gzipped",
    ),
    "tables2": DataSet(
        "twelve tables of mixed columns with the target last",
        _table_files("tables2"),
        "gzipped CSV files made from data sets of R and Python packages",
    ),
    "sequences": DataSet(
        "utterances of nine speakers, 270 + 370, and a year of half-hourly electricity demand",
        (
            File(
                "sequences/japanese-vowels.npz",
                "832aa0351620bbf3ecad931c1408d6a0f1eee0d957d70193da20bf0c86fe35db",
            ),
            File(
                "sequences/elecdemand.csv.gz",
                "c33697be69efb93f41dc32eb48544c893cff02fc8dc80e094e2faf6b365ef288",
            ),
        ),
        "UCI's Japanese Vowels as an npz file, and elecdemand of the R package fpp2 as CSV",
    ),
}
DEBIAN = {
    "fashion-mnist": (Path("/usr/share/dataset-fashion-mnist"), Path("/usr/share/datasets/fashion-mnist"))
}


def cache() -> Path:
    """The folder for data sets in the user's cache, by the convention of the platform."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "compound" / "data"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "compound" / "data"
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "compound" / "data"


def folders(data_dir: Path | None) -> list[Path]:
    """The folders that are searched, in this order: `data_dir`, COMPOUND_DATA, the cache."""
    environment = os.environ.get("COMPOUND_DATA", "")
    return [*([data_dir] if data_dir else []), *([Path(environment)] if environment else []), cache()]


def _candidates(path: str, data_dir: Path | None) -> Iterator[Path]:
    """All places where the file `path` (<set>/<file>) may be, in order of preference."""
    name, _, file = path.partition("/")
    for folder in (*(folder / name for folder in folders(data_dir)), *DEBIAN.get(name, ())):
        yield folder / file
        if file.endswith(".gz"):
            yield folder / file.removesuffix(".gz")


def find_file(path: str, data_dir: Path | None = None) -> Path | None:
    """Where the file `path` (<set>/<file>) is on this machine; None if it is missing."""
    return next((candidate for candidate in _candidates(path, data_dir) if candidate.is_file()), None)


def require_file(path: str, data_dir: Path | None = None) -> Path:
    """Like `find_file`, but a missing file is a ValueError that says where to put it."""
    file = find_file(path, data_dir)
    if file is None:
        name = path.partition("/")[0]
        target = folders(data_dir)[0] / path
        fetchable = any(entry.url for entry in SETS[name].files)
        hint = f"compound data fetch {name}" if fetchable else SETS[name].note
        raise ValueError(
            f"data set {name} is missing: put {path} at {target}, "
            f"or name its folder by --data-dir or COMPOUND_DATA ({hint})"
        )
    return file


def require(names: Iterable[str], data_dir: Path | None = None) -> None:
    """Raise ValueError if a file of the data sets `names` is missing."""
    for name in names:
        for file in SETS[name].files:
            require_file(file.path, data_dir)
