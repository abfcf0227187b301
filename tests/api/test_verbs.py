"""Pause, resume and run; cancel and retry; dead letters; and each of them sent twice."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine.clock import wall_ms
from engine.model import OutcomeKind, Reason, RunState
from engine.rules.timestamps import format_time
from tests.support.api import CRON_JOB, RunTable, Tenant

A_MINUTE_AGO_MS = wall_ms() // 60_000 * 60_000 - 60_000


def post(tenant: Tenant, path: str, body: object = None, key: str | None = None):  # type: ignore[no-untyped-def]
    return tenant.call("POST", path, body, {} if key is None else {"Idempotency-Key": key})


def failed_runs(tenant: Tenant, name: str, count: int) -> RunTable:
    tenant.put(name)
    table = RunTable(tenant, name)
    for n in range(count):
        table.add(
            A_MINUTE_AGO_MS - n * 1000, RunState.FAILED, outcome=int(OutcomeKind.ANSWERED), status_code=500,
            started_at=A_MINUTE_AGO_MS - n * 1000 + 7, finished_at=A_MINUTE_AGO_MS - n * 1000 + 9,
        )  # fmt: skip
    return table


def test_pause_shows_its_note_and_resume_forgets_it(tenant: Tenant) -> None:
    tenant.put("j")
    paused = post(tenant, "/v1/jobs/j:pause", {"note": "migration"})
    assert paused.status == 200
    assert (paused.json["state"], paused.json["paused"], paused.json["note"]) == ("paused", True, "migration")
    assert paused.json["next_run_at"] is None
    again = post(tenant, "/v1/jobs/j%3Apause")
    assert again.json == paused.json
    assert again.headers["ETag"] == paused.headers["ETag"]
    resumed = post(tenant, "/v1/jobs/j:resume", {"missed_runs": "skip"})
    assert (resumed.json["state"], resumed.json["version"]) == ("active", 3)
    assert "note" not in resumed.json
    assert post(tenant, "/v1/jobs/j:resume").json["version"] == 3


@pytest.mark.parametrize("verb", ["pause", "resume", "run"])
def test_a_verb_on_a_job_that_is_not_there_answers_404(tenant: Tenant, verb: str) -> None:
    assert post(tenant, f"/v1/jobs/none:{verb}").status == 404
    assert post(tenant, f"/v1/jobs/none:{verb}x").status == 404
    assert tenant.get(f"/v1/jobs/none:{verb}").status == 405


def test_a_verbs_body_is_checked_like_any_other(tenant: Tenant) -> None:
    tenant.put("j")
    assert post(tenant, "/v1/jobs/j:pause", {"not": "x"}).status == 422
    assert post(tenant, "/v1/jobs/j:resume", {"missed_runs": "never"}).status == 422
    assert post(tenant, "/v1/jobs/j:run", b"[").status == 400
    assert post(tenant, "/v1/jobs/j:run", []).status == 422
    assert tenant.job("j")["version"] == 1


def test_run_starts_one_by_hand_also_while_paused(tenant: Tenant) -> None:
    tenant.put("j", CRON_JOB | {"paused": True})
    run = post(tenant, "/v1/jobs/j:run")
    assert run.status == 200
    assert (run.json["state"], run.json["trigger"], run.json["job"]) == ("pending", "manual", "j")
    assert run.json["scheduled_at"].count(".") == 1
    read = tenant.get(f"/v1/jobs/j/runs/{run.json['scheduled_at']}")
    assert read.status == 200
    assert read.json == run.json | {"attempt_list": []}
    assert tenant.get("/v1/jobs/j/runs").json["runs"] == [run.json]


def test_a_call_sent_twice_with_one_key_has_one_effect_and_one_answer(tenant: Tenant) -> None:
    tenant.put("j")
    first = post(tenant, "/v1/jobs/j:run", {}, key="k1")
    second = post(tenant, "/v1/jobs/j:run", {}, key="k1")
    assert second.json == first.json
    assert len(tenant.get("/v1/jobs/j/runs").json["runs"]) == 1
    assert post(tenant, "/v1/jobs/j:run", {}, key="k2").json != first.json
    other = post(tenant, "/v1/jobs/j:run", None, key="k1")
    assert other.status == 422, "another body under the same key"
    assert post(tenant, "/v1/jobs/j:run", {}, key="x" * 256).status == 400


def test_of_many_calls_at_once_with_one_key_one_has_its_effect(tenant: Tenant) -> None:
    tenant.put("j")
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda _: post(tenant, "/v1/jobs/j:run", {}, key="k"), range(16)))
    told = [reply for reply in replies if reply.status == 200]
    refused = [reply for reply in replies if reply.status != 200]
    assert {reply.status for reply in refused} <= {409}, "those that came while it was under way"
    assert {reply.json["type"].rpartition(":")[2] for reply in refused} <= {"in-progress"}
    assert len({reply.json["scheduled_at"] for reply in told}) == 1
    assert len(tenant.get("/v1/jobs/j/runs").json["runs"]) == 1


def test_the_same_call_is_refused_while_it_is_being_carried_out(tenant: Tenant) -> None:
    tenant.put("j")
    tenant.server.service.in_progress.add((tenant.tenant_id, "/v1/jobs/j:pause", "k"))
    refused = post(tenant, "/v1/jobs/j:pause", {}, key="k")
    assert (refused.status, refused.headers["Retry-After"]) == (409, "1")
    assert tenant.job("j")["state"] == "active"
    tenant.server.service.in_progress.clear()
    assert post(tenant, "/v1/jobs/j:pause", {}, key="k").status == 200
    assert tenant.server.service.in_progress == set()


def test_a_repeat_gets_its_first_answer_also_when_the_job_is_gone(tenant: Tenant) -> None:
    tenant.put("j")
    paused = post(tenant, "/v1/jobs/j:pause", {}, key="k")
    tenant.call("DELETE", "/v1/jobs/j")
    assert post(tenant, "/v1/jobs/j:pause", {}, key="k").json == paused.json
    assert post(tenant, "/v1/jobs/j:pause", {}, key="other").status == 404


def test_a_key_belongs_to_its_tenant_and_path(tenant: Tenant) -> None:
    other = tenant.server.tenant()
    for each in (tenant, other):
        each.put("j")
        each.put("k")
    runs = [post(each, f"/v1/jobs/{name}:run", {}, key="k").json for each in (tenant, other) for name in ("j", "k")]
    assert len({(run["job_id"], run["scheduled_at"]) for run in runs}) == 4


def test_cancel_ends_a_waiting_run_and_answers_the_same_again(tenant: Tenant) -> None:
    tenant.put("j")
    at = post(tenant, "/v1/jobs/j:run").json["scheduled_at"]
    for _ in range(2):
        reply = post(tenant, f"/v1/jobs/j/runs/{at}:cancel")
        assert (reply.status, reply.json["state"]) == (202, "cancelled")
    assert tenant.get(f"/v1/jobs/j/runs/{at}").json["state"] == "cancelled"
    assert tenant.get("/v1/jobs/j/runs?state=cancelled").json["runs"][0]["scheduled_at"] == at


def test_cancel_of_a_claimed_run_waits_a_second_for_its_holder_at_most(tenant: Tenant) -> None:
    tenant.put("j")
    table = RunTable(tenant, "j")
    table.add(A_MINUTE_AGO_MS, RunState.RUNNING, worker_id=5, lease_until=A_MINUTE_AGO_MS + 200_000)
    began = time.monotonic()
    reply = post(tenant, f"/v1/jobs/j/runs/{format_time(A_MINUTE_AGO_MS)}:cancel")
    assert reply.status == 202
    assert 0.5 < time.monotonic() - began < 5
    assert table.query(f"SELECT cancel_requested FROM runs WHERE job_id = {table.job_id}")[0][0] == 1


def test_cancel_of_what_has_ended_or_is_not_planned_is_refused(tenant: Tenant) -> None:
    tenant.put("j")
    table = RunTable(tenant, "j")
    table.add(A_MINUTE_AGO_MS, RunState.SUCCEEDED)
    table.add(A_MINUTE_AGO_MS + 1000, RunState.WITHDRAWN)
    ended = post(tenant, f"/v1/jobs/j/runs/{format_time(A_MINUTE_AGO_MS)}:cancel")
    assert ended.status == 409
    assert "succeeded" in ended.json["detail"]
    assert post(tenant, f"/v1/jobs/j/runs/{format_time(A_MINUTE_AGO_MS + 1000)}:cancel").status == 404
    assert post(tenant, "/v1/jobs/j/runs/2030-01-01T00:00:00Z:cancel").status == 404
    assert post(tenant, "/v1/jobs/j/runs/2030-01-01T00:00:00+01:00:cancel").status == 422
    assert post(tenant, "/v1/jobs/j/runs/nonsense:cancel").status == 422


def test_retry_makes_a_dead_letter_a_waiting_run_again(tenant: Tenant) -> None:
    table = failed_runs(tenant, "j", 1)
    at = format_time(A_MINUTE_AGO_MS)
    reply = post(tenant, f"/v1/jobs/j/runs/{at}:retry")
    assert (reply.status, reply.json["state"], reply.json["attempts"]) == (202, "pending", 0)
    assert table.states() == [RunState.WAITING]
    due = table.query(f"SELECT reason FROM deferred WHERE job_id = {table.job_id}")
    assert [row[0] for row in due] == [Reason.RETRY]
    assert tenant.get("/v1/dead-letters").json["dead_letters"] == []
    again = post(tenant, f"/v1/jobs/j/runs/{at}:retry")
    assert again.status == 409
    assert again.json["detail"].endswith("the run is pending")


# By state, claimed ahead and skipped with a whole range included: what the text of a refusal must name; None: a cancel
# is obeyed there.
REFUSED = [
    (RunState.WAITING, 0, "pending", None),
    (RunState.RUNNING, 0, "running", None),
    (RunState.RUNNING, 3_600_000, "pending", None),
    (RunState.SUCCEEDED, 0, "succeeded", "succeeded"),
    (RunState.CANCELLED, 0, "cancelled", None),
    (RunState.SKIPPED, 0, "skipped", "skipped"),
    (RunState.FAILED, 0, "failed", "failed"),
    (None, 0, "skipped", "skipped"),
]


@pytest.mark.parametrize(("state", "ahead_ms", "shown", "cancel_refused"), REFUSED)
def test_retry_of_what_is_not_dead_and_cancel_of_what_has_ended_say_the_state(
    tenant: Tenant, state: RunState | None, ahead_ms: int, shown: str, cancel_refused: str | None
) -> None:
    at_ms = A_MINUTE_AGO_MS + ahead_ms
    tenant.put("j", CRON_JOB | {"schedule": {"cron": "* * * * *"}})
    table = RunTable(tenant, "j")
    if state is None:
        place = f"{table.partition_id}, {table.job_id}"
        table.query(f"INSERT INTO skips VALUES ({place}, {at_ms - 60_000}, {at_ms + 60_000}, 3, 20, 1, {at_ms})")
    else:
        table.add(at_ms, state, worker_id=6)
    table.query("DELETE FROM dead_letters")
    retried = post(tenant, f"/v1/jobs/j/runs/{format_time(at_ms)}:retry")
    assert retried.status == 409
    assert f"the run is {shown}" in retried.json["detail"]
    cancelled = post(tenant, f"/v1/jobs/j/runs/{format_time(at_ms)}:cancel")
    assert cancelled.status == (202 if cancel_refused is None else 409)
    if cancel_refused:
        assert f"it is {cancel_refused}" in cancelled.json["detail"]


def test_a_dead_letter_whose_day_has_gone_is_answered_refused_and_retried_like_any_other(tenant: Tenant) -> None:
    table = failed_runs(tenant, "j", 2)
    table.query("DELETE FROM runs")
    path = f"/v1/jobs/j/runs/{format_time(A_MINUTE_AGO_MS)}"
    tomorrow_ms = A_MINUTE_AGO_MS + 86_400_000
    assert tenant.get(path).json["state"] == "failed"
    assert post(tenant, f"{path}:cancel").status == 409
    # Its day is closed, and has not gone yet: whoever asks once it has is answered.
    table.query(f"UPDATE floor SET floor_at = {tomorrow_ms}, closed_to = {tomorrow_ms}")
    going = post(tenant, f"{path}:retry")
    assert (going.status, going.headers["Retry-After"]) == (503, "1")
    assert post(tenant, "/v1/dead-letters:retry", {}).json == {"count": 0, "more": False}
    table.query(f"UPDATE floor SET gone_to = {tomorrow_ms}")
    reply = post(tenant, f"{path}:retry")
    assert (reply.status, reply.json["state"], reply.json["attempts"]) == (202, "pending", 0)
    assert tenant.get(path).json["state"] == "pending"
    assert post(tenant, "/v1/dead-letters:retry", {}).json == {"count": 1, "more": False}
    listed = tenant.get("/v1/jobs/j/runs?state=pending").json["runs"]
    assert [run["reason"] for run in listed] == ["retry", "retry"]
    assert post(tenant, f"{path}:cancel").json["state"] == "cancelled"
    assert table.states() == [RunState.WAITING, RunState.CANCELLED]
    assert tenant.get("/v1/dead-letters").json["dead_letters"] == []


def test_retry_of_a_deleted_jobs_run_is_refused(tenant: Tenant) -> None:
    failed_runs(tenant, "j", 1)
    tenant.call("DELETE", "/v1/jobs/j")
    assert post(tenant, f"/v1/jobs/j/runs/{format_time(A_MINUTE_AGO_MS)}:retry").status == 409


def test_dead_letters_page_newest_first_and_narrow_by_filter(tenant: Tenant) -> None:
    for name in ("a-1", "a-2", "b"):
        failed_runs(tenant, name, 4)
    seen = []
    path = "/v1/dead-letters?page_size=5"
    token = None
    while True:
        page = tenant.get(path + (f"&page_token={token}" if token else "")).json
        assert "dead_letters" in page, page
        seen += page["dead_letters"]
        token = page["next_page_token"]
        if token is None:
            break
    assert len(seen) == len({(run["job"], run["scheduled_at"]) for run in seen}) == 12
    assert [run["died_at"] for run in seen] == sorted((run["died_at"] for run in seen), reverse=True)
    assert {run["job"] for run in tenant.get("/v1/dead-letters?name_prefix=a-").json["dead_letters"]} == {"a-1", "a-2"}
    only = tenant.get(f"/v1/dead-letters?job=b&scheduled_from={format_time(A_MINUTE_AGO_MS - 1000)}").json
    assert len(only["dead_letters"]) == 2
    assert tenant.server.tenant().get("/v1/dead-letters").json["dead_letters"] == []


def test_dead_letters_are_retried_and_deleted_by_filter(tenant: Tenant) -> None:
    a, b = failed_runs(tenant, "a", 3), failed_runs(tenant, "b", 3)
    assert post(tenant, "/v1/dead-letters:retry", {"dry_run": True}).json == {"count": 6, "more": False}
    assert post(tenant, "/v1/dead-letters:retry", {"job": "a"}).json == {"count": 3, "more": False}
    assert a.states() == [RunState.WAITING] * 3
    assert post(tenant, "/v1/dead-letters:delete", {}, key="d").json == {"count": 3, "more": False}
    failed_runs_left = tenant.get("/v1/dead-letters").json["dead_letters"]
    assert failed_runs_left == []
    assert b.states() == [RunState.FAILED] * 3
    assert post(tenant, "/v1/dead-letters:delete", {}, key="d").json == {"count": 3, "more": False}
    assert post(tenant, "/v1/dead-letters:delete", {"jobs": "a"}).status == 422
