"""`secondzero status`: what people and programs read."""

from collections import Counter

from engine.commands.status import document, lines
from engine.model import Priority
from engine.rules.brakes import BrakeKind
from engine.store.brakes import Brake
from engine.store.status import Status, WorkerStatus

NOON_MS = 1_899_979_200_000  # 2030-03-17T12:00:00Z
WORKER = WorkerStatus("box/boot/1", 4711, NOON_MS - 60_000, 400, True, False, 64)


def status(**changed: object) -> Status:
    found = Status(at_ms=NOON_MS + 30_500, partitions=64, workers={("box", 4711, True): WORKER})
    for name, value in changed.items():
        setattr(found, name, value)
    return found


def test_every_second_of_the_next_minutes_has_its_sign():
    coming = Counter({NOON_MS + 31_000: 800, NOON_MS + 32_000: 1, NOON_MS + 60_000: 400})
    text = list(lines(status(coming=coming)))
    minutes = [line for line in text if line.endswith("|")]
    assert minutes[0] == "12:00 |" + " " * 31 + "█▁" + " " * 27 + "|"
    assert minutes[1] == "12:01 |▄" + " " * 59 + "|"
    assert len(minutes) == 6
    assert "1,201 runs, at most 800 at 12:00:31" in "\n".join(text)


def test_an_idle_fleet_is_told_without_figures_that_nobody_measured():
    text = "\n".join(lines(status(workers={})))
    assert "partitions  0 of 64 owned" in text
    assert "normal" in text
    assert "none planned" in text
    assert document(status())["next"] == []


def test_what_operators_have_stopped_comes_first():
    brake = Brake(1, BrakeKind.ORIGIN, "https://example.com:443", None, "abuse", NOON_MS, "ada@ops", None, None)
    shown = status(brakes=[brake])
    said = "stopped     origin https://example.com:443, since 2030-03-17T12:00:00Z by ada@ops: abuse"
    assert next(iter(lines(shown))) == said
    assert document(shown)["brakes"][0]["pulled_by"] == "ada@ops"


def test_a_silent_worker_is_shown_last_and_owns_nothing():
    silent = WorkerStatus("box/boot/1", 4710, NOON_MS - 90_000, 20_000, False, True, 32)
    shown = status(workers={1: silent, 2: WORKER})
    assert [worker["state"] for worker in document(shown)["workers"]] == ["live", "silent"]
    assert document(shown)["partitions"] == {"total": 64, "owned": 64}


def test_json_has_lag_by_priority_and_the_backlog():
    lags = {Priority.NORMAL: Counter({1: 98, 900: 2}), Priority.CRITICAL: Counter({0: 1})}
    shown = document(status(lags=lags, unplanned=1, waiting=2, in_flight=3, held=4, oldest_at_ms=NOON_MS + 30_000))
    assert shown["at"] == "2030-03-17T12:00:30Z"
    assert list(shown["lag"]) == ["critical", "normal"]
    assert shown["lag"]["normal"] == {"runs": 100, "p50_ms": 1, "p99_ms": 900, "max_ms": 900}
    assert shown["backlog"] == {"unplanned": 1, "waiting": 2, "in_flight": 3, "held": 4, "oldest_s": 0.5}
