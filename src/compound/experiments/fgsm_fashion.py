"""Fashion-MNIST under attack."""

from compound.experiments.fgsm import Fgsm
from compound.experiments.ood_fashion import EXPERIMENT as KNOWN

EXPERIMENT = Fgsm(
    name="fgsm-fashion",
    TITLE="Fashion-MNIST under attack",
    in_dist=KNOWN,
    kind="methods",
)
