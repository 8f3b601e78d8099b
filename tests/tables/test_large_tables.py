"""Tables larger than memory: split by hash, batches from blocks, fits and predictions of folders, faults."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import compound
from compound.estimators import training
from compound.estimators.encoder import Encoder
from compound.estimators.row_predictions import predict_frame
from compound.nn import PiecewiseLinearEncoding
from compound.tables import stream_fitting
from compound.tables.fitting import FitRequest, fit_table
from compound.tables.parquet_rows import ParquetRows, read_in_order
from compound.tables.predicting_folders import LIST, predict_folder
from compound.tables.row_split import RowSplit, uniform
from compound.tables.row_stream import RowStream
from compound.tables.stream_fitting import find_columns, first_pass, fit_path, is_streamed

ROWS = 6000
REQUEST = FitRequest("y", method="map", max_epochs=3, verbose=False, stream=True)


def table(rows: int = ROWS) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    x = rng.normal(size=rows)
    colour = rng.choice(["red", "blue", "green"], rows)
    gaps = np.where(rng.random(rows) < 0.1, np.nan, rng.lognormal(size=rows))
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 700, rows), unit="D")
    y = np.sin(2 * x) + (colour == "red") + 0.1 * rng.normal(size=rows)
    number = np.arange(rows)
    return pd.DataFrame({"number": number, "x": x, "gaps": gaps, "colour": colour, "day": days, "y": y})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files of several row groups each, of unequal sizes."""
    path = tmp_path_factory.mktemp("rows") / "sales"
    path.mkdir()
    for k, part in enumerate(np.array_split(np.arange(ROWS), [1700, 4100])):
        frame = table().iloc[part]
        pq.write_table(
            pa.Table.from_pandas(frame, preserve_index=False), path / f"{k}.parquet", row_group_size=900
        )
    return path


@pytest.fixture(scope="module")
def fitted(folder: Path) -> stream_fitting.FitResult:
    return fit_path(folder, REQUEST)


class TestSplit:
    def test_parts_have_their_fractions_and_do_not_overlap_more_than_meant(self):
        rows = np.arange(200_000)
        split = RowSplit.of(len(rows), 0.1, 0.2, members=4, differ=True, seed=5)
        weight = split.weights(rows)
        spread = 5 * np.sqrt(0.2 * 0.8 / len(rows))
        assert abs(split.is_test(rows).mean() - 0.1) < spread
        assert (abs((weight == 0).double().mean(1) - 0.2) < spread).all()
        common = torch.from_numpy(split.is_common(rows))
        assert (weight[:, common] == 0).all() and abs(float(common.double().mean()) - 0.01) < spread
        assert not bool(((weight == 0).all(0) & ~common).any())  # others are trained on by some member
        apart = np.corrcoef(split.is_test(rows), weight[0].numpy())[0, 1]
        assert abs(apart) < 5 / np.sqrt(len(rows))

    def test_numbers_of_rows_are_uniform_and_independent_of_neighbours(self):
        u = uniform(np.arange(100_000), 1, "a")
        assert abs(u.mean() - 0.5) < 5 / np.sqrt(12 * len(u)) and 0 <= u.min() <= u.max() < 1
        for lag in (1, 2, 1024):
            assert abs(np.corrcoef(u[:-lag], u[lag:])[0, 1]) < 5 / np.sqrt(len(u))
        assert abs(np.corrcoef(u, uniform(np.arange(100_000), 1, "b"))[0, 1]) < 5 / np.sqrt(len(u))


@pytest.fixture(scope="module")
def parts(folder: Path):
    """What makes a stream, how it splits rows, how it encodes them."""
    rows = ParquetRows.open(folder)
    columns = find_columns(rows, REQUEST)
    split = RowSplit.of(rows.count, 0.1, 0.1, 1, False, 0)
    encoder = Encoder.fit(table()[columns.features])

    def encode(frame: pd.DataFrame):
        x = torch.from_numpy(encoder.transform(frame[columns.features]))
        return x, torch.tensor(frame["y"].to_numpy(), dtype=torch.float32)

    def make() -> RowStream:
        return RowStream(rows, columns.dtypes, split, encode, 10**6, 1.0, 50, 1000, seed=3)

    return make, split, encoder, columns


