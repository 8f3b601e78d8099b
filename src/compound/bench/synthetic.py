"""Synthetic tables of mixed columns, of any size: numbers, categories and missing values."""

import numpy as np
import pandas as pd

CATEGORIES = tuple("abcdefgh")
MISSING = 0.02  # of the values of every other number column


def mixed_table(
    rows: int, columns: int, seed: int = 0
) -> tuple[pd.DataFrame, "np.ndarray[tuple[int], np.dtype[np.float64]]"]:
    """A table of `columns` columns, a third of them categories, and a number to predict for every row.

    The number depends on few columns, with an interaction, a category that shifts a slope, and noise whose
    standard deviation grows with a column.
    """
    generator = np.random.default_rng((seed, rows, columns))
    n_text = columns // 3
    numbers = generator.standard_normal((rows, columns - n_text)).round(4)
    text = generator.integers(len(CATEGORIES), size=(rows, n_text))
    first, second, third = (numbers[:, k % numbers.shape[1]] for k in range(3))
    level = text[:, 0] if n_text else np.zeros(rows, np.int64)
    mean = np.sin(2 * first) + second * (level < 3) + 0.5 * first * third
    y = mean + (0.1 + 0.2 * np.abs(third)) * generator.standard_normal(rows)
    numbers[:, 1::2][generator.random(numbers[:, 1::2].shape) < MISSING] = np.nan
    table = {f"number {k}": column for k, column in enumerate(numbers.T)}
    names = np.array(CATEGORIES, dtype=object)
    return pd.DataFrame({**table, **{f"text {k}": names[column] for k, column in enumerate(text.T)}}), y
