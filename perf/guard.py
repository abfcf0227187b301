"""What the guard and the signature cost of the fire bench, with and without them in alternating pairs.

    .venv/bin/python perf/guard.py [--pairs 5] [--seconds 3]

With: addresses are judged when they are dialled, and heads carry a signature, as in the engine. Without: nothing is
judged, and nothing is signed. Signing itself happens while a request is prepared, before its second; what it costs
there, and what judging does, is measured on its own and held against the executor's whole cost of a run (cost.json).
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import uvloop

from bench.fire import BODY, KEYS, Rate, cores, fire, pinned
from engine.clock import cpu_ns
from engine.local.nginx import Sink
from engine.outbound.sign import signature
from engine.outbound.target import Guard
from engine.rules.target_text import Origin, Refusal

CONNECTIONS = 100
BOUND = 0.10
CALLS = 20_000
ORIGIN = Origin("https", "8.8.8.8", 443)
SIGNED_AT_S = 1_700_000_000


class Blind(Guard):
    """Judges nothing."""

    def judge_address(self, origin: Origin, address: str) -> Refusal | None:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3)
    args = parser.parse_args()
    pairs = measure(args.pairs, args.seconds)
    costs = [judged.cpu_us / plain.cpu_us - 1 for plain, judged in pairs]
    for (plain, judged), cost in zip(pairs, costs, strict=True):
        print(f"without {_shown(plain)}, with {_shown(judged)}: {cost:+.1%} CPU")
    each_us = {what: _cpu_us(call) for what, call in CALLED.items()}
    for what, us in each_us.items():
        print(f"{what}: {us:.2f} us")
    print(f"signing, of the executor's {_executor_us():.0f} us for a run: {each_us[SIGNING] / _executor_us():.1%}")
    median = statistics.median(costs)
    print(json.dumps({"guard_cost": round(median, 3), "bound": BOUND, "held": median <= BOUND}))


def measure(pairs: int, seconds: int) -> list[tuple[Rate, Rate]]:
    """(without, with) in turn, and which is first in turn too."""
    ours_core, sink_core = cores()
    found = []
    with (
        tempfile.TemporaryDirectory(prefix="secondzero-guard-") as folder,
        pinned(ours_core),
        Sink(Path(folder), tls=True, cpu=sink_core, log=False) as sink,
    ):

        def once(judged: bool) -> Rate:
            guard = (Guard if judged else Blind)(allowed_networks=["127.0.0.0/8"])
            keys = KEYS if judged else ()
            url = f"http://127.0.0.1:{sink.port}/fire"
            return uvloop.run(fire(url, sink.certificate, CONNECTIONS, seconds, guard, keys))

        for number in range(pairs):
            first = once(judged=number % 2 == 1)
            second = once(judged=number % 2 == 0)
            found.append((first, second) if number % 2 == 0 else (second, first))
    return found


GUARD = Guard()
SIGNING = "signing, once for each try"
CALLED: dict[str, Callable[[], object]] = {
    SIGNING: lambda: signature(KEYS, b"run_1", SIGNED_AT_S, BODY),
    "signing 1 KB": lambda: signature(KEYS, b"run_1", SIGNED_AT_S, b"x" * 1_024),
    "judging a URL, once for each version of a job": lambda: GUARD.judge_url("https://8.8.8.8/orders/1"),
    "judging an address, twice for each connection": lambda: GUARD.judge_address(ORIGIN, "8.8.8.8"),
}


def _cpu_us(call: Callable[[], object]) -> float:
    started_ns = cpu_ns()
    for _ in range(CALLS):
        call()
    return (cpu_ns() - started_ns) / 1e3 / CALLS


def _executor_us() -> float:
    """CPU of planning, firing and settling one run, as it was measured last."""
    costs = json.loads((Path(__file__).parent / "cost.json").read_text())["per_run"]
    return float(sum(costs[step]["executor_us"] for step in ("plan, version known", "fire", "settle")))


def _shown(rate: Rate) -> str:
    return f"{rate.cpu_us:.2f} us and {rate.rps:,.0f}/s"


if __name__ == "__main__":
    main()