class TestBatches:
    def test_an_epoch_has_every_training_row_once_with_its_own_values(self, parts):
        make, split, encoder, columns = parts
        stream = make()
        seen = []
        for step in range(200):
            batch = stream(step)
            if stream._epoch > 0:
                break
            rows = batch.index.numpy()
            frame = table().iloc[rows]
            assert torch.equal(batch.x, torch.from_numpy(encoder.transform(frame[columns.features])))
            assert torch.equal(batch.y, torch.tensor(frame["y"].to_numpy(), dtype=torch.float32))
            assert torch.equal(batch.weight, torch.ones(50)) and batch.progress == step / 1000
            seen += rows.tolist()
        trained = np.flatnonzero(split.is_trained(np.arange(ROWS)))
        assert len(set(seen)) == len(seen) and set(seen) <= set(trained.tolist())
        loads = -(-len(stream.blocks) // 8)
        assert len(trained) - len(seen) < 50 * loads  # the incomplete last batch of every load
        assert np.abs(np.diff(seen)).mean() > ROWS / 8  # neighbours come from far places

    def test_any_step_can_be_the_first(self, parts):
        make = parts[0]
        stream, steps = make(), [0, 3, 90, 250, 91, 2]
        expected = {step: stream(step).index for step in sorted(steps)}
        assert all(torch.equal(make()(step).index, expected[step]) for step in steps)
        assert all(torch.equal(stream(step).index, expected[step]) for step in steps)  # also backwards


class TestFit:
    def test_encoder_units_and_bins_are_those_of_the_rows_in_memory(self, folder: Path, fitted):
        rows = ParquetRows.open(folder)
        columns = find_columns(rows, REQUEST)
        split = RowSplit(stream_fitting.derive_seed(fitted.estimator.seed_, "rows"), 0.1, 0.1, 0.0, 1)
        used = table()[~split.is_test(np.arange(ROWS))].reset_index(drop=True)
        exact = compound.CompoundRegressor("map", max_epochs=1, random_state=0).fit(
            used[columns.features], used["y"].to_numpy()
        )
        ours = fitted.estimator
        assert fitted.n_train == len(used) and fitted.test.ids == ("number",)
        np.testing.assert_allclose(ours.encoder_.shift, exact.encoder_.shift, rtol=1e-10)
        np.testing.assert_allclose(ours.encoder_.scale, exact.encoder_.scale, rtol=1e-10)
        np.testing.assert_allclose([ours.shift_, ours.scale_], [exact.shift_, exact.scale_], rtol=1e-10)
        encodings = [
            next(m for m in e.model_.modules() if isinstance(m, PiecewiseLinearEncoding))
            for e in (ours, exact)
        ]
        for name, tensor in encodings[1].state_dict().items():
            torch.testing.assert_close(encodings[0].state_dict()[name], tensor, rtol=1e-4, atol=1e-5)
        assert sorted(fitted.test_rows) == np.flatnonzero(split.is_test(np.arange(ROWS))).tolist()

    def test_scores_are_those_of_a_fit_in_memory_up_to_training_noise(self, tmp_path: Path, fitted):
        path = tmp_path / "t.parquet"
        table().to_parquet(path)
        whole = fit_table(path, REQUEST)
        ours, theirs = ({m.name: m for m in result.metrics} for result in (fitted, whole))
        for name in ("NLL", "RMSE"):
            wide = ours[name].high - ours[name].low + theirs[name].high - theirs[name].low
            assert abs(ours[name].value - theirs[name].value) < 0.5 * wide, name

    def test_weights_of_the_sample_add_up_to_the_table(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(stream_fitting, "SAMPLE", 800)
        seen = {}
        original = training.fit

        def spy(model, data, *rest, **options):
            seen["data"], seen["batch"] = data, options["batches"](0)
            return original(model, data, *rest, **options)

        monkeypatch.setattr(training, "fit", spy)
        result = fit_path(
            folder, FitRequest("y", method="deep-ensemble", max_epochs=1, verbose=False, stream=True)
        )
        data, batch = seen["data"], seen["batch"]
        assert 600 < len(data) < 2500 < result.n_train
        split_size = batch.size
        torch.testing.assert_close(data.size, split_size, rtol=1e-5, atol=0.0)
        assert batch.weight.shape == (5, len(batch.x)) and set(batch.weight.unique().tolist()) == {0.0, 1.0}

    def test_classes_and_csv(self, tmp_path: Path):
        frame = table().assign(y=np.where(table()["y"] > 0.5, "high", "low"), part=np.round(table()["x"], 2))
        frame["flag"] = frame["x"] > 1
        path = tmp_path / "t.csv"
        frame.to_csv(path, index=False)
        work = tmp_path / "work.parquet"
        result = fit_path(
            path, FitRequest("y", method="map", max_epochs=2, verbose=False, stream=True, work=work)
        )
        assert result.estimator.classes_.tolist() == ["high", "low"]
        assert pq.read_table(work).num_rows == ROWS and result.test.ids == ("number",)
        kinds = result.estimator.encoder_.types()
        assert kinds == {
            "x": "number",
            "gaps": "number",
            "colour": "text",
            "day": "time",
            "part": "number",
            "flag": "boolean",
        }
        accuracy = next(m.value for m in result.metrics if m.name == "accuracy")
        assert accuracy > 0.8
        mtime = work.stat().st_mtime_ns
        again = fit_path(
            path, FitRequest("y", method="map", max_epochs=2, verbose=False, stream=True, work=work)
        )
        assert work.stat().st_mtime_ns == mtime  # the copy is used again
        assert again.estimator.history_["nll"] == result.estimator.history_["nll"]

    def test_an_interrupted_fit_goes_on_to_the_same_bits(self, folder: Path, tmp_path: Path, fitted):
        class Stop(Exception):
            pass

        calls = []

        def stop(progress):
            calls.append(progress.step)
            if len(calls) == 2:
                raise Stop

        path = tmp_path / "c"
        request = FitRequest("y", method="map", max_epochs=3, verbose=False, stream=True, checkpoint=path)
        original = stream_fitting.make_estimator

        def stopping(*arguments):
            return original(*arguments).set_params(callbacks=[stop])

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stream_fitting, "make_estimator", stopping)
            patch.setattr("compound.train.progress.INTERVAL", 0.0)
            patch.setattr("compound.train.loop.fit.__defaults__", (0, None, 0.0, None, False, None))
            with pytest.raises(Stop):
                fit_path(folder, request)
        assert path.exists()
        result = fit_path(folder, request)
        for name, tensor in fitted.estimator.model_.state_dict().items():
            assert torch.equal(result.estimator.model_.state_dict()[name], tensor), name

    @pytest.mark.parametrize("method", ["bnn-lv", "noisy-kfac", "dpn"])
    def test_methods_that_need_all_rows_are_refused(self, folder: Path, method: str):
        with pytest.raises(ValueError, match=f"{method} cannot be fitted to a table larger than memory: it"):
            fit_path(folder, FitRequest("y", method=method, stream=True))

    def test_tables_that_are_large_for_the_memory_are_streamed(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ):
        table(200).to_csv(tmp_path / "t.csv", index=False)
        assert is_streamed(folder, False) and not is_streamed(folder / "0.parquet", False)
        assert not is_streamed(tmp_path / "t.csv", False) and is_streamed(tmp_path / "t.csv", True)
        monkeypatch.setattr(stream_fitting.memory, "available", lambda: 60_000)
        assert is_streamed(folder / "0.parquet", False) and is_streamed(tmp_path / "t.csv", False)


class TestPredict:
    def test_a_saved_model_has_the_same_predictions(self, tmp_path: Path, fitted):
        fitted.estimator.save(tmp_path / "model")
        rows = fitted.test.x.head(50)
        before, after = (
            predict_frame(e, rows) for e in (fitted.estimator, compound.load(tmp_path / "model"))
        )
        pd.testing.assert_frame_equal(after, before, check_exact=True)

    def test_files_have_the_bits_of_the_frame_and_are_not_written_twice(
        self, folder: Path, tmp_path: Path, fitted
    ):
        out = tmp_path / "out"
        seen = []
        summary = predict_folder(fitted.estimator, folder, out, 0.9, False, lambda *done: seen.append(done))
        assert summary.rows == ROWS and seen[-1] == (ROWS, ROWS)
        frame = pd.concat([pd.read_parquet(out / f"{k}.parquet") for k in range(3)], ignore_index=True)
        features = [column.name for column in fitted.estimator.encoder_.columns]
        expected = predict_frame(fitted.estimator, table()[features])
        pd.testing.assert_frame_equal(frame[expected.columns], expected)
        assert (frame["number"] == np.arange(ROWS)).all()
        os.remove(out / "1.parquet")
        before = {k: (out / f"{k}.parquet").stat().st_mtime_ns for k in (0, 2)}
        assert predict_folder(fitted.estimator, folder, out, 0.9, False, lambda *_: None).rows == ROWS
        assert {k: (out / f"{k}.parquet").stat().st_mtime_ns for k in (0, 2)} == before
        pd.testing.assert_frame_equal(
            pd.read_parquet(out / "1.parquet"), frame.iloc[1700:4100].reset_index(drop=True)
        )
        with pytest.raises(ValueError, match="predictions of another model or coverage"):
            predict_folder(fitted.estimator, folder, out, 0.8, False, lambda *_: None)

    def test_a_damaged_file_keeps_what_is_done(self, folder: Path, tmp_path: Path, fitted):
        source, out = tmp_path / "sales", tmp_path / "out"
        source.mkdir()
        for k in range(3):
            data = bytearray((folder / f"{k}.parquet").read_bytes())
            if k == 1:
                data[len(data) // 4 : len(data) // 3] = bytes(len(data) // 3 - len(data) // 4)
            (source / f"{k}.parquet").write_bytes(data)
        with pytest.raises(ValueError, match=r"1\.parquet.*(damaged|cannot be read)"):
            predict_folder(fitted.estimator, source, out, 0.9, True, lambda *_: None)
        assert sorted(os.listdir(out)) == ["0.parquet", LIST]
        (source / "1.parquet").write_bytes((folder / "1.parquet").read_bytes())
        assert predict_folder(fitted.estimator, source, out, 0.9, True, lambda *_: None).rows == ROWS

    def test_places_that_cannot_be_written_to(self, folder: Path, tmp_path: Path, fitted):
        (tmp_path / "file").touch()
        for out, message in (
            (tmp_path / "file", "is a file"),
            (folder / "in", "lies in the folder that is read"),
        ):
            with pytest.raises(ValueError, match=message):
                predict_folder(fitted.estimator, folder, out, 0.9, True, lambda *_: None)
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "mine").touch()
        with pytest.raises(ValueError, match="holds 'mine'"):
            predict_folder(fitted.estimator, folder, tmp_path / "other", 0.9, True, lambda *_: None)


class TestFaults:
    def write(self, folder: Path, *frames: pd.DataFrame) -> Path:
        folder.mkdir()
        for k, frame in enumerate(frames):
            pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), folder / f"{k}.parquet")
        return folder

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (
                lambda f: f.assign(x=f["x"].astype(str)),
                r"1\.parquet, column 'x' holds .*string, in 0\.parquet it holds double",
            ),
            (lambda f: f.drop(columns="gaps"), r"1\.parquet has no column 'gaps', 0\.parquet has"),
            (lambda f: f.assign(more=1), r"1\.parquet has a column 'more', 0\.parquet has not"),
        ],
    )
    def test_other_columns_are_found_before_work(self, tmp_path: Path, change, message: str):
        frame = table(1500)
        with pytest.raises(ValueError, match=message):
            fit_path(self.write(tmp_path / "f", frame, change(frame)), REQUEST)

    def test_changed_values_are_found_by_checksums_of_pages(self, tmp_path: Path):
        path = tmp_path / "t.parquet"
        arrow = pa.table({"x": np.arange(5000.0), "y": np.arange(5000.0)})
        pq.write_table(arrow, path, write_page_checksum=True, compression="none", use_dictionary=False)
        data = bytearray(path.read_bytes())
        data[20_000] ^= 1  # a value, which stays a number
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r"t\.parquet.*(damaged|cannot be read)"):
            list(read_in_order(ParquetRows.open(path), ["x", "y"]))

    def test_a_cut_off_file_is_found_before_work(self, tmp_path: Path):
        path = self.write(tmp_path / "f", table(1500), table(1500))
        data = (path / "1.parquet").read_bytes()
        (path / "1.parquet").write_bytes(data[: len(data) // 2])
        with pytest.raises(ValueError, match=r"1\.parquet"):
            ParquetRows.open(path)

    @pytest.mark.parametrize(
        ("column", "value", "message"),
        [("y", np.nan, "row 701, column 'y' is empty"), ("x", np.inf, "row 701, column 'x' is infinite")],
    )
    def test_a_wrong_value_is_named_with_file_and_row(
        self, tmp_path: Path, column: str, value: float, message: str
    ):
        frame = table(1500)
        frame.loc[700, column] = value
        path = self.write(tmp_path / "f", table(1500), frame)
        with pytest.raises(ValueError, match=rf"1\.parquet, {message}"):
            fit_path(path, REQUEST)

    def test_a_late_typo_in_a_csv_is_named_with_its_line(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr("compound.tables.text_to_parquet.BLOCK_ROWS", 500)
        monkeypatch.setattr("compound.tables.csv_text.BLOCK", 1 << 14)
        monkeypatch.setattr("compound.tables.table_files.BLOCK", 1 << 14)
        frame = table(1500).astype({"x": object})
        frame.loc[1400, "x"] = "abc"
        frame.to_csv(tmp_path / "t.csv", index=False)
        with pytest.raises(
            ValueError, match=r"t\.csv, line 1402, column 'x' holds 'abc': it must be a number"
        ):
            fit_path(tmp_path / "t.csv", FitRequest("y", stream=True, work=tmp_path / "work"))
        assert sorted(os.listdir(tmp_path)) == ["t.csv"]

    def test_few_rows_empty_folders_and_full_disks(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        with pytest.raises(ValueError, match="has 300 rows: to be read in a stream it needs 1,000"):
            fit_path(self.write(tmp_path / "few", table(300)), REQUEST)
        (tmp_path / "empty").mkdir()
        with pytest.raises(ValueError, match="a folder without parquet files"):
            fit_path(tmp_path / "empty", REQUEST)
        table(1500).to_csv(tmp_path / "t.csv", index=False)
        usage = type("Usage", (), {"free": 1000})
        monkeypatch.setattr("compound.tables.text_to_parquet.shutil.disk_usage", lambda _: usage)
        with pytest.raises(ValueError, match=r"0\.0 GB free, a copy of the rows of .* needs up to"):
            fit_path(tmp_path / "t.csv", FitRequest("y", stream=True, work=tmp_path / "work"))


def test_reading_in_order_numbers_all_rows(folder: Path):
    numbers = []
    for block, rows in read_in_order(ParquetRows.open(folder), ["number"]):
        assert rows["number"].to_pylist() == list(range(block.first, block.first + block.rows))
        numbers += rows["number"].to_pylist()
    assert numbers == list(range(ROWS))


def test_the_first_pass_reads_the_table_once(folder: Path, monkeypatch: pytest.MonkeyPatch):
    rows = ParquetRows.open(folder)
    columns = find_columns(rows, REQUEST)
    done = []
    split = RowSplit.of(rows.count, 0.1, 0.1, 1, False, 0)
    first = first_pass(rows, columns, split, True, done.append)
    assert done[-1] == ROWS and done == sorted(done)
    assert first.statistics[0].rows == int((~split.is_test(np.arange(ROWS))).sum())
