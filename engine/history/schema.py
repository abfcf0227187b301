"""The keyspace of the history: made by ``migrate``, and checked at every start."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from engine.contact import Contact
from engine.errors import HistoryUnavailable, OperatorError
from engine.history.session import AWAY, HistorySession, connect, told

VERSION = 1
COPIES_MAX = 3
DAY_S = 86_400
MARK_BYTES = 16


def create_history(contact: Contact, fleet_id: bytes, retention_days: int) -> None:
    """Make what is missing, then check the whole. OperatorError in one line for whatever keeps it from being used."""
    try:
        session = connect(contact)
    except HistoryUnavailable as error:
        raise OperatorError(f"no Cassandra answers: {error}") from error
    try:
        _refuse_newer(session, contact)
        _make(session, contact, fleet_id, retention_days)
        check_history(session, contact, fleet_id, retention_days)
    except AWAY as error:
        raise OperatorError(f"{contact}: {told(error)}") from error
    except HistoryUnavailable as error:
        raise OperatorError(str(error)) from error
    finally:
        session.close()


def check_history(session: HistorySession, contact: Contact, fleet_id: bytes | None, retention_days: int) -> None:
    """Blocks. OperatorError where the keyspace is missing, newer, another fleet's (None: not asked), or keeps its rows
    for another time than the setting. HistoryUnavailable where the node does not say."""
    try:
        tables = _tables(session)
        if not {"about", "runs"} <= tables.keys():
            raise OperatorError(
                f"{contact}: no history was created here; run: secondzero migrate --history cassandra …"
            )
        _refuse_newer(session, contact)
        owners = [owner for _, owner in _about(session)]
    except AWAY as error:
        raise HistoryUnavailable(f"{contact}: {told(error)}") from error
    if fleet_id is not None and owners != [fleet_mark(fleet_id)]:
        raise OperatorError(f"{contact}: the keyspace belongs to another fleet; give each its own")
    ttl_s, wanted_s = tables["runs"].options["default_time_to_live"], retention_days * DAY_S
    if ttl_s != wanted_s:
        raise OperatorError(
            f"{contact}: its runs live for {ttl_s / DAY_S:g} days, retention_days is {retention_days}: set that, or run"
            f" ALTER TABLE {contact.keyspace}.runs WITH default_time_to_live = {wanted_s}"
        )


def fleet_mark(fleet_id: bytes) -> bytes:
    """What a keyspace is known by as a fleet's. Not the id itself: that is what tokens are signed with, and whoever may
    read the history may not make any."""
    return blake2b(b"history", key=fleet_id, digest_size=MARK_BYTES).digest()


def _make(session: HistorySession, contact: Contact, fleet_id: bytes, retention_days: int) -> None:
    if contact.keyspace not in session.cluster.metadata.keyspaces:
        datacenter = contact.datacenter or _datacenter(session)
        nodes = [host for host in session.cluster.metadata.all_hosts() if host.datacenter == datacenter]
        copies = min(COPIES_MAX, len(nodes))
        session.make("create_keyspace", datacenter=datacenter, copies=copies)
    session.make("create_about")
    session.make("create_runs", ttl_s=retention_days * DAY_S)
    if not _about(session):
        session.execute_now("write_about", (VERSION, fleet_mark(fleet_id)))


def _datacenter(session: HistorySession) -> str:
    """That of the node which answered."""
    return next(str(host.datacenter) for host in session.cluster.metadata.all_hosts() if host.is_up)


def _refuse_newer(session: HistorySession, contact: Contact) -> None:
    about = _about(session) if "about" in _tables(session) else []
    if about and about[0][0] > VERSION:
        raise OperatorError(
            f"{contact} has the schema of a newer release (version {about[0][0]}, this one knows {VERSION}):"
            " upgrade secondzero to it"
        )


def _about(session: HistorySession) -> list[tuple[int, bytes]]:
    return session.execute_now("read_about")


def _tables(session: HistorySession) -> dict[str, Any]:
    session.cluster.refresh_schema_metadata()
    keyspace = session.cluster.metadata.keyspaces.get(session.keyspace)
    return dict(keyspace.tables) if keyspace else {}
