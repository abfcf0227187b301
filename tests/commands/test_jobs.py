"""`secondzero jobs`, `runs` and `dead-letters` against a served API, and files of jobs that live in version control."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from engine.__main__ import main
from engine.clock import wall_ms
from engine.commands.jobs_file import dump_jobs, read_jobs
from engine.errors import OperatorError
from engine.model import RunState
from engine.rules.timestamps import format_time
from tests.support.api import ApiServer, RunTable, Tenant, served
from tests.support.mysql import SchemaPool

JOBS = """
jobs:
  nightly:
    schedule: {cron: "0 3 * * *", time_zone: Europe/Paris}
    target: {http: {url: "https://example.com/nightly", headers: {X-Key: {value: s3cret, secret: true}}}}
    labels: {team: billing}
  once:
    schedule: {run_at: AT}
    target:
      http:
        url: https://example.com/once
        body: |
          two
          lines
"""


@pytest.fixture(scope="module")
def api_server(schema_pool: SchemaPool) -> Iterator[ApiServer]:
    with schema_pool.schema() as first, schema_pool.schema(first=False) as second, served([first, second]) as server:
        yield server


@pytest.fixture
def tenant(api_server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> Tenant:
    """A tenant whose address and key stand in the environment."""
    tenant = api_server.tenant()
    monkeypatch.setenv("SECONDZERO_URL", f"http://127.0.0.1:{api_server.port}/")
    monkeypatch.setenv("SECONDZERO_API_KEY", str(tenant.key))
    return tenant


class Shell:
    """Types commands."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def types(self, *words: str) -> Any:
        """What a command reports as JSON; it must succeed."""
        status, out, err = self.tries(*words, "--json")
        assert (status, err) == (0, "")
        return orjson.loads(out)

    def tries(self, *words: str) -> tuple[int, str, str]:
        self._capsys.readouterr()
        try:
            status = main(words)
        except SystemExit as ended:
            status = int(str(ended.code))
        return status, *self._capsys.readouterr()


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


