"""Where the fleet listens: noted on the first shard by each process while it is there, read by all that call."""

from __future__ import annotations

from collections.abc import Sequence

from engine.listening import Listening
from engine.store.shard import Shard

# Noted again this often, and believed for this long after: a process that was stopped and goes on still listens, and an
# address that is refused for too long harms nobody.
NOTED_MS = 10_000
BELIEVED_MS = 300_000
# Some hosts with some addresses each.
LISTENERS_MAX = 20_000


async def note_listeners(first: Shard, mine: Sequence[Listening]) -> None:
    """These are there now; what has not been noted for long is forgotten."""
    now_ms = await first.now_ms()
    if mine:
        rows = [(*listening, now_ms) for listening in sorted(mine)]
        async with first.connection() as connection:
            await connection.execute_rows("note_listeners", rows, bytes_max=first.packet_bytes_max)
    await first.execute("delete_old_listeners", {"seen_before": now_ms - BELIEVED_MS})


async def live_listeners(first: Shard, machine: str) -> list[tuple[str, int]]:
    """Address and port of everything that is there, as it is seen from a machine."""
    values = {"seen_from": await first.now_ms() - BELIEVED_MS, "rows_max": LISTENERS_MAX}
    rows = [Listening(*row) for row in (await first.execute("live_listeners", values)).rows]
    return [(row.address, row.port) for row in rows if row.machine in ("", machine)]
