"""Operations of the layers, one file each.

A file holds the reference formula in torch (`reference`: any dtype and device, differentiable; it is the
definition), the loop that numba compiles for float32 on the CPU with the loop of its gradient, the
`torch.autograd.Function` around them, and a function that chooses between the two (`can_use_kernel`). `jit`,
`guard` and `cache` compile the loops, check their arguments and keep them on disk.
"""
