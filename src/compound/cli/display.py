"""Terminal output of the table commands: tables and progress."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

SILENT_SECONDS = 2.0  # before progress is shown
REFRESH_SECONDS = 0.2  # between updates


def print_tables(tables: Sequence[tuple[str, Sequence[str], Sequence[Sequence[Any]]]]) -> None:
    """Print tables, each a title, column names and rows."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from compound.report.page import format_cell

    for title, columns, rows in tables:
        table = Table(*columns, title=Text(title), title_justify="left", show_header=any(columns))
        for row in rows:
            table.add_row(*(Text(format_cell(cell)) for cell in row))
        Console().print(table)


@contextmanager
def row_progress(unit: str, show: bool = True) -> Iterator[Callable[..., None]]:
    """Context with a callback that takes the number of rows done, and shows it with the speed on stderr.

    The callback may also be given the number of all rows, to show the time that is left.

    `unit` is the text after the number. Nothing is shown in the first SILENT_SECONDS, or without `show`.
    """
    import time

    from rich import progress
    from rich.console import Console

    text = progress.TextColumn(
        "{task.completed:,.0f} " + unit + "  {task.fields[speed]:,.0f}/s{task.fields[left]}"
    )
    display = progress.Progress(
        progress.SpinnerColumn(), text, console=Console(stderr=True), transient=True, auto_refresh=False
    )
    task = display.add_task(unit, total=None, speed=0.0, left="")
    start = 0.0
    refreshed = 0.0

    def callback(rows: int, total: int | None = None) -> None:
        nonlocal start, refreshed
        now = time.monotonic()
        start = start or now
        if show and now - start > SILENT_SECONDS and now - refreshed > REFRESH_SECONDS:
            display.start()
            speed = rows / (now - start)
            left = f"  {(total - rows) / max(speed, 1e-9) / 60:.1f} minutes left" if total else ""
            display.update(task, completed=rows, speed=speed, left=left, refresh=True)
            refreshed = now
        if total is not None and rows >= total:
            display.stop()

    try:
        yield callback
    finally:
        display.stop()
