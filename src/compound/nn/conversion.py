"""A trained network as a compound density network that starts at its weights."""

import copy
from collections.abc import Callable, Mapping, Sequence

from torch import Generator, nn

from compound.nn.compound_layer import LOG_COL, CompoundLayer
from compound.nn.compound_recurrent import CompoundRecurrent

Maker = type[CompoundLayer] | type[CompoundRecurrent] | Callable[[nn.Module], nn.Module]


def convert(
    network: nn.Module,
    layers: Mapping[type[nn.Module], Maker],
    *,
    hidden: Sequence[int] = (50,),
    bayes: bool = False,
    log_col: float = LOG_COL,
    generator: Generator | None = None,
) -> nn.Module:
    """A copy of a network in which some layers are compound layers that start at its weights.

    In eval mode and outside of `sampling` the copy computes what the network does, since the mean of its
    weights is the network's weights. Layers of exactly the given types are replaced (not of types derived
    from them), a layer that is used twice by one layer.

    Parameters
    ----------
    network : torch.nn.Module
        Any network; it is not changed.
    layers : dict
        What to make of which layers, such as `{nn.Linear: CompoundLinear, nn.Conv2d: CompoundConv2d}`: a
        compound layer, or a function of the layer.
    hidden : sequence of int, default=(50,)
        Hidden widths of the hypernetworks.
    bayes : bool, default=False
        Maximum likelihood (False), or a variational posterior over the hypernetworks' weights (True).
    log_col : float, default=-6.0
        Log-variance of the weights at the start, relative to 1 / fan-in.
    generator : torch.Generator, optional
        Source of the hypernetworks' initial weights; by default torch's own.

    Returns
    -------
    torch.nn.Module
        The copy; its dtype, device, mode and frozen parameters are the network's.

    Raises
    ------
    ValueError
        If no layer has one of the types, or a layer has an option that its compound form lacks.
    TypeError
        If a compound layer is given for a type that it does not replace.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from compound.nn import CompoundLinear, convert, sampling
    >>> network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    >>> compound = convert(network, {nn.Linear: CompoundLinear})
    >>> x = torch.ones(5, 4)
    >>> torch.allclose(compound(x), network(x))
    True
    >>> with sampling(torch.Generator().manual_seed(0)):
    ...     draw = compound(x)
    """
    for kind, make in layers.items():
        if _is_compound(make) and kind not in make.plain:  # type: ignore[union-attr]
            known = ", ".join(each.__name__ for each in make.plain)  # type: ignore[union-attr]
            raise TypeError(f"{make.__name__} replaces {known}, not {kind.__name__}")  # type: ignore[union-attr]
    made: dict[nn.Module, nn.Module] = {}
    copied = copy.deepcopy(network)

    def replaced(module: nn.Module) -> nn.Module:
        """The module in its new form, itself if nothing changes."""
        if module in made:
            return made[module]
        make = layers.get(type(module))
        if make is None:
            made[module] = module
            for name, child in module._modules.items():  # named_children() leaves out repetitions
                if child is not None:
                    setattr(module, name, replaced(child))
        elif _is_compound(make):
            made[module] = make.from_layer(  # type: ignore[union-attr]
                module, hidden=hidden, bayes=bayes, log_col=log_col, generator=generator
            )
        else:
            made[module] = make(module)  # type: ignore[call-arg, arg-type]
        return made[module]

    result = replaced(copied)
    if all(old is new for old, new in made.items()):
        names = ", ".join(kind.__name__ for kind in layers)
        raise ValueError(f"the network has no layer of type {names}: nothing to convert")
    return result


def _is_compound(make: Maker) -> bool:
    return isinstance(make, type) and issubclass(make, (CompoundLayer, CompoundRecurrent))
