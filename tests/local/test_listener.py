"""Listening sockets: in use, not ours, inherited."""

import os
import socket

import pytest

from engine.errors import OperatorError
from engine.local.listener import free_port, open_listener, url_of


def test_a_port_in_use_is_said_in_one_line():
    with open_listener("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(OperatorError, match=f"cannot listen on http://127.0.0.1:{port}: the port is in use"):
            open_listener("127.0.0.1", port)


def test_a_port_can_be_listened_on_again_at_once_after_its_connections_have_ended():
    with open_listener("127.0.0.1", 0) as first:
        address = first.getsockname()
        client = socket.create_connection(address)
        server, _ = first.accept()
        server.close()
    client.close()
    open_listener("127.0.0.1", address[1]).close()


def test_an_address_of_another_machine_is_said_in_one_line():
    with pytest.raises(OperatorError, match="this machine has no such address"):
        open_listener("192.0.2.1", 0)


def test_an_inherited_socket_is_taken_by_its_number():
    with open_listener("127.0.0.1", 0) as inherited:
        copy = open_listener(f"fd://{os.dup(inherited.fileno())}", 9)
        with copy:
            assert copy.getsockname() == inherited.getsockname()


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8"),
        ("0.0.0.0", "http://127.0.0.1:8"),
        ("::", "http://[::1]:8"),
        ("fe80::1", "http://[fe80::1]:8"),
    ],
)
def test_the_url_can_be_typed_on_this_machine(listen, url):
    assert url_of(listen, 8) == url


def test_a_free_port_can_be_listened_on():
    open_listener("127.0.0.1", free_port()).close()
