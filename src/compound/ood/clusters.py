"""Clusters of rows, and distances from the nearest: Euclidean, or in the cluster's covariance.

    d(u)² = v' v   or   v' (C_k + RIDGE I)⁻¹ v,    v = u - c_k
    C_k = (Σ_i v_i v_i' + SHARED C) / (n_k + SHARED)

c_k is the nearest centre, v_i are the differences of its n_k rows from it, C is their second moment over all
rows. In the second form variation that a cluster's own rows show is near, and variation that none of them
shows is far.
"""

import warnings
from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.nn import functional

from compound.ops.jit import can_use_kernel, is_tracing
from compound.ops.row_maps import row_maps

RIDGE = 0.1  # in units of the rows' variance, which is about 1: they are whitened
BLOCK = 8  # rows of one product with a precision root
SHARED = 20.0  # rows' worth of the covariance that all clusters have in common


class Clusters(NamedTuple):
    """Centres, with covariances of their own or without."""

    centres: Tensor  # (centres, rank)
    precision_roots: Tensor  # (centres, rank, rank) symmetric roots of (C_k + RIDGE I)⁻¹; empty: Euclidean
    residual_precision: Tensor  # (centres,) one over the mean variance of C_k + RIDGE I, for residual squares

    @classmethod
    def fit(cls, u: Tensor, count: int, with_covariances: bool, seed: int) -> Self:
        """At most `count` k-means clusters of whitened rows u (rows, rank); `seed` is that of k-means."""
        centres = k_means(u, min(count, len(u)), seed)
        if not with_covariances:
            return cls(centres, u.new_zeros(0, 0, 0), u.new_zeros(0))
        index = nearest(u, centres)
        order = index.argsort()
        sizes = index.bincount(minlength=len(centres))
        gaps = (u - centres[index])[order].double()
        squares = torch.stack([part.T @ part for part in gaps.split(sizes.tolist())])  # (centres, rank, rank)
        moments = (squares + SHARED * squares.sum(0) / len(u)) / (sizes + SHARED).reshape(-1, 1, 1)
        values, vectors = torch.linalg.eigh(moments)
        values = values.clamp_min(0) + RIDGE
        roots = (vectors * values.rsqrt().unsqueeze(1)) @ vectors.mT
        return cls(centres, roots.to(u.dtype).contiguous(), (1 / values.mean(-1)).to(u.dtype))

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
    """Centres of rows u (rows, rank), by mini-batch k-means."""
    from sklearn.cluster import MiniBatchKMeans
    from threadpoolctl import threadpool_limits

    # one thread: sums in a fixed order, so that equal seeds give equal bits
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # duplicated rows are allowed
        means = MiniBatchKMeans(count, batch_size=2048, n_init=1, max_iter=15, random_state=seed)
        means.fit(u.double().numpy())
    return torch.from_numpy(means.cluster_centers_).to(u.dtype)
