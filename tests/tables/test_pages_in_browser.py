"""Pages of fit, evaluate and explain in a browser: they fit the window, need no network, and keep text."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from browser import overflow, problems, resize, screenshot
from table_commands import TINY, houses, run_ok

pytestmark = pytest.mark.xdist_group("browser")
SCRIPT = "</script><img src=x onerror='window.hacked = 1'>"
LONG = "a_name_without_any_place_to_break_it_" * 4


@pytest.fixture(scope="module")
def pages(home: Path) -> dict[str, Path]:
    """Pages by name; of a table with names that are HTML, and one that is long."""
    run_ok("evaluate", home / "dear.model", home / "new.csv", "--out", home / "classes.html")
    table = houses(150, seed=3).drop(columns="dear")
    table = table.rename(columns={"size": SCRIPT, "weight": LONG, "price": "<b>price"})
    table["city"] = np.where(table["city"] == "Rom", SCRIPT, table["city"])
    table.to_csv(home / "wild-houses.csv", index=False)
    model, file = home / "wild-houses.model", home / "wild-houses.csv"
    run_ok("fit", file, "--target", "<b>price", "--out", model, *TINY)
    boats = table.head(20).assign(**{SCRIPT: 500.0})
    boats.to_csv(home / "boats.csv", index=False)
    ood = ("--ood", home / "boats.csv", "--by", "city")
    run_ok("evaluate", model, file, *ood, "--out", home / "evaluate.html")
    run_ok("explain", model, home / "boats.csv", "--row", 3, "--out", home / "explain.html")
    return {
        "report": model / "report.html",
        "classes-report": home / "dear.model" / "report.html",
        "evaluate": home / "evaluate.html",
        "classes": home / "classes.html",
        "explain": home / "explain.html",
    }


@pytest.mark.parametrize("name", ["report", "classes-report", "evaluate", "classes", "explain"])
def test_a_page_fits_the_window_without_errors_or_network(pages, driver: Any, tmp_path: Path, name: str):
    for width, dark in ((1100, False), (400, False), (400, True)):
        resize(driver, width, dark=dark)
        driver.get(pages[name].as_uri())
        assert overflow(driver) <= 0, (width, dark)
        assert not problems(driver)
    assert driver.execute_script("return performance.getEntriesByType('resource').length") == 0
    widths = "return [...document.querySelectorAll('figure img')].map((i) => [i.naturalWidth, i.clientWidth])"
    assert all(natural > 0 and 0 < shown <= 400 for natural, shown in driver.execute_script(widths))
    paper = "return getComputedStyle(document.body).backgroundColor"
    before = driver.execute_script(paper)
    driver.execute_script("document.querySelector('button.theme').click()")
    assert before == "rgb(20, 24, 31)" and driver.execute_script(paper) == "rgb(255, 255, 255)"
    assert len(driver.execute_script("return document.querySelector('p.lead').innerText")) > 80
    screenshot(driver, tmp_path / "page.png", 700)
    assert (tmp_path / "page.png").stat().st_size > 10_000


@pytest.mark.parametrize("name", ["report", "evaluate", "explain"])
def test_names_and_values_that_are_html_stay_text(pages, driver: Any, name: str):
    driver.get(pages[name].as_uri())
    assert driver.execute_script("return window.hacked") is None
    assert driver.execute_script("return document.querySelectorAll('img[src=x]').length") == 0
    assert driver.execute_script("return document.body.innerText.includes(arguments[0])", SCRIPT)


def test_no_number_of_a_page_has_an_exponent_of_a_computer(pages, driver: Any):
    for path in pages.values():
        driver.get(path.as_uri())
        text = driver.execute_script("return document.body.innerText")
        assert not pd.Series(text.split()).str.fullmatch(r"[-(]?\d[\d.]*e[+-]?\d+[),.]?").any(), path
