"""`secondzero cron`, as it is typed and as programs talk to it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from engine.__main__ import main

AFTER = "2026-03-27T12:00:00Z"


def cron(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        status = main(["cron", *arguments])
    except SystemExit as exit_:
        status = exit_.code
    told = capsys.readouterr()
    return status, told.out, told.err


def test_times_are_told_in_both_clocks_with_the_clock_change(capsys: pytest.CaptureFixture[str]) -> None:
    answer = cron(capsys, "30 2 * * *", "--tz", "Europe/Paris", "--after", AFTER, "-n", "3")
    assert answer == (
        0,
        "At 02:30. (Europe/Paris)\n"
        "2026-03-28T01:30:00Z  2026-03-28T02:30:00+01:00\n"
        "2026-03-29T01:00:00Z  2026-03-29T03:00:00+02:00  moved here: its own time does not exist on this day\n"
        "2026-03-30T00:30:00Z  2026-03-30T02:30:00+02:00\n",
        "",
    )


def test_what_a_gap_leaves_out_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = cron(capsys, "*/30 2 * * *", "--tz", "Europe/Paris", "--after", AFTER, "-n", "4")
    assert out.splitlines()[3] == "2026-03-29T01:00:00Z  clocks go forward by 60 minutes: 2 left out"


def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = cron(capsys, "30 2 * * *", "--tz", "Europe/Paris", "--after", AFTER, "-n", "2", "--json")
    assert (status, err) == (0, "")
    assert json.loads(out) == {
        "cron": "30 2 * * *",
        "time_zone": "Europe/Paris",
        "description": "At 02:30.",
        "times": [
            {"time": "2026-03-28T01:30:00Z", "local": "2026-03-28T02:30:00+01:00", "clock_change": None},
            {"time": "2026-03-29T01:00:00Z", "local": "2026-03-29T03:00:00+02:00", "clock_change": "moved"},
        ],
        "clock_changes": [{"time": "2026-03-29T01:00:00Z", "effect": "moved", "wall_times": 1}],
    }


def test_the_calendar_s_end_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = cron(capsys, "@daily", "--after", "9999-12-31T00:00:00Z")
    assert (status, out.splitlines()[1]) == (0, "no time up to year 9999")


def test_without_an_instant_the_times_begin_now(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = cron(capsys, "@yearly", "-n", "1")
    assert (status, len(out.splitlines())) == (0, 2)


def test_each_fault_is_one_line_and_the_exit_status_is_1(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = cron(capsys, "99 * * * *", "--tz", "Europe/Pari")
    assert (status, out) == (1, "")
    assert err.splitlines() == [
        "secondzero: EXPR: minute: 99 is above 59; for example */15 * * * *",
        "secondzero: --tz: is not the name of a tzdata time zone; the nearest is Europe/Paris; "
        "for example Europe/Paris",
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("@daily", "--stdin"),
        ("@daily", "--after", "yesterday"),
        ("@daily", "-n", "0"),
        ("@daily", "-n", "10001"),
        ("@daily", "-n", "٥"),
        ("@daily", "--colour"),
    ],
)
def test_wrong_usage_is_one_line_and_the_exit_status_is_2(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    status, out, err = cron(capsys, *arguments)
    assert (status, out, len(err.splitlines())) == (2, "", 1)


@pytest.fixture(name="talk")
def fixture_talk() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-m", "engine", "cron", "--stdin"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        yield process
        process.stdin.close()
        assert process.wait(timeout=20) == 0


def ask(process: subprocess.Popen[bytes], line: bytes) -> dict[str, object]:
    """One line there and one line back, while the pipe stays open."""
    process.stdin.write(line + b"\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def question(**fields: object) -> bytes:
    return json.dumps({"expr": "0 9 * * *", "after": AFTER} | fields).encode()


def test_a_line_is_answered_before_the_next_one_comes(talk: subprocess.Popen[bytes]) -> None:
    assert ask(talk, question()) == {"times": ["2026-03-28T09:00:00Z"]}
    assert ask(talk, question(tz="Asia/Tokyo", n=2)) == {"times": ["2026-03-28T00:00:00Z", "2026-03-29T00:00:00Z"]}
    assert ask(talk, question(after="2026-03-28T10:00:00+01:00")) == {"times": ["2026-03-29T09:00:00Z"]}
    assert ask(talk, question(why="more than is asked")) == {"times": ["2026-03-28T09:00:00Z"]}
    assert ask(talk, question(after="9999-12-31T12:00:00Z")) == {"times": []}


@pytest.mark.parametrize(
    ("line", "names"),
    [
        (b"", ["line"]),
        (b"\xff\xfe", ["line"]),
        (b"[" * 100_000, ["line"]),
        (b"5", ["line"]),
        (b'{"expr": "0 9 * * *"', ["line"]),
        (b"{}", ["expr", "after"]),
        (question(expr=None), ["expr"]),
        (question(expr="61 * * * *"), ["expr: minute"]),
        (question(expr="\ud800"), ["line"]),
        (question(tz="Mars/Olympus", n=0), ["tz", "n"]),
        (question(tz=None), ["tz"]),
        (question(n=True), ["n"]),
        (question(n=10_001), ["n"]),
        (question(n=1.0), ["n"]),
        (question(after=0), ["after"]),
        (question(after="2026-02-30T00:00:00Z"), ["after"]),
        (b'{"expr": "' + b"x" * (1 << 20) + b'"}', ["a line has at most"]),
        (b'{"expr": "' + b"x" * (3 << 20) + b'"}', ["a line has at most"]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_line_is_told_and_the_next_one_answered(
    talk: subprocess.Popen[bytes], line: bytes, names: list[str]
) -> None:
    answer = ask(talk, line)
    assert list(answer) == ["error"]
    places = [str(answer["error"]).find(name) for name in names]
    assert places == sorted(places)
    assert places[0] == 0
    assert ask(talk, question()) == {"times": ["2026-03-28T09:00:00Z"]}


def test_a_last_line_without_an_end_is_answered() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "engine", "cron", "--stdin"],
        input=question(),
        capture_output=True,
        timeout=20,
        check=True,
    )
    assert json.loads(told.stdout) == {"times": ["2026-03-28T09:00:00Z"]}


def test_a_reader_that_leaves_early_ends_it_quietly() -> None:
    many = (question() + b"\n") * 100_000
    with subprocess.Popen(
        [sys.executable, "-m", "engine", "cron", "--stdin"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(many)
        process.stdin = None
        assert process.stderr.read() == b""
        assert process.wait(timeout=20) == 1
