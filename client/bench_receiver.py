"""What the receiver costs: `python client/bench_receiver.py [--json]`, microseconds a call, the median of batches.

`repeat`: a call that has finished before, through the fence alone and through the whole receiver with its signature.
`first`: a call that is let through and put on record, two durable writes in SQLite.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import hmac
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from secondzero_client import Receiver, sqlite_fence

SECRET = "whsec_" + base64.b64encode(b"0" * 24).decode()
BODY = b'{"report": "daily"}'
BATCHES, REPEATS, FIRSTS = 20, 2_000, 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(Path(folder) / "attempts.db")
    if args.json:
        print(json.dumps(measured))
    else:
        for name, value in measured.items():
            print(f"{name:20} {value:8.1f}")


def measure(path: Path) -> dict[str, float]:
    fence = sqlite_fence(path)
    receiver = Receiver([SECRET], fence)
    receiver.receive(headers("run_0", 1), BODY, lambda call: "done")
    repeated = headers("run_0", 2)
    fresh = iter(range(1, 1 + BATCHES * FIRSTS))
    return {
        "fence_repeat_us": median_us(lambda: fence.enter("run_0", 2), REPEATS),
        "receive_repeat_us": median_us(lambda: receiver.receive(repeated, BODY, never), REPEATS),
        "receive_first_us": median_us(
            lambda: receiver.receive(headers(f"run_{next(fresh)}", 1), BODY, lambda call: "done"), FIRSTS
        ),
    }


def headers(key: str, attempt: int) -> dict[str, str]:
    sent_at = str(int(time.time()))
    signed = f"{key}.{sent_at}.".encode() + BODY
    signature = base64.b64encode(hmac.digest(base64.b64decode(SECRET[6:]), signed, hashlib.sha256)).decode()
    return {
        "Idempotency-Key": key,
        "X-Attempt": str(attempt),
        "X-Scheduled-At": "2030-01-31T09:00:00Z",
        "webhook-id": key,
        "webhook-timestamp": sent_at,
        "webhook-signature": f"v1,{signature}",
    }


def never(call: object) -> None:
    raise AssertionError("a repeat is answered from memory")


def median_us(act: Callable[[], object], count: int) -> float:
    batches = []
    for _ in range(BATCHES):
        began_s = time.perf_counter()
        for _ in range(count):
            act()
        batches.append((time.perf_counter() - began_s) / count * 1e6)
    return statistics.median(batches)


if __name__ == "__main__":
    main()
