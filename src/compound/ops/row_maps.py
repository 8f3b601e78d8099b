"""Each row times a matrix of its own, one of a few: y_n = x_n W[k_n].

torch would gather a matrix for every row, or sort the rows and make many small products.
"""

import numpy as np
import torch
from torch import Tensor

from compound.ops.jit import array, can_use_kernel, launch, loop


def row_maps(x: Tensor, index: Tensor, maps: Tensor) -> Tensor:  # (rows, outputs)
    """Rows x (rows, inputs) times the matrices maps (count, inputs, outputs) of numbers index (rows,).

    Without gradients. A row's result does not depend on other rows.
    """
    if not can_use_kernel(x, maps) or torch.is_grad_enabled():
        return reference(x, index, maps)
    out = x.new_empty(len(x), maps.shape[2])
    arrays = x.contiguous(), index.to(torch.float32), maps.contiguous(), out
    launch(maps_loop, arrays, len(x), *maps.shape)
    return out


def reference(x: Tensor, index: Tensor, maps: Tensor) -> Tensor:  # (rows, outputs)
    """The definition of `row_maps`, for any dtype and device."""
    return torch.bmm(x.unsqueeze(1), maps[index]).squeeze(1)


@loop({"contract"}, "out")
def maps_loop(
    x_: int, index_: int, maps_: int, out_: int, rows: int, count: int, inputs: int, outputs: int
) -> None:
    """`reference`; the numbers of the matrices are given as float32."""
    x = array(x_, (rows, inputs))
    index = array(index_, (rows,))
    maps = array(maps_, (count, inputs, outputs))
    out = array(out_, (rows, outputs))
    for n in range(rows):
        k = np.int64(index[n])
        if k < 0 or k >= count:
            raise ValueError("there is no matrix of that number")
        for j in range(outputs):
            out[n, j] = 0
        for i in range(inputs):
            for j in range(outputs):
                out[n, j] += x[n, i] * maps[k, i, j]
