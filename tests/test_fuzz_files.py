"""A sample of the damaged files of `make fuzz`, and a test of its supervision."""

import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from fuzz_damages import Damage
from fuzz_files import Subject, all_cases, subjects, supervise

STRIDE = 127  # a prime: every kind of damage is in the sample
ALWAYS = (
    "a pipe",
    "a link to itself",
    "a link to endless zeros",
    "widths wide",
    "four gigabytes of nothing",
    "exp_avg_sq shorter",
)


def test_damaged_files_are_refused_in_a_sentence_or_predict_validly(tmp_path):
    (tmp_path / "intact").mkdir()
    intact = subjects(tmp_path / "intact", few=True)
    for subject in intact:
        subject.use(subject.path)
    cases = all_cases(intact)
    assert len(cases) > 10_000
    sample = [case for case in cases if case[0] % STRIDE == 0 or case[2].label.endswith(ALWAYS)]
    labels = {number: f"{subject.name}: {damage.label}" for number, subject, damage in cases}
    outcomes = list(supervise(sample, tmp_path))
    assert [
        f"{o.result}: {labels[o.case]}: {o.detail}"
        for o in outcomes
        if o.result not in ("refused", "predicted")
    ] == []
    counts = Counter(o.result for o in outcomes)
    assert len(outcomes) == len(sample) and counts["refused"] > counts["predicted"] > 0


def crash(path: Path) -> None:
    import ctypes

    ctypes.string_at(0)


def allocate(path: Path) -> None:
    np.ones(2**28)  # two gigabytes


def invalid(path: Path) -> None:
    raise AssertionError("not a number")


def two_sentences(path: Path) -> None:
    raise ValueError("This is the first sentence.\nThis is another.")


@pytest.mark.parametrize(
    "use, outcome",
    [
        (crash, "crash"),
        (allocate, "memory"),
        (lambda path: time.sleep(9), "hang"),
        (invalid, "invalid prediction"),
        (two_sentences, "no sentence"),
        (lambda path: {}["x"], "traceback"),
        (lambda path: None, "predicted"),
    ],
    ids=["crash", "memory", "hang", "invalid", "sentences", "traceback", "fine"],
)
def test_the_supervision_reports_what_happened(use, outcome, tmp_path, monkeypatch):
    monkeypatch.setattr("fuzz_files.WAIT", 0.5)
    (tmp_path / "file").write_text("")
    subjects = [Subject("bad", tmp_path / "file", use), Subject("good", tmp_path / "file", lambda path: None)]
    cases = [(k, subject, Damage("none", lambda path: None)) for k, subject in enumerate(subjects)]
    assert [o.result for o in supervise(cases, tmp_path)] == [outcome, "predicted"]
