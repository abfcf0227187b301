"""The accounts that `secondzero grants` makes: each can run all that its part can reach, with no right to spare."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import pytest
from asyncmy.errors import MySQLError

from engine.config import Dsn
from engine.errors import Conflict
from engine.stages.days import ROLLUPS, TABLES
from engine.store.connection import Connection, Duplicate, MissingDay
from engine.store.grants import ACCOUNT_PREFIX, FIRST_ONLY, KEEPER_READS, MIGRATE, PARTS, RIGHTS, grants
from engine.store.statements import statements
from migrations.apply import FOLDER, apply
from tests.support.mysql import query
from tests.support.reach import statements_of

# Not allowed on a table or column, in a database, for a global thing.
DENIED = frozenset({1142, 1143, 1044, 1227, 1370})
DDL = ("ALTER", "CREATE", "DROP")
PASSWORD = "tested"

OPERATORS = ("api.routes", "operator_routes")
API = statements_of([("api.processes", "serve")], without=[OPERATORS])
# Tenants reads keys as well, which nobody but the API asks it for.
KEYS = {"keys_by_hash"}
REACHED = {
    "migrate": statements_of([("engine.commands.migrate", "migrate")]),
    "keeper": statements_of([("engine.keeper", "Keeper")]) - KEYS,
    "engine": statements_of(
        [("engine.executor", "Executor"), ("engine.recorder", "Recorder"), ("engine.commands.engine", "run")],
        without=[("engine.node", "Supervisor")],
    )
    - KEYS,
    "api": API,
    "admin": API
    | statements_of([OPERATORS, *((f"engine.commands.{name}", "run") for name in ("status", "audit", "brakes"))])
    | statements_of([(f"engine.commands.{name}", "add_parser") for name in ("tenant", "key", "keys")])
    | statements_of([(f"engine.commands.{name}", "run") for name in ("pause", "resume", "block", "unblock")]),
}


class Accounts:
    """A migrated first shard and another one, with every part's account on both."""

    def __init__(self, first: Dsn, other: Dsn) -> None:
        self.first = first
        self.other = other

    def make(self) -> None:
        for part in PARTS:
            account = f"{ACCOUNT_PREFIX}{part}"
            self.root(f"DROP USER IF EXISTS {account}@'%'")
            for dsn in (self.first, self.other):
                for statement in grants(part, dsn.database, first=dsn is self.first):
                    self.root(statement)
            self.root(f"ALTER USER {account}@'%' IDENTIFIED BY '{PASSWORD}'")

    def root(self, statement: str) -> None:
        asyncio.run(query(replace(self.first, database=""), statement))

    def denied(self, part: str, names: set[str], *, first: bool = True) -> set[str]:
        """Which of these statements the part's account may not run."""
        dsn = self.first if first else self.other
        return asyncio.run(_denied(replace(dsn, user=f"{ACCOUNT_PREFIX}{part}", password=PASSWORD), names))


@pytest.fixture(scope="module")
def accounts(mysql_server):
    first, other = (mysql_server.dsn(f"grants_{name}") for name in ("first", "other"))
    asyncio.run(apply(first, first=True))
    asyncio.run(apply(other, first=False))
    made = Accounts(first, other)
    made.make()
    yield made
    for dsn in (first, other):
        made.root(f"DROP DATABASE {dsn.database}")


async def _denied(dsn: Dsn, names: set[str]) -> set[str]:
    connection = await Connection.open(dsn, wait_timeout_s=60)
    try:
        return {name for name in sorted(names) if await _is_denied(connection, anyhow(name))}
    finally:
        await connection.close()


async def _is_denied(connection: Connection, text: str) -> bool:
    """Run for real, and undone: what the server says of rights it says before anything else."""
    await connection.run(b"BEGIN")
    try:
        await connection.run(text.encode())
        return False
    except (Duplicate, MissingDay, Conflict):
        return False
    except MySQLError as error:
        return error.args[0] in DENIED
    finally:
        await connection.rollback()


def anyhow(name: str) -> str:
    """A statement with values of no meaning in place."""
    statement = statements()[name]
    text = statement.texts[0]
    for param, after in zip(statement.params, statement.texts[1:], strict=True):
        text += _value(param, text, after) + after
    return text.replace("`name`", "`grants_first`")


