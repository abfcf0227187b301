"""What the benches' loads are made of."""

from collections import Counter

from bench.load import (
    AROUND_S,
    MORNING_JOBS,
    MORNING_TENANTS,
    Origins,
    address,
    burst,
    daily,
    every_second,
    morning,
)
from engine.model import Priority
from engine.rules.schedule import next_n_times, next_time

AT_MS = 1_800_000_000_000  # 2027-01-15T08:00:00Z
ORIGINS = Origins(lambda number: f"http://{address(number)}:80", "http://127.0.0.1:9/dead")


def test_a_burst_has_its_critical_jobs_spread_among_the_others():
    load = burst([1, 2], ORIGINS, AT_MS, 1_000, 10, 5)
    critical = [place for place, job in enumerate(load.jobs) if job.definition.priority == Priority.CRITICAL]
    assert critical == list(range(0, 1_000, 100))
    assert all(job.name.startswith(job.definition.priority.name.lower()) for job in load.jobs)
    assert len({job.definition.target.url.split("/")[2] for job in load.jobs}) == 5
    assert load.expected == [(job.name, AT_MS) for job in load.jobs]


def test_a_daily_job_is_due_at_its_second():
    for at_ms in (AT_MS, AT_MS + 17_000, AT_MS - 1_000):
        assert next_time(daily(at_ms), at_ms - 1) == at_ms


def test_idle_is_one_run_in_each_second():
    load = every_second(1, ORIGINS, AT_MS, 5)
    times = next_n_times(load.jobs[0].definition.schedule, AT_MS - 60_000, 10)
    assert times == [time_ms for _, time_ms in load.expected] == [AT_MS + 1000 * second for second in range(5)]
    assert load.last_ms == times[-1]


def test_a_morning_is_as_described():
    load = morning(list(range(1, MORNING_TENANTS + 1)), ORIGINS, AT_MS)
    of_tenant = Counter(job.tenant_id for job in load.jobs)
    assert sum(of_tenant.values()) == MORNING_JOBS
    assert len(of_tenant) == MORNING_TENANTS
    assert sum(jobs for _, jobs in of_tenant.most_common(10)) == 0.4 * MORNING_JOBS
    kinds = Counter(job.definition.target.url.split("/")[3] for job in load.jobs)
    assert 0.01 < kinds["slow"] / MORNING_JOBS < 0.03
    assert 0.005 < kinds["flaky"] / MORNING_JOBS < 0.015
    assert 0.002 < kinds["dead"] / MORNING_JOBS < 0.008
    assert len(load.expected) == MORNING_JOBS - kinds["dead"]
    times = [time_ms for _, time_ms in load.expected]
    assert times.count(AT_MS) > 0.75 * MORNING_JOBS
    assert {abs(time_ms - AT_MS) // 1000 for time_ms in times} == set(range(AROUND_S + 1))


def test_addresses_are_of_this_machine_and_all_different():
    addresses = {address(number) for number in range(2_000)}
    assert len(addresses) == 2_000
    assert all(one.startswith("127.1.") for one in addresses)
