"""Predictions on Ray: equal to those of one machine, once for each row whatever dies; errors."""

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray_tables
from clusters import TestCluster
from table_commands import assert_rejected, run, run_ok

from compound import CompoundRegressor
from compound.estimators.row_predictions import predict_frame
from compound.ray import parts, predict_dataset


@pytest.fixture(scope="module")
def estimator():
    return ray_tables.fitted()


@pytest.fixture(scope="module")
def model(estimator, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ray") / "model"
    estimator.save(path)
    return path


def states(folder: Path) -> dict[str, tuple[int, int]]:
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.rglob("*.parquet")}


def test_answers_equal_those_of_one_machine_and_kills_write_no_row_twice(
    cluster: TestCluster, ray: Any, estimator, model: Path, tmp_path: Path
):
    sources = ray_tables.write(tmp_path / "data", 4, 3000, group=1000)
    out = tmp_path / "data.predicted"
    command = ("predict", model, tmp_path / "data" / "*.parquet", "--ray", cluster.address)
    with cluster.killing(b"ray::MapWorker", 2, lambda k: out.exists() and len(states(out)) > k) as killed:
        run_ok(*command)
    assert killed
    before = states(out)
    assert sorted(before) == [path.name for path in sources]
    assert not [path for path in out.iterdir() if path.name.startswith(".")]
    for source in sources:
        table = pd.read_parquet(source)
        answers = pd.read_parquet(out / source.name)
        expected = predict_frame(estimator, table[["size", "age", "kind"]])
        pd.testing.assert_frame_equal(answers[table.columns], table)
        pd.testing.assert_frame_equal(answers[expected.columns], expected)
    again = run_ok(*command)
    assert states(out) == before
    assert "12,000 rows" in again.output


def test_damaged_data_keeps_what_is_done_and_the_next_command_goes_on(
    cluster: TestCluster, ray: Any, model: Path, tmp_path: Path
):
    sources = ray_tables.write(tmp_path / "data", 3, 300)
    whole = sources[1].read_bytes()
    sources[1].write_bytes(whole[:4] + bytes(byte ^ 255 for byte in whole[4:2000]) + whole[2000:])
    command = ("predict", model, tmp_path / "data", "--out", tmp_path / "out", "--ray", cluster.address)
    done = run(*command)
    assert done.exit_code == 2
    assert "1 of 3 parts could not be predicted" in done.output
    assert "part-1.parquet is truncated or damaged" in done.output
    assert sorted(states(tmp_path / "out")) == ["part-0.parquet", "part-2.parquet"]
    before = states(tmp_path / "out")
    sources[1].write_bytes(whole)
    run_ok(*command)
    after = states(tmp_path / "out")
    assert len(after) == 3
    assert before.items() <= after.items()


def test_data_sets_have_the_same_predictions(ray: Any, estimator, model: Path, tmp_path: Path):
    from ray.data import read_parquet

    (source,) = ray_tables.write(tmp_path / "data", 1, 1500)
    predict_dataset(model, read_parquet(str(source)), predictions_only=True).write_parquet(tmp_path / "out")
    expected = predict_frame(estimator, pd.read_parquet(source)[["size", "age", "kind"]])
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "out"), expected)


def test_wrong_tables_are_refused_before_a_cluster_is_asked(model: Path, tmp_path: Path):
    table = pd.read_parquet(*ray_tables.write(tmp_path / "data", 1, 20))
    table.drop(columns="age").to_parquet(tmp_path / "data" / "part-1.parquet")
    done = run("predict", model, tmp_path / "data", "--ray", "127.0.0.1:1")  # where nothing listens
    assert_rejected(done, "part-1.parquet has no column 'age'")
    assert not (tmp_path / "data.predicted").exists()


def test_parts_cover_every_row_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(parts, "PART_ROWS", 250)
    (source,) = ray_tables.write(tmp_path / "data", 1, 1000, group=100)
    planned = parts.plan_parts([parts.read_footer(str(source))], "/out")
    assert [(part.first, part.end, part.offset, part.rows) for part in planned] == [
        (0, 3, 0, 300),
        (3, 6, 300, 300),
        (6, 9, 600, 300),
        (9, 10, 900, 100),
    ]
    assert planned[3].target == "/out/part-0.00003-of-00004.parquet"


def test_part_that_fills_the_disk_leaves_no_file(estimator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (source,) = ray_tables.write(tmp_path / "data", 1, 300)
    (part,) = parts.plan_parts([parts.read_footer(str(source))], str(tmp_path / "out"))
    request = parts.Request(0.9, False, "digest")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    with pytest.raises(OSError, match="No space left"):
        parts.predict_part(estimator, part, request)
    assert not list((tmp_path / "out").iterdir())
    monkeypatch.undo()
    assert parts.predict_part(estimator, part, request).error == ""
    assert pq.read_metadata(part.target).num_rows == 300


def test_answers_through_a_url_of_another_file_system(estimator, tmp_path: Path):
    (source,) = ray_tables.write(tmp_path / "data", 1, 50)
    (part,) = parts.plan_parts([parts.read_footer(str(source))], "memory://answers")
    result = parts.predict_part(estimator, part, parts.Request(0.9, True, "digest"))
    assert result.rows == 50
    assert parts.read_footer("memory://answers/part-0.parquet").groups == (50,)
    assert parts.find_files("memory://answers", "memory://elsewhere") == ["memory:///answers/part-0.parquet"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.drop_columns(["age"]), "part-1.parquet has no column 'age'"),
        (
            lambda table: table.set_column(0, "size", pa.array(["a"] * len(table))),
            r"part-1.parquet, column 'size' holds text, that of .*part-0.parquet numbers",
        ),
        (
            lambda table: table.append_column("note", table["id"]),
            "part-1.parquet has the columns .* one schema",
        ),
        (lambda table: table.append_column("mean", table["id"]), "has a column 'mean' already"),
    ],
)
def test_schemas_that_differ_are_refused_before_any_work(estimator, tmp_path: Path, change, message: str):
    sources = ray_tables.write(tmp_path / "data", 2, 20)
    pq.write_table(change(pq.read_table(sources[1])), sources[1])
    footers = [parts.read_footer(str(path)) for path in sources]
    with pytest.raises(ValueError, match=message):
        parts.check_schemas([(footer.file, footer.schema) for footer in footers], estimator, False)


def test_names_of_predictions_are_those_of_the_estimator(estimator):
    table = ray_tables.rows(20, 0)[["size", "age", "kind"]]
    two = CompoundRegressor("map", max_epochs=1).fit(table, table[["size", "age"]])
    for fitted in (estimator, two):
        assert parts.prediction_names(fitted) == list(predict_frame(fitted, table.head(2)))


def test_unreadable_file_is_refused_before_any_work(tmp_path: Path):
    (source,) = ray_tables.write(tmp_path / "data", 1, 20)
    source.write_bytes(source.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"part-0.parquet is truncated or damaged|cannot be read"):
        parts.read_footer(str(source))
    with pytest.raises(ValueError, match="holds no Parquet file"):
        parts.find_files(str(tmp_path / "nothing"), "/out")


def test_folders_of_answers_are_named_after_what_is_read():
    assert parts.default_folder("/data/new/*.parquet") == "/data/new.predicted"
    assert parts.default_folder("/data/new/") == "/data/new.predicted"
    assert parts.default_folder("/data/new.parquet") == "/data/new.predicted"
    assert parts.default_folder("s3://bucket/new") == "s3://bucket/new.predicted"
