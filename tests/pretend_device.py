"""A pretend accelerator, for tests without one: device "npu", whose memory is tensors on the CPU.

Operations with tensors of both devices are refused, as on a real accelerator, and so are generators of
the wrong device. Importing this module registers the device for the rest of the process: use it in one of its
own.
"""

import functools
from typing import Any

import torch
from torch.utils import _pytree as pytree

torch.utils.backend_registration._setup_privateuseone_for_python_backend("npu")
torch.__future__.set_overwrite_module_params_on_conversion(True)
COPIES = {"aten::copy_", "aten::_to_copy", "aten::_copy_from"}  # between devices
INDEXING = {
    "aten::index",
    "aten::index_put_",
    "aten::_index_put_impl_",
    "aten::index_put",
    "aten::_unsafe_index",
}
FACTORIES = ("aten::full", "aten::zeros", "aten::ones")


class NpuTensor(torch.Tensor):
    """A tensor of the device."""


VALUES: dict[int, torch.Tensor] = {}  # by storage: autograd's copies of a tensor are other Python objects


def wrapped(raw: torch.Tensor) -> torch.Tensor:
    tensor = torch._C._acc.create_empty_tensor(raw.shape, raw.dtype)
    tensor.__class__ = NpuTensor  # nn.Parameter refuses a plain tensor that Python has seen
    VALUES[tensor.untyped_storage()._cdata] = raw
    return tensor


def raw_of(tensor: torch.Tensor) -> torch.Tensor:
    return VALUES[tensor.untyped_storage()._cdata]


def is_ours(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type != "cpu"


def refuse_mixed(name: str, values: list[Any]) -> None:
    from_cpu = any(isinstance(v, torch.Tensor) and not is_ours(v) and v.ndim > 0 for v in values)
    if name not in COPIES | INDEXING and from_cpu and any(map(is_ours, values)):
        raise RuntimeError(f"{name}: all tensors must be on the same device, found npu and cpu")
    if any(isinstance(v, torch.Generator) and v.device.type == "cpu" for v in values):
        raise RuntimeError(f"{name}: a generator of device npu is needed, found cpu")


def dispatch(operation: Any, *args: Any, **kwargs: Any) -> Any:
    """The operation on the values of its tensors, its results as tensors of the device."""
    name = operation._schema.name
    values, spec = pytree.tree_flatten((args, kwargs))
    refuse_mixed(name, values)
    target = kwargs.get("device")
    if name in ("aten::view", "aten::_unsafe_view", "aten::_reshape_alias"):
        return wrapped(raw_of(args[0]).reshape(args[1]))
    raws = [raw_of(v) if is_ours(v) else v for v in values]
    raws = [torch.device("cpu") if isinstance(v, torch.device) else v for v in raws]
    raw_args, raw_kwargs = pytree.tree_unflatten(raws, spec)
    out = operation(*raw_args, **raw_kwargs)
    if name == "aten::_local_scalar_dense":
        return out
    if name == "aten::_to_copy" and target is not None and torch.device(target).type == "cpu":
        return out
    same = {id(raw): value for value, raw in zip(values, raws, strict=True) if is_ours(value)}
    return pytree.tree_map(lambda o: same.get(id(o), wrapped(o)) if isinstance(o, torch.Tensor) else o, out)


def register() -> torch.library.Library:
    library = torch.library.Library("aten", "IMPL")
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    keys = ("CPU", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
    for name in torch._C._dispatch_get_all_op_names():
        if not name.startswith("aten::") or has(name, "CompositeImplicitAutograd"):
            continue
        packet, _, overload = name[6:].partition(".")
        operation = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
        if operation is None or not any(has(name, key) for key in keys):
            continue
        try:
            library.impl(name[6:], functools.partial(dispatch, operation), "PrivateUse1")
        except RuntimeError:  # already there
            continue
    return library


LIBRARY = register()
