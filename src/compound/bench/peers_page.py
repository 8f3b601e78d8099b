"""The page of `compound bench --peers`: curves of cost against rows, columns, draws and members."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from compound.report.page import Page

QUANTITIES = {
    "fit_seconds": "fit, processor seconds",
    "predict_microseconds_per_row": "predict, µs per row",
    "memory_mib": "memory of the fit, MiB",
}
CAPTIONS = {
    "rows": "Cost against rows, for 20 columns",
    "columns": "Cost against columns, for 10,000 rows",
    "draws": "Cost against draws of a prediction",
    "members": "Cost against members of the ensemble",
}


def write_page(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Write the page, and the data of its figures beside it."""
    page = Page("Cost beside other libraries")
    page.text(
        "Processor time on one thread, every point in a process of its own. Synthetic tables of numbers, "
        "categories and missing values. Both axes are logarithmic: a slope of 1 is linear growth."
    )
    for curve, caption in CAPTIONS.items():
        part = [entry for entry in results if entry["curve"] == curve and "fit_seconds" in entry]
        if not part:
            continue
        page.heading(caption)
        columns = ("method", curve, *QUANTITIES)
        rows = [(e["method"], e["size"], *(e[quantity] for quantity in QUANTITIES)) for e in part]
        page.figure_with_data(f"peers-{curve}", _figure(part, curve), caption, columns, rows)
        page.table(("method", curve, *QUANTITIES.values()), rows)
    reasons = [f"{entry['name']}: {entry['reason']}" for entry in results if "reason" in entry]
    if reasons:
        page.heading("Not measured")
        page.bullets(reasons)
    page.provenance(results)
    page.write(path)


def _figure(results: Sequence[dict[str, Any]], curve: str) -> Figure:
    """A panel per quantity, a line per method."""
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    for axes, (quantity, title) in zip(figure.subplots(1, 3), QUANTITIES.items(), strict=True):
        for method in dict.fromkeys(entry["method"] for entry in results):
            part = [entry for entry in results if entry["method"] == method]
            values = [max(entry[quantity], 1e-3) for entry in part]
            axes.loglog([entry["size"] for entry in part], values, "o-", label=method)
        axes.set_xlabel(curve)
        axes.set_title(title, fontsize=9)
    figure.axes[0].legend(fontsize=7)
    return figure
