"""Attacks and the number of draws in training."""

from compound.experiments.fgsm import Fgsm
from compound.experiments.ood_mnist import EXPERIMENT as KNOWN

EXPERIMENT = Fgsm(
    name="fgsm-samples",
    TITLE="Attacks and the number of draws in training",
    in_dist=KNOWN,
    kind="samples",
    METHODS=("ml-cdn", "vb-cdn", "noisy-kfac", "vmg"),
    ALL_METHODS=("ml-cdn", "vb-cdn", "noisy-kfac", "vmg"),
)
