"""Layers that map an input to a Gaussian over pre-activations."""

from compound.nn.compound import CompoundConfig as CompoundConfig
from compound.nn.compound import CompoundLinear as CompoundLinear
from compound.nn.compound import HyperNetwork as HyperNetwork
from compound.nn.matrix_gaussian import Affine as Affine
from compound.nn.matrix_gaussian import MatrixGaussianLinear as MatrixGaussianLinear
from compound.ops.moments import Gaussian as Gaussian
