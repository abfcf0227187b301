"""Random cron expressions for property tests: mostly right, sometimes broken."""

from hypothesis import strategies as st

from tests.support.slow_cron import DAY, HOUR, MINUTE_FIELD, MONTH, SECOND, WEEKDAY, Field

ALPHABET = "0123456789*/,-#?LWlw@ \tJANSUNmon"


def numbers(field: Field) -> st.SearchStrategy[str]:
    top = field.high + (field is WEEKDAY)
    number = st.integers(field.low, top).flatmap(lambda n: st.sampled_from([str(n), f"{n:02}"]))
    names = [case(name) for name in field.names for case in (str.upper, str.lower, str.title)]
    return number | st.sampled_from(names) if names else number


def steps(field: Field) -> st.SearchStrategy[str]:
    return st.integers(1, field.high - field.low + 1).map(lambda step: f"/{step}")


def members(field: Field) -> st.SearchStrategy[str]:
    number = numbers(field)
    span = st.tuples(number, number).map("-".join)
    stepped = st.tuples(span | number, steps(field)).map("".join)
    return number | span | stepped | special_members(field)


def special_members(field: Field) -> st.SearchStrategy[str]:
    if field is DAY:
        before = st.integers(0, 30).map(lambda days: f"L-{days}")
        return st.sampled_from(["L", "l", "LW"]) | before | st.integers(1, 31).map(lambda day: f"{day}W")
    if field is WEEKDAY:
        number = numbers(field)
        return number.map(lambda day: f"{day}L") | st.tuples(number, st.integers(1, 5)).map(lambda p: f"{p[0]}#{p[1]}")
    return st.nothing()


def fields(field: Field) -> st.SearchStrategy[str]:
    star = st.just("*") | steps(field).map(lambda step: f"*{step}")
    listed = st.lists(members(field), min_size=1, max_size=4)
    starred = st.tuples(star, st.lists(members(field), max_size=2)).map(lambda p: ",".join([p[0], *p[1]]))
    question = st.just("?") if field in (DAY, WEEKDAY) else st.nothing()
    return star | starred | question | listed.map(",".join)


FIVE = st.tuples(*(fields(field) for field in (MINUTE_FIELD, HOUR, DAY, MONTH, WEEKDAY))).map(" ".join)
SIX = st.tuples(fields(SECOND), FIVE).map(" ".join)
MACROS = st.sampled_from(["@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually"])

EXPRESSIONS = FIVE | SIX | MACROS
"""What follows the grammar; ranges may still run backwards and dates may never be."""


@st.composite
def broken(draw: st.DrawFn) -> str:
    """An expression with one character put in, taken out or exchanged."""
    text = draw(EXPRESSIONS)
    at = draw(st.integers(0, len(text)))
    return text[:at] + draw(st.text(ALPHABET, max_size=2)) + text[at + draw(st.integers(0, 2)) :]


def daily(field: Field) -> st.SearchStrategy[str]:
    """Fields that leave enough times within a day or two to see something."""
    return st.lists(numbers(field), min_size=1, max_size=4).map(",".join) | fields(field)


BUSY_FIVE = st.tuples(
    daily(MINUTE_FIELD),
    daily(HOUR),
    st.sampled_from(["*", "?", "*/2", "1-31", "L", "LW"]),
    st.sampled_from(["*", "1-12"]),
    st.sampled_from(["*", "?", "*/2", "0-6", "MON-FRI", "5,6,7"]),
).map(" ".join)
BUSY_SIX = st.tuples(fields(SECOND), BUSY_FIVE).map(" ".join)
"""Expressions that fire on many days: for watching what a clock change does to them."""
