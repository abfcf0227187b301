"""The schema that the migrations add up to, as text: `python -m migrations.schema > migrations/schema.sql`."""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from pathlib import Path

from engine.config import Dsn
from engine.local.mysqld import MysqlServer
from engine.store.connection import Connection
from migrations.apply import SESSION_IDLE_S_MAX, apply, named

HEAD = """\
-- What the numbered migrations add up to on the first shard; others lack the tables of files marked `-- only: first`.
-- Written by `python -m migrations.schema > migrations/schema.sql`; to change it, add a migration.
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, MysqlServer(Path(folder)) as server:
        sys.stdout.write(asyncio.run(migrated_schema(server.dsn("secondzero"))))


async def migrated_schema(dsn: Dsn) -> str:
    """Apply all migrations to the database and describe what it then holds."""
    await apply(dsn, first=True)
    connection = await Connection.open(dsn, SESSION_IDLE_S_MAX)
    try:
        names = [row[0] for row in (await connection.execute("tables")).rows]
        return "\n".join([HEAD, *[await _table(connection, name) for name in names]])
    finally:
        await connection.close()


async def _table(connection: Connection, name: str) -> str:
    answer = await connection.run(named("show_create_table", name))
    text = re.sub(r" AUTO_INCREMENT=\d+", "", answer.rows[0][1])
    return f"{text};\n"


if __name__ == "__main__":
    main()
