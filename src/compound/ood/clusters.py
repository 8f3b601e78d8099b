"""Clusters of rows, and distances from the nearest: Euclidean, or in the cluster's covariance.

    d(u)² = v' v   or   v' (C_k + RIDGE I)⁻¹ v,    v = u - c_k
    C_k = (Σ_i v_i v_i' + SHARED C) / (n_k + SHARED)

c_k is the nearest centre, v_i are the differences of its n_k rows from it, C is their second moment over all
rows. In the second form variation that a cluster's own rows show is near, and variation that none of them
shows is far.
"""

from typing import NamedTuple, Self

import torch
from torch import Generator, Tensor
from torch.nn import functional

from compound.ops.jit import can_use_kernel, is_tracing
from compound.ops.row_maps import row_maps

RIDGE = 0.1  # in units of the rows' variance, which is about 1: they are whitened
BLOCK = 8  # rows of one product with a precision root
SHARED = 20.0  # rows' worth of the covariance that all clusters have in common
STEPS = 8  # of Lloyd's algorithm, at most: more lower the sum of squares by a percent


class Clusters(NamedTuple):
    """Centres, with covariances of their own or without."""

    centres: Tensor  # (centres, rank)
    precision_roots: Tensor  # (centres, rank, rank) roots of (C_k + RIDGE I)⁻¹; empty: Euclidean
    residual_precision: Tensor  # (centres,) one over the mean variance of C_k + RIDGE I, for residual squares

    @classmethod
    def fit(cls, u: Tensor, count: int, with_covariances: bool, seed: int, symmetric: bool = True) -> Self:
        """At most `count` k-means clusters of whitened rows u (rows, rank); `seed` is that of k-means.

        Roots are `symmetric`, as explanations need them, or else triangular, for a tenth of the time.
        """
        centres = k_means(u, min(count, len(u)), seed)
        if not with_covariances:
            return cls(centres, u.new_zeros(0, 0, 0), u.new_zeros(0))
        index = nearest(u, centres)
        order = index.argsort()
        sizes = index.bincount(minlength=len(centres))
        gaps = (u - centres[index])[order].double()
        squares = torch.stack([part.T @ part for part in gaps.split(sizes.tolist())])  # (centres, rank, rank)
        moments = (squares + SHARED * squares.sum(0) / len(u)) / (sizes + SHARED).reshape(-1, 1, 1)
        residual = 1 / (moments.diagonal(dim1=1, dim2=2).mean(-1) + RIDGE)
        identity = torch.eye(u.shape[1], dtype=torch.float64)
        if symmetric:
            values, vectors = torch.linalg.eigh(moments)
            roots = (vectors * (values.clamp_min(0) + RIDGE).rsqrt().unsqueeze(1)) @ vectors.mT
        else:
            lower = torch.linalg.cholesky(moments + RIDGE * identity)
            roots = torch.linalg.solve_triangular(lower, identity, upper=False).mT
        return cls(centres, roots.to(u.dtype).contiguous(), residual.to(u.dtype))

    def distance(self, u: Tensor, residual: Tensor) -> Tensor:  # (rows,)
        """Distance of whitened rows u (rows, rank) from the nearest cluster.

        `residual` (rows,) is their squared length outside the whitened directions, from `Whitening`.
        """
        index = nearest(u, self.centres)
        gaps = u - self.centres[index]
        if len(self.precision_roots):
            gaps = cluster_whiten(gaps, index, self.precision_roots)
            residual = residual * self.residual_precision[index]
        return (gaps.square().sum(-1) + residual).sqrt()


def cluster_whiten(differences: Tensor, index: Tensor, precision_roots: Tensor) -> Tensor:  # (rows, rank)
    """Each row of differences (rows, rank) times the precision root of its centre, number index (rows,)."""
    if can_use_kernel(differences, precision_roots) and not torch.is_grad_enabled():
        return row_maps(differences, index, precision_roots)
    if (
        len(index) < BLOCK or is_tracing()
    ):  # a trace may not depend on which centres these rows are nearest to
        return torch.bmm(differences.unsqueeze(1), precision_roots[index]).squeeze(1)
    order = index.argsort()  # one product per centre: a gathered root per row would move (rows, rank, rank)
    near, sizes = torch.unique_consecutive(index[order], return_counts=True)
    parts = differences[order].split(sizes.tolist())
    products = torch.cat(
        [_blockwise_product(part, precision_roots[k]) for k, part in zip(near.tolist(), parts, strict=True)]
    )
    return torch.empty_like(products).index_copy(0, order, products)


def _blockwise_product(rows: Tensor, root: Tensor) -> Tensor:
    """rows @ root, BLOCK rows at a time.

    Products of other shapes round differently: a row's result would depend on the number of other rows.
    """
    padded = functional.pad(rows, (0, 0, 0, -len(rows) % BLOCK))
    return torch.cat([part @ root for part in padded.split(BLOCK)])[: len(rows)]


def nearest(u: Tensor, centres: Tensor) -> Tensor:  # (rows,)
    """Index of the centre nearest to each row of u (rows, rank), by the Euclidean distance: |c|²/2 - u'c."""
    return torch.addmm(0.5 * centres.square().sum(-1), u, centres.T, alpha=-1).argmin(-1)


def k_means(u: Tensor, count: int, seed: int) -> Tensor:  # (count, rank)
    """Centres of rows u (rows, rank): a k-means++ start, then at most STEPS steps of Lloyd's algorithm.

    On one thread: sums in a fixed order, so that equal seeds give equal bits.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        centres = _spread_rows(u, count, Generator().manual_seed(seed))
        index = None
        for _ in range(STEPS):
            former, index = index, nearest(u, centres)
            if former is not None and torch.equal(index, former):
                break
            sizes = index.bincount(minlength=count).unsqueeze(1)
            sums = torch.zeros_like(centres).index_add_(0, index, u)
            centres = torch.where(sizes > 0, sums / sizes.clamp_min(1), centres)
        return centres
    finally:
        torch.set_num_threads(threads)


def _spread_rows(u: Tensor, count: int, generator: Generator) -> Tensor:  # (count, rank)
    """`count` of the rows u (rows, rank), drawn one by one: by the squared distance from those drawn before.

    This is k-means++ (Arthur and Vassilvitskii 2007).
    """
    lengths = u.square().sum(1)
    uniform = torch.rand(count, generator=generator, dtype=torch.float64).tolist()
    chosen = [min(int(uniform[0] * len(u)), len(u) - 1)]
    squares = torch.full_like(lengths, torch.inf)
    for level in uniform[1:]:
        last = chosen[-1]
        squares = torch.minimum(squares, torch.addmv(lengths + lengths[last], u, u[last], alpha=-2))
        cumulative = squares.clamp_min(0).cumsum(0, dtype=torch.float64)
        drawn = torch.searchsorted(cumulative, level * float(cumulative[-1]), right=True)
        chosen.append(min(int(drawn), len(u) - 1))
    return u[chosen]
