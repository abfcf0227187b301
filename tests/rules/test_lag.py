"""Percentiles by nearest rank."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from engine.rules.lag import percentile


def test_percentiles_are_values_that_were_measured():
    lags = Counter(range(1, 101))
    assert [percentile(lags, percent) for percent in (1, 50, 99, 100)] == [1, 50, 99, 100]
    assert percentile(Counter(), 99) == 0
    assert percentile({4: 1}, 50) == 4
    assert percentile({-3: 98, 7: 2}, 99) == 7


@given(st.lists(st.integers(-1_000, 100_000), min_size=1), st.integers(1, 100))
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(lags, percent):
    found = percentile(Counter(lags), percent)
    assert sum(lag <= found for lag in lags) * 100 >= percent * len(lags)
    assert sum(lag < found for lag in lags) * 100 < percent * len(lags)
