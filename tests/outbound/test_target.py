"""The guard: no address that is not public is dialled, whatever its spelling, unless the operator allows it."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import Dsn, Settings
from engine.outbound.target import GLOBAL_IPV6, SPECIAL_IPV4, SPECIAL_IPV6, Guard, guard_of, is_local
from engine.rules.target_text import Origin, Refusal, Target

HTTPS = Origin("https", "example.com", 443)
HTTP = Origin("http", "example.com", 80)


def words(text):
    return text.split()


SPECIAL = [*SPECIAL_IPV4, *SPECIAL_IPV6]

PUBLIC = words("""
    1.0.0.0 1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0
    169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0 191.255.255.255 192.0.1.0 192.0.3.0 192.31.195.255
    192.31.197.0 192.52.192.255 192.52.194.0 192.88.98.255 192.88.100.0 192.167.255.255 192.169.0.0 192.175.47.255
    192.175.49.0 198.17.255.255 198.20.0.0 198.51.99.255 198.51.101.0 203.0.112.255 203.0.114.0 223.255.255.255
    2000::1 2001:200::1 2001:4860:4860::8888 2001:db7:ffff::1 2001:db9::1 2003::1 2606:4700:4700::1111
    2620:4f:7fff::1 2620:4f:8001::1 2a00:1450::1 3000::1 3ffe:ffff::1 3fff:1000::1
""")

FORBIDDEN = words("""
    0.0.0.0 0.0.0.1 0.255.255.255 10.0.0.0 10.0.0.1 10.255.255.255 100.64.0.0 100.64.0.1 100.127.255.255 127.0.0.0
    127.0.0.1 127.0.0.2 127.1.2.3 127.255.255.255 169.254.0.0 169.254.169.254 169.254.170.2 169.254.255.255 172.16.0.0
    172.16.0.1 172.17.0.1 172.31.255.255 192.0.0.0 192.0.0.1 192.0.0.8 192.0.0.9 192.0.0.10 192.0.0.170 192.0.0.171
    192.0.0.192 192.0.0.255 192.0.2.0 192.0.2.1 192.0.2.255 192.31.196.0 192.31.196.255 192.52.193.0 192.52.193.255
    192.88.99.0 192.88.99.1 192.88.99.2 192.88.99.255 192.168.0.0 192.168.0.1 192.168.1.1 192.168.255.255 192.175.48.0
    192.175.48.1 192.175.48.255 198.18.0.0 198.18.0.1 198.19.255.255 198.51.100.0 198.51.100.255 203.0.113.0
    203.0.113.255 224.0.0.0 224.0.0.1 224.0.0.251 232.1.1.1 233.252.0.1 239.255.255.250 239.255.255.255 240.0.0.0
    240.0.0.1 250.1.2.3 255.255.255.254 255.255.255.255
    :: ::1 ::2 ::127.0.0.1 ::7f00:1 ::8.8.8.8 ::ffff:0:0 ::ffff:127.0.0.1 ::ffff:7f00:1 ::ffff:8.8.8.8
    ::ffff:10.0.0.1 ::ffff:169.254.169.254 ::ffff:0:127.0.0.1 64:ff9b:: 64:ff9b::7f00:1 64:ff9b::127.0.0.1
    64:ff9b::8.8.8.8 64:ff9b::a00:1 64:ff9b:1:: 64:ff9b:1::1 64:ff9b:1:ffff::1 64:ff9b:2::1 100:: 100::1
    100:0:0:1::1 200::1 400::1 fec0:: fec0::1 feff::1 fe80:: fe80::1 fe80::a00:27ff:fe4e:66a1 febf::1 fe80::1%eth0
    fe80::1%1 2606:4700::1111%eth0 fc00:: fc00::1 fd00::1 fd00:ec2::254 fdff:ffff::1 ff00:: ff01::1 ff02::1 ff02::2
    ff02::fb ff05::2 ff0e::1 ff3e::1 ffff::1 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 1fff:ffff::1 4000:: 4000::1
    5f00:: 5f00::1 6000::1 8000::1 a000::1 c000::1 e000::1 f000::1 f800::1 fe00::1 2001:: 2001::1 2001:0:7f00:1::
    2001:0:4136:e378:8000:63bf:3fff:fdd2 2001:1::1 2001:1::2 2001:1::3 2001:2:: 2001:2::1 2001:3::1 2001:4:112::1
    2001:5::1 2001:10::1 2001:1f::1 2001:20::1 2001:2f::1 2001:30::1 2001:1ff:ffff::1 2001:db8:: 2001:db8::1
    2001:db8:ffff:ffff::1 2001:0db8:0:0:0:0:0:1 2002:: 2002:7f00:1:: 2002:7f00:1::1 2002:a00:1::1 2002:a9fe:a9fe::1
    2002:808:808::1 2002:ffff:ffff::1 2620:4f:8000:: 2620:4f:8000::1 2620:4f:8000:ffff::1 3fff:: 3fff::1 3fff:fff::1