def _value(param: str, before: str, after: str) -> str:
    if param == "day":
        return "d1"
    if param == "rows":
        return f"ROW({_ones(re.search('[(]([^)]*)[)]', after)[1])})"
    columns = re.search(r"[(]([^()]*)[)] (?:VALUES|IN [(])\s*$", before) if param == "tuples" else None
    return f"({_ones(columns[1])})" if columns else "1"


def _ones(columns: str) -> str:
    return ", ".join("1" for _ in columns.split(","))


def names_on(part: str, table: str) -> set[str]:
    """A part's statements in which the table's name stands."""
    return {name for name in REACHED[part] if re.search(rf"\b{table}\b", anyhow(name))}


@pytest.mark.parametrize("part", PARTS)
def test_p9_each_account_can_run_every_statement_that_its_part_can_reach(accounts, part):
    assert accounts.denied(part, REACHED[part]) == set(), f"add to engine/store/grants.py for {part}"
    elsewhere = {name for name in REACHED[part] if not any(name in names_on(part, table) for table in FIRST_ONLY)}
    assert accounts.denied(part, elsewhere, first=False) == set()


@pytest.mark.parametrize("part", RIGHTS)
def test_p9_no_account_has_a_right_that_nothing_of_its_part_needs(accounts, part):
    account, database, spare = f"{ACCOUNT_PREFIX}{part}", accounts.first.database, []
    asked = [(f"{database}.{table}", table, rights) for table, rights in RIGHTS[part].items()]
    if part == "keeper":
        asked += [(f"performance_schema.{table}", table, "SELECT") for table in KEEPER_READS]
    for on, table, rights in asked:
        for right in rights.split(", "):
            accounts.root(f"REVOKE {right} ON {on} FROM {account}")
            if not accounts.denied(part, names_on(part, table)):
                spare.append((table, right))
            accounts.root(f"GRANT {right} ON {on} TO {account}")
    assert spare == [], f"take from engine/store/grants.py for {part}"


@pytest.mark.parametrize("part", PARTS)
def test_p9_of_what_stays_running_the_keeper_alone_has_rights_of_ddl(accounts, part):
    ddl = {name for name in statements() if statements()[name].texts[0].startswith(DDL)}
    permitted = ddl - accounts.denied(part, ddl)
    if part == "migrate":
        assert permitted == ddl
    else:
        assert permitted == {name for name in ddl if part == "keeper" and "day" in name}


@pytest.mark.parametrize("part", RIGHTS)
def test_p9_no_running_part_can_drop_what_holds_the_jobs(accounts, part):
    rights = {table: set(text.split(", ")) for table, text in RIGHTS[part].items()}
    with_ddl = {table for table, names in rights.items() if names - {"SELECT", "INSERT", "UPDATE", "DELETE"}}
    assert with_ddl == ({*TABLES, *ROLLUPS} if part == "keeper" else set())


@pytest.mark.parametrize(
    ("part", "other"),
    [
        ("engine", "keeper"),
        ("engine", "api"),
        ("engine", "admin"),
        ("keeper", "engine"),
        ("keeper", "api"),
        ("keeper", "admin"),
        ("api", "engine"),
        ("api", "keeper"),
        ("api", "admin"),
        ("admin", "engine"),
        ("admin", "keeper"),
        ("migrate", "engine"),
    ],
)
def test_p9_no_account_can_do_all_that_another_can(accounts, part, other):
    assert accounts.denied(part, REACHED[other] - REACHED[part])


def test_the_table_of_rights_names_tables_that_there_are():
    schema = (FOLDER / "schema.sql").read_text()
    tables = set(re.findall(r"CREATE TABLE `(\w+)`", schema))
    assert {table for rights in RIGHTS.values() for table in rights} <= tables
    first = [text for path in FOLDER.glob("0*.sql") if (text := path.read_text()).startswith("-- only: first")]
    assert set(re.findall(r"CREATE TABLE IF NOT EXISTS (\w+)", "".join(first))) <= FIRST_ONLY


def test_names_are_quoted_where_they_stand():
    make, everything = grants("migrate", "a_b`c", first=True, host="10.0.0.%", tls=True)
    assert make.endswith("'secondzero_migrate'@'10.0.0.%' IDENTIFIED BY RANDOM PASSWORD REQUIRE SSL")
    assert everything == f"GRANT {MIGRATE} ON `a\\_b``c`.* TO 'secondzero_migrate'@'10.0.0.%'"
    assert "`a_b``c`.`runs`" in " ".join(grants("api", "a_b`c", first=False))
    assert not any(table in " ".join(grants("api", "x", first=False)) for table in FIRST_ONLY)
