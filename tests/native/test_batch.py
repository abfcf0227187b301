"""The batch builder beside its twin, and the faults it names. What a server makes of the text: test_batch_mysql.py."""

import sys
from enum import IntEnum, StrEnum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine._native import batch
from tests.support import batch_twin

ROOM_BYTES = 1 << 20

INTS = st.one_of(st.integers(-(2**63), 2**64 - 1), st.integers(-300, 300), st.sampled_from([10**n for n in range(20)]))
COLUMNS = [
    st.one_of(st.none(), INTS, st.booleans()),
    st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False)),
    st.one_of(st.none(), st.text(max_size=20), st.text("azAZ09 ._:/-{}\"'\\%?é€😀\0", max_size=20)),
    st.one_of(st.none(), st.binary(max_size=40)),
]
ROWS = st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=6).flatmap(
    lambda columns: st.lists(st.tuples(*columns), max_size=12)
)


@settings(max_examples=500, deadline=None)
@given(
    rows=ROWS,
    head=st.binary(max_size=20),
    tail=st.binary(max_size=20),
    row_open=st.sampled_from([b"(", b"ROW("]),
    rows_max=st.integers(1, 5),
    bytes_max=st.integers(0, 700),
)
def test_statements_are_those_of_the_twin(rows, head, tail, row_open, rows_max, bytes_max) -> None:
    def outcome(build) -> object:
        try:
            return build(head, rows, tail, row_open, rows_max, bytes_max)
        except ValueError:
            return ValueError

    assert outcome(batch.build) == outcome(batch_twin.build)


@settings(max_examples=500, deadline=None)
@given(st.one_of(COLUMNS))
def test_literals_are_those_of_the_twin(value) -> None:
    assert batch.literal(value) == batch_twin.literal(value)


@pytest.mark.parametrize("code", range(256))
def test_a_literal_of_each_character_is_that_of_the_twin(code) -> None:
    assert batch.literal(chr(code)) == batch_twin.literal(chr(code))


@pytest.mark.parametrize("missing_bytes", [0, 1])
def test_a_statement_may_be_as_large_as_the_bound_and_no_byte_larger(missing_bytes) -> None:
    rows = [(1, "abc"), (2, "abc"), (3, "abc")]
    (whole,) = batch.build(b"HEAD ", rows, b" TAIL", b"ROW(", 2000, ROOM_BYTES)
    bytes_max = len(whole) + batch_twin.PACKET_BYTES - missing_bytes
    statements = batch.build(b"HEAD ", rows, b" TAIL", b"ROW(", 2000, bytes_max)
    assert (statements == [whole]) == (missing_bytes == 0)
    assert statements == batch_twin.build(b"HEAD ", rows, b" TAIL", b"ROW(", 2000, bytes_max)


@pytest.mark.parametrize("count", [0, 1, 1999, 2000, 2001, 10_000])
def test_no_row_is_lost_or_doubled_between_statements(count: int) -> None:
    rows = [(number, b"x" * (number % 300)) for number in range(count)]
    bytes_max = 200_000
    statements = batch.build(b"INSERT INTO t VALUES ", rows, b"", b"(", 2000, bytes_max)
    assert b",".join(text.removeprefix(b"INSERT INTO t VALUES ") for text in statements) == b",".join(
        b"(" + batch.literal(number) + b"," + batch.literal(content) + b")" for number, content in rows
    )
    assert all(len(text) <= bytes_max for text in statements)


def test_values_of_subclasses_count_as_their_base() -> None:
    class State(IntEnum):
        RUNNING = 2

    class Kind(StrEnum):
        CRON = "cron"

    assert batch.build(b"", [[State.RUNNING, Kind.CRON], (True, "é")], b"", b"(", 9, ROOM_BYTES) == [
        b"(2,_utf8mb4'cron'),(1,_utf8mb4 X'C3A9')"
    ]


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ([(1, 2), (1,)], ValueError, "row 1 has 1 values, those before have 2"),
        ([()], ValueError, "row 0 is empty"),
        ([(1,), (2**64,)], ValueError, "row 1, column 0: the int does not fit into 64 bits"),
        ([(-(2**63) - 1,)], ValueError, "row 0, column 0: the int does not fit into 64 bits"),
        ([(1, 0.5), (2, float("inf"))], ValueError, "row 1, column 1: a float must be finite, got inf"),
        ([(float("nan"),)], ValueError, "row 0, column 0: a float must be finite, got nan"),
        ([("secret\ud800",)], ValueError, "row 0, column 0: a str must be Unicode: surrogates not allowed at 6"),
        ([(1,), (None,), ("1",)], TypeError, "row 2, column 0: str in a column of int"),
        ([(0.5,), (1,)], TypeError, "row 1, column 0: int in a column of float"),
        ([("a",), (b"a",)], TypeError, "row 1, column 0: bytes in a column of str"),
        (
            [([1],)],
            TypeError,
            "row 0, column 0: a value must be None, bool, int, float, str or bytes, got list",
        ),
        (5, TypeError, "'int' object is not iterable"),
        ([5], TypeError, "a row must be a sequence of values"),
    ],
)
def test_a_fault_is_named_by_its_place_and_never_shows_the_value(rows, error, message) -> None:
    with pytest.raises(error) as raised:
        batch.build(b"", rows, b"", b"(", 2000, ROOM_BYTES)
    assert str(raised.value) == message


@pytest.mark.parametrize("value", ["x" * 1000, "é" * 500, b"x" * 500])
def test_a_row_too_large_for_any_statement_is_named(value) -> None:
    with pytest.raises(ValueError, match=r"^row 1 takes at least \d+ bytes, the server 1000 a statement \(max_all"):
        batch.build(b"", [(type(value)(),), (value,)], b"", b"(", 2000, 1000)


def test_a_huge_value_is_refused_before_memory_is_spent_on_it() -> None:
    value = b"x" * (64 << 20)
    with pytest.raises(ValueError, match=r"^row 0 takes at least 134217728 bytes"):
        batch.build(b"", [(value,)], b"", b"(", 2000, ROOM_BYTES)


def test_rows_may_be_changed_while_one_of_them_is_read() -> None:
    rows: list[object] = [(1,), [2]]

    class Row:
        def __iter__(self):
            rows.clear()
            return iter([3])

    rows[1:1] = [Row()]
    assert batch.build(b"", rows, b"", b"(", 2000, ROOM_BYTES) == [b"(1),(3),(2)"]


def test_rows_max_is_at_least_one() -> None:
    with pytest.raises(ValueError, match="rows_max must be at least 1, got 0"):
        batch.build(b"", [(1,)], b"", b"(", 0, ROOM_BYTES)


def test_building_leaves_the_reference_counts_as_they_were() -> None:
    value = "é" * 10
    row = (value, b"x", 1.5, 2**70 - 2**70)
    rows = [row] * 100
    before = sys.getrefcount(value), sys.getrefcount(row)
    batch.build(b"", rows, b"", b"(", 7, ROOM_BYTES)
    with pytest.raises(TypeError):
        batch.build(b"", [*rows, (1, 2, 3, 4)], b"", b"(", 7, ROOM_BYTES)
    assert (sys.getrefcount(value), sys.getrefcount(row)) == before
