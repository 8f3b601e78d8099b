"""A headless Chromium for tests of pages, driven by selenium; without one, tests skip and say why."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
    "--hide-scrollbars",
)
OVERFLOW = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"


@contextmanager
def chromium(profile: Path) -> Iterator[Any]:
    """A driver of the machine's Chromium with an empty profile; skips the test where there is none."""
    programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if not all(programs):
        pytest.skip("no browser: chromium and chromedriver are not installed")
    webdriver = pytest.importorskip("selenium.webdriver", reason="no browser: selenium is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = programs[0]
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(programs[1]))
    try:
        yield driver
    finally:
        driver.quit()


def resize(driver: Any, width: int, height: int = 900, dark: bool = False) -> None:
    """Make the page as wide as this, on a light or a dark machine."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def problems(driver: Any) -> list[str]:
    """What the page complained about: script errors, refused resources."""
    return [
        entry["message"] for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")
    ]


def overflow(driver: Any) -> int:
    """By how many pixels the page is wider than the window."""
    return int(driver.execute_script(OVERFLOW))


def screenshot(driver: Any, path: Path, height: int | None = None) -> None:
    """Write the page, or its first `height` pixels, as PNG."""
    import base64

    size = driver.execute_script(
        "return [document.documentElement.clientWidth, document.documentElement.scrollHeight]"
    )
    clip = {"x": 0, "y": 0, "width": size[0], "height": height or size[1], "scale": 1}
    answer = driver.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True})
    path.write_bytes(base64.b64decode(answer["data"]))
