"""λ for Fashion-MNIST."""

from compound.experiments.ood_fashion import EXPERIMENT as KNOWN
from compound.experiments.select import Select

EXPERIMENT = Select(
    name="select-fashion",
    TITLE="Fashion-MNIST: λ of ml-cdn, chosen on held-out rows",
    in_dist=KNOWN,
)
