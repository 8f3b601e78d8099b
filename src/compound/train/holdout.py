"""Choice of the rows that are held out from training: different ones by member, or stratified by class."""

import torch
from torch import Tensor

from compound.random import named_generator


def holdout_weights(rows: int, members: int, fraction: float, seed: int) -> Tensor:
    """Training weights 1 and 0, where 0 marks rows that a member holds out.

    Members hold out different rows as long as there are enough: the sets are disjoint if members × held-out
    rows does not exceed `rows`.

    Parameters
    ----------
    rows : int
        Number of rows, at least 1.
    members : int
        Number of ensemble members, at least 1.
    fraction : float
        Fraction of the rows that each member holds out, at least 0 and below 1.
    seed : int
        Seed of the permutation.

    Returns
    -------
    Tensor of shape (members, rows)
        The weights, for `make_dataset`.

    Examples
    --------
    >>> from compound import holdout_weights
    >>> holdout_weights(rows=100, members=5, fraction=0.1, seed=0).sum(1)
    tensor([90., 90., 90., 90., 90.])
    """
    if rows < 1 or members < 1:
        raise ValueError(f"rows is {rows} and members {members}: both must be at least 1")
    if not 0 <= fraction < 1:
        raise ValueError(
            f"fraction is {fraction!r}: give the held-out part of the rows, at least 0 and below 1"
        )
    count = held_out_count(rows, fraction)
    order = torch.randperm(rows, generator=named_generator(seed, "hold out"))
    weight = torch.ones(members, rows, dtype=torch.float32)
    for k in range(members):
        weight[k, order[torch.arange(k * count, (k + 1) * count) % rows]] = 0
    return weight


def held_out_count(rows: int, fraction: float) -> int:
    """How many of `rows` rows are held out for a fraction.

    With a fraction above 0, at least two of six or more rows: one alone is a poor stopping criterion.
    """
    least = min(2, rows // 3) if fraction > 0 else 0
    return min(rows - 1, max(int(rows * fraction + 1e-9), least))


def stratified_sample(labels: Tensor, count: int, seed: int) -> Tensor:  # (rows,) bool
    """Draw `count` rows, stratified by labels (rows,): integers from 0. True marks the rows drawn.

    Each row is drawn with probability count / rows, and each class has its proportion of the sample, rounded
    up or down. This is systematic sampling: the rows are ordered by class, and every (rows / count)-th is
    taken from a random start. In a sample of a tenth, a class of 6 rows has one row with probability 0.6, so
    in expectation small classes are as frequent in the sample as in the table.
    """
    generator = named_generator(seed, "stratified sample")
    rows = len(labels)
    order = torch.randperm(rows, generator=generator)
    # classes in random order: regular class sizes must not coincide with the sampling interval
    class_order = torch.randperm(int(labels.max()) + 1, generator=generator)
    order = order[class_order[labels[order]].argsort(stable=True)]
    start = torch.rand((), generator=generator, dtype=torch.float64)
    positions = ((start + torch.arange(count)) * (rows / max(count, 1))).long().clamp_max(rows - 1)
    drawn = torch.zeros(rows, dtype=torch.bool)
    drawn[order[positions]] = True
    return drawn


def last_of_class(labels: Tensor, drawn: Tensor) -> Tensor:  # (rows,) bool
    """Mark one row of each class whose rows have all been drawn to be held out; drawn is (rows,) bool.

    The caller trains on it nevertheless: otherwise no row of the class would be trained on.
    """
    index = torch.arange(len(labels))
    classes = int(labels.max()) + 1
    # (classes,)
    first = index.new_zeros(classes).scatter_reduce_(0, labels, index, "amin", include_self=False)
    exhausted = (torch.bincount(labels[~drawn], minlength=classes) == 0)[labels]  # (rows,)
    return exhausted & (first[labels] == index)
