"""`secondzero up`, as a stranger types it: from nothing to a thousand calls, on again after every kind of end."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.local.certificates import write_certificate
from engine.local.listener import free_port, open_listener
from engine.local.process import end_child, spawn
from secondzero_client import Client
from tests.support.mysql import server_folder
from tests.support.wait import until

# Two shards are initialized, on a machine that may run other things; without that a start takes some seconds.
READY_S = 120.0
STOP_S = 60
RUN_S = 60.0

README = Path(__file__).parents[2] / "README.md"

ENVIRON = {key: value for key, value in os.environ.items() if not key.startswith("SECONDZERO_")}


class Up:
    """A running `secondzero up`; what it says on both outputs is in ``said``."""

    def __init__(self, data: Path, *flags: str) -> None:
        self._log = data.parent / "up.log"
        self._log.write_bytes(b"")
        command = [sys.executable, "-m", "engine", "up", "--data", str(data), *flags]
        with self._log.open("ab") as log:
            self.process = spawn(command, log, signal.SIGTERM, environment=ENVIRON)

    @property
    def said(self) -> str:
        return self._log.read_text()

    def url(self) -> str:
        """Where it is ready; fails if it ends instead."""
        found = until(lambda: self._find(r"^ready (https?://\S+)$"), READY_S)
        return found[1]

    def until_said(self, pattern: str) -> re.Match[str]:
        return until(lambda: self._find(pattern), RUN_S)

    def stop(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(STOP_S)

    def _find(self, pattern: str) -> re.Match[str] | None:
        found = re.search(pattern, self.said, re.MULTILINE)
        assert found or self.process.poll() is None, self.said
        return found


@pytest.fixture(scope="module")
def data():
    with server_folder() as folder:
        yield folder / "data"
        for pid in processes_of(folder / "data"):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def up(data):
    """Starts `up` on the module's folder, and ends it after the test."""
    started: list[Up] = []

    def start(*flags: str) -> Up:
        started.append(Up(data, *flags))
        return started[-1]

    yield start
    for each in started:
        end_child(each.process, STOP_S)


def secondzero(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "engine", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=ENVIRON)


def processes_of(data: Path) -> dict[int, str]:
    """What runs for a folder: servers know it as an argument, our own children as a variable."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes() + b"\0" + (folder / "environ").read_bytes()
        except OSError:
            continue
        if f"--datadir={data}/".encode() in words or f"SECONDZERO_DATA={data}\0".encode() in words + b"\0":
            found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def pid_of(data: Path, what: str) -> int:
    return min(pid for pid, words in processes_of(data).items() if what in words)


def get(url: str, key: str) -> dict:
    command = ["curl", "-sSk", url, "-H", f"Authorization: Bearer {key}"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout)


def succeeded(data: Path) -> float:
    """By the engine's metrics, those of all its processes together."""
    engine = json.loads((data / "secondzero.json").read_text())["engine"]
    with urlopen(f"{engine}/metrics", timeout=10) as answer:  # noqa: S310 - our own address
        families = text_string_to_metric_families(answer.read().decode())
    samples = [sample for family in families if family.name == "secondzero_attempts" for sample in family.samples]
    return sum(sample.value for sample in samples if sample.labels["state"] == "succeeded")


