"""λ for MNIST."""

from compound.bench.experiments.ood_mnist import EXPERIMENT as KNOWN
from compound.bench.experiments.select import Select

EXPERIMENT = Select(
    name="select-mnist",
    TITLE="MNIST: λ of ml-cdn, chosen on held-out rows",
    known=KNOWN,
)
