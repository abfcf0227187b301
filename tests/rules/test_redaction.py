"""Redaction: an endpoint that echoes a job's secrets, however it spells them, leaves none of them in what is kept."""

from __future__ import annotations

import base64
import html
import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.rules.redaction import PLACEHOLDER, redacted, spellings

MAX = 1_024
CANARY = 'kA9/canary+"7Zq?x=1&y'

printable = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=8, max_size=60)


def kept(answer: bytes, *values: str) -> bytes:
    return redacted(answer[:MAX], spellings(values), MAX)


def test_an_answer_without_secrets_stays_as_it_is() -> None:
    assert kept(b"all is well", CANARY) == b"all is well"
    assert kept(b"x" * MAX, CANARY) == b"x" * MAX


@pytest.mark.parametrize(
    "spell",
    [
        str,
        lambda text: json.dumps({"headers": {"x-key": text}}),
        lambda text: json.dumps({"headers": {"x-key": text}}).replace("/", "\\/"),
        quote,
        lambda text: quote(text, safe=""),
        html.escape,
    ],
    ids=["plain", "json", "json with slashes", "url", "url whole", "html"],
)
def test_p9_a_secret_is_found_in_every_common_spelling(spell: object) -> None:
    answer = b"you sent " + spell(CANARY).encode() + b" to me"  # type: ignore[operator]
    found = kept(answer, CANARY)
    assert PLACEHOLDER in found
    assert b"canary" not in found


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
@given(secret=printable, before=st.binary(max_size=7), after=st.binary(max_size=7))
def test_p9_in_base64_wherever_it_begins_and_ends(encode: object, secret: str, before: bytes, after: bytes) -> None:
    encoded = encode(before + secret.encode() + after)  # type: ignore[operator]
    found = kept(b"<" + encoded + b">", secret)
    assert PLACEHOLDER in found
    # What is left of the secret are the bits that share a character with its neighbours.
    left = found.removeprefix(b"<").removesuffix(b">").replace(PLACEHOLDER, b"")
    assert len(left) <= len(encoded) - len(secret) * 8 // 6 + 1


@given(secret=printable, before=st.integers(0, MAX), encoded=st.booleans())
def test_p9_the_cut_leaves_no_beginning_of_a_secret(secret: str, before: int, encoded: bool) -> None:
    said = base64.b64encode(secret.encode()) if encoded else secret.encode()
    answer = b"\0" * before + said + b"\0" * MAX
    found = kept(answer, secret)
    assert set(found.replace(PLACEHOLDER, b"")[: before - MAX or None]) <= {0, *said[-3:]}
    assert len(found) <= MAX
    assert said[:4] not in found


def test_p9_a_secret_longer_than_what_is_kept_leaves_nothing() -> None:
    secret = "".join(f"{number:04}" for number in range(1_000))
    assert kept(secret.encode(), secret) == PLACEHOLDER
    assert kept(b"> " + secret.encode(), secret) == b"> " + PLACEHOLDER


def test_p9_the_token_of_a_scheme_a_cookie_and_basic_credentials_are_secrets_by_themselves() -> None:
    assert kept(b"token s3cr3t-t0ken!", "Bearer s3cr3t-t0ken") == b"token [secret]!"
    assert kept(b"session was abcdef123", "theme=dark; session=abcdef123") == b"session was [secret]"
    basic = "Basic " + base64.b64encode(b"ada:lovelace1815").decode()
    assert kept(b"hello ada:lovelace1815", basic) == b"hello [secret]"
    assert kept(b"password lovelace1815", basic) == b"password [secret]"


def test_p9_secrets_that_overlap_leave_no_end_of_one_another() -> None:
    assert kept(b"-abcdefXYZuvw-", "abcdefXYZ", "XYZuvw") == b"-[secret]-"
    cut = b"." * (MAX - 8) + b"abcdefXY"
    assert kept(cut, "abcdefX", "XYZuvw").endswith(b"..[secret]")
