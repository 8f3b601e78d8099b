"""Figure 2 (right): clothes learnt, the same clothes shown upside down."""

from compound.experiments.ood import Ood

EXPERIMENT = Ood(
    name="ood-fashion",
    TITLE="Fashion-MNIST and itself upside down",
    known="fashion-mnist",
    main="flipped",
    strange=("flipped", "notmnist", "mnist", "omniglot", "noise"),
    outside="mnist",
)