""")

NO_ADDRESSES = [
    "", "localhost", "example.com", "127.1", "0177.0.0.1", "0x7f.1", "2130706433", "1.2.3", "1.2.3.4.5", "127.0.0.1 ",
    " 127.0.0.1", "127.0.0.1\n", "[::1]", "::g", "1.2.3.4/32", "１２７.0.0.1", "127.0.0.01",
]  # fmt: skip


def edges():
    for network, _ in SPECIAL:
        yield str(network[0])
        yield str(network[-1])
        yield str(network[network.num_addresses // 2])


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_may_be_dialled(address):
    assert Guard().judge_address(HTTPS, address) is None


@pytest.mark.parametrize("address", [*FORBIDDEN, *edges(), *NO_ADDRESSES])
def test_p9_an_address_that_is_not_public_is_refused(address):
    assert Guard().judge_address(HTTPS, address) is not None


@pytest.mark.parametrize("address", FORBIDDEN)
def test_p9_the_same_address_is_refused_in_a_url_at_put(address):
    host = f"[{address}]" if ":" in address else address
    assert isinstance(Guard().judge_url(f"https://{host}/"), Refusal)


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_passes_at_put(address):
    host = f"[{address}]" if ":" in address else address
    assert isinstance(Guard().judge_url(f"https://{host}/"), Target)


@pytest.mark.parametrize(
    ("url", "passes"),
    [
        ("http://example.com/", True),
        ("https://example.com/", True),
        ("https://example.com:80/", False),
        ("http://example.com:443/", False),
        ("http://example.com:8080/", False),
        ("https://example.com:8443/", False),
        ("http://example.com:22/", False),
        ("http://8.8.8.8:3306/", False),
        ("http://[2606:4700::1111]:11211/", False),
    ],
)
def test_only_https_on_443_and_http_on_80_pass(url, passes):
    assert isinstance(Guard().judge_url(url), Target) is passes


def test_an_allowed_port_is_open_for_public_addresses_alone():
    guard = Guard(allowed_ports=[8443])
    assert guard.judge_address(Origin("https", "example.com", 8443), "8.8.8.8") is None
    assert guard.judge_address(Origin("https", "example.com", 8443), "10.0.0.1") is not None
    assert guard.judge_address(Origin("https", "example.com", 8444), "8.8.8.8") is not None
    assert isinstance(guard.judge_url("https://example.com:8443/"), Target)


def test_an_allowed_network_is_open_on_every_port_and_nothing_beside_it():
    guard = Guard(allowed_networks=["10.1.0.0/16", "fd00:1::/32"])
    for address in ("10.1.0.0", "10.1.255.255", "fd00:1::1"):
        assert guard.judge_address(Origin("http", "x", 9999), address) is None
    for address in ("10.0.255.255", "10.2.0.0", "127.0.0.1", "fd00:2::1"):
        assert guard.judge_address(HTTP, address) is not None
    assert guard.judge_address(Origin("http", "x", 9999), "8.8.8.8") is not None


def test_a_name_on_a_strange_port_passes_at_put_where_it_may_lie_in_an_allowed_network():
    guard = Guard(allowed_networks=["10.0.0.0/8"])
    assert isinstance(guard.judge_url("http://internal.example.com:9999/"), Target)
    assert guard.judge_address(Origin("http", "internal.example.com", 9999), "8.8.8.8").reason == "port_refused"


def test_p9_own_listeners_are_refused_inside_an_allowed_network():
    guard = Guard(allowed_networks=["127.0.0.0/8", "::/0"], own_listeners=[("127.0.0.1", 3306), ("::1", 8000)])
    assert guard.judge_address(Origin("http", "x", 3306), "127.0.0.1") is not None
    assert guard.judge_address(Origin("http", "x", 3306), "127.0.0.2") is None
    assert guard.judge_address(Origin("http", "x", 3307), "127.0.0.1") is None
    assert guard.judge_address(Origin("http", "x", 8000), "0:0:0:0:0:0:0:1") is not None
    assert guard.judge_address(Origin("http", "x", 3306), "::ffff:127.0.0.1") is not None


@pytest.mark.parametrize("wildcard", ["0.0.0.0", "::"])
def test_p9_a_listener_on_every_address_is_recognised_on_each_of_this_machines(wildcard):
    guard = Guard(["127.0.0.0/8", "10.0.0.0/8"], own_listeners=[(wildcard, 8000)], is_local=lambda a: a == "10.0.0.5")
    assert guard.judge_address(Origin("http", "x", 8000), "10.0.0.5") is not None
    assert guard.judge_address(Origin("http", "x", 8000), "10.0.0.6") is None


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "224.0.0.1", "ff02::1", "::ffff:8.8.8.8"])
def test_p9_what_is_no_hosts_address_is_refused_even_if_everything_is_allowed(address):
    assert Guard(allowed_networks=["0.0.0.0/0", "::/0"]).judge_address(HTTP, address) is not None


def test_loopback_is_local_and_a_documentation_address_is_not():
    assert is_local("127.0.0.1")
    assert not is_local("192.0.2.1")


def test_a_tenant_is_told_one_sentence_for_every_refused_address():
    guard = Guard(own_listeners=[("8.8.8.8", 443)])
    told = {guard.judge_url(f"https://{host}/").for_tenant for host in ("8.8.8.8", "10.0.0.1", "127.0.0.1", "[::1]")}
    assert len(told) == 1


@given(st.integers(0, 2**32 - 1))
def test_ipv4_agrees_with_the_table_read_bit_by_bit(number):
    address = ipaddress.IPv4Address(number)
    bits = f"{number:032b}"
    special = any(bits.startswith(f"{int(net[0]):032b}"[: net.prefixlen]) for net, _ in SPECIAL_IPV4)
    assert (Guard().judge_address(HTTPS, str(address)) is not None) is special


@given(st.integers(0, 2**128 - 1) | st.integers(0x20 << 120, (0x40 << 120) - 1))
def test_ipv6_agrees_with_the_table_read_bit_by_bit(number):
    bits = f"{number:0128b}"
    special = not bits.startswith("001") or any(
        bits.startswith(f"{int(net[0]):0128b}"[: net.prefixlen]) for net, _ in SPECIAL_IPV6
    )
    assert (Guard().judge_address(HTTPS, str(ipaddress.IPv6Address(number))) is not None) is special


def test_the_tables_hold_whole_networks_in_order():
    for table in (SPECIAL_IPV4, SPECIAL_IPV6):
        assert [net for net, _ in table] == sorted(net for net, _ in table)
    assert all(net.subnet_of(GLOBAL_IPV6) for net, _ in SPECIAL_IPV6)


def test_p9_the_operators_guard_knows_its_own_listeners_and_databases():
    shards = (Dsn.parse("mysql://u@localhost:3307/a"), Dsn.parse("mysql://u@/a?unix_socket=/x"))
    own = {"listen": "0.0.0.0", "port": 8900, "metrics_port": 9100, "admin_port": 9200}
    guard = guard_of(Settings(shards=shards, allow_networks=("127.0.0.0/8",), **own))
    ours = [("127.0.0.1", 3307), ("127.0.0.1", 8900), ("127.8.8.8", 8900), ("127.0.0.1", 9100), ("127.0.0.1", 9200)]
    for address, port in ours:
        assert guard.judge_address(Origin("http", "x", port), address), (address, port)
    for address, port in [("127.0.0.2", 3307), ("127.0.0.1", 3306), ("127.0.0.2", 9100), ("127.0.0.1", 80)]:
        assert guard.judge_address(Origin("http", "x", port), address) is None, (address, port)
