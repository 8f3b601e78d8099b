"""How a method looks in every figure: one colour, and a line and a marker that tell it apart without colour too."""

from typing import Any, NamedTuple

Line = str | tuple[int, tuple[int, ...]]


class Look(NamedTuple):
    colour: str
    line: Line
    marker: str


DASHES: dict[str, Line] = {
    "full": "-",
    "long": (0, (7, 2)),
    "short": (0, (3, 1.5)),  # type: ignore[dict-item]
    "dots": (0, (1, 1)),
    "dash dot": (0, (5, 1, 1, 1)),
    "dash dot dot": (0, (5, 1, 1, 1, 1, 1)),
    "wide": (0, (4, 4)),
    "wide dots": (0, (1, 3)),
}
CDNS = "compound density networks"
# three families, drawn apart: twenty curves in one panel are none. Within a family every line and marker differs.
FAMILIES: dict[str, dict[str, Look]] = {
    CDNS: {
        "ml-cdn": Look("#c1272d", DASHES["full"], "o"),
        "vb-cdn": Look("#0b3c8c", DASHES["full"], "s"),
    },
    "methods of the paper": {
        "vmg": Look("#1b7837", DASHES["full"], "^"),
        "mnf": Look("#e08214", DASHES["long"], "v"),
        "mc-dropout": Look("#7b3294", DASHES["short"], "D"),
        "deep-ensemble": Look("#000000", DASHES["dash dot"], "P"),
        "noisy-kfac": Look("#a6761d", DASHES["dots"], "X"),
        "dpn": Look("#4393c3", DASHES["dash dot dot"], "*"),
    },
    "further methods": {
        "map": Look("#555555", DASHES["full"], "o"),
        "temperature": Look("#d6604d", DASHES["long"], "s"),
        "laplace": Look("#35978f", DASHES["short"], "^"),
        "bbb": Look("#762a83", DASHES["dash dot"], "v"),
        "noisy-adam": Look("#bf812d", DASHES["dots"], "X"),
        "mdn": Look("#66a61e", DASHES["dash dot dot"], "D"),
        "vib": Look("#e7298a", DASHES["wide"], "P"),
        "bnn-lv": Look("#2166ac", DASHES["wide dots"], "*"),
    },
}
LOOKS = {method: look for family in FAMILIES.values() for method, look in family.items()}
OTHER = Look("#888888", DASHES["wide"], "<")  # a method that is not in the table


def place(method: str) -> int:
    """For sorting: methods stand in the same order everywhere."""
    return list(LOOKS).index(method) if method in LOOKS else len(LOOKS)


def family(method: str) -> str:
    return next((name for name, members in FAMILIES.items() if method in members), "further methods")


def style(method: str, form: str = "") -> dict[str, Any]:
    """Arguments of `plot`. Form: "" (the usual one), "other" (with far noise where that is not usual, or without) or "published"."""
    look = LOOKS.get(method, OTHER)
    thick = 2.0 if family(method) == CDNS else 1.2
    line = look.line if form != "published" else DASHES["dots"]
    line = DASHES["short"] if form == "other" and look.line == "-" else line
    return {
        "color": look.colour,
        "linestyle": line,
        "marker": look.marker,
        "markersize": 4,
        "markerfacecolor": look.colour if not form else "white",  # other forms of a method have open markers
        "linewidth": thick if not form else 1.0,
    }
