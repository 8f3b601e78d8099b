"""Compound layers on another device and in several processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def run(script: str, *arguments: str) -> None:
    path = os.pathsep.join([str(TESTS), *sys.path])
    command = [sys.executable, str(TESTS / script), *arguments]
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_layers_run_on_a_device_that_refuses_mixtures():
    run("layers_on_device.py")


@pytest.mark.slow
def test_losses_of_two_processes_are_those_of_one(tmp_path: Path):
    run("layers_in_processes.py", str(tmp_path))


@pytest.mark.slow
def test_heads_and_posthoc_run_on_a_device_that_refuses_mixtures():
    run("network_on_device.py")
