"""Model directories and checkpoint files: validated when read, complete or absent when written."""

import json
import math
import os
import re
import shutil
import threading
from pathlib import Path

import pytest
import torch
from fuzz_damages import HEADERS, Parts, _in_header, put_together, take_apart
from fuzz_files import peak, trained
from torch import Tensor

from compound.io import bundle
from compound.io.atomic import write_atomic
from compound.io.bundle import Bundle, digest
from compound.io.checkpoint_file import load_checkpoint, pack, save_checkpoint, unpack
from compound.io.model_directory import load_directory, save_directory
from compound.io.temporary import temporary
from compound.io.tensor_specs import specs_of
from compound.models import METHODS, Method, build
from compound.models.files import check_config, describe, load_model, meta_device, save_model
from compound.random import named_generator
from compound.train.config import TrainConfig
from compound.train.holdout import holdout_weights
from compound.train.loop import fit
from compound.types import Task, make_dataset

CONFIG = {"method": "some", "widths": [3, 4], "rate": 0.1, "empty": None, "größe": "ü"}


def tensors(shift: float = 0.0) -> dict[str, Tensor]:
    return {
        "weight": torch.arange(6.0).reshape(2, 3) + shift,
        "count": torch.tensor(3),
        "on": torch.tensor([True, False]),
    }


def same(a: Bundle, b: Bundle) -> bool:
    """Equal to the bit, types and shapes included."""
    described = [
        {
            name: (t.dtype, t.shape, t.detach().reshape(-1).contiguous().view(torch.uint8).tolist())
            for name, t in bundle.tensors.items()
        }
        for bundle in (a, b)
    ]
    return a.config == b.config and described[0] == described[1]


KINDS = pytest.mark.parametrize(
    "write, read",
    [(save_directory, load_directory), (save_checkpoint, load_checkpoint)],
    ids=["directory", "file"],
)


def contents(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.iterdir())


