"""The batch builder beside f-strings: rows of one planning statement as SQL text."""

from __future__ import annotations

import argparse

from bench.rounds import Progress, count, median_s
from engine._native import batch

HEAD = b"INSERT INTO runs VALUES "
ROWS_MAX = 2_000  # of one statement
BYTES_MAX = 64 << 20  # MySQL's default max_allowed_packet

Row = tuple[int, int, int, int, int, int, int, bytes]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=count, default=500_000, metavar="N", help="in a round (500,000)")
    parser.add_argument("--rounds", type=count, default=5, metavar="N", help="the median counts (5)")


def run(args: argparse.Namespace, progress: Progress) -> dict[str, float]:
    rows = planned_rows(args.rows)
    if b"".join(by_builder(rows)).lower() != b"".join(by_fstring(rows)).lower():  # hex digits in two spellings
        raise AssertionError("builder and f-strings disagree on the text")
    spent_s = median_s(args.rounds, progress, builder=lambda: by_builder(rows), fstring=lambda: by_fstring(rows))
    return {
        "rows_per_s": args.rows / spent_s["builder"],
        "fstring_rows_per_s": args.rows / spent_s["fstring"],
        "speedup": spent_s["fstring"] / spent_s["builder"],
    }


def planned_rows(count: int) -> list[Row]:
    """Seven ints as in a planned run (partition, time, job, tenant, version, state, worker) and eight bytes."""
    scheduled_at_ms, first_job_id = 1_800_000_000_000, 1 << 62
    return [
        (n % 64, scheduled_at_ms, first_job_id + n * 7919, n % 1000, 1, 2, 1 << 40, n.to_bytes(8)) for n in range(count)
    ]


def by_builder(rows: list[Row]) -> list[bytes]:
    return batch.build(HEAD, rows, b"", b"(", ROWS_MAX, BYTES_MAX)


def by_fstring(rows: list[Row]) -> list[bytes]:
    statements = []
    for start in range(0, len(rows), ROWS_MAX):
        values = [
            f"({partition},{at},{job},{tenant},{version},{state},{worker},X'{key.hex()}')"
            for partition, at, job, tenant, version, state, worker, key in rows[start : start + ROWS_MAX]
        ]
        statements.append(HEAD + ",".join(values).encode())
    return statements