def test_a_stranger_sees_a_thousand_jobs_called_in_their_second(up, data):
    demo = up("--demo", "--port", "0")
    url = demo.url()
    called = demo.until_said(r"called ([\d,]+) · lost (\d+) · doubled (\d+) · early (\d+)")
    assert called.groups() == ("1,000", "0", "0", "0")
    demo.until_said(r"lag p50 [\d,]+ ms · p99 [\d,]+ ms · max [\d,]+ ms")
    key = demo.until_said(r"demo key +(\S+)$")[1]
    demo.until_said("Ctrl-C stops everything")
    assert (data / "demo.key").read_text() == f"{key}\n"
    assert (data / "demo.key").stat().st_mode & 0o777 == 0o600

    put, get_runs = re.findall(r"^ +(curl .*)$", demo.said, re.MULTILINE)
    assert json.loads(pasted(put, data))["name"] == "hello"

    def run() -> dict | None:
        runs = json.loads(pasted(get_runs, data))["runs"]
        return runs[0] if runs and runs[0]["state"] not in ("pending", "running") else None

    assert until(run)["state"] == "succeeded"

    follow_the_readme(url, data)

    status = json.loads(secondzero("status", "--data", data, "--json").stdout)
    assert status["partitions"] == {"total": 64, "owned": 64}
    assert sum(worker["partitions"] for worker in status["workers"]) == 64
    assert status["lag"]["normal"]["runs"] >= 1
    assert until(lambda: succeeded(data) >= 1_001)
    tenant = json.loads(secondzero("tenant", "create", "acme", "--data", data, "--json").stdout)
    assert get(f"{url}/v1/jobs", tenant["api_key"])["jobs"] == []

    second = secondzero("up", "--data", data, "--port", "0")
    assert second.returncode == 1
    assert second.stderr.splitlines() == [
        f"secondzero: {data} is in use by another `secondzero up` (process {demo.process.pid}): stop that one first,"
        " or give another --data"
    ]
    assert demo.stop(signal.SIGINT) == 0
    assert processes_of(data) == {}


def follow_the_readme(url: str, data: Path) -> None:
    """Every command of the README's job, as it stands but for the ports and where `secondzero` is."""
    text = README.read_text().replace("http://127.0.0.1:8900", url).replace("9000", str(free_port()))
    text = text.replace(".venv/bin/secondzero-worker", f"{sys.executable} -m secondzero_client.command")
    text = text.replace(".venv/bin/secondzero", f"{sys.executable} -m engine")
    serve, put, get_runs, delete, work, put_function, run_function, stats, export, cron = re.findall(
        r"```sh\n(.*?)```", text, re.DOTALL
    )
    words = serve.removesuffix("&\n").split()
    served = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=data.parent)
    try:
        assert json.loads(pasted(put, data))["name"] == "every-ten-seconds"
        [run, *_] = until(lambda: json.loads(pasted(get_runs, data))["runs"], RUN_S)
        assert (run["state"], run["status_code"]) == ("succeeded", 200)
        assert json.loads(pasted(stats, data))
        assert pasted(export, data).startswith("job,")
        assert json.loads(pasted(delete, data))["name"] == "every-ten-seconds"
    finally:
        end_child(served, STOP_S)
    follow_the_function(url, data, text, work, [put_function, run_function])
    assert "2027-03-28T01:00:00Z" in pasted(cron, README.parent / "data")


def follow_the_function(url: str, data: Path, text: str, work: str, put_and_run: list[str]) -> None:
    """The README's second example: the worker as it stands there, its job, and what came of a run."""
    (data.parent / "reports.py").write_text(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0])
    worker = subprocess.Popen(["bash", "-ec", f"exec env {work.removesuffix('&' + chr(10))}"], cwd=data.parent)
    try:
        job, run = (json.loads(pasted(command, data)) for command in put_and_run)
        key, at = (data / "demo.key").read_text().strip(), run["scheduled_at"]
        path = f"{url}/v1/jobs/{job['name']}/runs/{at}"
        ended = until(lambda: (found := get(path, key))["state"] == "succeeded" and found, RUN_S)
        assert ended["result"] == {"reports": 2}
    finally:
        end_child(worker, STOP_S)


def pasted(command: str, data: Path) -> str:
    """What a shell answers, in the folder that holds ``data``."""
    done = subprocess.run(
        ["bash", "-ec", command], capture_output=True, text=True, timeout=60, check=True, cwd=data.parent, env=ENVIRON
    )
    return done.stdout


