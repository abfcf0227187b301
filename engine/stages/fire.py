"""Fire: the wheel releases a run, it is prepared, and at its second its request leaves; never a byte earlier.

Directly before the first byte the worker must still trust its own lease, and the run's lease must reach beyond the
time-out; else the run is given back and somebody else fires it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from engine.clock import Clock
from engine.events import Events
from engine.model import OutcomeKind, Priority, Reason, idempotency_key
from engine.outbound.client import HttpClient
from engine.outbound.exchange import Outcome, Request
from engine.outbound.head import run_head
from engine.outbound.sign import signature
from engine.rules.brakes import InForce
from engine.rules.quota import (
    ORIGIN_LIMITS,
    PRIORITY_STARTS_PER_S,
    TENANT_STARTS_LIMIT,
    TENANT_STARTS_PER_S,
    OriginLimits,
    StartQuota,
    share,
)
from engine.rules.ready import LATE_MS, StartOrder
from engine.rules.target_text import Origin
from engine.stages.held import HeldRun, HeldRuns
from engine.stages.lease import Lease
from engine.store.tenants import Tenant

# Calls in flight at once: in one lane (tenant and origin), and in this executor.
LANE_IN_FLIGHT_MAX = 256
IN_FLIGHT_MAX = 4_000

# The run's lease must outlast its time-out by this much, or the run is given back instead of fired.
LEASE_SLACK_MS = 5_000

# A run that has been ready for this long and waits for its own lane goes back, and is looked for once a second.
HELD_MS_MAX = 5_000
HELD_CHECK_MS = 1_000

# So many runs share a connection that is opened for them: a TLS handshake costs as much as some forty requests.
RUNS_PER_CONNECTION = {"http": 1, "https": 32}

# Bursts (tenant, origin and moment) that are over are forgotten this often.
FORGET_INTERVAL_MS = 5_000

# A signature says when its attempt is due; one that is sent later than this is signed anew with the time of sending.
SIGNED_LATE_MS = 60_000

# The wheel is looked at no less often than this, so that a clock that was corrected is noticed.
IDLE_TICK_MS = 1_000

# How many executors share a limit is asked again after this.
LIVE_ASKED_MS = 100

# A tenant that the first shard has not told us of yet is asked for again after this.
UNKNOWN_TENANT_MS = 50

# A run that cannot be signed is claimed again after this: its tenant's secret is sealed with a key that is not here.
SEALED_PAUSE_MS = 10_000


class Ends(Protocol):
    """Where runs go that need no more firing: the stage that settles their shard."""

    def settled(self, run: HeldRun, outcome: Outcome) -> None: ...

    def skipped(self, run: HeldRun, reason: Reason) -> None: ...

    def given_back(self, run: HeldRun) -> None: ...

    def held_up(self, run: HeldRun, pause_ms: int = ...) -> None: ...


class Fire:
    """Fires what this worker holds. Runs inside the event loop on one timer; no task per run."""

    def __init__(
        self,
        held: HeldRuns,
        leases: Sequence[Lease],
        client: HttpClient,
        tenant_of: Callable[[int], Tenant | None],
        brakes: Callable[[], InForce],
        ends: Sequence[Ends],
        clock: Clock,
        events: Events,
        origin_limits: OriginLimits = ORIGIN_LIMITS,
    ) -> None:
        self._held = held
        self._origin_limits = origin_limits
        self._leases = leases
        self._client = client
        self._tenant_of = tenant_of
        self._brakes = brakes
        self._ends = ends
        self._clock = clock
        self._events = events
        self._ready: StartOrder[HeldRun] = StartOrder(LANE_IN_FLIGHT_MAX, IN_FLIGHT_MAX)
        self._quota = StartQuota()
        self._origin_in_flight: dict[Origin, int] = {}
        self.lag_ms = 0  # of the last start: how late it was
        self._live = 1
        self._live_asked_ms = 0
        self._held_up_at_ms = 0
        self._forgot_at_ms = 0
        self._loop = asyncio.get_event_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._warming: set[asyncio.Task[object]] = set()
        self._coming: dict[tuple[int, Origin, int], int] = {}

    @property
    def in_flight(self) -> int:
        return self._ready.in_flight

    @property
    def ready(self) -> int:
        return len(self._ready)

    def hold(self, runs: Sequence[HeldRun]) -> None:
        """Take over claimed runs and fire each at its moment."""
        for tenant_id in {run.tenant_id for run in runs}:
            self._tenant_of(tenant_id)  # so that it is known when the run is prepared
        self._held.add(runs)
        for run in runs:
            if self._held.was_foretold(run):
                # Paused, deleted or cancelled before we knew that it is ours: whoever claims it next sees to that.
                self.abandon(run)
                self._ends[run.shard_index].given_back(run)
        self._schedule(self._clock.now_ms())

    def run_once(self, now_ms: int) -> None:
        """Prepare and fire whatever the wheel releases up to now."""
        self._warm(self._sort(self._held.advance(now_ms), now_ms), now_ms)
        self._start(now_ms)
        self._schedule(now_ms)

    def cancel(self, run: HeldRun) -> None:
        """A tenant's cancel: stop it if it is in flight, and settle it as cancelled."""
        if run.cancelled or run.decided:
            return
        run.cancelled = True
        in_flight = run.in_flight
        if in_flight:
            self._client.abort(run)
            self._ended(run)
        outcome = _without_call(OutcomeKind.CANCELLED, self._clock.now_ms(), "cancelled by the tenant")
        self._settled(run, outcome._replace(bytes_sent=in_flight))

    def abandon(self, run: HeldRun) -> None:
        """It is no longer ours (withdrawn, or given to others): do not fire it and write nothing."""
        run.abandoned = True
        self._held.remove(run)

    def give_up(self, shard_index: int) -> None:
        """The lease of a shard is lost: nothing that was claimed there under the old id is fired any more.

        It is given back and not just dropped: a claim that was committed after the reaper had looked is nobody else's.
        Where the reaper was first, the fence makes this nothing.
        """
        for run in self._held.unfired():
            if run.shard_index == shard_index:
                self.abandon(run)
                self._ends[shard_index].given_back(run)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _sort(self, released: Sequence[HeldRun], now_ms: int) -> list[HeldRun]:
        """First release: prepare. Second release: ready. Returns those that were prepared now."""
        prepared: list[HeldRun] = []
        for run in released:
            if run.request is None and not self._prepare(run, now_ms):
                continue
            if run.due_ms <= now_ms:
                self._make_ready(run, now_ms)
            else:
                prepared.append(run)
                self._held.again(run, run.due_ms)
        return prepared

    def _make_ready(self, run: HeldRun, now_ms: int) -> None:
        assert run.request is not None  # noqa: S101 - only prepared runs become ready
        priority = run.priority
        starts_per_s = PRIORITY_STARTS_PER_S.get(priority)
        if starts_per_s is not None:
            part = share(starts_per_s, self._live_workers(now_ms))
            if not self._quota.admit((run.tenant_id, priority), part, now_ms):
                run.demoted = True
                priority = Priority.NORMAL
        run.late = run.late or now_ms - run.due_ms > LATE_MS
        self._ready.push(run, priority, run.tenant_id, run.request.origin, late=run.late, now_ms=now_ms)

    def _prepare(self, run: HeldRun, now_ms: int) -> bool:
        """Build and sign the request; False for a run that ends without a call, or is looked at again."""
        call = run.call
        if call.target is None:
            self._refuse(run, now_ms)
            return False
        tenant = self._tenant_of(run.tenant_id)
        if tenant is None and _outlasts(run, now_ms):
            self._held.again(run, now_ms + UNKNOWN_TENANT_MS)
            return False
        if tenant is None:
            self._ends[run.shard_index].given_back(run)
            return False
        if tenant.disabled:
            self._ends[run.shard_index].skipped(run, Reason.TENANT_DISABLED)
            return False
        if tenant.sealed:
            self._ends[run.shard_index].held_up(run, SEALED_PAUSE_MS)
            return False
        head = self._head(run, tenant, run.due_ms)
        run.request = Request(run.tenant_id, call.target.origin, call.method, head, call.body, call.timeout_ms)
        return True

    def _refuse(self, run: HeldRun, now_ms: int) -> None:
        """A target that may not be called ends its run at its second, not before."""
        if run.due_ms > now_ms:
            self._held.again(run, run.due_ms)
            return
        detail = run.call.refusal.detail if run.call.refusal else "no target"
        self._settled(run, _without_call(OutcomeKind.TARGET_REFUSED, now_ms, detail))

    def _head(self, run: HeldRun, tenant: Tenant, signed_at_ms: int) -> bytes:
        key = idempotency_key(run.key.job_id, run.key.scheduled_at_ms).encode()
        timestamp_s = signed_at_ms // 1000
        signed = signature(tenant.signing_keys, key, timestamp_s, run.call.body)
        return run_head(run.call.fixed_head, key, run.key.scheduled_at_ms, run.attempt, timestamp_s, signed)

    def _warm(self, prepared: Sequence[HeldRun], now_ms: int) -> None:
        """Connections for the coming bursts, as many as each can use; asked for when a burst's need doubles."""
        for run in prepared:
            assert run.request is not None  # noqa: S101 - it was prepared
            burst = (run.tenant_id, run.request.origin, run.due_ms)
            count = self._coming.get(burst, 0) + 1
            self._coming[burst] = count
            wanted = _connections_due(count, run.request.origin.scheme)
            if wanted:
                task = self._loop.create_task(self._client.warm(run.tenant_id, run.request.origin, wanted))
                self._warming.add(task)
                task.add_done_callback(self._warming.discard)
        if now_ms - self._forgot_at_ms > FORGET_INTERVAL_MS:
            self._forgot_at_ms = now_ms
            self._coming = {burst: count for burst, count in self._coming.items() if burst[2] > now_ms}

    def _start(self, now_ms: int) -> None:
        live = self._live_workers(now_ms)
        brakes = self._brakes()
        while (popped := self._ready.pop()) is not None:
            run, _ = popped
            if brakes.any and self._is_braked(run, brakes):
                continue
            if self._is_limited(run, live, now_ms):
                self._postpone(run, now_ms)
            else:
                self._fire(run, now_ms)
        if now_ms - self._held_up_at_ms >= HELD_CHECK_MS:
            self._held_up_at_ms = now_ms
            self._return_held_up(now_ms)

    def _is_braked(self, run: HeldRun, brakes: InForce) -> bool:
        """Whether an operator's brake keeps it from starting: it waits until that is released, or ends as blocked."""
        stopped = brakes.stops(run.tenant_id)
        if not stopped and not brakes.blocks(self._origin_of(run)):
            return False
        self._done(run)
        if run.abandoned or run.cancelled:
            return True
        if stopped:
            self._ends[run.shard_index].held_up(run)
        else:
            self._ends[run.shard_index].skipped(run, Reason.BLOCKED)
        return True

    def _is_limited(self, run: HeldRun, live: int, now_ms: int) -> bool:
        """Whether its tenant has had all its starts of this second, or its public origin has all that it takes."""
        tenant = self._tenant_of(run.tenant_id)
        limit = tenant.limits.get(TENANT_STARTS_LIMIT, TENANT_STARTS_PER_S) if tenant else TENANT_STARTS_PER_S
        if not self._quota.admit(run.tenant_id, share(limit, live), now_ms):
            return True
        if not run.call.is_public:
            return False
        origin = self._origin_of(run)
        full = self._origin_in_flight.get(origin, 0) >= share(self._origin_limits.in_flight, live)
        return full or not self._quota.admit(origin, share(self._origin_limits.starts_per_s, live), now_ms)

    def _postpone(self, run: HeldRun, now_ms: int) -> None:
        """Ready again in the next second, or back to the table where it has waited for long."""
        self._done(run)
        if run.abandoned or run.cancelled:
            return
        if now_ms - run.due_ms >= HELD_MS_MAX:
            self._ends[run.shard_index].held_up(run)
        else:
            self._held.again(run, now_ms - now_ms % 1000 + 1000)

    def _live_workers(self, now_ms: int) -> int:
        """Asked for at every start, and changed by a heartbeat at most."""
        if now_ms - self._live_asked_ms >= LIVE_ASKED_MS:
            self._live_asked_ms = now_ms
            self._live = max(lease.live_workers for lease in self._leases)
        return self._live

    def _origin_of(self, run: HeldRun) -> Origin:
        assert run.request is not None  # noqa: S101 - only prepared runs become ready
        return run.request.origin

    def _return_held_up(self, now_ms: int) -> None:
        """What has waited for its own lane for too long makes room in memory, and comes back later."""
        for run in self._ready.held_since(now_ms - HELD_MS_MAX):
            if not run.abandoned and not run.cancelled:
                self._ends[run.shard_index].held_up(run)

    def _fire(self, run: HeldRun, now_ms: int) -> None:
        request = run.request
        assert request is not None  # noqa: S101 - only prepared runs are ready
        if run.abandoned or run.cancelled:
            self._done(run)
            return
        lease = self._leases[run.shard_index]
        if not lease.trusted() or run.worker_id != lease.worker_id or not _outlasts(run, now_ms):
            self._done(run)
            self._ends[run.shard_index].given_back(run)
            return
        if now_ms > run.due_ms + SIGNED_LATE_MS:
            self._sign_again(run, request, now_ms)
        run.in_flight = True
        self.lag_ms = now_ms - run.due_ms
        if run.call.is_public:
            self._origin_in_flight[request.origin] = self._origin_in_flight.get(request.origin, 0) + 1
        self._client.send(request, self._on_done, run)

    def _sign_again(self, run: HeldRun, request: Request, now_ms: int) -> None:
        tenant = self._tenant_of(run.tenant_id)
        if tenant is not None and not tenant.sealed:
            request.head = self._head(run, tenant, now_ms)

    def _on_done(self, run: HeldRun, outcome: Outcome) -> None:
        self._ended(run)
        self._settled(run, outcome)
        self._start(self._clock.now_ms())

    def _ended(self, run: HeldRun) -> None:
        run.in_flight = False
        if run.call.is_public:
            self._leave(self._origin_of(run))
        self._done(run)

    def _leave(self, origin: Origin) -> None:
        left = self._origin_in_flight[origin] - 1
        if left:
            self._origin_in_flight[origin] = left
        else:
            del self._origin_in_flight[origin]

    def _done(self, run: HeldRun) -> None:
        self._ready.done(run.tenant_id, run.request.origin, late=run.late)  # type: ignore[union-attr]

    def _settled(self, run: HeldRun, outcome: Outcome) -> None:
        self._ends[run.shard_index].settled(run, outcome)

    def _schedule(self, now_ms: int) -> None:
        """One timer for the whole wheel, at its next moment."""
        next_ms = self._held.next_ms()
        at_ms = now_ms + IDLE_TICK_MS if next_ms < 0 else min(next_ms, now_ms + IDLE_TICK_MS)
        if self._timer is not None:
            if self._timer_ms <= at_ms and self._timer_ms > now_ms:
                return
            self._timer.cancel()
        self._timer_ms = at_ms
        self._timer = self._loop.call_later(max(1, at_ms - now_ms) / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.run_once(self._clock.now_ms())


def _connections_due(count: int, scheme: str) -> int:
    """How many connections to ask for now that a burst has this many runs; 0 unless its need has just doubled."""
    before, rest = divmod(count - 1, RUNS_PER_CONNECTION[scheme])
    wanted = before + 1
    doubled = rest == 0 and wanted & before == 0
    return wanted if doubled and wanted <= LANE_IN_FLIGHT_MAX else 0


def _outlasts(run: HeldRun, now_ms: int) -> bool:
    return run.lease_until_ms > now_ms + run.call.timeout_ms + LEASE_SLACK_MS


def _without_call(kind: OutcomeKind, now_ms: int, detail: str) -> Outcome:
    """An outcome of a run for which nothing was sent."""
    return Outcome(kind, None, None, b"", now_ms, now_ms, False, kind.name.lower(), detail)
