"""Types of the compiled cron module; the rules and units stand in cron.pyx."""

from array import array
from typing import Final

ABI: Final[int]
TEXT_CHARS_MAX: Final[int]
CYCLE_S: Final[int]
FIRST_S: Final[int]
LAST_S: Final[int]
NEVER: Final[int]
GAP_MAX_S: Final[int]
PLAIN: Final[int]
MOVED: Final[int]
FIRST_PASS: Final[int]
SECOND_PASS: Final[int]

class ExpressionError(ValueError):
    field: str
    detail: str
    example: str
    def __init__(self, field: str, detail: str, example: str) -> None: ...

class Expression:
    interval: bool
    def parts(
        self,
    ) -> tuple[tuple[int, int, int, int], tuple[int, int, int, bool], tuple[int, int, list[int]], bool]: ...

class Zone:
    def __init__(self, starts: array[int], offsets: array[int], repeats: bool) -> None: ...
    def offset_at(self, at: int) -> int: ...
    def changes(self, after: int, until: int, count_max: int) -> list[tuple[int, int, int]]: ...

def compile_expression(text: str) -> Expression: ...
def next_times(crons: list[Expression], zones: list[Zone], after: array[int], out: array[int]) -> None: ...
def next_n(cron: Expression, zone: Zone, after: int, count: int) -> list[int]: ...
def last_n(cron: Expression, zone: Zone, after: int, until: int, count: int) -> list[int]: ...
def count_times(cron: Expression, zone: Zone, after: int, until: int) -> int: ...
def count_walls(cron: Expression, low: int, end: int) -> int: ...
def clock_change(cron: Expression, zone: Zone, at: int) -> int: ...
