"""A client generated from the document creates, reads, lists and deletes a job."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from api.openapi import document
from tests.support.api import Tenant

USE = """
import sys
from generated.client import AuthenticatedClient
from generated.api.jobs import delete_job, get_job, list_jobs, put_job
from generated.models import Cron, HttpTarget, Job, Problem, TargetHttp

client = AuthenticatedClient(base_url=sys.argv[1], token=sys.argv[2])
job = Job(schedule=Cron(cron="0 9 * * *"), target=TargetHttp(http=HttpTarget(url="https://example.com/")))
created = put_job.sync(name="generated", client=client, body=job)
read = get_job.sync(name="generated", client=client)
page = list_jobs.sync(client=client)
assert read.next_run_at and read.state == "active", read
assert [each.name for each in page.jobs] == ["generated"]
again = put_job.sync_detailed(name="generated", client=client, body=read)
assert again.status_code == 200 and again.parsed.version == created.version == 1, again
assert delete_job.sync(name="generated", client=client).job_id == read.job_id
assert isinstance(get_job.sync(name="generated", client=client), Problem)
"""


@pytest.fixture
def generated(tmp_path: Path) -> Path:
    """A folder with the package `generated` in it."""
    (tmp_path / "document.json").write_text(json.dumps(document()))
    (tmp_path / "config.yaml").write_text("post_hooks: []\n")
    command = [
        *(str(Path(sys.executable).parent / "openapi-python-client"), "generate", "--meta", "none"),
        *("--path", tmp_path / "document.json", "--config", tmp_path / "config.yaml"),
        *("--output-path", tmp_path / "generated", "--fail-on-warning"),
    ]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    return tmp_path


def test_a_generated_client_creates_reads_and_deletes_a_job(tenant: Tenant, generated: Path) -> None:
    url = f"http://127.0.0.1:{tenant.server.port}"
    used = subprocess.run(
        [sys.executable, "-c", USE, url, str(tenant.key)], cwd=generated, capture_output=True, text=True, check=False
    )
    assert used.returncode == 0, used.stderr
