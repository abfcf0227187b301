"""Operators' brakes on a fleet at work: within 5 seconds nothing is called any more, and then it goes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.__main__ import main
from engine.local.mysqld import MysqlServer
from engine.model import Cron, Reason, RunState
from engine.rules.timestamps import format_time
from tests.support.fleet import Fleet, fleet_of, now_ms, sleep_until
from tests.support.wait import until

EFFECTIVE_MS = 5_000
# Jobs run each second; when nothing has arrived for so long, they are stopped.
QUIET_MS = 2_200


@pytest.fixture
def fleet(mysql_server: MysqlServer) -> Iterator[Fleet]:
    with fleet_of([mysql_server], "brakes") as fleet:
        yield fleet


def arrivals(fleet: Fleet, after_ms: int) -> list[int]:
    return [call.arrival_ms for call in fleet.receiver.calls() if call.arrival_ms > after_ms]


def test_each_brake_stops_and_lets_go_within_5_seconds_with_who(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = fleet.engine()
    shards = [word for dsn in fleet.dsns for word in ("--shard", dsn.text())]
    began_ms = now_ms()
    fleet.create_unwatched({f"each-second-{number}": Cron("* * * * * *") for number in range(5)})
    until(lambda: arrivals(fleet, began_ms))
    origin = fleet.receiver.url

    for stop, go in (
        (("pause", "--all", "--note", "drill"), ("resume", "--all")),
        (("pause", "--tenant", "broken"), ("resume", "--tenant", "broken")),
        (("block", origin), ("unblock", origin)),
    ):
        stopped_ms = now_ms()
        assert main([*stop, "--who", "ada@ops", *shards]) == 0
        until(lambda stopped_ms=stopped_ms: now_ms() - max([*arrivals(fleet, stopped_ms), stopped_ms]) > QUIET_MS)
        assert max([*arrivals(fleet, stopped_ms), stopped_ms]) - stopped_ms < EFFECTIVE_MS
        resumed_ms = now_ms()
        assert main([*go, "--who", "bob@ops", *shards]) == 0
        until(lambda resumed_ms=resumed_ms: arrivals(fleet, resumed_ms))
        assert min(arrivals(fleet, resumed_ms)) - resumed_ms < EFFECTIVE_MS + 1_000

    until(lambda: len(engine.told("brake.released")) == 3)
    for name, who in (("brake.pulled", "ada@ops"), ("brake.released", "bob@ops")):
        told = [(event["kind"], event["who"]) for event in engine.told(name)]
        assert told == [("all", who), ("tenant", who), ("origin", who)]
    blocked = f"SELECT COUNT(*) FROM runs WHERE state = {RunState.SKIPPED:d} AND reason = {Reason.BLOCKED:d}"
    assert fleet.rows(blocked)[0][0] >= 5

    ended_ms = now_ms() // 1_000 * 1_000
    sleep_until(ended_ms + 2_000)
    capsys.readouterr()
    span = ("--from", format_time(began_ms), "--to", format_time(ended_ms - 2_000))
    assert main(["audit", *span, *shards]) == 0, capsys.readouterr().out