@pytest.fixture
def jobs_file(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.yaml"
    path.write_text(JOBS.replace("AT", format_time(wall_ms() // 1000 * 1000 + 3_600_000)))
    return path


def test_a_job_is_put_by_flags_and_read_listed_paused_run_and_deleted(tenant: Tenant, shell: Shell) -> None:
    words = ("jobs", "put", "a", "--cron", "0 9 * * *", "--tz", "Europe/Paris", "--url", "https://example.com/")
    job = shell.types(*words, "--header", "X-A: b", "--label", "team:x", "--timeout", "5s")
    assert job["target"]["http"]["headers"] == {"X-A": "b"}
    assert shell.types("jobs", "get", "a")["labels"] == {"team": "x"}
    assert [each["name"] for each in shell.types("jobs", "list", "--label", "team:x")["jobs"]] == ["a"]
    assert shell.types("jobs", "pause", "a", "--note", "why")["note"] == "why"
    assert shell.types("jobs", "resume", "a", "--missed-runs", "skip")["state"] == "active"
    run = shell.types("jobs", "run", "a")
    assert shell.types("runs", "get", "a", run["scheduled_at"])["trigger"] == "manual"
    assert shell.types("runs", "cancel", "a", run["scheduled_at"])["state"] == "cancelled"
    assert [each["state"] for each in shell.types("runs", "list", "a")["runs"]] == ["cancelled"]
    assert shell.types("jobs", "delete", "a")["name"] == "a"
    assert tenant.get("/v1/jobs/a").status == 404


@pytest.mark.parametrize("name", ["a/b", "ü", "a%2Fb", "", "a:pause", ".", "..", "a b", "-a"])
def test_a_name_that_can_be_none_is_refused_with_the_rule_by_every_command(
    tenant: Tenant, shell: Shell, tmp_path: Path, name: str
) -> None:
    time = "2030-01-31T09:00:00Z"
    put = ("put", "--cron", "0 9 * * *", "--url", "https://example.com/", "--")
    for words in (("jobs", *put), *(("jobs", verb, "--") for verb in ("get", "pause", "resume", "run", "delete"))):
        status, out, err = shell.tries(*words, name)
        assert (status, out) == (1, "")
        assert "a name: a letter or digit, then up to 127 letters, digits, dots" in err
    for words in (("runs", "list", "--"), ("runs", "get", "--"), ("runs", "cancel", "--")):
        more = () if "list" in words else (time,)
        assert "a name: a letter or digit" in shell.tries(*words, name, *more)[2]
    file = tmp_path / "jobs.yaml"
    file.write_text(
        dump_jobs({name: {"schedule": {"cron": "0 9 * * *"}, "target": {"http": {"url": "https://x.org"}}}})
    )
    status, _, err = shell.tries("jobs", "apply", "-f", str(file))
    assert (status, "a name: a letter or digit" in err) == (1, True)
    assert tenant.get("/v1/jobs").json["jobs"] == []


@pytest.mark.parametrize("name", ["A.b-c_9", "9" * 128, "a.."])
def test_every_name_of_the_rule_works_in_every_command(tenant: Tenant, shell: Shell, name: str) -> None:
    shell.types("jobs", "put", name, "--cron", "0 9 * * *", "--url", "https://example.com/")
    assert shell.types("jobs", "get", name)["name"] == name
    assert [job["name"] for job in shell.types("jobs", "list")["jobs"]] == [name]
    run = shell.types("jobs", "run", name)
    assert shell.types("runs", "get", name, run["scheduled_at"])["state"] == "pending"
    assert shell.types("runs", "cancel", name, run["scheduled_at"])["state"] == "cancelled"
    assert shell.types("jobs", "pause", name)["state"] == "paused"
    assert shell.types("jobs", "resume", name)["state"] == "active"
    assert shell.types("jobs", "delete", name)["state"] == "deleted"


def test_people_get_tables(tenant: Tenant, shell: Shell) -> None:
    tenant.put("a")
    status, out, _ = shell.tries("jobs", "list")
    assert status == 0
    assert out.splitlines()[0].split() == ["name", "state", "when", "next", "run", "calls"]
    assert "0 9 * * * Europe/Paris" in out
    assert "next run" in shell.tries("jobs", "get", "a")[1]


def test_what_the_api_refuses_is_said_in_a_line_for_each_fault(tenant: Tenant, shell: Shell) -> None:
    status, out, err = shell.tries("jobs", "put", "a", "--cron", "61 * * * *", "--tz", "Nowhere", "--url", "ftp://x")
    assert (status, out) == (1, "")
    assert [line.split(": ")[1] for line in err.splitlines()] == [
        "/schedule/cron", "/schedule/time_zone", "/target/http/url",
    ]  # fmt: skip
    assert shell.tries("jobs", "get", "none")[0] == 1
    assert shell.tries("jobs", "put", "a", "--url", "https://example.com/")[0] == 2


def test_without_address_or_key_every_problem_is_listed(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SECONDZERO_URL", raising=False)
    monkeypatch.delenv("SECONDZERO_API_KEY", raising=False)
    status, _, err = shell.tries("jobs", "list")
    assert (status, len(err.splitlines())) == (2, 2)
    monkeypatch.setenv("SECONDZERO_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("SECONDZERO_API_KEY", "sz_x")
    status, _, err = shell.tries("jobs", "list")
    assert (status, len(err.splitlines())) == (1, 1)


def test_the_tenants_variables_are_no_unknown_settings(tenant: Tenant, shell: Shell) -> None:
    assert "unknown setting" not in shell.tries("check")[2]


def test_a_file_is_planned_applied_and_then_the_same(tenant: Tenant, shell: Shell, jobs_file: Path) -> None:
    tenant.put("stays")
    planned = shell.types("jobs", "apply", "-f", str(jobs_file), "--dry-run")
    assert (planned["applied"], planned["created"]) == (False, ["nightly", "once"])
    assert tenant.get("/v1/jobs/nightly").status == 404
    shell.types("jobs", "apply", "-f", str(jobs_file))
    assert tenant.job("once")["target"]["http"]["body"] == "two\nlines\n"
    again = shell.types("jobs", "apply", "-f", str(jobs_file))
    assert again["same"] == ["once"]
    assert list(again["changed"]) == ["nightly"], "its secret cannot be compared, and is sent again"
    assert tenant.job("nightly")["version"] == 1


def test_a_file_changes_what_it_changes_and_prunes_what_it_does_not_name(
    tenant: Tenant, shell: Shell, jobs_file: Path
) -> None:
    shell.types("jobs", "apply", "-f", str(jobs_file))
    for name in ("n-old", "other"):
        tenant.put(name)
    text = jobs_file.read_text().replace("once:", "n-new:").replace("team: billing", "team: sales")
    jobs_file.write_text(text)
    words = ("jobs", "apply", "-f", str(jobs_file), "--prune", "--name-prefix", "n")
    plan = shell.types(*words, "--dry-run")
    assert plan["created"] == ["n-new"]
    assert plan["changed"]["nightly"][0] == "labels"
    assert plan["deleted"] == ["n-old"]
    out = shell.tries(*words, "--dry-run")[1]
    assert "+ n-new" in out
    assert "- n-old" in out
    shell.types(*words)
    names = [job["name"] for job in shell.types("jobs", "list")["jobs"]]
    assert names == ["n-new", "nightly", "once", "other"]
    assert tenant.job("nightly")["labels"] == {"team": "sales"}


def test_a_file_with_wrong_jobs_applies_the_others_and_lists_every_fault(
    tenant: Tenant, shell: Shell, tmp_path: Path
) -> None:
    good = {"schedule": {"cron": "@daily"}, "target": {"http": {"url": "https://example.com/"}}}
    path = tmp_path / "jobs.yaml"
    path.write_text(
        dump_jobs({"good": good, "bad": good | {"priority": "x"}, "past": good | {"schedule": {"run_at": "x"}}})
    )
    status, _, err = shell.tries("jobs", "apply", "-f", str(path))
    assert status == 1
    assert ["bad: /priority" in err, "past: /schedule/run_at" in err] == [True, True]
    assert tenant.job("good")["state"] == "active"


@pytest.mark.parametrize(
    "text",
    ["jobs: [", "jobs: {a: 1}", "[]", "x: {}", "jobs: {a: {}, a: {}}", "jobs: {1: {}}", "jobs: {}\nx: 1", "", "\x00",
     "jobs: {a: !!python/object/apply:os.system [ls]}"],
)  # fmt: skip
def test_a_file_that_is_none_is_said_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "jobs.yaml"
    path.write_text(text)
    with pytest.raises(OperatorError) as caught:
        read_jobs(path)
    assert len(str(caught.value).splitlines()) == 1


def test_what_is_dumped_is_read_back_times_included(tmp_path: Path) -> None:
    jobs = {
        "a": {"schedule": {"run_at": "2030-01-31T09:00:00Z"}, "description": "two\nlines: #1", "labels": {"x": "yes"}}
    }
    path = tmp_path / "jobs.yaml"
    path.write_text(dump_jobs(jobs))
    assert read_jobs(path) == jobs
    assert yaml.safe_load(path.read_text())


CRONTAB = r"""
# mail goes nowhere
MAILTO=ops@example.com
SHELL = /bin/sh

# Rotate the logs
0 3 * * *   /usr/bin/rotate --all
*/5 * * * * curl -fsS https://hooks.example.com/ping?a=b >/dev/null
@reboot     /usr/bin/start
@daily      /usr/bin/report%first line%100\% second
0 0 30 2 *  /usr/bin/never
CRON_TZ="America/New_York"
30 2 1 * SUN backup
61 * * * *  wrong
0 4 * * *
"""


def test_a_crontab_becomes_a_jobs_file_and_every_line_is_accounted_for(
    tenant: Tenant, shell: Shell, tmp_path: Path
) -> None:
    path, output = tmp_path / "crontab", tmp_path / "jobs.yaml"
    path.write_text(CRONTAB)
    found = shell.types(
        "jobs", "import-crontab", str(path), "-o", str(output), "--url", "https://run.example.com/{name}"
    )
    jobs, lines = found["jobs"], {line["text"].split()[-1]: line for line in found["lines"]}
    assert list(jobs) == ["rotate-the-logs", "curl", "report", "backup"]
    assert jobs["rotate-the-logs"]["description"] == "Rotate the logs"
    assert jobs["rotate-the-logs"]["target"]["http"] == {
        "url": "https://run.example.com/rotate-the-logs", "body": "/usr/bin/rotate --all",
    }  # fmt: skip
    assert jobs["report"]["target"]["http"]["body"] == "/usr/bin/report\nfirst line\n100% second\n"
    assert jobs["backup"]["schedule"] == {"cron": "30 2 1 * SUN", "time_zone": "America/New_York"}
    assert any("either matches" in note for note in lines["backup"]["notes"])
    assert any("clock change" in note for note in lines["backup"]["notes"])
    for left_out in ("/usr/bin/start", "/usr/bin/never", "wrong", "*"):
        assert lines[left_out]["job"] is None
        assert "left out" in lines[left_out]["notes"][0]
    assert len(found["lines"]) == 11
    assert shell.types("jobs", "apply", "-f", str(output))["created"] == sorted(jobs, key=list(jobs).index)


def test_without_a_url_downloads_are_called_and_commands_wait_for_one(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "crontab"
    path.write_text("5 4 * * * root wget -q https://example.com/a\n6 4 * * * root /usr/bin/thing\n")
    status, out, err = shell.tries("jobs", "import-crontab", str(path), "--system", "--tz", "Asia/Tokyo")
    assert status == 0
    jobs = yaml.safe_load(out)["jobs"]
    assert jobs["wget"]["target"]["http"] == {"url": "https://example.com/a", "method": "GET"}
    assert jobs["thing"]["paused"] is True
    assert jobs["thing"]["schedule"]["time_zone"] == "Asia/Tokyo"
    assert "needs a URL" in err


def test_dead_letters_are_listed_retried_and_deleted(tenant: Tenant, shell: Shell) -> None:
    at_ms = wall_ms() // 60_000 * 60_000 - 60_000
    for name in ("a", "b"):
        tenant.put(name)
        RunTable(tenant, name).add(at_ms, RunState.FAILED)
    assert len(shell.types("dead-letters", "list")["dead_letters"]) == 2
    assert "failed" in shell.tries("dead-letters", "list", "--job", "a")[1]
    assert shell.types("dead-letters", "retry", "--job", "a", "--dry-run") == {"count": 1, "more": False}
    assert shell.types("runs", "retry", "a", format_time(at_ms))["state"] == "pending"
    assert shell.types("dead-letters", "delete") == {"count": 1, "more": False}
    assert shell.types("dead-letters", "list")["dead_letters"] == []
