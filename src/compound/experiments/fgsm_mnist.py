"""MNIST under attack."""

from compound.experiments.fgsm import Fgsm
from compound.experiments.ood_mnist import EXPERIMENT as KNOWN

EXPERIMENT = Fgsm(
    name="fgsm-mnist",
    TITLE="MNIST under attack",
    in_dist=KNOWN,
    kind="methods",
)
