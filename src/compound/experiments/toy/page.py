"""The page of the toy experiment: predictive bands, claims with their limits, all numbers."""

import math
from collections.abc import Sequence

from matplotlib.figure import Figure

from compound.datasets.toy import TOY_SETS
from compound.experiments.forms import ModelForm
from compound.experiments.identity import Run
from compound.experiments.published import paper_weight_variances
from compound.experiments.runs import Result
from compound.report.page import Cell, Claim, Page

# baselines of which the paper says that their variance grows outside the data
GROWS_OUTSIDE = ("noisy-kfac", "noisy-adam", "vmg", "bbb", "mnf", "mc-dropout", "laplace", "bnn-lv", "hmc")
HETEROSCEDASTIC = ("deep-ensemble", "mdn", "bnn-lv")  # baselines that learn where the noise is
N_COLUMNS = 6  # of panels
Y_LIMITS = {"set 1": 250, "set 2": 125}
METRICS = {
    "set 1": ("std_inside", "std_outside", "ratio", "outside_to_target", "epistemic_share", "error"),
    "set 2": (
        *("std_left", "std_right", "ratio"),
        *("aleatoric_left", "aleatoric_right", "epistemic_share", "error"),
    ),
}
SETTINGS = (
    "Not all of them run in the common setting. bbb, vmg, mnf, noisy-kfac, noisy-adam and hmc are given the "
    "noise of set 1, on both sets; a homoscedastic method has nearly even bands on set 2 by construction. "
    "bnn-lv trains at a tenth of the common learning rate, the one it was published with: this was set "
    "after its bands on set 2 had been seen at the common rate, where the left is not wider than the right. "
    "The noisy methods have no clipping of the gradient's norm. results/README.md has the numbers of the "
    "common setting."
)


def draw_page(results: Sequence[Result], page: Page) -> list[Claim]:
    """Fill the page of the toy experiment; return its claims. The figure shows the first seed."""
    page.text(
        "Few points (set 1) should give a large epistemic variance where no point is: a band that opens "
        "outside [-4, 4]. Much noise on the left (set 2) should give a wide band on the left, of aleatoric "
        "variance, which more data would not remove."
    )
    first_seed = min(result.run.seed for result in results)
    shown = [result for result in results if result.run.seed == first_seed]
    caption = "Black: the true function. Red: the data. Orange: mean and ±3 standard deviations."
    columns = ("form", "set", "x", "mean", "sd")
    page.figure_with_data("toy", _figure(shown), f"{caption} Seed {first_seed}.", columns, _csv_rows(shown))
    defaults = [result for result in results if not result.run.variant]
    cdn_claims = []
    other_claims = []
    for method in dict.fromkeys(result.run.method for result in defaults):
        group = [result for result in defaults if result.run.method == method]
        if ModelForm(method).is_cdn:
            cdn_claims += _cdn_claims(method, group)
        else:
            other_claims += _baseline_claims(method, group)
    page.claims(
        cdn_claims, "Compound density networks, default forms, against the claims; the worst seed counts"
    )
    if other_claims:
        caption = (
            "What the paper says of the methods they are compared with, default forms; the worst seed counts"
        )
        page.claims(other_claims, caption)
        page.text(SETTINGS)
        trained_outside = dict.fromkeys(r.run.method for r in results if ModelForm(r.run.method).saw_outliers)
        for method in trained_outside:
            page.text(
                f"{method} trains on inputs from outside [-4, 4] as well, without targets: its band there "
                "was trained."
            )
    _draw_metrics(results, page)
    _draw_variances(results, page)
    return cdn_claims + other_claims


def _title(run: Run) -> str:
    return str(ModelForm.from_run(run)) if run.variant else f"{run.method}, default"


def _csv_rows(results: Sequence[Result]) -> list[list[Cell]]:
    """The points of all bands as rows of the CSV file."""
    rows: list[list[Cell]] = []
    for result in results:
        lines = zip(*(result.arrays[name].tolist() for name in ("x", "mean", "band")), strict=True)
        rows += [[_title(result.run), TOY_SETS[result.run.data].number, *line] for line in lines]
    return rows


def _figure(results: Sequence[Result]) -> Figure:
    """A panel of data, mean and band for each form and set; set 1 above set 2, published forms last."""
    titles = list(dict.fromkeys(_title(r.run) for r in sorted(results, key=lambda r: r.run.variant)))
    n_columns = min(N_COLUMNS, len(titles))
    n_rows = 2 * math.ceil(len(titles) / N_COLUMNS)
    figure = Figure(figsize=(3.2 * n_columns, 2.8 * n_rows), layout="constrained")
    axes = figure.subplots(n_rows, n_columns, squeeze=False)
    for panel in axes.flat:
        panel.set_visible(False)
    for result in results:
        data = result.run.data
        arrays = result.arrays
        row, column = divmod(titles.index(_title(result.run)), N_COLUMNS)
        panel = axes[2 * row + TOY_SETS[data].number - 1][column]
        x, mean, band = arrays["x"], arrays["mean"], arrays["band"]
        panel.set_visible(True)
        panel.fill_between(x, mean - 3 * band, mean + 3 * band, color="tab:orange", alpha=0.3, linewidth=0)
        panel.plot(x, mean, color="tab:orange")
        panel.plot(x, x**3, color="black", linewidth=1)
        panel.plot(arrays["rows"][:, 0], arrays["rows"][:, 1], ".", color="tab:red", markersize=4)
        panel.set_ylim(-Y_LIMITS[data], Y_LIMITS[data])
        panel.set_xlim(-TOY_SETS[data].view, TOY_SETS[data].view)
        panel.tick_params(labelleft=column == 0)
        panel.set_title(f"{_title(result.run)}, {data}", fontsize=9)
    return figure


