"""Plot styles of the methods: colour, line and marker, the same in all figures, readable without colour."""

from typing import Any, NamedTuple

LineStyle = str | tuple[int, tuple[float, ...]]


class MethodStyle(NamedTuple):
    colour: str
    line: LineStyle  # as matplotlib takes it
    marker: str


DASHES: dict[str, LineStyle] = {
    "full": "-",
    "long": (0, (7, 2)),
    "short": (0, (3, 1.5)),
    "dots": (0, (1, 1)),
    "dash dot": (0, (5, 1, 1, 1)),
    "dash dot dot": (0, (5, 1, 1, 1, 1, 1)),
    "sparse dashes": (0, (4, 4)),
    "sparse dots": (0, (1, 3)),
}
CDNS = "compound density networks"
# Each family has its own panel. Within a family all lines and markers differ.
FAMILIES: dict[str, dict[str, MethodStyle]] = {
    CDNS: {
        "ml-cdn": MethodStyle("#c1272d", DASHES["full"], "o"),
        "vb-cdn": MethodStyle("#0b3c8c", DASHES["full"], "s"),
    },
    "methods of the paper": {
        "vmg": MethodStyle("#1b7837", DASHES["full"], "^"),
        "mnf": MethodStyle("#e08214", DASHES["long"], "v"),
        "mc-dropout": MethodStyle("#7b3294", DASHES["short"], "D"),
        "deep-ensemble": MethodStyle("#000000", DASHES["dash dot"], "P"),
        "noisy-kfac": MethodStyle("#a6761d", DASHES["dots"], "X"),
        "dpn": MethodStyle("#4393c3", DASHES["dash dot dot"], "*"),
    },
    "further methods": {
        "map": MethodStyle("#555555", DASHES["full"], "o"),
        "temperature": MethodStyle("#d6604d", DASHES["long"], "s"),
        "laplace": MethodStyle("#35978f", DASHES["short"], "^"),
        "bbb": MethodStyle("#762a83", DASHES["dash dot"], "v"),
        "noisy-adam": MethodStyle("#bf812d", DASHES["dots"], "X"),
        "mdn": MethodStyle("#66a61e", DASHES["dash dot dot"], "D"),
        "vib": MethodStyle("#e7298a", DASHES["sparse dashes"], "P"),
        "bnn-lv": MethodStyle("#2166ac", DASHES["sparse dots"], "*"),
        "hmc": MethodStyle("#1a1a1a", DASHES["full"], "<"),
        "bayes-hypernet": MethodStyle("#c51b7d", DASHES["long"], ">"),
        "implicit": MethodStyle("#4d9221", DASHES["short"], "h"),
        "hypernet": MethodStyle("#80735a", DASHES["dash dot"], "p"),
        "pbp": MethodStyle("#b35806", DASHES["dash dot dot"], "d"),
    },
}
METHOD_STYLES = {method: style for family in FAMILIES.values() for method, style in family.items()}
DEFAULT_STYLE = MethodStyle("#888888", DASHES["sparse dashes"], "<")  # of a method without an entry above


def method_order(method: str) -> int:
    """Sort key that keeps methods in the order of METHOD_STYLES; unknown methods come last."""
    return list(METHOD_STYLES).index(method) if method in METHOD_STYLES else len(METHOD_STYLES)


def family(method: str) -> str:
    """The family (key of FAMILIES) whose panel shows `method`; unknown methods are "further methods"."""
    return next((name for name, members in FAMILIES.items() if method in members), "further methods")


def plot_style(method: str, form: str = "") -> dict[str, Any]:
    """Keyword arguments for `Axes.plot`.

    `form` is "" (the default options), "other" (far noise on where the default has none, or the reverse) or
    "published" (options and training of the paper). All but "" have open markers and thin lines.
    """
    style = METHOD_STYLES.get(method, DEFAULT_STYLE)
    width = 2.0 if family(method) == CDNS else 1.2
    line = style.line if form != "published" else DASHES["dots"]
    line = DASHES["short"] if form == "other" and style.line == "-" else line
    return {
        "color": style.colour,
        "linestyle": line,
        "marker": style.marker,
        "markersize": 4,
        "markerfacecolor": style.colour if not form else "white",
        "linewidth": width if not form else 1.0,
    }
