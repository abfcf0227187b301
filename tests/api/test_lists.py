"""Lists: every entry once, in order, whatever changes meanwhile; narrowed by filters; tokens that cannot be forged."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from api import runs
from engine.clock import wall_ms
from engine.model import Reason, RunState
from engine.rules.timestamps import format_time, parse_time
from engine.store import lists
from engine.store.lists import runs_of_job
from tests.support.api import CRON_JOB, RunTable, Tenant

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def pages(tenant: Tenant, path: str, key: str) -> list[list[Any]]:
    """Every page of a list."""
    found, token = [], None
    while True:
        joint = "&" if "?" in path else "?"
        reply = tenant.get(path + (f"{joint}page_token={token}" if token else ""))
        assert reply.status == 200, reply
        found.append(reply.json[key])
        token = reply.json["next_page_token"]
        if token is None:
            return found


def names(tenant: Tenant, query: str) -> list[str]:
    return [job["name"] for page in pages(tenant, f"/v1/jobs?{query}", "jobs") for job in page]


def put_all(tenant: Tenant, *wanted: str, **fields: Any) -> None:
    items = [{"name": name, "job": CRON_JOB | fields} for name in wanted]
    assert tenant.call("POST", "/v1/jobs:batch", {"puts": items}).status == 200


@pytest.mark.parametrize("size", [1, 2, 7, 30, 31])
def test_pages_over_all_shards_are_in_name_order_without_gaps(tenant: Tenant, size: int) -> None:
    wanted = [f"n{n:03}" for n in range(30)] + ["A", "Z", "a.b", "a-b", "a_b"]
    put_all(tenant, *wanted)
    found = pages(tenant, f"/v1/jobs?page_size={size}", "jobs")
    assert [job["name"] for page in found for job in page] == sorted(wanted)
    assert all(len(page) == size for page in found[:-1])


def test_a_list_stays_whole_while_jobs_come_and_go(tenant: Tenant) -> None:
    put_all(tenant, *(f"n{n:02}" for n in range(20)))
    first = tenant.get("/v1/jobs?page_size=10").json
    tenant.call("DELETE", "/v1/jobs/n05")
    tenant.call("DELETE", "/v1/jobs/n15")
    put_all(tenant, "n00a", "n15a")
    second = tenant.get(f"/v1/jobs?page_size=50&page_token={first['next_page_token']}").json
    wanted = [f"n{n:02}" for n in range(10, 20) if n != 15]
    assert [job["name"] for job in second["jobs"]] == sorted([*wanted, "n15a"])


def test_filters_narrow_and_combine(tenant: Tenant) -> None:
    put_all(tenant, "a-1", "a-2", labels={"team": "x", "env": "prod"})
    put_all(tenant, "a-3", "b-1", labels={"team": "x"})
    put_all(tenant, "b-2", labels={"team": "y", "env": "a:b"}, paused=True)
    assert names(tenant, "name_prefix=a-") == ["a-1", "a-2", "a-3"]
    assert names(tenant, "label=team:x") == ["a-1", "a-2", "a-3", "b-1"]
    assert names(tenant, "label=team:x&label=env:prod") == ["a-1", "a-2"]
    assert names(tenant, "label=team:x&label=env:prod&name_prefix=a-2&page_size=1") == ["a-2"]
    assert names(tenant, "label=env:a:b") == ["b-2"]
    assert names(tenant, "state=paused") == ["b-2"]
    assert names(tenant, "state=active&label=team:y") == []
    assert names(tenant, "state=active&page_size=2") == ["a-1", "a-2", "a-3", "b-1"]
    tenant.put("a-1", CRON_JOB | {"labels": {"team": "y"}})
    assert names(tenant, "label=team:y") == ["a-1", "b-2"]
    tenant.call("DELETE", "/v1/jobs/a-1")
    assert names(tenant, "label=team:y") == ["b-2"]


@pytest.mark.parametrize("query", ["state=paused", "state=paused&label=team:x", "next_run_before=2026-01-01T00:00:00Z"])
def test_a_page_that_has_read_enough_answers_short_with_a_token(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    monkeypatch.setattr(lists, "ROWS_READ_MAX", 10)
    put_all(tenant, *(f"n{n:02}" for n in range(60)), labels={"team": "x"})
    put_all(tenant, "n59", labels={"team": "x"}, paused=True)
    found = pages(tenant, f"/v1/jobs?{query}&page_size=5", "jobs")
    assert len(found) >= 3, "each shard reads ten rows for a page"
    assert [job["name"] for page in found for job in page] == (["n59"] if "paused" in query else [])


def test_a_list_is_whole_while_many_come_and_go_between_all_pages(tenant: Tenant) -> None:
    """What is there from the first page to the last stands in the list exactly once, wherever others appear."""
    stays = [f"s{n:03}" for n in range(100)]
    put_all(tenant, *stays, *(f"s{n:03}-old" for n in range(100)))
    found, token = [], None
    for round_number in range(100):
        reply = tenant.get("/v1/jobs?page_size=7" + (f"&page_token={token}" if token else ""))
        found += [job["name"] for job in reply.json["jobs"]]
        token = reply.json["next_page_token"]
        if token is None:
            break
        gone, come = f"s{(round_number * 37) % 100:03}-old", f"s{(round_number * 53) % 100:03}-new"
        tenant.call("POST", "/v1/jobs:batch", {"deletes": [gone], "puts": [{"name": come, "job": CRON_JOB}]})
    assert token is None
    assert len(found) == len(set(found))
    assert [name for name in found if len(name) == 4] == stays
    assert found == sorted(found)


def test_what_no_name_or_label_can_be_finds_nothing_or_is_refused(tenant: Tenant) -> None:
    put_all(tenant, "a", labels={"t": "x"})
    assert tenant.get("/v1/jobs?name_prefix=%C3%BC").status == 422
    assert tenant.get("/v1/jobs?name_prefix=a%27").status == 422
    assert names(tenant, "label=t:%F0%9F%8E%89") == []
    for label in ("t:%00", "t%27:x", "%C3%BC:x", "t:" + "x" * 500, "t:x%20", "t", ":x"):
        assert tenant.get(f"/v1/jobs?label={label}").status == 422, label
    assert names(tenant, "name_prefix=&label=t:x") == ["a"]


def test_finished_jobs_are_told_from_active_ones(tenant: Tenant) -> None:
    put_all(tenant, "active")
    put_all(tenant, "done", "planned", schedule={"run_at": format_time(wall_ms() // 1000 * 1000 + HOUR_MS)})
    past_ms, soon_ms = wall_ms() - 60_000, wall_ms() + 60_000
    for name, last_ms in (("done", past_ms), ("planned", soon_ms)):
        table = RunTable(tenant, name)
        table.query(f"UPDATE jobs SET next_run_at = NULL, last_run_at = {last_ms} WHERE job_id = {table.job_id}")
    assert names(tenant, "state=finished") == ["done"]
    assert names(tenant, "state=active") == ["active", "planned"]


def test_next_run_before_is_judged_by_the_times_that_are_shown(tenant: Tenant) -> None:
    put_all(tenant, "minutely", schedule={"cron": "* * * * *"})
    put_all(tenant, "yearly", schedule={"cron": "@yearly"})
    put_all(tenant, "paused", schedule={"cron": "* * * * *"}, paused=True)
    table = RunTable(tenant, "minutely")
    planned_ms = wall_ms() + 120_000
    table.query(f"UPDATE jobs SET next_run_at = {planned_ms}, last_run_at = {planned_ms} WHERE job_id = {table.job_id}")
    assert names(tenant, f"next_run_before={format_time(wall_ms() + 61_000)}") == ["minutely"]
    assert names(tenant, f"next_run_before={format_time(wall_ms() - 1_000)}") == []
    assert names(tenant, "next_run_before=9999-12-31T23:59:59Z") == ["minutely", "yearly"]


def test_a_token_is_bound_to_its_tenant_list_and_filter(tenant: Tenant) -> None:
    put_all(tenant, "a", "b", "c", labels={"t": "x"})
    token = tenant.get("/v1/jobs?page_size=1&state=active").json["next_page_token"]
    assert tenant.get(f"/v1/jobs?page_size=2&state=active&page_token={token}").status == 200
    other = tenant.server.tenant()
    for asked, path in [
        (tenant, f"/v1/jobs?page_token={token}"),
        (tenant, f"/v1/jobs?state=paused&page_token={token}"),
        (tenant, f"/v1/jobs?state=active&label=t:x&page_token={token}"),
        (tenant, f"/v1/jobs/a/runs?page_token={token}"),
        (tenant, f"/v1/jobs?state=active&page_token={token[:-1]}"),
        (tenant, f"/v1/jobs?state=active&page_token={'A' + token[1:]}"),
        (tenant, f"/v1/jobs?state=active&page_token={token}AAAA"),
        (other, f"/v1/jobs?state=active&page_token={token}"),
    ]:
        assert asked.get(path).status == 400, path


def test_runs_are_listed_newest_first_over_days_and_narrowed(tenant: Tenant) -> None:
    tenant.put("j")
    table = RunTable(tenant, "j")
    now_ms = wall_ms() // 1000 * 1000
    times = [now_ms + n * 7_000 for n in range(-40, 3)]
    table.query(f"UPDATE jobs SET created_at = {now_ms - 3 * DAY_MS} WHERE job_id = {table.job_id}")
    for n, at_ms in enumerate(times):
        state = RunState.RUNNING if at_ms > now_ms else (RunState.SUCCEEDED, RunState.SKIPPED)[n % 2]
        reason = Reason.OVERLAP if state == RunState.SKIPPED else None
        table.add(at_ms, state, **({"reason": int(reason)} if reason else {}))
    table.add(now_ms - 3_000, RunState.WITHDRAWN)
    shown = [run for page in pages(tenant, "/v1/jobs/j/runs?page_size=9", "runs") for run in page]
    assert [parse_time(run["scheduled_at"]) for run in shown] == times[::-1]
    assert {run["state"] for run in shown} == {"succeeded", "skipped", "pending"}
    assert {run["reason"] for run in shown if run["state"] == "skipped"} == {"overlap"}
    skipped = [run for page in pages(tenant, "/v1/jobs/j/runs?state=skipped&page_size=3", "runs") for run in page]
    assert skipped == [run for run in shown if run["state"] == "skipped"]
    window = f"scheduled_from={format_time(times[3])}&scheduled_to={format_time(times[5])}"
    inside = tenant.get(f"/v1/jobs/j/runs?{window}").json["runs"]
    assert [parse_time(run["scheduled_at"]) for run in inside] == times[3:6][::-1]


def test_a_job_that_ran_once_a_day_is_listed_in_a_few_questions(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant.put("j")
    table = RunTable(tenant, "j")
    table.query(f"UPDATE jobs SET created_at = created_at - {60 * DAY_MS} WHERE job_id = {table.job_id}")
    times = [wall_ms() // 1000 * 1000 - n * DAY_MS for n in range(31)]
    for at_ms in times:
        table.add(at_ms, RunState.SUCCEEDED)
    asked: list[tuple[int, int]] = []

    async def noted(shard: Any, job: Any, states: Any, from_ms: int, to_ms: int, rows_max: int) -> list[Any]:
        asked.append((from_ms, to_ms))
        return await runs_of_job(shard, job, states, from_ms, to_ms, rows_max)

    monkeypatch.setattr(runs, "runs_of_job", noted)
    answer = tenant.get("/v1/jobs/j/runs").json
    assert [parse_time(run["scheduled_at"]) for run in answer["runs"]] == times
    assert answer["next_page_token"] is None
    assert len(asked) <= 7
    assert all(newer[0] == older[1] + 1 for newer, older in itertools.pairwise(asked))
    shown = [run for page in pages(tenant, "/v1/jobs/j/runs?page_size=4", "runs") for run in page]
    assert [parse_time(run["scheduled_at"]) for run in shown] == times


def test_runs_of_a_deleted_name_are_still_answered_and_those_of_its_next_job_come_first(tenant: Tenant) -> None:
    at_ms = wall_ms() // 1000 * 1000 - 5_000
    ids = []
    for n in range(2):
        tenant.put("j")
        table = RunTable(tenant, "j")
        table.add(at_ms, RunState.SUCCEEDED)
        table.add(at_ms - 1_000 - n * 1_000, RunState.SUCCEEDED)
        ids.append(tenant.job("j")["job_id"])
        tenant.call("DELETE", "/v1/jobs/j")
    shown = [run for page in pages(tenant, "/v1/jobs/j/runs?page_size=1", "runs") for run in page]
    order = [(parse_time(run["scheduled_at"]) - at_ms, run["job_id"]) for run in shown]
    assert order == [(0, ids[1]), (0, ids[0]), (-1_000, ids[0]), (-2_000, ids[1])]
    newest = tenant.get(f"/v1/jobs/j/runs/{format_time(at_ms)}").json
    assert newest["job_id"] == ids[1]


def test_pending_and_running_are_told_apart_by_their_second_over_pages(tenant: Tenant) -> None:
    tenant.put("j")
    table = RunTable(tenant, "j")
    now_ms = wall_ms() // 1000 * 1000
    for n in range(-4, 5):
        table.add(now_ms + n * 60_000 - 500, RunState.RUNNING if n % 2 else RunState.WAITING)
    for state, count in (("pending", 7), ("running", 2)):
        path = f"/v1/jobs/j/runs?state={state}&page_size=1"
        shown = [run["state"] for page in pages(tenant, path, "runs") for run in page]
        assert shown == [state] * count


def test_skipped_ranges_stand_in_the_history_at_their_last_time(tenant: Tenant) -> None:
    tenant.put("j", CRON_JOB | {"schedule": {"cron": "*/10 * * * * *"}, "paused": True, "missed_runs": "skip"})
    table = RunTable(tenant, "j")
    since_ms = wall_ms() // 10_000 * 10_000 - 60_000
    table.query(f"UPDATE jobs SET resume_at = {since_ms}, created_at = {since_ms} WHERE job_id = {table.job_id}")
    tenant.call("POST", "/v1/jobs/j:resume")
    (skipped,) = tenant.get("/v1/jobs/j/runs?state=skipped").json["runs"]
    assert (skipped["state"], skipped["reason"], skipped["skipped_from"]) == (
        "skipped",
        "missed",
        format_time(since_ms),
    )
    assert skipped["skipped"] in (7, 8)
    inside = tenant.get(f"/v1/jobs/j/runs/{format_time(since_ms + 20_000)}").json
    assert (inside["state"], inside["scheduled_at"]) == ("skipped", format_time(since_ms + 20_000))
    assert tenant.get(f"/v1/jobs/j/runs/{format_time(since_ms + 21_000)}").status == 404


def test_a_run_that_a_clock_change_moved_says_so(tenant: Tenant) -> None:
    tenant.put("j", CRON_JOB | {"schedule": {"cron": "30 2 * * *", "time_zone": "America/New_York"}})
    table = RunTable(tenant, "j")
    moved_ms = parse_time("2026-03-08T07:00:00Z")
    table.query(f"UPDATE jobs SET created_at = {moved_ms - DAY_MS} WHERE job_id = {table.job_id}")
    table.add(moved_ms, RunState.SUCCEEDED)
    run = tenant.get("/v1/jobs/j/runs/2026-03-08T07:00:00Z").json
    assert run["clock_change"] == "moved"


def test_a_run_shows_its_failed_attempts_and_the_one_that_succeeded(tenant: Tenant) -> None:
    tenant.put("j")
    table = RunTable(tenant, "j")
    at_ms = wall_ms() // 1000 * 1000 - 60_000
    table.add(at_ms, RunState.SUCCEEDED, attempt=3, tries=2, outcome=1, status_code=204, started_at=at_ms + 9_000,
              finished_at=at_ms + 9_050)  # fmt: skip
    table.query(
        "INSERT INTO attempts (partition_id, scheduled_at, job_id, attempt, outcome, status_code, started_at,"
        f" finished_at, detail, answer) VALUES ({table.partition_id}, {at_ms}, {table.job_id}, 2, 1, 503, {at_ms + 7},"
        f" {at_ms + 40}, 'answered 503', X'6f6f7073ff')"
    )
    run = tenant.get(f"/v1/jobs/j/runs/{format_time(at_ms)}").json
    assert (run["state"], run["attempts"], run["status_code"], run["outcome"]) == ("succeeded", 2, 204, "answered")
    first, last = run["attempt_list"]
    assert (first["attempt"], first["status_code"], first["answer"]) == (2, 503, "oops\ufffd")
    assert (last["attempt"], last["status_code"]) == (3, 204)
