import pytest
import torch


@pytest.fixture(autouse=True)
def uninitialised_memory_is_nan():
    """torch fills uninitialised memory with NaN, so that a loop that reads it shows."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
