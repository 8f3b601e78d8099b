"""MNIST under attack."""

from compound.bench.experiments.fgsm import Fgsm
from compound.bench.experiments.ood_mnist import EXPERIMENT as KNOWN

EXPERIMENT = Fgsm(
    name="fgsm-mnist",
    TITLE="MNIST under attack",
    known=KNOWN,
    kind="methods",
)
