"""Stronger attacks, and whether gradients are hidden."""

from compound.experiments.fgsm import Fgsm
from compound.experiments.ood_mnist import EXPERIMENT as KNOWN

EXPERIMENT = Fgsm(
    name="fgsm-strong",
    TITLE="Stronger attacks, and whether gradients are hidden",
    in_dist=KNOWN,
    kind="strong",
    METHODS=("ml-cdn", "vb-cdn", "map", "deep-ensemble", "mc-dropout", "vmg", "noisy-kfac"),
)
