"""Layers whose weights have a distribution: modules that hold parameters and call `compound.ops`."""

from compound.nn.compound import CompoundLinear as CompoundLinear
from compound.nn.hypernetwork import CompoundConfig as CompoundConfig
from compound.nn.hypernetwork import HyperNetwork as HyperNetwork
from compound.nn.matrix_gaussian import Affine as Affine
from compound.nn.matrix_gaussian import MatrixGaussianLinear as MatrixGaussianLinear
from compound.nn.piecewise import PiecewiseLinearEncoding as PiecewiseLinearEncoding
from compound.ops.compound_moments import Gaussian as Gaussian
