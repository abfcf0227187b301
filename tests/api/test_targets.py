"""Targets at PUT: what the operator's guard refuses by its text is refused with a class of reason and nothing more."""

from __future__ import annotations

import pytest

from engine.rules.target_text import REASONS
from tests.support.api import Tenant


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://10.0.0.1/", "address_refused"),
        ("http://127.0.0.1:3306/", "address_refused"),
        ("http://169.254.169.254/latest/meta-data", "address_refused"),
        ("http://[::ffff:127.0.0.1]/", "address_refused"),
        ("http://0x7f.1/", "host_refused"),
        ("http://localhost/", "host_refused"),
        ("http://user@example.com/", "credentials_refused"),
        ("http://example.com:22/", "port_refused"),
        ("ftp://example.com/", "scheme_refused"),
        ("http://exa mple.com/", "url_malformed"),
    ],
)
def test_p9_a_refused_target_is_told_by_class_and_stored_nowhere(tenant: Tenant, url: str, reason: str) -> None:
    job = {"schedule": {"cron": "@daily"}, "target": {"http": {"url": url}}, "on_failure": {"url": url}}
    reply = tenant.put("guarded", job)
    assert reply.status == 422
    faults = {fault["pointer"]: fault["detail"] for fault in reply.json["errors"]}
    assert faults == {"/target/http/url": REASONS[reason], "/on_failure/url": REASONS[reason]}
    assert tenant.get("/v1/jobs/guarded").status == 404


# What ends a line or the head, what is no name, what the connection or the service itself says, in any spelling.
HEADERS_REFUSED = {
    **dict.fromkeys(["X-CR", "X-Fold"], "a\r\n b"),
    "X-LF": "a\nInjected: 1",
    "X-NUL": "a\0",
    "X-Blank": " a",
    "X-Wide": "é",
    "X CR": "a",
    "X:Colon": "a",
    "": "a",
    **dict.fromkeys(
        [
            "Host",
            "content-length",
            "TRANSFER-ENCODING",
            "Expect",
            "Connection",
            "Keep-Alive",
            "Proxy-Connection",
            "TE",
            "Trailer",
            "Upgrade",
            "Idempotency-Key",
            "x-scheduled-at",
            "X-Attempt",
            "webhook-id",
            "Webhook-Timestamp",
            "webhook-signature",
            "webhook-any",
        ],
        "a",
    ),
}


def test_p9_every_header_that_could_change_the_request_is_refused_at_put(tenant: Tenant) -> None:
    headers = {**HEADERS_REFUSED, "X-Good": "a"}
    job = {"schedule": {"cron": "@daily"}, "target": {"http": {"url": "https://example.com/", "headers": headers}}}
    reply = tenant.put("headed", job)
    assert reply.status == 422
    named = {fault["pointer"].removeprefix("/target/http/headers/") for fault in reply.json["errors"]}
    assert named == set(HEADERS_REFUSED)