@KINDS
def test_loaded_content_equals_saved_content(write, read, tmp_path):
    odd = {
        **tensors(),
        "special": torch.tensor([float("nan"), float("inf"), -0.0]),
        "none": torch.zeros(0, 4),
        "nothing": torch.zeros(0),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "double": torch.tensor([0.1], dtype=torch.float64),
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    write(tmp_path / "deep" / "a", CONFIG, odd)
    loaded = read(tmp_path / "deep" / "a")
    assert same(loaded, Bundle(CONFIG, odd))
    assert all(t.data_ptr() % 64 == 0 or t.numel() == 0 for t in loaded.tensors.values())
    assert [entry.name for entry in (tmp_path / "deep").iterdir()] == ["a"]


@KINDS
def test_views_and_shared_memory_are_saved(write, read, tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    views = {
        "a": base,
        "b": base,
        "transposed": base.T,
        "part": base[1:, ::2],
        "wide": torch.ones(1).expand(5),
    }
    write(tmp_path / "a", {}, views)
    assert same(read(tmp_path / "a"), Bundle({}, views))


@KINDS
def test_equal_content_gives_equal_files(write, read, tmp_path):
    for name in ("a", "b"):
        write(tmp_path / name, CONFIG, tensors())
    for a, b in zip(contents(tmp_path / "a"), contents(tmp_path / "b"), strict=True):
        assert a.read_bytes() == b.read_bytes()


@KINDS
def test_a_changed_byte_is_refused_or_harmless(write, read, tmp_path):
    write(tmp_path / "a", CONFIG, tensors())
    refused = []
    for file in contents(tmp_path / "a"):
        good = file.read_bytes()
        for i in range(len(good)):
            file.write_bytes(good[:i] + bytes([good[i] ^ 1 << i % 8]) + good[i + 1 :])
            try:
                assert same(read(tmp_path / "a"), Bundle(CONFIG, tensors())), f"byte {i} of {file.name}"
            except ValueError as error:
                refused.append(str(error))
        file.write_bytes(good)
    assert len(refused) > 300 and all(str(tmp_path / "a") in message for message in refused)


@KINDS
def test_a_truncated_file_is_refused(write, read, tmp_path):
    write(tmp_path / "a", CONFIG, tensors())
    for file in contents(tmp_path / "a"):
        good = file.read_bytes()
        for length in range(len(good) - 1):  # config.json may lose its last newline
            file.write_bytes(good[:length])
            with pytest.raises(ValueError, match=re.escape(str(file))):
                read(tmp_path / "a")
        file.write_bytes(good)


@KINDS
def test_missing_and_foreign_files_are_refused(write, read, tmp_path):
    with pytest.raises(ValueError, match="missing"):
        read(tmp_path / "nowhere")
    (tmp_path / "text").write_text("[1, 2]")
    with pytest.raises(ValueError, match="text"):
        read(tmp_path / "text")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "config.json").write_text(json.dumps({"format": "other", "version": 1}))
    with pytest.raises(ValueError, match="foreign"):
        read(foreign)


def test_other_safetensors_and_pickles_are_no_checkpoints(tmp_path):
    from safetensors.torch import save_file as plain

    plain({"a": torch.ones(2)}, tmp_path / "plain")
    torch.save({"a": torch.ones(2)}, tmp_path / "pickle")
    for name in ("plain", "pickle"):
        with pytest.raises(ValueError, match="not a checkpoint"):
            load_checkpoint(tmp_path / name)


def test_a_newer_format_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(bundle, "VERSION", 2)
    save_directory(tmp_path / "model", CONFIG, tensors())
    save_checkpoint(tmp_path / "file", CONFIG, tensors())
    monkeypatch.undo()
    for read, name in ((load_directory, "model"), (load_checkpoint, "file")):
        with pytest.raises(ValueError, match="version 2"):
            read(tmp_path / name)


def test_an_edited_config_is_refused(tmp_path):
    save_directory(tmp_path / "m", CONFIG, tensors())
    file = tmp_path / "m" / "config.json"
    frame = json.loads(file.read_text())
    frame["config"]["rate"] = 0.2
    file.write_text(json.dumps(frame))
    with pytest.raises(ValueError, match="edited"):
        load_directory(tmp_path / "m")
    frame["config"]["rate"] = 0.1
    file.write_text(json.dumps(frame))  # other spaces, same content
    assert same(load_directory(tmp_path / "m"), Bundle(CONFIG, tensors()))


def test_files_of_two_models_are_refused(tmp_path):
    save_directory(tmp_path / "a", CONFIG, tensors())
    save_directory(tmp_path / "b", CONFIG, tensors(1.0))
    shutil.copy(tmp_path / "a" / "tensors.safetensors", tmp_path / "b" / "tensors.safetensors")
    with pytest.raises(ValueError, match="another save"):
        load_directory(tmp_path / "b")


def test_only_model_directories_are_replaced(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match=r"thesis\.tex"):
        save_directory(tmp_path / "home", CONFIG, tensors())
    assert (tmp_path / "home" / "thesis.tex").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        save_directory(tmp_path / "file", CONFIG, tensors())


def test_a_config_that_does_not_fit_into_json_is_refused(tmp_path):
    for write in (save_directory, save_checkpoint):
        with pytest.raises(ValueError, match="JSON"):
            write(tmp_path / "a", {"rate": torch.ones(1)}, {})
    assert list(tmp_path.iterdir()) == []


class Killed(BaseException):
    """Stands for a killed process: no later operation has an effect."""


def kill_at(monkeypatch, moment: int) -> None:
    left = [moment]

    def wrap(call):
        def wrapped(*args, **kwargs):
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return call(*args, **kwargs)

        return wrapped

    for home, name in (
        (os, "rename"),
        (os, "replace"),
        (os, "fsync"),
        (shutil, "rmtree"),
        (Path, "unlink"),
        (Path, "mkdir"),
    ):
        monkeypatch.setattr(home, name, wrap(getattr(home, name)))


@KINDS
def test_a_save_interrupted_at_any_moment_leaves_the_old_or_the_new(write, read, tmp_path, monkeypatch):
    old, new = Bundle(CONFIG, tensors()), Bundle({"other": 1}, tensors(1.0))
    seen = []
    for moment in range(100):
        path = tmp_path / str(moment) / "m"
        write(path, *old)
        try:
            with monkeypatch.context() as patch:
                kill_at(patch, moment)
                write(path, *new)
            break
        except Killed:
            loaded = read(path)
            assert same(loaded, old) or same(loaded, new)
            seen.append(same(loaded, new))
            write(path, *new)  # the leftovers do not hinder the next save
            assert same(read(path), new)
        assert not any(entry.suffix == ".old" for entry in path.parent.iterdir())
    assert [entry.name for entry in path.parent.iterdir()] == [
        "m"
    ]  # an uninterrupted save leaves nothing else
    assert len(seen) > 3 and seen == sorted(seen) and not seen[0] and seen[-1]


def test_write_atomic_keeps_the_old_file_when_writing_fails(tmp_path, monkeypatch):
    write_atomic(tmp_path / "a", b"oldest")
    os.link(tmp_path / "a", tmp_path / "b")
    write_atomic(tmp_path / "a", b"old")
    assert (tmp_path / "b").read_bytes() == b"oldest"  # the file was replaced, not overwritten
    (tmp_path / "b").unlink()

    def full(_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_atomic(tmp_path / "a", b"new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"] and (tmp_path / "a").read_bytes() == b"old"


def test_the_digest_depends_on_text_names_types_shapes_and_values():
    ones = torch.ones(2, 2)
    others = [
        ("t", {"a": 2 * ones}),
        ("t", {"a": ones.view(torch.int32)}),
        ("t", {"a": ones.reshape(4)}),
        ("t", {"b": ones}),
        ("u", {"a": ones}),
    ]
    assert len({digest(*args) for args in [("t", {"a": ones}), *others]}) == 6
    assert digest("t", {"a": ones.T.clone().T}) == digest("t", {"a": ones})  # but not on the memory layout


def test_pack_and_unpack_trees(tmp_path):
    tree = {
        "a": {"b": torch.ones(2), 0: [1, 2.5, None, True, ("x", torch.tensor(3.0))]},
        "a/b": torch.zeros(1),  # the same path once flattened
        "nothing": {},
        "number": float("inf"),
    }
    save_checkpoint(tmp_path / "t", *pack(tree))
    loaded = unpack(load_checkpoint(tmp_path / "t"))
    assert repr(loaded) == repr(tree)  # values, types, order, int keys, tuples
    for bad in ({"a": object()}, {("a", 1): 2}, [{1, 2}]):
        with pytest.raises(ValueError, match="can be saved"):
            pack(bad)


CDN = Method("ml-cdn", members=2, widths=(4,), lam=(1e-3, 1e-5))
DOUBLE = Method("ml-cdn", members=2, widths=(4,), far=0.0)


@pytest.mark.parametrize(
    "method, dtype",
    [(CDN, torch.float32), (Method("vb-cdn", widths=(4, 3)), torch.float32), (DOUBLE, torch.float64)],
    ids=["ml-cdn", "vb-cdn", "float64"],
)
def test_a_loaded_model_predicts_with_the_same_bits(method, dtype, tmp_path):
    task = Task("regression", 2)
    model = build(method, 3, task, seed=5).to(dtype)
    x, y = (torch.randn(60, width, generator=named_generator(0, width), dtype=dtype) for width in (3, 2))
    fit(
        model,
        make_dataset(x, y, task, holdout_weights(60, model.members, 0.2, 0).to(dtype)),
        TrainConfig(steps=4, batch_size=20, n_evals=2, eval_samples=2),
    )
    save_model(model, tmp_path / "m", extra={"columns": ["a", "b", "c"]})
    again = load_model(tmp_path / "m")
    assert again.config == model.config and again.task == task
    assert same(Bundle({}, model.state_dict()), Bundle({}, again.state_dict()))
    before, after = (m.predict(x, named_generator(1), 2) for m in (model, again))
    assert torch.equal(before.means, after.means) and torch.equal(before.variances, after.variances)
    assert load_directory(tmp_path / "m").config["extra"] == {"columns": ["a", "b", "c"]}


def test_a_directory_without_a_model_is_refused(tmp_path):
    save_directory(tmp_path / "m", {"some": "config"}, tensors())
    with pytest.raises(ValueError, match="does not hold a model"):
        load_model(tmp_path / "m")
    model = build(Method("ml-cdn", widths=(4,)), 3, Task("regression", 1))
    save_model(model, tmp_path / "m")
    bundle = load_directory(tmp_path / "m")
    save_directory(tmp_path / "m", {**bundle.config, "inputs": 2}, bundle.tensors)
    with pytest.raises(ValueError, match="does not fit"):
        load_model(tmp_path / "m")


def forge(path: Path, config=None, tensors=None) -> None:
    """Replace configuration or tensors at a path, with valid checksums."""
    parts = take_apart(path)
    if config is not None:
        parts.frame["config"] = config
    put_together(path, Parts(parts.frame, tensors or parts.tensors))


@KINDS
@pytest.mark.parametrize("kind", ["pipe", "zeros", "itself", "directory", "huge"])
def test_only_regular_files_of_bounded_size_are_opened(kind, write, read, tmp_path):
    write(tmp_path / "a", CONFIG, tensors())
    for file in contents(tmp_path / "a"):
        good = file.read_bytes()
        file.unlink()
        if kind == "pipe":
            os.mkfifo(file)  # opening it would block for ever
        elif kind == "directory":
            file.mkdir()
        elif kind == "huge":
            file.write_bytes(good)
            os.truncate(file, 2**40)
        else:
            file.symlink_to("/dev/zero" if kind == "zeros" else file)
        with pytest.raises(ValueError, match=re.escape(str(tmp_path / "a"))):
            read(tmp_path / "a")
        file.rmdir() if kind == "directory" else file.unlink()
        file.write_bytes(good)
    assert same(read(tmp_path / "a"), Bundle(CONFIG, tensors()))


def test_an_inconsistent_header_is_refused(tmp_path):
    for label, edit in HEADERS.items():
        save_directory(tmp_path / "m", CONFIG, tensors())
        _in_header("weight", edit)(tmp_path / "m")
        with pytest.raises(ValueError, match=r"tensors\.safetensors"):
            load_directory(tmp_path / "m")
            pytest.fail(label)


def test_the_check_is_called_before_the_tensors_are_read(tmp_path):
    save_directory(tmp_path / "m", CONFIG, tensors())
    calls = []
    loaded = load_directory(tmp_path / "m", lambda config, specs: calls.append((config, specs)))
    expected = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in loaded.tensors.items()}
    assert calls == [(loaded.config, expected)]
    file = tmp_path / "m" / "tensors.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"?")

    def refuse(config, specs):
        raise ValueError("checked first")

    with pytest.raises(ValueError, match="checked first"):
        load_directory(tmp_path / "m", refuse)


def test_a_deleted_model_does_not_come_back(tmp_path, monkeypatch):
    save_directory(tmp_path / "m", CONFIG, tensors())
    with monkeypatch.context() as patch:
        patch.setattr(
            shutil, "rmtree", lambda *_, **__: None
        )  # interrupted before the former model was deleted
        save_directory(tmp_path / "m", {"other": 1}, tensors())
    assert len(list(tmp_path.iterdir())) == 2
    shutil.rmtree(tmp_path / "m")
    with pytest.raises(ValueError, match="missing"):
        load_directory(tmp_path / "m")
    save_directory(tmp_path / "m", CONFIG, tensors())
    assert [entry.name for entry in tmp_path.iterdir()] == ["m"]  # the next save removes it


def test_stale_temporary_directories_are_removed_and_locked_ones_are_not(tmp_path):
    stale = tmp_path / ".m.00000000.new"
    for path in (stale, tmp_path / ".m.other.new", tmp_path / ".n.00000000.new"):
        path.mkdir()
        (path / "config.json").write_text("")
    with temporary(tmp_path / "m", folder=True) as busy:
        save_directory(tmp_path / "m", CONFIG, tensors())
        assert not stale.exists() and busy.exists()
    assert (tmp_path / ".m.other.new").exists() and (
        tmp_path / ".n.00000000.new"
    ).exists()  # other names, other models


def in_threads(*jobs) -> list[BaseException]:
    failures = []

    def run(job):
        try:
            job()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


def test_concurrent_readers_and_writers_see_complete_models(tmp_path):
    bundles = [Bundle({"k": k}, tensors(k)) for k in range(2)]
    save_directory(tmp_path / "m", *bundles[0])
    saving, reads = [2], []

    def saver(bundle):
        try:
            for _ in range(25):
                save_directory(tmp_path / "m", *bundle)
        finally:
            saving[0] -= 1

    def reader():
        while saving[0] > 0:
            loaded = load_directory(tmp_path / "m")
            reads.append(same(loaded, bundles[loaded.config["k"]]))  # configuration and tensors of one save

    assert in_threads(lambda: saver(bundles[0]), lambda: saver(bundles[1]), reader, reader) == []
    assert len(reads) > 5 and all(reads) and [entry.name for entry in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize(
    ("method", "task"),
    [
        pytest.param(name, task, id=f"{task.kind}-{name}")
        for task in (Task("regression", 2), Task("classification", 3))
        for name, method in METHODS.items()
        if task.kind in method.kinds
    ],
)
def test_shapes_on_the_meta_device_are_those_of_the_model(method, task):
    """Also for methods that draw or compute something when they are built."""
    model = build(method, 3, task)
    check_config(describe(model), specs_of(model.state_dict()))
    with meta_device():
        assert specs_of(build(method, 3, task).state_dict()) == specs_of(model.state_dict())
        wide = build(method, 100_000, task) if method not in ("laplace", "noisy-kfac") else model
    assert max(t.numel() for t in wide.state_dict().values()) > 10


def test_huge_sizes_are_refused_before_anything_is_built(tmp_path):
    model = build(Method("vb-cdn", widths=(4,), hyper=(3,)), 3, Task("regression", 1))
    save_model(model, tmp_path / "m")
    good = load_directory(tmp_path / "m").config
    usual = peak()
    for options in (
        {"widths": [20_000, 20_000]},
        {"hyper": [10**6, 10**6]},
        {"widths": [4] * 90},
        {"members": 900},
        {"widths": [10**7] * 9},
    ):
        forge(tmp_path / "m", {**good, "options": {**good["options"], **options}})
        with pytest.raises(ValueError, match="does not hold a model"):
            load_model(tmp_path / "m")
    for entry in ({"inputs": 10**6}, {"task": {"kind": "regression", "size": 10**6}}):
        forge(tmp_path / "m", {**good, **entry})
        with pytest.raises(ValueError, match="does not hold a model"):
            load_model(tmp_path / "m")
    assert peak() - usual < 2**28  # bytes


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float16, torch.float64], ids=str)
def test_a_tensor_of_another_dtype_is_refused(dtype, tmp_path):
    """Compiled loops would read and write beyond its end: they take it for float32."""
    model = build(Method("mnf", widths=(4,), flow_hidden=3), 3, Task("regression", 1))
    save_model(model, tmp_path / "m")
    for name in ("stack.0.bias", "stack.1.flow.weight", "likelihood.log_noise"):
        forge(tmp_path / "m", tensors={**model.state_dict(), name: model.state_dict()[name].to(dtype)})
        with pytest.raises(ValueError, match=r"float|F8"):
            load_model(tmp_path / "m")


