"""A sample of the damaged files of `make fuzz`, and that the watch itself sees what it is there for."""

import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from fuzz_damages import Damage
from fuzz_files import Subject, all_cases, subjects, watched

STRIDE = 127  # a prime: no kind of damage is left out for good
ALWAYS = (
    "a pipe",
    "a link to itself",
    "a link to endless zeros",
    "widths wide",
    "four gigabytes of nothing",
    "exp_avg_sq shorter",
)


def test_damaged_files_are_refused_in_a_sentence_or_answer_soundly(tmp_path):
    (tmp_path / "whole").mkdir()
    made = subjects(tmp_path / "whole", few=True)
    for subject in made:
        subject.ask(subject.path)
    cases = all_cases(made)
    assert len(cases) > 10_000
    sample = [case for case in cases if case[0] % STRIDE == 0 or case[2].label.endswith(ALWAYS)]
    labels = {number: f"{subject.name}: {damage.label}" for number, subject, damage in cases}
    found = list(watched(sample, tmp_path))
    assert [
        f"{o.words}: {labels[o.case]}: {o.detail}" for o in found if o.words not in ("refused", "answered")
    ] == []
    counts = Counter(o.words for o in found)
    assert len(found) == len(sample) and counts["refused"] > counts["answered"] > 0


def crash(path: Path) -> None:
    import ctypes

    ctypes.string_at(0)


def grab(path: Path) -> None:
    np.ones(2**28)  # two gigabytes


def no_number(path: Path) -> None:
    raise AssertionError("not a number")


def two_sentences(path: Path) -> None:
    raise ValueError("This is the first sentence.\nThis is another.")


@pytest.mark.parametrize(
    "ask, outcome",
    [
        (crash, "crash"),
        (grab, "memory"),
        (lambda path: time.sleep(9), "hang"),
        (no_number, "invalid answer"),
        (two_sentences, "no sentence"),
        (lambda path: {}["x"], "traceback"),
        (lambda path: None, "answered"),
    ],
    ids=["crash", "memory", "hang", "invalid", "sentences", "traceback", "fine"],
)
def test_the_watch_tells_what_happened(ask, outcome, tmp_path, monkeypatch):
    monkeypatch.setattr("fuzz_files.WAIT", 0.5)
    (tmp_path / "file").write_text("")
    subjects = [Subject("bad", tmp_path / "file", ask), Subject("good", tmp_path / "file", lambda path: None)]
    cases = [(k, subject, Damage("none", lambda path: None)) for k, subject in enumerate(subjects)]
    assert [o.words for o in watched(cases, tmp_path)] == [outcome, "answered"]
