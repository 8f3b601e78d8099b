"""The page of CIFAR-10 under attack: curves as on the other attack pages, and out-of-distribution metrics."""

from collections.abc import Sequence

from compound.experiments.fgsm import page as fgsm_page
from compound.experiments.ood import page as ood_page
from compound.experiments.runs import Result
from compound.report.page import Cell, Claim, Page

OOD_SETS = ("svhn", "gtsrb")
OOD_KEY = "strange"  # key of the out-of-distribution metrics in metrics.json


def draw_page(results: Sequence[Result], page: Page) -> list[Claim]:
    """Fill the page; return its claims."""
    page.text(
        f"Methods with 100 hidden units on the features of a fixed network ({results[0].run.extractor}), "
        "which was trained on other images. Attacks perturb the pixels, through that network: strengths are "
        "those of pixels between 0 and 1, of which 0.03 is hardly visible."
    )
    attacks = []
    for result in results:
        curves = {key: value for key, value in result.metrics.items() if key != OOD_KEY}
        attacks.append(result._replace(metrics=curves))
    claims = fgsm_page.draw_page(attacks, page, "methods")
    groups = fgsm_page.grouped(attacks)
    rows: list[list[Cell]] = [[str(form), max(m["silent"] for m in group)] for form, group in groups.items()]
    page.table(("form", "fraction"), rows, "Rows without a gradient: attacks fail there")
    page.heading("Predictive entropy of out-of-distribution images")
    page.text(
        "The same models are evaluated on house numbers (svhn) and traffic signs (gtsrb). MMC is the mean "
        "maximal confidence, AUROC the probability that such an image has a larger predictive entropy than "
        "one of CIFAR-10's test set. dpn was trained on other house numbers."
    )
    groups = ood_page.grouped([result._replace(metrics=result.metrics[OOD_KEY]) for result in results])
    paths: list[tuple[str, ...]] = [
        *((key,) for key in ood_page.IN_DIST_METRICS),
        *((name, key) for name in OOD_SETS for key in ood_page.OOD_METRICS),
    ]
    columns = ("form", *map(ood_page.metric_name, paths))
    rows = ood_page.metric_rows(groups, paths)
    page.table(columns, rows, "CIFAR-10 against other images; mean ± standard error over seeds")
    page.csv_data(f"{results[0].run.experiment}-ood", columns, rows)
    return claims
