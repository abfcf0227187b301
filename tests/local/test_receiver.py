"""The receiver that counts: what it records, and the answers its paths ask for."""

import http.client
import json

import pytest

from engine.clock import wall_ms
from engine.local.receiver import Answer, Receiver, plan_answer
from engine.local.record import report
from tests.support.wait import until

SCHEDULED_MS = 1_900_000_000_000
HEADERS = {"Idempotency-Key": "run_1", "X-Attempt": "1", "X-Scheduled-At": "2030-03-17T17:46:40Z"}


@pytest.fixture
def receiver(tmp_path):
    with Receiver(tmp_path / "log", record=tmp_path / "record.jsonl") as started:
        yield started


@pytest.fixture
def client(receiver):
    connection = http.client.HTTPConnection("127.0.0.1", receiver.port, timeout=10)
    yield connection
    connection.close()


def post(client, path, headers=HEADERS, body=b"x" * 100_000):
    client.request("POST", path, body, headers)
    answer = client.getresponse()
    return answer.status, answer.read()


def test_a_request_is_recorded_with_its_arrival_and_its_headers(receiver, client):
    before_ms = wall_ms()
    assert post(client, "/ok/job-1?x=%20") == (200, b"")
    [row] = receiver.rows()
    assert before_ms <= row[0] <= wall_ms()
    assert row[1:] == ["run_1", 1, SCHEDULED_MS, "job-1", 200, "POST", "/ok/job-1?x=%20"]
    assert receiver.count() == 1


def test_keep_alive_and_a_new_connection_reach_the_same_record(receiver, client):
    for attempt in ("1", "2"):
        post(client, "/ok/a", HEADERS | {"X-Attempt": attempt})
    client.close()
    post(client, "/ok/a", HEADERS | {"X-Attempt": "3", "Connection": "close"})
    assert [call.attempt for call in receiver.calls()] == [1, 2, 3]
    assert report(receiver.calls()).doubled == 2


def test_flaky_fails_the_first_requests_of_each_key(receiver, client):
    statuses = [post(client, "/flaky?n=2")[0] for _ in range(3)]
    assert statuses == [503, 503, 200]
    assert post(client, "/flaky?n=2", HEADERS | {"Idempotency-Key": "run_2"})[0] == 503
    assert report(receiver.calls()).doubled == 0


def test_a_hanging_request_is_recorded_as_unanswered(receiver, client):
    client.request("POST", "/hang", b"", HEADERS)
    until(lambda: receiver.count() == 1)
    assert receiver.calls()[0].status == 0


def test_a_client_that_gives_up_leaves_an_unanswered_record(receiver, client, tmp_path):
    client.request("POST", "/slow?ms=60000", b"", HEADERS)
    until(lambda: receiver.count() == 1)
    client.close()
    until((tmp_path / "record.jsonl").read_bytes)
    assert receiver.calls()[0].status == 0


def test_drop_closes_without_an_answer(receiver, client):
    with pytest.raises(http.client.RemoteDisconnected):
        post(client, "/drop")
    assert receiver.count() == 1


def test_the_file_holds_every_answered_request_after_sigterm(receiver, client, tmp_path):
    for number in range(50):
        post(client, f"/ok/job-{number}")
    receiver.stop()
    assert receiver.exit_status() == 0
    lines = (tmp_path / "record.jsonl").read_text().splitlines()
    assert [json.loads(line)[4] for line in lines] == [f"job-{number}" for number in range(50)]


def test_rubbish_closes_the_connection_and_harms_nobody_else(receiver, client):
    client.connect()
    client.sock.sendall(b"\0\0\0\r\n\r\n")
    assert client.sock.recv(1) == b""
    client.close()
    assert post(client, "/ok")[0] == 200


@pytest.mark.parametrize(
    ("path", "query", "expected"),
    [
        ("/anything/at/all", {}, Answer(200)),
        ("/status/429/job-1", {"retry_after": "2"}, Answer(429, retry_after="2")),
        ("/slow", {"ms": "500"}, Answer(200, 500)),
        ("/status/500", {"ms": "5", "bytes": "3"}, Answer(500, 5, b"xxx")),
        ("/hang", {}, Answer(0)),
        ("/drop", {"ms": "9"}, Answer(0, 9, close=True)),
        ("/flaky", {}, Answer(503)),
        ("/", {}, Answer(200)),
        ("/status/none", {}, Answer(400)),
        ("/slow", {"ms": "soon"}, Answer(400)),
    ],
)
def test_paths_say_how_they_are_answered(path, query, expected):
    assert plan_answer(path, query, 0) == expected
