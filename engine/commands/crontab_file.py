"""Reading a crontab: what becomes of each line, and what would be different here.

As Debian's cron reads them: five fields or a macro, the rest is the command; ``%`` ends a line of its input; lines
``NAME=value`` hold for what follows; cronie's CRON_TZ is a zone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.clock import wall_ms
from engine.errors import OperatorError
from engine.model import Cron
from engine.rules.schedule import clock_changes, faults_of
from engine.rules.target_text import Refusal, read_target

FILE_BYTES_MAX = 1 << 20
YEAR_MS = 366 * 86_400_000
PLACEHOLDER_URL = "https://example.com/replace-me"

_ASSIGNMENT = re.compile(r"""([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(?:"([^"]*)"|'([^']*)'|(.*))""")
_URL = re.compile(r"""https?://[^\s"'<>|;&]+""")
_DAY_FIELD = re.compile(r"[*?]")


@dataclass(slots=True)
class Line:
    """One line with a time, what became of it, and what to know about it."""

    number: int
    text: str
    job: str | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Crontab:
    """The jobs of a crontab, and its lines."""

    jobs: dict[str, Any] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)


@dataclass(slots=True)
class _Place:
    """Where the reading stands: what lines above have said."""

    time_zone: str
    comment: list[str] = field(default_factory=list)


def read_crontab(path: Path, *, system: bool, time_zone: str, url: str | None) -> Crontab:
    """Every line of a crontab. OperatorError if it cannot be read."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise OperatorError(f"{path}: larger than {FILE_BYTES_MAX >> 20} MB")
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise OperatorError(f"{path}: cannot be read: {error}") from error
    crontab = Crontab()
    place = _Place(time_zone)
    for number, line in enumerate(text.splitlines(), 1):
        _read_line(crontab, place, number, line.strip(), system, url)
    return crontab


def _read_line(crontab: Crontab, place: _Place, number: int, text: str, system: bool, url: str | None) -> None:
    assignment = _ASSIGNMENT.fullmatch(text)
    if not text:
        place.comment = []
    elif text.startswith("#"):
        place.comment.append(text.lstrip("# ").rstrip())
    elif assignment and not text[0].isdigit():
        line = Line(number, text)
        _assign(place, line, assignment)
        crontab.lines.append(line)
    else:
        line = Line(number, text)
        crontab.lines.append(line)
        _make_job(crontab, place, line, system, url)
        place.comment = []


def _assign(place: _Place, line: Line, found: re.Match[str]) -> None:
    name = found[1]
    value = next(part for part in (found[2], found[3], found[4], "") if part is not None).strip()
    if name == "CRON_TZ":
        place.time_zone = value or "UTC"
        line.notes.append(f"the lines below are in the time zone {place.time_zone}")
    elif name == "TZ":
        line.notes.append("cron gives TZ to the command only; it changes no time, here neither")
    else:
        line.notes.append(f"{name} is for commands on that machine; nothing becomes of it here")


def _make_job(crontab: Crontab, place: _Place, line: Line, system: bool, url: str | None) -> None:
    cron, command = _split(line.text, system)
    if cron.lower() == "@reboot":
        line.notes.append("left out: there is no machine here that starts; let its start-up call what is needed")
        return
    if not command:
        line.notes.append("left out: there is no command")
        return
    faults = faults_of(cron, place.time_zone)
    if faults:
        line.notes += [f"left out: {fault.detail}" for fault in faults]
        return
    line.job = _free_name(crontab.jobs, place, _unescape(command)[0])
    crontab.jobs[line.job] = _job(line, place, cron, command, url)
    line.notes.insert(0, f"becomes the job {line.job}")
    line.notes += _notes_on_times(cron, place.time_zone)


def _split(text: str, system: bool) -> tuple[str, str]:
    fields = 1 if text.startswith("@") else 5
    parts = text.split(None, fields + (1 if system else 0))
    command = parts[-1] if len(parts) > fields + (1 if system else 0) else ""
    return " ".join(parts[:fields]), command


def _job(line: Line, place: _Place, cron: str, command: str, url: str | None) -> dict[str, Any]:
    words, standard_input = _unescape(command)
    job: dict[str, Any] = {
        "schedule": {"cron": cron, "time_zone": place.time_zone},
        "target": {"http": _target(line, words, standard_input, url)},
    }
    if place.comment:
        job["description"] = "\n".join(place.comment)
    if job["target"]["http"]["url"] == PLACEHOLDER_URL:
        job["paused"] = True
    return job


def _unescape(command: str) -> tuple[str, str | None]:
    """The command and its standard input: the first bare % ends the command, each other one a line of input."""
    lines = [part.replace("\\%", "%") for part in re.split(r"(?<!\\)%", command)]
    return lines[0].rstrip(), "\n".join(lines[1:]) + "\n" if len(lines) > 1 else None


def _target(line: Line, words: str, standard_input: str | None, url: str | None) -> dict[str, Any]:
    http = _of_download(line, words)
    if http is None and url is not None:
        http = {"url": url.replace("{name}", line.job or ""), "body": words}
        line.notes.append("calls that URL with the command as its body; commands do not run here")
    elif http is None:
        http = {"url": PLACEHOLDER_URL, "body": words}
        line.notes.append("a command needs a URL here: written paused, with a placeholder; or give --url")
    if standard_input is not None:
        http["body"] = "\n".join([*([http["body"]] if "body" in http else []), standard_input])
        line.notes.append("what follows % was the command's input; it becomes the body's end")
    return http


def _of_download(line: Line, words: str) -> dict[str, Any] | None:
    """A command that only calls a URL becomes that call."""
    program = words.split(None, 1)[0].rpartition("/")[2] if words else ""
    found = _URL.search(words)
    if program not in ("curl", "wget") or not found or isinstance(read_target(found[0]), Refusal):
        return None
    line.notes.append(f"the {program} becomes a GET of its URL; other options of it are not read: look at it")
    return {"url": found[0], "method": "GET"}


def _notes_on_times(cron: str, time_zone: str) -> Iterator[str]:
    fields = cron.split()
    if len(fields) == 5 and not _DAY_FIELD.match(fields[2]) and not _DAY_FIELD.match(fields[4]):
        yield "both day fields are given: either matches, as in cron"
    now_ms = wall_ms()
    for change in clock_changes(Cron(cron, time_zone), now_ms, now_ms + YEAR_MS):
        effect = change.effect.replace("_", " ")
        yield f"meets a clock change: {change.wall_times} of its times, {effect}, as in Debian's cron"
        return


def _free_name(jobs: dict[str, Any], place: _Place, command: str) -> str:
    """Of the last comment, else of the program; numbered where that is taken."""
    source = place.comment[-1] if place.comment else command.partition(" ")[0].rpartition("/")[2]
    slug = re.sub(r"[^a-z0-9]+", "-", source.lower()).strip("-")[:60] or "job"
    name, number = slug, 2
    while name in jobs:
        name, number = f"{slug}-{number}", number + 1
    return name
