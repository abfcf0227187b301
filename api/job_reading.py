"""The reading of a job's body: what its fields are judged by, beside the time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from api.fields import Reading
from engine.model import Cron, Definition, RunAt
from engine.rules.target_text import Refusal, Target, read_target


@dataclass(slots=True)
class JobReading(Reading):
    """A job's body, read beside the job as it is stored.

    ``stored`` is what an equal schedule and the fingerprints of secret headers are compared with; ``fingerprint``
    makes one of a secret value.
    With ``any_time`` a schedule need not have a time to come. ``judge_url`` is the operator's guard of targets.
    """

    stored: Definition | None = None
    fingerprint: Callable[[str], str] = str
    judge_url: Callable[[str], Target | Refusal] = read_target
    any_time: bool = False

    def takes(self, schedule: RunAt | Cron) -> bool:
        """Whether this schedule stands whatever the time is now: it is stored already, or nobody asks for the time."""
        return self.any_time or (self.stored is not None and self.stored.schedule == schedule)