def _by_set(results: Sequence[Result]) -> list[list[Result]]:
    """The results on set 1, and those on set 2."""
    return [[result for result in results if result.run.data == data] for data in TOY_SETS]


def _min_max(results: Sequence[Result], key: str) -> tuple[float, float]:
    """The lowest and highest value of a metric over runs."""
    values = [result.metrics[key] for result in results]
    return min(values), max(values)


def _cdn_claims(method: str, results: Sequence[Result]) -> list[Claim]:
    """Claims about a CDN: epistemic variance outside the data of set 1, aleatoric on the left of set 2."""
    first, second = _by_set(results)
    if not (first and second):
        return []  # one of the sets has no finished run
    fractions = [{r.run.seed: r.metrics["epistemic_share"] for r in group} for group in (first, second)]
    ratios = [fractions[1][seed] / fractions[0][seed] for seed in fractions[0] if seed in fractions[1]]
    outside, _ = _min_max(first, "ratio")
    _, to_target = _min_max(first, "outside_to_target")
    left, _ = _min_max(second, "ratio")
    aleatoric_left, _ = _min_max(second, "aleatoric_ratio")
    return [
        Claim(f"{method}: set 1, sd outside / inside", outside, 2),
        Claim(f"{method}: set 1, sd outside / sd of the target", to_target, 10, "at most"),
        Claim(f"{method}: set 2, sd left / right", left, 1.8),
        Claim(f"{method}: set 2, aleatoric sd left / right", aleatoric_left, 1),
        Claim(f"{method}: epistemic fraction, set 2 / set 1", max(ratios, default=None), 1, "at most"),
    ]


def _baseline_claims(method: str, results: Sequence[Result]) -> list[Claim]:
    """Claims about a baseline: that its variance grows outside the data, and is larger on the left or not."""
    first, second = _by_set(results)
    claims = []
    if first and method in GROWS_OUTSIDE:
        lowest, _ = _min_max(first, "ratio")
        claims.append(Claim(f"{method}: set 1, sd outside / inside", lowest, 1))
    if second:
        lowest, highest = _min_max(second, "ratio")
        title = f"{method}: set 2, sd left / right"
        if method in HETEROSCEDASTIC:
            claims.append(Claim(title, lowest, 1.5))
        else:
            claims.append(Claim(title, highest, 1.5, "at most"))
    return claims


def _draw_metrics(results: Sequence[Result], page: Page) -> None:
    """Add a table of the metrics of every run for each data set."""
    for data, keys in METRICS.items():
        rows: list[list[Cell]] = [
            [_title(r.run), r.run.seed, *(r.metrics[key] for key in keys)]
            for r in results
            if r.run.data == data
        ]
        names = [key.replace("_share", "_fraction").replace("_", " ").replace("std", "sd") for key in keys]
        # one θ per ψ, as published, cannot separate the variance of the mixing distribution from that of the
        # posterior: in vb-cdn both count as epistemic
        caption = (
            f"{data.capitalize()}, every run. Published forms: sd of the drawn means; vb-cdn: all epistemic."
        )
        page.table(("form", "seed", *names), rows, caption)


def _draw_variances(results: Sequence[Result], page: Page) -> None:
    """Add a table of average variances of weights, with those of the paper, and of predictive variances."""
    with_variances = [result for result in results if "variances" in result.metrics]
    if not with_variances:
        return
    page.text(
        "The paper supports its reading (posterior: epistemic, mixing distribution: aleatoric) by average "
        "variances of weights. They are means of log-normals: one draw in a hundred can dominate the mean, "
        "so the median over draws stands beside it."
    )
    rows: list[list[Cell]] = []
    for data, toy_set in TOY_SETS.items():
        for component, paper in paper_weight_variances()[f"set_{toy_set.number}"].items():
            title = f"{data}, {component.replace('_', ', ')}"
            for run, metrics, *_ in with_variances:
                if run.data == data:
                    ours = metrics["variances"][component]
                    rows.append([title, run.seed, paper, ours["mean"], ours["median"]])
    columns = ("variance", "seed", "paper", "ours, mean", "ours, median")
    page.table(columns, rows, "Average variances of the published VB form")
    rows = []
    for run, _, arrays, _ in results:
        if run.variant:
            continue
        x = arrays["x"]
        for name, side in (("x < 0", x < 0), ("x >= 0", x >= 0)):
            where = side & (abs(x) < 4)
            means = (float(arrays[component][where].mean()) for component in ("aleatoric", "epistemic"))
            rows.append([run.method, run.data, name, run.seed, *means])
    components = ("default form", "data", "side", "seed", "aleatoric", "epistemic")
    page.table(components, rows, "What the statement is about: the predictive variance, |x| < 4")
