"""Versions of jobs, read once and kept: the decoded definition and what of a call is the same for every run of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from engine.keys import KeyMissing, Keys
from engine.model import Definition, FunctionTarget, HttpTarget
from engine.outbound.head import USER_AGENT, fixed_head
from engine.outbound.target import Guard
from engine.rules.planning import MissedPolicy
from engine.rules.redaction import redacted, spellings
from engine.rules.target_text import Refusal, Target
from engine.store.connection import Connection
from engine.store.sealed import decode_sealed

# A version is some 2 KB plus its body; the oldest ones make room.
VERSIONS_MAX = 50_000

# A run's lease reaches this far past its time-out: settling may wait a few seconds in a peak.
LEASE_BEYOND_TIMEOUT_MS = 60_000

VersionKey = tuple[int, int, int]


class CallPlan:
    """A version made ready: its definition, and what of a call is the same for every run of it."""

    __slots__ = (
        "_secrets", "body", "definition", "fixed_head", "function", "is_public", "method", "policy", "refusal",
        "sealed", "target", "timeout_ms",
    )  # fmt: skip

    def __init__(
        self, definition: Definition, guard: Guard, user_agent: str = USER_AGENT, *, sealed: str = ""
    ) -> None:
        """``sealed`` says why its secrets cannot be opened here: it can be planned and settled, but not called."""
        self.definition = definition
        self.sealed = sealed
        self.policy = MissedPolicy(definition.missed_runs, definition.max_catch_up)
        self.timeout_ms = definition.timeout_ms
        self.target: Target | None = None
        self.refusal: Refusal | None = None
        self.is_public = False
        self._secrets: Sequence[bytes] | None = None
        self.function = definition.target if isinstance(definition.target, FunctionTarget) else None
        if isinstance(definition.target, HttpTarget) and not sealed:
            self._prepare_http(definition.target, guard, user_agent)

    def lease_until_ms(self, due_ms: int, now_ms: int) -> int:
        return max(due_ms, now_ms) + self.timeout_ms + LEASE_BEYOND_TIMEOUT_MS

    def due_ms(self, lease_until_ms: int) -> int:
        """The inverse: when the run with this lease was due, or was claimed if that was later."""
        return lease_until_ms - self.timeout_ms - LEASE_BEYOND_TIMEOUT_MS

    def kept_answer(self, answer: bytes, bytes_max: int) -> bytes:
        """What may be kept of an answer: its first bytes, without the job's secrets. Most answers are not kept, so what
        is looked for is made when it is first needed."""
        if self._secrets is None:
            target = self.definition.target
            headers = target.headers if isinstance(target, HttpTarget) else ()
            self._secrets = spellings(header.value for _, header in headers if header.secret)
        return redacted(answer[:bytes_max], self._secrets, bytes_max) if self._secrets else answer[:bytes_max]

    def _prepare_http(self, target: HttpTarget, guard: Guard, user_agent: str) -> None:
        self.method = target.method
        self.body = target.body or b""
        judged = guard.judge_url(target.url)
        if isinstance(judged, Refusal):
            self.refusal = judged
            return
        self.target = judged
        self.is_public = not guard.is_operators(judged.origin)
        if any(value.sealed_by for _, value in target.headers):
            raise ValueError("a secret header is sealed: it must not be sent as it is stored")
        headers = [(name, value.value) for name, value in target.headers]
        self.fixed_head = fixed_head(judged, target.method, headers, target.body, user_agent)


class Versions:
    """A bounded cache in front of ``job_versions``. Versions never change, so nothing has to be invalidated."""

    def __init__(self, guard: Guard, versions_max: int = VERSIONS_MAX, user_agent: str = USER_AGENT) -> None:
        self._guard = guard
        self.user_agent = user_agent
        self._versions_max = versions_max
        self._known: dict[VersionKey, CallPlan | Exception] = {}
        self._judged_in = guard.generation

    async def load(
        self, connection: Connection, wanted: Iterable[VersionKey], bytes_max: int
    ) -> dict[VersionKey, CallPlan | Exception]:
        """(partition_id, job_id, version) → plan, or the error that says why it cannot be evaluated.

        A plan that is sealed is read again each time: its key may come.
        """
        self._forget_old_judgements()
        keys = sorted(set(wanted))
        # Taken out now: what is read, here or for others meanwhile, may make these leave the cache.
        found = {key: self._known[key] for key in keys if key in self._known}
        missing = [key for key in keys if key not in found]
        if missing:
            rows = await connection.fetch_rows("read_versions", missing, bytes_max=bytes_max)
            found |= self._keep(rows, connection.keys)
        return {key: found.get(key, LookupError("the version's row is missing")) for key in keys}

    def _forget_old_judgements(self) -> None:
        """A listener of ours has come or gone: seldom, and what a URL was refused for may be over."""
        if self._judged_in != self._guard.generation:
            self._judged_in = self._guard.generation
            self._known.clear()

    def _keep(
        self, rows: Sequence[tuple[int, int, int, bytes]], keys: Keys
    ) -> dict[VersionKey, CallPlan | Exception]:
        new = {
            (partition_id, job_id, version): self._ready(stored, job_id, keys)
            for partition_id, job_id, version, stored in rows
        }
        self._known |= {
            key: call for key, call in new.items() if not isinstance(call, CallPlan) or not call.sealed
        }
        for key in list(islice(self._known, max(0, len(self._known) - self._versions_max))):
            del self._known[key]
        return new

    def _ready(self, stored: bytes, job_id: int, keys: Keys) -> CallPlan | Exception:
        try:
            return CallPlan(decode_sealed(stored, job_id, keys), self._guard, self.user_agent)
        except KeyMissing as error:  # no fault of the job's: it is due as long as it takes to find the key
            return CallPlan(Definition.decode(stored), self._guard, self.user_agent, sealed=str(error))
        except Exception as error:  # whatever is wrong with one job must not hold up the others
            return error
