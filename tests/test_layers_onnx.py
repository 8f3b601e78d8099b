"""Networks with compound layers as ONNX programs: the mean, and a fixed set of draws."""

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from compound import named_generator
from compound.nn import (
    CompoundConv1d,
    CompoundConv2d,
    CompoundGRU,
    CompoundLinear,
    CompoundLSTM,
    FixedDraws,
)

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: the extra onnx has it")
pytest.importorskip("onnxscript", reason="onnxscript is not installed: the extra onnx has it")


class MeanAndDraws(nn.Module):
    """Both deterministic forms of a network as one program, since exporting takes seconds."""

    def __init__(self, network: nn.Module, x: Tensor):
        super().__init__()
        self.network = network
        self.fixed = FixedDraws(network, x[:1], named_generator(2), n_samples=3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.network(x), self.fixed(x)


def agrees(network: nn.Module, x: Tensor, rows: Tensor) -> None:
    """The program exported with the example x gives what the network gives, for `rows` of another number."""
    both = MeanAndDraws(network, x).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's exporter uses what torch deprecates
        shapes = ({0: torch.export.Dim("rows")},)
        program = torch.onnx.export(both, (x,), dynamo=True, dynamic_shapes=shapes, verbose=False)
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    outputs = session.run(None, {session.get_inputs()[0].name: rows.numpy()})
    with torch.no_grad():
        mean, draws = both(rows)
    for found, expected in zip(outputs, (mean, draws), strict=True):
        assert_close(torch.from_numpy(found), expected, rtol=1e-4, atol=1e-5)
    assert (draws.std(0) > 0).all()


@pytest.mark.slow
def test_mean_and_fixed_draws_of_a_convolutional_network():
    network = nn.Sequential(
        CompoundConv2d(1, 4, 3, generator=named_generator(0)),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        CompoundLinear(16, 3, bayes=True, log_col=-2.0, generator=named_generator(1)),
    )
    agrees(network, torch.rand(5, 1, 8, 8), torch.rand(7, 1, 8, 8))


class Sequences(nn.Module):
    """A convolution over steps, a layer that draws in every step, and one that draws once for each row."""

    def __init__(self) -> None:
        super().__init__()
        noise = {"log_col": -2.0}
        self.conv = CompoundConv1d(2, 3, 2, **noise, generator=named_generator(0))
        self.gru = CompoundGRU(3, 4, True, draw="step", **noise, generator=named_generator(1))
        self.lstm = CompoundLSTM(
            4, 3, True, draw="sequence", bayes=True, generator=named_generator(2), **noise
        )

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.gru(self.conv(x).transpose(1, 2))
        return self.lstm(states)[0][:, -1]


@pytest.mark.slow
def test_mean_and_fixed_draws_of_a_recurrent_network():
    agrees(Sequences(), torch.rand(2, 2, 3), torch.rand(5, 2, 3))