@pytest.mark.parametrize(
    "damage",
    [
        "exp_avg",
        "exp_avg_sq",
        "step",
        "ema",
        "best",
        "sums",
        "groups",
        "negative",
        "huge",
        "huge weights",
        "missing",
    ],
)
def test_a_forged_checkpoint_is_refused(damage, tmp_path):
    """The fused step would read a moment that is too small beyond its end."""
    path = tmp_path / "checkpoint"
    trained("map", "regression", path, 4)
    tree = unpack(load_checkpoint(path))
    states, state = tree["optimizer"]["state"], tree["state"]
    if damage in ("exp_avg", "exp_avg_sq", "step"):
        states[1][damage] = states[1][damage].reshape(-1)[:-1]
    elif damage in ("ema", "best"):
        state[damage][0] = state[damage][0][..., :-1]
    elif damage == "sums":
        state["sums"] = state["sums"].float()
    elif damage == "groups":
        tree["optimizer"]["param_groups"][0]["betas"] = (2.0, 0.9)
    elif damage == "negative":
        states[0]["exp_avg_sq"] -= 1
    elif damage == "huge":
        states[0]["exp_avg"] += 1e9
    elif damage == "huge weights":
        state["ema"][0].fill_(3e38)
        state["best"], state["best_nll"] = (
            [tensor.clone().fill_(3e38) for tensor in state["best"]],
            -1e9,
        )  # restored at the end
    else:
        del states[0]["exp_avg"]
    save_checkpoint(path, *pack(tree))
    with pytest.raises(ValueError, match=r"checkpoint|diverged"):
        trained("map", "regression", path)


def test_a_model_that_cannot_predict_is_refused(tmp_path):
    model = trained("map", "regression")
    for value in (math.nan, math.inf, 3e38):
        save_model(model, tmp_path / "m")
        tensors = {
            name: torch.full_like(tensor, value) if name.endswith("weight") else tensor
            for name, tensor in model.state_dict().items()
        }
        forge(tmp_path / "m", tensors=tensors)
        with pytest.raises(ValueError, match="does not hold a model that works"):
            load_model(tmp_path / "m")
    with torch.no_grad():
        next(model.parameters()).fill_(math.nan)
    with pytest.raises(ValueError, match="NaN"):
        save_model(model, tmp_path / "n")
    assert not (tmp_path / "n").exists()
