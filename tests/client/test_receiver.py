"""The plain receiver: whose calls it takes, what it answers, and what it remembers."""

from __future__ import annotations

import base64
import secrets
from datetime import UTC, datetime
from pathlib import Path

import pytest
from standardwebhooks import Webhook

from secondzero_client import Call, Receiver, Reply, sqlite_fence
from secondzero_client.receiver import BODY_BYTES_MAX, REMEMBERED_BODY_BYTES_MAX
from secondzero_client.signatures import TOLERANCE_S, Signatures
from tests.support.signed import SCHEDULED_AT_MS, headers_of, request_bytes

NOW_S = SCHEDULED_AT_MS // 1000
NEW, OLD, OTHER = ("whsec_" + base64.b64encode(secrets.token_bytes(24)).decode() for _ in range(3))
BODY = b'{"report": "daily"}'


class Counted:
    """A handler that counts what it carries out."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.replies: list[Reply | Exception | str] = []

    def __call__(self, call: Call) -> Reply | str:
        self.calls.append(call)
        reply = self.replies.pop(0) if self.replies else "done"
        if isinstance(reply, Exception):
            raise reply
        return reply


@pytest.fixture
def receiver(tmp_path: Path) -> Receiver:
    return Receiver([NEW, OLD], sqlite_fence(tmp_path / "attempts.db"), clock=lambda: NOW_S)


def call(
    receiver: Receiver, handle: Counted, attempt: int = 1, *, signed: list[str] | None = None, at_s: int = NOW_S,
    key: str = "run_1", body: bytes = BODY, **changed: str,
) -> Reply:  # fmt: skip
    sent = request_bytes("http://127.0.0.1/hooks", signed or [NEW], key, attempt, body, sent_at_s=at_s)
    headers, _ = headers_of(sent)
    return receiver.receive(headers | {name.replace("_", "-"): value for name, value in changed.items()}, body, handle)


def test_p3_repeats_of_a_finished_run_get_its_answer(receiver: Receiver) -> None:
    handle = Counted()
    handle.replies = [Reply(201, (("X-Made", "yes"), ("Date", "now")), b"\xff made")]
    first = call(receiver, handle)
    again = [call(receiver, handle, attempt) for attempt in (1, 2, 9)]
    assert (first.status, first.body) == (201, b"\xff made")
    assert {(each.status, each.body) for each in again} == {(201, b"\xff made")}
    assert again[0].headers == (("X-Made", "yes"), ("Idempotency-Replayed", "true"))
    (seen,) = handle.calls
    assert (seen.key, seen.attempt, seen.scheduled_at, seen.body) == ("run_1", 1, "2030-03-17T17:46:40Z", BODY)


@pytest.mark.parametrize("signed", [[NEW], [OLD], [OTHER, OLD], [NEW, OLD]])
def test_a_signature_of_any_valid_secret_is_good(receiver: Receiver, signed: list[str]) -> None:
    assert call(receiver, Counted(), signed=signed).status == 200


@pytest.mark.parametrize(
    "changed",
    [
        {"webhook_signature": ""},
        {"webhook_signature": "v1,AAAA v1a,x v1,%%%"},
        {"webhook_id": "run_2", "Idempotency_Key": "run_2"},
        {"webhook_timestamp": str(NOW_S + 1)},
        {"webhook_timestamp": "now"},
        {"webhook_timestamp": "\u0661"},
        {"webhook_id": ""},
    ],
)
def test_a_call_that_is_not_signed_as_it_is_gets_nowhere(receiver: Receiver, changed: dict[str, str]) -> None:
    handle = Counted()
    assert call(receiver, handle, **changed).status == 401
    assert call(receiver, handle, signed=[OTHER]).status == 401
    assert handle.calls == []


def test_a_body_that_was_changed_gets_nowhere(receiver: Receiver) -> None:
    headers, _ = headers_of(request_bytes("http://127.0.0.1/", [NEW], "run_1", 1, BODY, sent_at_s=NOW_S))
    assert receiver.receive(headers, BODY + b" ", Counted()).status == 401


@pytest.mark.parametrize(("off_s", "status"), [(-TOLERANCE_S, 200), (TOLERANCE_S, 200), (-TOLERANCE_S - 1, 401),
                                               (TOLERANCE_S + 1, 401)])  # fmt: skip
def test_a_stale_time_stamp_is_refused(receiver: Receiver, off_s: int, status: int) -> None:
    assert call(receiver, Counted(), at_s=NOW_S + off_s).status == status


def test_p3_the_key_that_counts_is_the_one_that_is_signed(receiver: Receiver) -> None:
    assert call(receiver, Counted(), Idempotency_Key="run_other").status == 400


@pytest.mark.parametrize("attempt", ["", "one", "-1", "9" * 19])
def test_a_call_without_its_attempt_is_refused(receiver: Receiver, attempt: str) -> None:
    assert call(receiver, Counted(), X_Attempt=attempt).status == 400


def test_a_body_over_the_bound_is_refused(receiver: Receiver) -> None:
    headers, _ = headers_of(request_bytes("http://127.0.0.1/", [NEW], "run_1", 1, BODY, sent_at_s=NOW_S))
    assert receiver.receive(headers, b"x" * (BODY_BYTES_MAX + 1), Counted()).status == 413


def test_p3_a_failure_lets_the_next_attempt_through_and_no_lower_one(receiver: Receiver) -> None:
    handle = Counted()
    handle.replies = [Reply(503, body=b"later"), ValueError("broken")]
    assert call(receiver, handle, 2).body == b"later"
    assert call(receiver, handle, 2).body == b"later"
    with pytest.raises(ValueError, match="broken"):
        call(receiver, handle, 3)
    assert call(receiver, handle, 2).status == 409
    assert call(receiver, handle, 4).body == b"done"
    assert [each.attempt for each in handle.calls] == [2, 3, 4]


def test_p3_a_second_attempt_is_told_when_to_come_back(receiver: Receiver) -> None:
    refused: list[Reply] = []
    others = Counted()

    def slow(entered: Call) -> str:
        refused.append(call(receiver, others, 2))
        return "whole"

    headers, _ = headers_of(request_bytes("http://127.0.0.1/", [NEW], "run_1", 1, BODY, sent_at_s=NOW_S))
    assert receiver.receive(headers, BODY, slow).body == b"whole"
    assert refused[0].status == 409
    assert 1 <= int(dict(refused[0].headers)["Retry-After"]) <= 15
    assert call(receiver, others, 3).body == b"whole"
    assert others.calls == []


def test_a_long_answer_is_remembered_without_its_body(receiver: Receiver) -> None:
    handle = Counted()
    handle.replies = [Reply(200, (("X-Big", "1"),), b"x" * (REMEMBERED_BODY_BYTES_MAX + 1))]
    assert len(call(receiver, handle).body) == REMEMBERED_BODY_BYTES_MAX + 1
    assert call(receiver, handle) == Reply(200, (("X-Big", "1"), ("Idempotency-Replayed", "true")), b"")


def test_secrets_can_be_asked_for_each_call(tmp_path: Path) -> None:
    valid = [OLD]
    receiver = Receiver(lambda: valid, sqlite_fence(tmp_path / "attempts.db"), clock=lambda: NOW_S)
    assert call(receiver, Counted(), signed=[NEW]).status == 401
    valid.insert(0, NEW)
    assert [call(receiver, Counted(), signed=[each]).status for each in (OLD, NEW)] == [200, 200]
    valid.remove(OLD)
    assert call(receiver, Counted(), signed=[OLD]).status == 401


@pytest.mark.parametrize("secret", ["whsec_", "whsec_?", "whsec_\u00e4"])
def test_a_secret_that_is_none_is_told_at_the_start(secret: str) -> None:
    with pytest.raises(ValueError, match="secret"):
        Signatures([secret])


def test_what_the_reference_library_signs_is_good_here() -> None:
    at = datetime.fromtimestamp(NOW_S, UTC)
    headers = {
        "webhook-id": "run_1",
        "webhook-timestamp": str(NOW_S),
        "webhook-signature": Webhook(NEW).sign("run_1", at, BODY.decode()),
    }
    assert Signatures([OLD, NEW]).fault(headers, BODY, NOW_S) is None
    assert Signatures([OLD]).fault(headers, BODY, NOW_S) is not None
