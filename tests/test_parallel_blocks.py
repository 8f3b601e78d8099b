"""Predictions of tables: the same bits on any number of threads and for any part of the rows."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
import torch

from compound import CompoundClassifier, CompoundRegressor
from compound.estimators.parallel import parallel_map
from compound.estimators.row_predictions import predict_frame
from compound.ops.padding import with_copies, without_copies


@pytest.fixture(params=["regression", "classification"])
def fitted(request):
    rng = np.random.default_rng(0)
    x = pd.DataFrame({name: rng.normal(size=4700) for name in "abc"})
    x["colour"] = rng.choice(["red", "green", "blue"], 4700)
    y = x.a + x.b**2 + rng.normal(size=4700)
    train, new = x[:300], x[300:]
    if request.param == "regression":
        return CompoundRegressor(max_epochs=2, random_state=0).fit(train, y[:300]), new
    return CompoundClassifier(max_epochs=2, random_state=0).fit(train, (y[:300] > 1).astype(int)), new


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_bits_do_not_depend_on_threads_or_other_rows(fitted, threads):
    estimator, x = fitted
    torch.set_num_threads(1)
    expected = predict_frame(estimator, x)
    for count in (2, 4):
        torch.set_num_threads(count)
        pd.testing.assert_frame_equal(predict_frame(estimator, x), expected, check_exact=True)
        assert torch.get_num_threads() == count
    with ThreadPoolExecutor(3) as pool:
        for frame in pool.map(lambda _: predict_frame(estimator, x), range(3)):
            pd.testing.assert_frame_equal(frame, expected, check_exact=True)
    for rows in (slice(0, 1), slice(511, 514), slice(2040, 4200)):
        part = expected[rows].reset_index(drop=True)
        pd.testing.assert_frame_equal(predict_frame(estimator, x[rows]), part, check_exact=True)


def test_copies_at_the_end_are_found():
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0], [1.0, 2.0], [1.0, 2.0]])
    assert [without_copies(rows) for rows in (x, x[:3], x[2:], x[:1])] == [3, 3, 1, 1]
    assert torch.equal(with_copies(x[:3], 5, 0), x)
    assert without_copies(x.fill_(torch.nan)) == 5


def test_parts_come_in_order_and_errors_come_through(threads):
    torch.set_num_threads(3)
    assert list(parallel_map(lambda i: (i, torch.get_num_threads()), range(40))) == [
        (i, 1) for i in range(40)
    ]
    assert torch.get_num_threads() == 3

    def fail(i):
        if i == 7:
            raise ValueError("seven")
        return i

    with pytest.raises(ValueError, match="seven"):
        list(parallel_map(fail, range(100)))
    first = parallel_map(lambda i: i, iter(int, 1))  # an endless stream is not read ahead
    assert next(first) == 0
    first.close()
    assert torch.get_num_threads() == 3
