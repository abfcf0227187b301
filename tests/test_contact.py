"""The address of a Cassandra: read whole, shown without its password, refused in one line."""

import pytest

from engine.config import Settings
from engine.contact import Contact
from engine.errors import OperatorError
from engine.settings import with_history


def test_an_address_is_read_and_written_back():
    text = "cassandra://me:p%40ss%2F@a.example:9042,[::1]:19042/history?datacenter=dc1"
    contact = Contact.parse(text)
    assert contact.points == (("a.example", 9042), ("::1", 19042))
    assert (contact.keyspace, contact.user, contact.password, contact.datacenter) == ("history", "me", "p@ss/", "dc1")
    assert Contact.parse(contact.text()) == contact
    assert str(contact) == "cassandra://me@a.example:9042,[::1]:19042/history?datacenter=dc1"
    assert "p@ss" not in repr(contact)
    assert Contact.parse("cassandra://host/k").points == (("host", 9042),)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("mysql://host/k", "not spelled so"),
        ("cassandra://host", "not spelled so"),
        ("cassandra://host/", "must end in a keyspace"),
        ("cassandra://host/K-1", "must end in a keyspace"),
        ("cassandra://host:99999/k", "no host with a port"),
        ("cassandra://a,,b/k", "no host with a port"),
        ("cassandra://me:secret@host/k?dc=1", "unknown option 'dc'"),
    ],
)
def test_what_is_no_address_is_refused_in_one_line_without_its_password(text, problem):
    with pytest.raises(OperatorError, match=problem) as refused:
        Contact.parse(text)
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)


CONTACT = Contact.parse("cassandra://host/k")


def test_the_history_of_a_fleet_is_what_it_was_created_with():
    assert with_history(Settings(), None).history == "mysql"
    assert with_history(Settings(), "mysql").history == "mysql"
    assert with_history(Settings(cassandra=CONTACT), None).history == "cassandra"
    assert with_history(Settings(cassandra=CONTACT), "cassandra").history == "cassandra"
    with pytest.raises(OperatorError, match="created with history mysql, now started with cassandra; it is fixed"):
        with_history(Settings(cassandra=CONTACT), "mysql")
    with pytest.raises(OperatorError, match="created with history cassandra, now started with mysql"):
        with_history(Settings(history="mysql"), "cassandra")
    with pytest.raises(OperatorError, match="give its address with --cassandra"):
        with_history(Settings(), "cassandra")
