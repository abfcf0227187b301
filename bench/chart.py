"""A chart of one peak as SVG: how many calls arrived in each moment after their second, and the share that had."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import accumulate
from pathlib import Path

from engine.rules.lag import percentile

WIDTH, HEIGHT = 900, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 60, 50, 60
BARS = 80
GRID_LINES = 4
# Steps of the axis, milliseconds: the first that gives no more than ten of them.
STEPS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 60_000)


def write_chart(file: Path, title: str, lags: Mapping[int, int]) -> None:
    """``lags``: runs by milliseconds from their second to the receiver."""
    file.write_text("\n".join(["<?xml version='1.0' encoding='UTF-8'?>", *_chart(title, lags)]) + "\n")


def _chart(title: str, lags: Mapping[int, int]) -> Iterator[str]:
    last_ms = max(1, max(lags, default=0))
    yield f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' font-family='sans-serif'>"
    yield "<g font-size='12'>"
    yield f"<rect width='{WIDTH}' height='{HEIGHT}' fill='white'/>"
    yield f"<text x='{LEFT}' y='24' font-size='16'>{title}</text>"
    width_ms = last_ms / BARS
    bars = Counter[int]()
    for lag_ms, runs in lags.items():
        bars[min(BARS - 1, max(0, int(lag_ms / width_ms)))] += runs
    yield from _bars(bars)
    yield from _curve(bars)
    yield from _axes(last_ms, width_ms, max(bars.values(), default=0))
    yield from _marks(lags, last_ms)
    yield "</g></svg>"


def _bars(bars: Mapping[int, int]) -> Iterator[str]:
    most = max(bars.values(), default=1)
    for number, runs in sorted(bars.items()):
        top = _y(runs / most)
        yield (
            f"<rect x='{_x(number / BARS):.1f}' y='{top:.1f}' width='{(WIDTH - LEFT - RIGHT) / BARS - 1:.1f}'"
            f" height='{HEIGHT - BOTTOM - top:.1f}' fill='#9ecae1'/>"
        )


def _curve(bars: Mapping[int, int]) -> Iterator[str]:
    """The share of runs that had arrived by the end of each bar."""
    total = max(1, sum(bars.values()))
    shares = accumulate(bars.get(number, 0) / total for number in range(BARS))
    points = " ".join(f"{_x((number + 1) / BARS):.1f},{_y(share):.1f}" for number, share in enumerate(shares))
    yield f"<polyline points='{_x(0):.1f},{_y(0):.1f} {points}' fill='none' stroke='#08519c' stroke-width='2'/>"


def _axes(last_ms: int, width_ms: float, most: int) -> Iterator[str]:
    step_ms = next((step for step in STEPS_MS if last_ms / step <= 10), STEPS_MS[-1])
    for at_ms in range(0, last_ms + 1, step_ms):
        x = _x(at_ms / last_ms)
        yield f"<line x1='{x:.1f}' y1='{HEIGHT - BOTTOM}' x2='{x:.1f}' y2='{HEIGHT - BOTTOM + 5}' stroke='black'/>"
        yield f"<text x='{x:.1f}' y='{HEIGHT - BOTTOM + 20}' text-anchor='middle'>{at_ms:,}</text>"
    for part in range(GRID_LINES + 1):
        y = _y(part / GRID_LINES)
        yield f"<line x1='{LEFT}' y1='{y:.1f}' x2='{WIDTH - RIGHT}' y2='{y:.1f}' stroke='#dddddd'/>"
        runs = round(most * part / GRID_LINES)
        yield f"<text x='{LEFT - 8}' y='{y + 4:.1f}' text-anchor='end'>{runs:,}</text>"
        yield f"<text x='{WIDTH - RIGHT + 8}' y='{y + 4:.1f}' fill='#08519c'>{100 * part // GRID_LINES} %</text>"
    yield _text(LEFT, 44, "start", f"bars: calls that arrived in {width_ms:,.1f} ms · line: share of all that had")
    yield _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, "middle", "milliseconds after the second, at the receiver")


def _marks(lags: Mapping[int, int], last_ms: int) -> Iterator[str]:
    for percent, colour in ((50, "#31a354"), (99, "#de2d26")):
        lag_ms = percentile(lags, percent)
        x = _x(max(0, lag_ms) / last_ms)
        yield f"<line x1='{x:.1f}' y1='{TOP}' x2='{x:.1f}' y2='{HEIGHT - BOTTOM}' stroke='{colour}'/>"
        yield _text(x - 4, TOP + 12, "end", f"p{percent} {lag_ms:,} ms", colour)


def _text(x: float, y: float, anchor: str, text: str, colour: str = "black") -> str:
    return f"<text x='{x:.1f}' y='{y}' text-anchor='{anchor}' fill='{colour}'>{text}</text>"


def _x(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _y(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)
