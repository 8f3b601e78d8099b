"""Compound layers on another device, in several processes and compiled to machine code."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from compound.nn import CompoundConv2d, CompoundLinear, sampling
from compound.random import named_generator

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
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's compiler
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler: torch.compile needs one")
def test_compiled_network_draws_what_the_eager_one_does(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch._inductor.config, "compile_threads", 1)
    g = named_generator(0)
    conv, last = CompoundConv2d(1, 4, 3, generator=g), CompoundLinear(4, 3, bayes=True, generator=g)
    network = nn.Sequential(conv, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), last)
    compiled = torch.compile(network, fullgraph=True)
    x = torch.randn(6, 1, 5, 5, generator=named_generator(1))
    for k in range(2):
        results = []
        for each in (network, compiled):
            network.zero_grad()
            with sampling(named_generator(k)) as draws:
                out = each(x)
            (out.square().sum() + draws.kl).backward()
            results.append([out, draws.kl, *(p.grad for p in network.parameters())])
        for a, b in zip(*results, strict=True):
            assert_close(a, b, rtol=1e-3, atol=1e-5)
