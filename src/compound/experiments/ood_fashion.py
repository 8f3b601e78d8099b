"""Figure 2 (right): clothes learnt, the same clothes shown upside down."""

from compound.experiments.ood import Ood

EXPERIMENT = Ood(
    name="ood-fashion",
    TITLE="Fashion-MNIST and itself upside down",
    in_dist="fashion-mnist",
    main="flipped",
    ood_sets=("flipped", "notmnist", "mnist", "omniglot", "noise"),
    outliers="mnist",
)
