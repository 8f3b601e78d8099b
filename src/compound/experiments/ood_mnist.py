"""Figure 2 (left) and table 1: digits learnt, letters shown."""

from compound.experiments.ood import Ood

EXPERIMENT = Ood(
    name="ood-mnist",
    TITLE="MNIST and notMNIST: doubt about letters",
    in_dist="mnist",
    main="notmnist",
    ood_sets=("notmnist", "fashion-mnist", "omniglot", "flipped", "noise"),
    outliers="fashion-mnist",
    published="table_1_mnist_notmnist",
)
