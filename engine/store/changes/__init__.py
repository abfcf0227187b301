"""Changes of a job: edit, pause, resume, delete, and starting or cancelling a run by hand.

Each is one transaction under the job's row lock, judged by the shard's time read under that lock, and writes an
immutable version. A change that touches claimed runs leaves signals for those who hold them, in the same transaction.
"""

from engine.store.changes.by_hand import Cancelled, Started, cancel_run, start_run
from engine.store.changes.change import Changed, Windows
from engine.store.changes.delete import delete_job
from engine.store.changes.edit import edit_job
from engine.store.changes.open_runs import open_run
from engine.store.changes.pause import pause_job, resume_job
from engine.store.changes.signals import wait_obeyed
from engine.store.changes.take_back import take_back

__all__ = [
    "Cancelled",
    "Changed",
    "Started",
    "Windows",
    "cancel_run",
    "delete_job",
    "edit_job",
    "open_run",
    "pause_job",
    "resume_job",
    "start_run",
    "take_back",
    "wait_obeyed",
]
