"""Pictures of a row's predictive: its density with three parts, or bars of its classes; needs matplotlib."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compound.predictive.categorical import CategoricalPredictive
    from compound.predictive.targets import TargetPredictive

COLOURS = {"component": "#4477aa", "mixing": "#66ccee", "posterior": "#ee6677"}


def new_axis(axis: Any) -> Any:
    """The axis, or one of a new figure if it is None."""
    if axis is not None:
        return axis
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(6, 3.5))[1]


def plot_density(p: "TargetPredictive", row: int, target: int, axis: Any) -> Any:
    """The density of one target of one row; below it the standard deviation grows part by part.

    The bars are mean ± sqrt(component), ± sqrt(component + mixing), ± sqrt(total).
    """
    axis = new_axis(axis)
    one = p[row].to("cpu")
    mean, std = float(one.mean[0, target]), float(one.std[0, target])
    y = one.plot_range(mean, std)
    density = one.density(y, target)
    axis.plot(y.numpy(), density.numpy(), color="black", lw=1.5)
    axis.fill_between(y.numpy(), density.numpy(), color="0.9")
    height, variance = -float(density.max()), 0.0
    for level, (name, colour) in enumerate(COLOURS.items(), start=1):
        variance += float(getattr(one, name)[0, target])
        place, half = 0.09 * level * height, variance**0.5
        axis.plot([mean - half, mean + half], [place, place], color=colour, lw=5, solid_capstyle="butt")
        axis.text(mean + half, place, f"  {name}", va="center", fontsize=8, color=colour)
    axis.axhline(0, color="0.5", lw=0.6)
    axis.set(xlabel="y", ylabel="density", yticks=[])
    return axis


def plot_classes(p: "CategoricalPredictive", row: int, coverage: float, axis: Any) -> Any:
    """Bars of the class probabilities of one row, those of the set of this coverage in colour.

    The title tells the entropy and its parts.
    """
    axis = new_axis(axis)
    one = p[row]
    inside = one.sets(coverage)[0]
    bars = axis.bar(range(one.probs.shape[-1]), one.probs[0].tolist())
    for bar, member in zip(bars, inside.tolist(), strict=True):
        bar.set_color(COLOURS["component"] if member else "0.8")
    parts = " + ".join(f"{float(getattr(one, name)):.2f} {name}" for name in COLOURS)
    axis.set_title(f"entropy {float(one.total):.2f} = {parts}", fontsize=9)
    axis.set(xlabel="class", ylabel="probability", ylim=(0, 1), xticks=range(one.probs.shape[-1]))
    return axis
