"""Fashion-MNIST under attack."""

from compound.bench.experiments.fgsm import Fgsm
from compound.bench.experiments.ood_fashion import EXPERIMENT as KNOWN

EXPERIMENT = Fgsm(
    name="fgsm-fashion",
    TITLE="Fashion-MNIST under attack",
    known=KNOWN,
    kind="methods",
)
