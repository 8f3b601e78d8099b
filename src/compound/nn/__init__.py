"""Layers whose weights have a distribution: modules that hold parameters and call `compound.ops`."""

from compound.nn.batched_compound import BatchedCompoundLinear as BatchedCompoundLinear
from compound.nn.compound_conv import CompoundConv1d as CompoundConv1d
from compound.nn.compound_conv import CompoundConv2d as CompoundConv2d
from compound.nn.compound_gates import CompoundGRUCell as CompoundGRUCell
from compound.nn.compound_gates import CompoundLSTMCell as CompoundLSTMCell
from compound.nn.compound_linear import CompoundLinear as CompoundLinear
from compound.nn.compound_recurrent import CompoundGRU as CompoundGRU
from compound.nn.compound_recurrent import CompoundLSTM as CompoundLSTM
from compound.nn.conversion import convert as convert
from compound.nn.draws import Draws as Draws
from compound.nn.draws import sampling as sampling
from compound.nn.fixed_draws import FixedDraws as FixedDraws
from compound.nn.hypernetwork import CompoundConfig as CompoundConfig
from compound.nn.hypernetwork import HyperNetwork as HyperNetwork
from compound.nn.matrix_gaussian import Affine as Affine
from compound.nn.matrix_gaussian import MatrixGaussianLinear as MatrixGaussianLinear
from compound.nn.piecewise import PiecewiseLinearEncoding as PiecewiseLinearEncoding
from compound.ops.compound_moments import Gaussian as Gaussian
