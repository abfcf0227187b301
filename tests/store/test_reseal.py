"""Keys of secrets against a real shard: on record before they seal, missed at the start, replaced while all runs."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace

import pytest

from engine.config import Dsn
from engine.errors import OperatorError
from engine.keys import KeyMissing, Keys, new_key
from engine.model import Cron, Definition, HeaderValue, HttpTarget, partition_of
from engine.outbound.target import Guard
from engine.stages.versions import CallPlan, Versions
from engine.store.changes import Windows, edit_job, pause_job
from engine.store.jobs import JobRow, NewJob, create_jobs, find_jobs
from engine.store.reseal import JOBS_PER_STEP, reseal
from engine.store.service_key import adopt_keys, check_keys, secret_keys
from engine.store.shard import Shard
from engine.store.tenants import create_tenant, secrets_of, show_secret
from tests.support.world import PARTITIONS, World, run_world

SECRET = "hunter2-and-more"
TARGET = HttpTarget(
    "https://example.com/", headers=(("Accept", HeaderValue("*/*")), ("X-Key", HeaderValue(SECRET, secret=True)))
)
DEFINITION = Definition(Cron("0 9 * * *"), TARGET)
OLD, NEW = new_key(), new_key()


def new_job(tenant_id: int, name: str, definition: Definition = DEFINITION) -> NewJob:
    return NewJob(tenant_id, name, partition_of(tenant_id, name, PARTITIONS), definition, paused=False)


async def find(shard: Shard, tenant_id: int, name: str) -> JobRow:
    return (await find_jobs(shard, [(tenant_id, name)]))[tenant_id, name]


def with_keys(shard: Shard, *texts: str) -> Shard:
    """The same shard as a process sees it that has these keys."""
    return Shard(shard.dsn, shard.index, keys=Keys(texts))


async def load(shard: Shard, job: JobRow) -> CallPlan | Exception:
    key = (job.partition_id, job.job_id, job.version)
    async with shard.connection() as connection:
        return (await Versions(Guard()).load(connection, [key], shard.packet_bytes_max))[key]


def test_p9_a_lost_key_is_one_clear_error_at_the_start(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        before = with_keys(world.shard, OLD)
        service_key = await adopt_keys(before)
        assert await adopt_keys(before) == service_key
        both = with_keys(world.shard, NEW, OLD)
        assert await adopt_keys(both) == service_key, "it is the service's own, whatever key seals it"
        assert [key_id for key_id, _ in await secret_keys(both)] == [before.keys.current_id, both.keys.current_id]
        for lost in (with_keys(world.shard, NEW), with_keys(world.shard, new_key()), with_keys(world.shard)):
            for check in (adopt_keys, check_keys) if lost.keys.ids else (check_keys,):
                with pytest.raises(OperatorError, match=before.keys.current_id) as caught:
                    await check(lost)
                assert "\n" not in str(caught.value)
            await lost.close()
        await check_keys(both)
        for shard in (before, both):
            await shard.close()

    run_world(shard_dsn, body)


def test_p9_two_processes_that_start_at_once_agree_on_the_service_key(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        shards = [with_keys(world.shard, OLD) for _ in range(4)]
        assert len(set(await asyncio.gather(*map(adopt_keys, shards)))) == 1
        for shard in shards:
            await shard.close()

    run_world(shard_dsn, body)


def test_p9_executors_open_a_secret_once_when_they_load_its_version(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        shard = with_keys(world.shard, OLD)
        (job,) = await create_jobs(shard, [new_job(1, "a")])
        assert job.definition == DEFINITION.encode()
        stored = (await world.rows("SELECT definition FROM job_versions"))[0][0]
        assert SECRET.encode() not in stored
        call = await load(shard, job)
        assert isinstance(call, CallPlan)
        assert f"X-Key: {SECRET}\r\n".encode() in call.fixed_head
        lost = with_keys(world.shard, NEW)
        sealed = await load(lost, job)
        assert isinstance(sealed, CallPlan), "the job is not set aside: it waits for the key"
        assert sealed.target is None
        assert f"key {shard.keys.current_id}, which is not in" in sealed.sealed
        moved = job._replace(job_id=job.job_id + 1)
        await world.rows("UPDATE job_versions SET job_id = job_id + 1")
        assert isinstance(await load(shard, moved), ValueError), "a secret copied to another job is none there"
        for each in (shard, lost):
            await each.close()

    run_world(shard_dsn, body)


def test_p9_a_rotation_seals_everything_again_in_small_steps_and_once(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        old, both = with_keys(world.shard, OLD), with_keys(world.shard, NEW, OLD)
        await adopt_keys(old)
        tenant = await create_tenant(old, "acme")
        names = [f"job-{number}" for number in range(2 * JOBS_PER_STEP)]
        await create_jobs(old, [new_job(tenant.tenant_id, name) for name in names])
        plain = replace(DEFINITION, target=HttpTarget("https://example.com/"))
        await create_jobs(old, [new_job(tenant.tenant_id, "plain", plain)])
        job = await find(old, tenant.tenant_id, "job-0")
        await edit_job(old, job, replace(DEFINITION, timeout_ms=5_000), None, Windows())
        steps: list[int] = []
        resealed = await reseal([both], steps.append)
        assert resealed == len(names) + 2, "every version, and the signing secret"
        assert max(after - before for before, after in itertools.pairwise(steps)) <= JOBS_PER_STEP + 1
        assert await reseal([both]) == 0
        new = with_keys(world.shard, NEW)
        await check_keys(new)
        assert (await find(new, tenant.tenant_id, "job-0")).definition == replace(DEFINITION, timeout_ms=5_000).encode()
        assert [show_secret(each.secret) for each in await secrets_of(new, tenant.tenant_id)] == [tenant.signing_secret]
        assert await world.rows("SELECT DISTINCT key_id FROM job_versions ORDER BY key_id") == [
            (None,),
            (new.keys.current_id,),
        ]
        for shard in (old, both, new):
            await shard.close()

    run_world(shard_dsn, body)


def test_p9_a_rotation_goes_past_what_it_cannot_open_and_then_forgets_no_key(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        old, both = with_keys(world.shard, OLD), with_keys(world.shard, NEW, OLD)
        stranger = with_keys(world.shard, new_key())
        await adopt_keys(old)
        tenant = await create_tenant(old, "acme")
        other = await create_tenant(stranger, "other")
        spoilt = await create_tenant(old, "spoilt")
        await world.rows(
            f"UPDATE signing_secrets SET secret = CONCAT(secret, 'x') WHERE tenant_id = {spoilt.tenant_id}"
        )
        await create_jobs(old, [new_job(tenant.tenant_id, f"job-{number}") for number in range(5)])
        await create_jobs(stranger, [new_job(tenant.tenant_id, "strange")])
        with pytest.raises(OperatorError, match=f"key {stranger.keys.current_id}, which is not in") as caught:
            await reseal([both])
        assert "\n" not in str(caught.value)
        assert await world.rows("SELECT DISTINCT key_id FROM job_versions ORDER BY key_id") == sorted(
            [(both.keys.current_id,), (stranger.keys.current_id,)]
        )
        assert len(await secret_keys(both)) == 2, "the old key may still be needed"
        assert await secrets_of(both, tenant.tenant_id)
        with pytest.raises(KeyMissing):
            await secrets_of(both, other.tenant_id)
        for shard in (old, both, stranger):
            await shard.close()

    run_world(shard_dsn, body)


def test_p9_what_cannot_be_opened_is_stored_again_as_it_is(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        old, new, both = (with_keys(world.shard, *keys) for keys in ((OLD,), (NEW,), (NEW, OLD)))
        await create_jobs(old, [new_job(1, "a")])
        sealed = await find(new, 1, "a")
        assert SECRET.encode() not in sealed.definition
        await pause_job(new, sealed, None, Windows())
        paused = await find(both, 1, "a")
        assert (paused.version, paused.definition) == (2, DEFINITION.encode())
        # Sealed by two keys at once, it is found by a rotation until neither of them is needed.
        target = Definition.decode((await find(new, 1, "a")).definition).target
        assert isinstance(target, HttpTarget)
        more = HttpTarget(target.url, headers=(*target.headers, ("X-More", HeaderValue("more", secret=True))))
        assert await edit_job(new, await find(new, 1, "a"), replace(DEFINITION, target=more), None, Windows())
        assert await world.rows("SELECT key_id FROM job_versions WHERE version = 3") == [(old.keys.current_id,)]
        await adopt_keys(old)
        assert await reseal([both]) == 3
        target = Definition.decode((await find(new, 1, "a")).definition).target
        assert [value.value for _, value in target.headers] == ["*/*", SECRET, "more"]
        for shard in (old, new, both):
            await shard.close()

    run_world(shard_dsn, body)


def test_p9_a_rotation_leaves_alone_what_changes_meanwhile_and_two_may_run(shard_dsn: Dsn) -> None:
    async def body(world: World) -> None:
        old = with_keys(world.shard, OLD)
        await adopt_keys(old)
        await create_jobs(old, [new_job(1, f"job-{number}") for number in range(60)])
        shards = [with_keys(world.shard, NEW, OLD) for _ in range(2)]
        await adopt_keys(shards[0])

        async def edits() -> None:
            for number in range(20):
                job = await find(shards[0], 1, f"job-{number}")
                assert await edit_job(shards[0], job, replace(DEFINITION, timeout_ms=5_000), None, Windows())

        await asyncio.gather(reseal([shards[0]]), reseal([shards[1]]), edits())
        new = with_keys(world.shard, NEW)
        for number in range(60):
            job = await find(new, 1, f"job-{number}")
            assert job.definition == replace(DEFINITION, timeout_ms=5_000 if number < 20 else 30_000).encode()
        for shard in (old, *shards, new):
            await shard.close()

    run_world(shard_dsn, body)
