"""TLS to Cassandra, behind a port that speaks nothing else: who is not who the address says, is refused."""

import asyncio
import ssl
import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest

from engine.contact import Contact
from engine.errors import HistoryUnavailable, OperatorError
from engine.history.session import connect
from engine.local.certificates import write_certificate


@contextmanager
def behind_tls(contact, folder, name):
    """A contact point that ends TLS under a certificate for this name, and hands on to the real one."""
    write_certificate(folder / "server.pem", folder / "server.key", [name])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    ((host, port),) = contact.points
    loop = asyncio.new_event_loop()

    async def copy(reader, writer):
        while data := await reader.read(65_536):
            writer.write(data)
        writer.close()

    async def hand_on(reader, writer):
        there_reader, there_writer = await asyncio.open_connection(host, port)
        await asyncio.gather(copy(reader, there_writer), copy(there_reader, writer), return_exceptions=True)

    server = loop.run_until_complete(asyncio.start_server(hand_on, host, 0, ssl=context))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        own_port = server.sockets[0].getsockname()[1]
        yield replace(contact, points=((host, own_port),)), str(folder / "server.pem")
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def refusal(contact):
    with pytest.raises((HistoryUnavailable, OperatorError)) as caught:
        connect(contact).close()
    (line,) = str(caught.value).splitlines()
    return line


def test_p9_a_cassandra_is_reached_over_tls_and_only_under_its_own_certificate(contact, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    write_certificate(other / "other.pem", other / "other.key", [contact.points[0][0]])
    with behind_tls(contact, tmp_path, contact.points[0][0]) as (covered, authority):
        session = connect(replace(covered, tls=authority))
        rows = session._session.execute("SELECT cluster_name FROM system.local").all()
        session.close()
        assert len(rows) == 1
        assert "certificate verify failed: self-signed certificate" in refusal(
            replace(covered, tls=str(other / "other.pem"))
        )
        assert "certificate verify failed" in refusal(replace(covered, tls="system"))
        assert refusal(replace(covered, tls="/no/such.pem")).startswith("tls=/no/such.pem: not a readable file")


def test_p9_a_cassandra_under_another_name_is_refused(contact, tmp_path):
    with behind_tls(contact, tmp_path, "elsewhere.example") as (covered, authority):
        assert "certificate verify failed: IP address mismatch" in refusal(replace(covered, tls=authority))


@pytest.mark.parametrize("option", ["tls=", "tls=yes", "tls=ca.pem"])
def test_what_is_no_authority_is_refused(option):
    with pytest.raises(OperatorError, match="tls must be 'system' or the absolute path"):
        Contact.parse(f"cassandra://h/k?{option}")


@pytest.mark.parametrize("options", ["", "?datacenter=a", "?tls=system", "?datacenter=a&tls=/x%20y.pem"])
def test_an_address_is_read_back_as_it_was(options):
    contact = Contact.parse(f"cassandra://u:p@h:1/k{options}")
    assert Contact.parse(contact.text()) == contact
    assert contact.tls in (None, "system", "/x y.pem")