def test_p10_it_goes_on_after_every_kind_of_end(up, data):
    key = (data / "demo.key").read_text().strip()
    first = up("--port", "0", "--worker", "tests.support.functions:worker")
    url = first.url()
    assert get(f"{url}/v1/jobs/hello/runs", key)["runs"][0]["state"] == "succeeded"
    assert carried_out(url, key, {"day": 1}) == {"day": 1}

    for child in ("engine api", "engine engine", "mysql-2"):
        os.kill(pid_of(data, child), signal.SIGKILL)
    first.until_said("the api ended with status -9; starting it again in 0.1 s")
    first.until_said("the engine ended with status -9; starting it again in 0.1 s")
    first.until_said(f"MySQL in {data}/mysql-2 ended with status -9")
    service = json.loads((data / "secondzero.json").read_text())
    for address in (service["api"], service["engine"]):
        until(lambda address=address: is_ready(address), READY_S)
    assert len(get(f"{url}/v1/jobs?page_size=5", key)["jobs"]) == 5

    for pid in (first.process.pid, *processes_of(data)):
        os.kill(pid, signal.SIGKILL)
    first.process.wait(STOP_S)
    refused = secondzero("status", "--data", data)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith(f"secondzero: nothing runs in {data}: ")

    second = up("--port", "0")
    assert get(f"{second.url()}/v1/jobs/hello", key)["name"] == "hello"
    os.kill(second.process.pid, signal.SIGKILL)  # its children end by themselves, while the next one starts
    second.process.wait(STOP_S)
    certificate, private = data.parent / "api.pem", data.parent / "api.key"
    write_certificate(certificate, private, ["localhost"])
    third = up("--port", "0", "--tls-cert", str(certificate), "--tls-key", str(private), "--paused")
    assert third.url().startswith("https://")
    assert get(f"{third.url()}/v1/jobs/hello", key)["name"] == "hello"
    (brake,) = json.loads(secondzero("brakes", "--data", data, "--json").stdout)["brakes"]
    assert (brake["stops"], brake["in_force"], brake["note"]) == ("all", True, "up --paused")
    assert third.stop(signal.SIGTERM) == 0
    assert processes_of(data) == {}
    assert not (data / "secondzero.json").exists()


def carried_out(url: str, key: str, payload: object) -> object:
    """What the worker beside it makes of a run of ``echo``."""
    job = {"schedule": {"cron": "0 0 1 1 *"}, "target": {"function": {"name": "echo", "payload": payload}}}
    with Client(url, key) as client:
        client.put_job("echo", job)
        at = client.run_job("echo")["scheduled_at"]
        return until(lambda: run if (run := client.get_run("echo", at))["state"] == "succeeded" else None)["result"]


def is_ready(url: str) -> bool:
    try:
        return urlopen(f"{url}/readyz", timeout=5).status == 200  # noqa: S310 - an address of our own
    except OSError:
        return False


def test_another_shard_count_is_refused_in_one_line_and_changes_nothing(data):
    refused = secondzero("up", "--data", data, "--port", "0", "--shards", "3")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.splitlines() == [
        f"secondzero: {data}: created with shard count 2, now started with 3; it is fixed for life"
    ]
    assert processes_of(data) == {}
    assert not (data / "mysql-3").exists()


def test_a_port_in_use_is_said_before_anything_is_started(tmp_path):
    with open_listener("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        refused = secondzero("up", "--data", tmp_path / "data", "--port", port)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.splitlines() == [
        f"secondzero: cannot listen on http://127.0.0.1:{port}: the port is in use; stop what uses it"
        " or give another --port"
    ]
    assert not (tmp_path / "data" / "mysql-1").exists()


def test_a_folder_that_cannot_be_one_is_an_error_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    refused = secondzero("up", "--data", tmp_path / "file", "--port", free_port())
    assert refused.returncode == 1
    assert refused.stderr.splitlines() == [f"secondzero: {tmp_path}/file: File exists"]


def test_wrong_settings_are_one_list_and_start_nothing(tmp_path):
    refused = secondzero("up", "--data", tmp_path / "data", "--port", "-1", "--executors", "0", "--shards", "many")
    assert refused.returncode == 2
    assert [line.split()[1] for line in refused.stderr.splitlines()] == ["--shards:", "--executors:", "--port:"]
    assert not (tmp_path / "data").exists()
