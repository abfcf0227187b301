"""What the text of a target says: a URL judged by its letters alone; nothing is resolved here.

The guard beside the sockets (engine/outbound/target.py) judges the address that is dialled. This half runs at PUT, so
it refuses whatever could be read in two ways: what a person, this parser and a server would not all read alike.
"""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

import ada_url

URL_BYTES_MAX = 8_192
DEFAULT_PORTS = {"http": 80, "https": 443}

# Space, controls, DEL and backslash: parsers drop or translate them, each in its own way.
_AMBIGUOUS = re.compile(r"[\x00-\x20\x7f\\]")
_SCHEME = re.compile(r"(https?)://(?!/)", re.IGNORECASE)
_DOTTED_QUAD = re.compile(r"(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])(?:\.(?!$)|$)){4}")


class Origin(NamedTuple):
    """Where a request goes: ``host`` is an A-label name without a trailing dot, or an address without brackets."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        """As a URL without a path, the most of a target that logs may show."""
        return f"{self.scheme}://{bracketed(self.host)}:{self.port}"


class Target(NamedTuple):
    """A URL that reads in one way: ``path`` is the request target (path and query), ``host_header`` the Host field."""

    origin: Origin
    path: str
    host_header: str


class Refusal(NamedTuple):
    """Why a target is not called: ``reason`` a class the tenant may see, ``detail`` for the operator."""

    reason: str
    detail: str


def read_target(url: str) -> Target | Refusal:
    """Read a URL as written by a tenant, or say why it is refused."""
    return _refused_on_raw_text(url) or _read_parsed(url)


def is_address(host: str) -> bool:
    """Whether a host (no brackets) is an address rather than a name."""
    return ":" in host or _DOTTED_QUAD.fullmatch(host) is not None


def bracketed(host: str) -> str:
    """A host as it stands in a URL or Host field."""
    return f"[{host}]" if ":" in host else host


def _refused_on_raw_text(url: str) -> Refusal | None:
    try:
        raw = url.encode()
    except UnicodeEncodeError:
        return Refusal("url_malformed", "the URL is not valid Unicode")
    if len(raw) > URL_BYTES_MAX:
        return Refusal("url_too_long", f"the URL is {len(raw)} bytes long, at most {URL_BYTES_MAX} are allowed")
    if _AMBIGUOUS.search(url):
        return Refusal("url_malformed", "the URL contains a space, a control character or a backslash")
    if not _SCHEME.match(url):
        return Refusal("scheme_refused", "the URL must start with http:// or https://, with exactly two slashes")
    return None


def _read_parsed(url: str) -> Target | Refusal:
    try:
        parsed = ada_url.URL(url)
    except ValueError:
        return Refusal("url_malformed", "the URL cannot be parsed")
    written = _written_host(url)
    if "@" in written or parsed.username or parsed.password:
        return Refusal("credentials_refused", "the URL contains a user name or password")
    host = parsed.hostname
    refusal = _refused_host(written, host)
    if refusal:
        return refusal
    scheme = parsed.protocol[:-1]
    origin = Origin(scheme, host.strip("[]").removesuffix("."), int(parsed.port or DEFAULT_PORTS[scheme]))
    return Target(origin, parsed.pathname + parsed.search, parsed.host)


def _written_host(url: str) -> str:
    """The authority as written: between the slashes and the next / ? or #."""
    return re.split(r"[/?#]", url.split("//", 1)[1], maxsplit=1)[0]


def _refused_host(written: str, host: str) -> Refusal | None:
    if host.startswith("["):
        return None
    if not host or host == "." or ".." in host:
        return Refusal("host_refused", "the URL has no usable host")
    name = host.removesuffix(".")
    if name == "localhost" or name.endswith(".localhost"):
        return Refusal("host_refused", "localhost and its subdomains are refused")
    if _DOTTED_QUAD.fullmatch(name):
        return _refused_quad(written, name)
    if len(name) > 253 or any(len(label) > 63 for label in name.split(".")):
        return Refusal("host_refused", "the host's name is too long")
    return None


def _refused_quad(written: str, quad: str) -> Refusal | None:
    """The parser turned octal, hex, dword, short, escaped and full-width spellings into a quad; only a quad passes."""
    if re.fullmatch(rf"{re.escape(quad)}(:[0-9]*)?", written):
        return None
    return Refusal("host_refused", "an IPv4 host must be written as four plain decimal numbers")


def canonical_address(text: str) -> str | None:
    """An address in its one canonical spelling, or None where the text is no address or has a zone."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return None if "%" in text else str(address)
