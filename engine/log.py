"""The log: every event's level and wording, in one place. One line of JSON per event on standard error."""

from __future__ import annotations

import re
import sys
import traceback
from typing import IO, Any

import orjson

from engine.clock import wall_ms

# What comes too often for a log is counted and never written.
COUNTED, DEBUG, INFO, WARNING, ERROR = 0, 10, 20, 30, 40
LEVELS = {"debug": DEBUG, "info": INFO, "warning": WARNING, "error": ERROR}

WORDING: dict[str, tuple[int, str]] = {
    "run.planned": (DEBUG, "runs planned"),
    "run.claimed": (DEBUG, "waiting runs claimed"),
    "run.settled": (DEBUG, "attempts ended"),
    "run.fenced": (INFO, "late results changed nothing"),
    "run.reaped": (INFO, "runs of a dead worker given back"),
    "run.swept": (DEBUG, "open runs passed by the mark"),
    "run.sealed": (ERROR, "runs are held: their secrets are encrypted with a key that this host does not have"),
    "tenant.sealed": (ERROR, "a tenant's runs are held: its signing secret cannot be opened on this host"),
    "job.invalid": (WARNING, "a job cannot be evaluated and was set aside"),
    "work.claimed": (DEBUG, "function runs handed to workers"),
    "work.stale": (INFO, "workers spoke of runs that they have lost"),
    "work.unclaimed": (INFO, "function runs ended that no worker will have: disabled tenants, ages over max_age"),
    "work.lapsed": (INFO, "function runs taken back: silent workers, cancels, ends of time"),
    "lease.partitions": (INFO, "partitions owned"),
    "lease.lost": (WARNING, "lease lost; beginning again under a new worker id"),
    "drain.incomplete": (INFO, "a shard is away while draining; what is held there is reaped"),
    "lease.not_released": (INFO, "lease not released; it ends by itself"),
    "worker.condemned": (INFO, "a silent worker was declared dead"),
    "worker.reaped": (INFO, "a dead worker holds nothing any more"),
    "worker.stalled": (ERROR, "a stage has failed for too long; its partitions are left to other workers"),
    "worker.gone": (INFO, "a worker's process is gone; its lease was released"),
    "clock.off": (WARNING, "this host's clock differs from the shard's"),
    "commit.resolved": (INFO, "a commit of unknown outcome was looked up"),
    "statement.ended": (COUNTED, "a statement was answered"),
    "backlog.seen": (COUNTED, "how far planning has come"),
    "work.seen": (COUNTED, "how many function runs wait for workers, and what the doors have done"),
    "mark.busy": (DEBUG, "a mark was held by a planner"),
    "hour.counted": (DEBUG, "an hour of one partition was counted"),
    "count.busy": (DEBUG, "another keeper counts this partition"),
    "run.recorded": (DEBUG, "finished runs written to Cassandra"),
    "record.repeated": (INFO, "a node of Cassandra was lost; what it may not have had on its disk is written again"),
    "record.backlog": (COUNTED, "what is old enough to leave MySQL was counted"),
    "history.connected": (INFO, "connected to Cassandra"),
    "history.unavailable": (WARNING, "Cassandra did not answer; runs go on, older history is not to be had"),
    "day.made": (INFO, "a day was made"),
    "day.kept": (INFO, "a day is past its retention but cannot be dropped yet"),
    "rows.tidied": (DEBUG, "what has had its time was removed"),
    "day.dropped": (INFO, "a day was dropped"),
    "notice.told": (DEBUG, "notices sent to tenants"),
    "notice.refused": (INFO, "a notice's address may not be called"),
    "notice.given_up": (INFO, "a notice could not be delivered for a day"),
    "stage.unavailable": (WARNING, "a shard did not answer; trying again"),
    "stage.outrun": (DEBUG, "others held what a stage wanted, again and again; trying again"),
    "stage.failed": (ERROR, "a stage failed; trying again"),
    "brake.pulled": (WARNING, "an operator stops calls"),
    "brake.released": (WARNING, "an operator lets calls go on"),
    "child.started": (INFO, "process started"),
    "child.ended": (WARNING, "process ended; starting it again"),
    "api.listening": (INFO, "the API takes calls"),
    "api.answered": (DEBUG, "a call was answered"),
    "api.operated": (INFO, "an operator's key was used"),
    "api.sealed": (ERROR, "a call met a secret that is encrypted with a key that this host does not have"),
    "api.failed": (ERROR, "a call failed by a mistake of ours"),
    "api.stopped": (INFO, "the API has stopped"),
    "node.draining": (INFO, "draining"),
    "node.stopped": (INFO, "stopped"),
}


_URL = re.compile(r"\b(https?://)(?:[^\s/?#@\"']*@)?([^\s/?#@\"']*)[^\s\"']*")

# Fields with a number for every run are for the metrics.
COUNTED_FIELDS = frozenset({"lags_ms"})


class LogSubscriber:
    """Writes events of at least ``level`` as JSON lines."""

    def __init__(self, process: str, level: str, stream: IO[bytes] | None = None) -> None:
        self._process = process
        self._level = LEVELS[level]
        self._stream = stream or sys.stderr.buffer

    def __call__(self, name: str, fields: dict[str, Any]) -> None:
        level, wording = WORDING.get(name, (INFO, name))
        if level < self._level:
            return
        line = {"at_ms": wall_ms(), "level": _level_name(level), "process": self._process, "event": name}
        line["text"] = wording
        for key, value in fields.items():
            if key not in COUNTED_FIELDS:
                line[key] = _shown(value)
        self._stream.write(orjson.dumps(line, default=str) + b"\n")
        self._stream.flush()


def _level_name(level: int) -> str:
    return next(name for name, value in LEVELS.items() if value == level)


def _shown(value: Any) -> Any:
    """An exception is shown with where it came from, on one line."""
    if isinstance(value, BaseException):
        frames = traceback.extract_tb(value.__traceback__)[-3:]
        where = " < ".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in reversed(frames))
        return f"{type(value).__name__}: {_without_paths(str(value))} ({where})"
    return _without_paths(value) if isinstance(value, str) else value


def _without_paths(text: str) -> str:
    """Of a URL its origin alone: paths, queries and accounts are their owners'."""
    return _URL.sub(r"\1\2", text)
