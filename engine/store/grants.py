"""The MySQL account of each part of the service, with the rights that its statements need and no others.

    migrate   makes and changes the tables; used by `secondzero migrate` alone, and by nothing that stays running
    keeper    of what stays running the only one with rights of DDL: it makes and drops days
    engine    executors and the recorder
    api       the tenants' API
    admin     the commands of operators (tenant, key, pause, status, audit); serves the operators' API too, which is off
              in an API under the account `api`

A test holds each table of rights against the statements that its part can reach: nothing is missing, nothing is left
over. FOR SHARE needs no more than SELECT from MySQL 8.0.22 on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

ACCOUNT_PREFIX = "secondzero_"

# All that is asked for on a database which may not be there yet.
MIGRATE = "SELECT, INSERT, UPDATE, CREATE, ALTER, DROP, INDEX"

RIGHTS: Mapping[str, Mapping[str, str]] = {
    "keeper": {
        "active": "SELECT, INSERT, DELETE",
        "attempts": "SELECT, INSERT, UPDATE, DELETE, ALTER, DROP",
        "brakes": "SELECT",
        "counted": "SELECT, INSERT, UPDATE",
        "dead_letters": "SELECT, INSERT, UPDATE, DELETE",
        "deferred": "SELECT, INSERT, UPDATE, DELETE",
        "doors": "SELECT",
        "fleet": "SELECT",
        "floor": "SELECT, UPDATE",
        "job_hours": "INSERT, UPDATE, ALTER, DROP",
        "job_labels": "SELECT, DELETE",
        "job_versions": "SELECT, DELETE",
        "jobs": "SELECT, DELETE",
        "limits": "SELECT",
        "listeners": "SELECT, INSERT, UPDATE, DELETE",
        "marks": "SELECT, UPDATE",
        "notices": "SELECT, INSERT, UPDATE, DELETE",
        "partitions": "SELECT",
        "recounts": "SELECT, INSERT, UPDATE, DELETE",
        "reports": "SELECT, DELETE, ALTER, DROP",
        "recorded": "SELECT",
        "requests": "SELECT, DELETE",
        "runs": "SELECT, UPDATE, DELETE, ALTER, DROP",
        "signals": "SELECT, DELETE",
        "signing_secrets": "SELECT",
        "skips": "SELECT, DELETE",
        "tenant_hours": "INSERT, UPDATE, ALTER, DROP",
        "tenants": "SELECT",
        "workers": "SELECT, UPDATE, DELETE",
    },
    "engine": {
        "active": "SELECT, INSERT, DELETE",
        "attempts": "SELECT, INSERT, UPDATE",
        "brakes": "SELECT",
        "dead_letters": "INSERT, UPDATE",
        "deferred": "SELECT, INSERT, UPDATE, DELETE",
        "fleet": "SELECT",
        "floor": "SELECT",
        "job_versions": "SELECT",
        "jobs": "SELECT, UPDATE",
        "leases": "SELECT, UPDATE",
        "limits": "SELECT",
        "listeners": "SELECT, INSERT, UPDATE, DELETE",
        "marks": "SELECT",
        "migrations": "SELECT",
        "notices": "SELECT, INSERT, UPDATE",
        "partitions": "SELECT",
        "recounts": "SELECT, INSERT, UPDATE",
        "recorded": "SELECT, INSERT, UPDATE",
        "reports": "SELECT",
        "runs": "SELECT, INSERT, UPDATE",
        "secret_keys": "SELECT",
        "signals": "SELECT, DELETE",
        "signing_secrets": "SELECT",
        "skips": "SELECT, INSERT, UPDATE",
        "tenants": "SELECT",
        "workers": "SELECT, INSERT, UPDATE",
    },
    "api": {
        "active": "SELECT, INSERT, DELETE",
        "api_keys": "SELECT, UPDATE",
        "attempts": "SELECT, INSERT, UPDATE",
        "brakes": "SELECT",
        "counted": "SELECT",
        "dead_letters": "SELECT, INSERT, UPDATE, DELETE",
        "deferred": "SELECT, INSERT, UPDATE, DELETE",
        "doors": "SELECT, INSERT, UPDATE, DELETE",
        "fleet": "SELECT",
        "floor": "SELECT",
        "functions": "SELECT, INSERT, UPDATE, DELETE",
        "job_hours": "SELECT",
        "job_labels": "SELECT, INSERT, DELETE",
        "job_versions": "SELECT, INSERT",
        "jobs": "SELECT, INSERT, UPDATE",
        "limits": "SELECT",
        "listeners": "SELECT, INSERT, UPDATE, DELETE",
        "marks": "SELECT",
        "migrations": "SELECT",
        "notices": "SELECT, INSERT, UPDATE",
        "partitions": "SELECT",
        "recorded": "SELECT",
        "recounts": "SELECT, INSERT, UPDATE",
        "reports": "SELECT, INSERT, UPDATE",
        "requests": "SELECT, INSERT, UPDATE",
        "runs": "SELECT, INSERT, UPDATE",
        "secret_keys": "SELECT, INSERT",
        "signals": "SELECT, INSERT",
        "signing_secrets": "SELECT, INSERT, UPDATE",
        "skips": "SELECT, INSERT, UPDATE",
        "tenant_hours": "SELECT",
        "tenants": "SELECT, UPDATE",
    },
    "admin": {
        "active": "SELECT, INSERT, DELETE",
        "api_keys": "SELECT, INSERT, UPDATE, DELETE",
        "attempts": "SELECT, INSERT, UPDATE",
        "brakes": "SELECT, INSERT, UPDATE",
        "counted": "SELECT",
        "dead_letters": "SELECT, INSERT, UPDATE, DELETE",
        "deferred": "SELECT, INSERT, UPDATE, DELETE",
        "doors": "SELECT, INSERT, UPDATE, DELETE",
        "fleet": "SELECT",
        "floor": "SELECT",
        "functions": "SELECT, INSERT, UPDATE, DELETE",
        "job_hours": "SELECT",
        "job_labels": "SELECT, INSERT, DELETE",
        "job_versions": "SELECT, INSERT, UPDATE",
        "jobs": "SELECT, INSERT, UPDATE",
        "leases": "SELECT",
        "limits": "SELECT, INSERT, UPDATE, DELETE",
        "listeners": "SELECT, INSERT, UPDATE, DELETE",
        "marks": "SELECT",
        "migrations": "SELECT",
        "notices": "SELECT, INSERT, UPDATE",
        "partitions": "SELECT",
        "recorded": "SELECT",
        "recounts": "SELECT, INSERT, UPDATE",
        "reports": "SELECT, INSERT, UPDATE",
        "requests": "SELECT, INSERT, UPDATE",
        "runs": "SELECT, INSERT, UPDATE",
        "secret_keys": "SELECT, INSERT, DELETE",
        "signals": "SELECT, INSERT",
        "signing_secrets": "SELECT, INSERT, UPDATE, DELETE",
        "skips": "SELECT, INSERT, UPDATE",
        "tenant_hours": "SELECT",
        "tenants": "SELECT, INSERT, UPDATE, DELETE",
        "workers": "SELECT",
    },
}

# Who holds a table for long is asked of the server itself before a day is dropped.
KEEPER_READS = ("metadata_locks", "threads", "events_transactions_current")

# Tables of the first shard alone.
FIRST_ONLY = frozenset({"tenants", "api_keys", "signing_secrets", "limits", "brakes", "listeners", "secret_keys"})

PARTS = ("migrate", *RIGHTS)


def grants(part: str, database: str, *, first: bool, host: str = "%", tls: bool = False) -> list[str]:
    """The statements that make a part's account on one shard; MySQL chooses the password and answers it.

    ``first``: on the first shard, which has tables that the others have not. ``tls``: let it in over TLS only.
    """
    account = f"'{ACCOUNT_PREFIX}{part}'@'{_quoted(host)}'"
    how = " REQUIRE SSL" if tls else ""
    return [
        f"CREATE USER IF NOT EXISTS {account} IDENTIFIED BY RANDOM PASSWORD{how}",
        *(f"GRANT {rights} ON {on} TO {account}" for rights, on in _rights(part, database, first)),
    ]


def _rights(part: str, database: str, first: bool) -> Iterator[tuple[str, str]]:
    name = database.replace("`", "``")
    if part == "migrate":
        # The name of a database is a pattern here.
        yield MIGRATE, "`{}`.*".format(name.replace("\\", "\\\\").replace("_", "\\_").replace("%", "\\%"))
        return
    for table, rights in RIGHTS[part].items():
        if first or table not in FIRST_ONLY:
            yield rights, f"`{name}`.`{table}`"
    if part == "keeper":
        yield from (("SELECT", f"performance_schema.{table}") for table in KEEPER_READS)


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "''")
