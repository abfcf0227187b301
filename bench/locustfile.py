"""A realistic mix of calls, for people to watch: `pip install locust==2.47.0`, then

    SECONDZERO_API_KEY=sz_… locust -f bench/locustfile.py --host http://127.0.0.1:8900

Of ten calls seven read. Each user keeps a hundred jobs of its own, a year ahead, so that nothing is called. What the
API can do at most is measured by `secondzero bench api`, with wrk: a load source in Python starves what it measures.
"""

from __future__ import annotations

import os
import random
import secrets
from typing import Any

from locust import HttpUser, between, task  # type: ignore[import-not-found]

JOBS_PER_USER = 100
BATCH = 20


class TenantUser(HttpUser):  # type: ignore[misc]
    """One program of a tenant: it looks far more often than it changes anything."""

    wait_time = between(0.05, 0.5)

    def on_start(self) -> None:
        self.client.headers["Authorization"] = f"Bearer {os.environ['SECONDZERO_API_KEY']}"
        self.prefix = f"locust-{secrets.token_hex(4)}-"
        self.call("POST", "/v1/jobs:batch", json={"puts": [self.item(n) for n in range(JOBS_PER_USER)]})

    def on_stop(self) -> None:
        self.call("POST", "/v1/jobs:batch", json={"deletes": [self.name(n) for n in range(JOBS_PER_USER)]})

    @task(40)
    def read_a_job(self) -> None:
        self.call("GET", f"/v1/jobs/{self.any_name()}", "/v1/jobs/{name}")

    @task(15)
    def list_jobs(self) -> None:
        self.call("GET", f"/v1/jobs?name_prefix={self.prefix}&page_size=50", "/v1/jobs")

    @task(10)
    def list_runs(self) -> None:
        self.call("GET", f"/v1/jobs/{self.any_name()}/runs", "/v1/jobs/{name}/runs")

    @task(5)
    def look_ahead(self) -> None:
        self.call("GET", random.choice(("/v1/forecast", "/v1/usage", "/v1/clock-changes")))

    @task(20)
    def put_a_job(self) -> None:
        """Half of them change nothing: programs put their jobs at every start."""
        timeout = random.choice(("30s", "30s", "20s", "10s"))
        self.call("PUT", f"/v1/jobs/{self.any_name()}", "/v1/jobs/{name}", json=job(timeout))

    @task(6)
    def pause_and_resume(self) -> None:
        name = self.any_name()
        for verb in ("pause", "resume"):
            self.call("POST", f"/v1/jobs/{name}:{verb}", f"/v1/jobs/{{name}}:{verb}", json={})

    @task(4)
    def put_a_batch(self) -> None:
        numbers = random.sample(range(JOBS_PER_USER), BATCH)
        self.call("POST", "/v1/jobs:batch", json={"puts": [self.item(number) for number in numbers]})

    def call(self, method: str, path: str, shown: str | None = None, **body: Any) -> None:
        self.client.request(method, path, name=f"{method} {shown or path.partition('?')[0]}", **body)

    def item(self, number: int) -> dict[str, Any]:
        return {"name": self.name(number), "job": job("30s")}

    def name(self, number: int) -> str:
        return f"{self.prefix}{number:03}"

    def any_name(self) -> str:
        return self.name(random.randrange(JOBS_PER_USER))


def job(timeout: str) -> dict[str, Any]:
    """Once a year, in the quiet of a January night."""
    return {
        "schedule": {"cron": "17 3 14 1 *", "time_zone": "Europe/Berlin"},
        "target": {"http": {"url": "https://example.com/locust"}},
        "timeout": timeout,
        "labels": {"made-by": "locust"},
    }
