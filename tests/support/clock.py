"""A clock that only tests move."""

from __future__ import annotations


class SettableClock:
    """Wall time and boot time, set by hand; ``advance`` moves both."""

    def __init__(self, now_ms: int) -> None:
        self.wall_ms = now_ms
        self.since_boot_ms = 1_000_000
        self.host_offset_ms = 0

    def now_ms(self) -> int:
        return self.wall_ms

    def boot_ms(self) -> int:
        return self.since_boot_ms

    def follow(self, shard_now_ms: int, shard: int = 0) -> int:
        """It is moved by hand alone, and so is how wrong its host's wall clock is."""
        return self.host_offset_ms

    def advance(self, ms: int) -> None:
        self.wall_ms += ms
        self.since_boot_ms += ms
