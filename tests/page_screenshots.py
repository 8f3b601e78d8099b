"""Takes the screenshots of the documentation: python tests/page_screenshots.py FOLDER

FOLDER holds diamonds.model, diamonds.html and diamonds-explore.html, as docs/tables.md makes them.
"""

import io
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from browser import chromium, resize, screenshot
from PIL import Image

OUT = Path(__file__).parents[1] / "docs" / "_static"
COLOURS = 96


def take(driver: Any, page: Path, name: str, height: int, width: int = 1100, dark: bool = False) -> None:
    """The first `height` pixels of a page as docs/_static/NAME.png, with few colours."""
    resize(driver, width, height, dark)
    driver.get(page.as_uri())
    time.sleep(1.5)
    target = OUT / f"{name}.png"
    screenshot(driver, target, height)
    picture = Image.open(io.BytesIO(target.read_bytes())).convert("RGB")
    picture.quantize(COLOURS).save(target, optimize=True)
    print(f"{target.name}: {target.stat().st_size / 1000:.0f} kB")


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as profile, chromium(Path(profile)) as driver:
        take(driver, folder / "diamonds-explore.html", "explore", 900)
        take(driver, folder / "diamonds.model" / "report.html", "report", 1250)
        take(driver, folder / "diamonds.html", "evaluate", 1600)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
