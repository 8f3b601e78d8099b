"""Figure 2 (left) and table 1: digits learnt, letters shown."""

from compound.experiments.ood import Ood

EXPERIMENT = Ood(
    name="ood-mnist",
    TITLE="MNIST and notMNIST: doubt about letters",
    known="mnist",
    main="notmnist",
    strange=("notmnist", "fashion-mnist", "omniglot", "flipped", "noise"),
    outside="fashion-mnist",
    published="table_1_mnist_notmnist",
)
