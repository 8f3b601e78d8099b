"""The page of CIFAR-10 under attack: the curves of all attack pages, and a table of doubt about other pictures."""

from collections.abc import Sequence

from compound.experiments import fgsm_page, ood_page
from compound.experiments.runs import Result, Run
from compound.report.page import Cell, Claim, Page

STRANGE = ("svhn", "gtsrb")
KEYS = (
    *((key,) for key in ood_page.KEYS),
    *((name, key) for name in STRANGE for key in ("mmc_out", "auroc")),
)


def draw_page(results: Sequence[Result], page: Page) -> list[Claim]:
    name = extractor_of(results[0].run)
    page.text(
        f"Heads with 100 hidden units on the features of a fixed network ({name}), which was trained on other pictures. Attacks move the "
        "pixels, through that network: strengths are those of pixels between 0 and 1, of which 0.03 can hardly be seen."
    )
    attacks = [
        result._replace(metrics={key: value for key, value in result.metrics.items() if key != "strange"})
        for result in results
    ]
    bars = fgsm_page.draw_page(attacks, page, "methods")
    shares = [
        [label, max(metrics["silent"] for metrics in found)]
        for label, found in fgsm_page.grouped(attacks).items()
    ]
    page.table(("form", "share"), shares, "Rows without a gradient: attacks are blind there")
    page.heading("Doubt about other pictures")
    page.text(
        "The same heads are shown house numbers (svhn) and traffic signs (gtsrb). MMC is the mean maximal confidence, AUROC the "
        "probability that such a picture has more entropy than one of CIFAR-10's test set. dpn has seen other house numbers in training."
    )
    groups = ood_page.grouped([result._replace(metrics=result.metrics["strange"]) for result in results])
    rows: list[list[Cell]] = [
        [label, *(ood_page.shown(found, ood_page.at(*key)) for key in KEYS)]
        for label, found in groups.items()
    ]
    words = [", ".join(ood_page.WORDS.get(word, word) for word in key) for key in KEYS]
    page.table(("form", *words), rows, "CIFAR-10 against others; mean ± standard error over seeds")
    page.csv_data(f"{results[0].run.experiment}-strange", ("form", *words), rows)
    return bars


def extractor_of(run: Run) -> str:
    """Of data like cifar10/2000/efficientnet-lite0, or that with ", as published" after it."""
    return run.data.partition(", ")[0].split("/")[2]
