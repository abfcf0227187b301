"""The check of the history before anything that uses it starts; importing this loads no driver."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from engine.config import Settings
from engine.contact import Contact
from engine.errors import HistoryUnavailable


def check_apart(settings: Settings, fleet_id: bytes | None) -> str:
    """OperatorError in one line where the keyspace is not one that these settings can be used with. Returns why nobody
    answers, which is waited for by those who use it: runs must not. '' if all is well or there is nothing to check.

    Asked by a process apart, so that no child of the caller inherits the driver and its threads.
    """
    if settings.history != "cassandra" or settings.cassandra is None:
        return ""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as apart:
        return apart.submit(_ask, settings.cassandra, fleet_id, settings.retention_days).result()


def _ask(contact: Contact, fleet_id: bytes | None, retention_days: int) -> str:
    from engine.history import schema, session

    try:
        opened = session.connect(contact)
    except HistoryUnavailable as error:
        return str(error)
    try:
        schema.check_history(opened, contact, fleet_id, retention_days)
    except HistoryUnavailable as error:
        return str(error)
    finally:
        opened.close()
    return ""
