"""Networks with compound layers as ONNX programs: the mean, and a fixed set of draws."""

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from compound import named_generator
from compound.nn import CompoundConv2d, CompoundGRU, CompoundLinear, FixedDraws

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: the extra onnx has it")
pytest.importorskip("onnxscript", reason="onnxscript is not installed: the extra onnx has it")


def run(network: nn.Module, x: Tensor, rows: Tensor) -> Tensor:
    """The first output for `rows` of the program exported with the example x."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's exporter uses what torch deprecates
        shapes = ({0: torch.export.Dim("rows")},)
        program = torch.onnx.export(network, (x,), dynamo=True, dynamic_shapes=shapes, verbose=False)
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: rows.numpy()})[0])


@pytest.mark.slow
def test_mean_and_fixed_draws_of_a_convolutional_network():
    network = nn.Sequential(
        CompoundConv2d(1, 4, 3, generator=named_generator(0)),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        CompoundLinear(16, 3, bayes=True, log_col=-2.0, generator=named_generator(1)),
    ).eval()
    x, rows = torch.rand(5, 1, 8, 8), torch.rand(7, 1, 8, 8)
    fixed = FixedDraws(network, x[:1], named_generator(2), n_samples=3).eval()
    with torch.no_grad():
        assert_close(run(network, x, rows), network(rows), rtol=1e-4, atol=1e-5)
        draws = fixed(rows)
        assert_close(run(fixed, x, rows), draws, rtol=1e-4, atol=1e-5)
    assert (draws.std(0) > 0).all()


@pytest.mark.slow
def test_fixed_draws_of_a_recurrent_layer():
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = CompoundGRU(3, 4, batch_first=True, log_col=-2.0, generator=named_generator(0))

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)[0][:, -1]

    x, rows = torch.rand(2, 4, 3), torch.rand(5, 4, 3)
    fixed = FixedDraws(Last(), x[:1], named_generator(1), n_samples=2).eval()
    with torch.no_grad():
        assert_close(run(fixed, x, rows), fixed(rows), rtol=1e-4, atol=1e-5)
