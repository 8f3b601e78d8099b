"""λ for MNIST."""

from compound.experiments.ood_mnist import EXPERIMENT as KNOWN
from compound.experiments.select import Select

EXPERIMENT = Select(
    name="select-mnist",
    TITLE="MNIST: λ of ml-cdn, chosen on held-out rows",
    in_dist=KNOWN,
)
