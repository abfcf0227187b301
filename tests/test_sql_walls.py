"""What tenants write reaches SQL as values alone, through the fuzzed batch builder: held for all code by its form.

Text goes to a server in few places, all listed here with exactly what is sent; whoever adds one finds this test red. A
statement's name is looked up among the files, so it can be no text of anybody's.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from engine.store import statements
from tests.test_architecture import ROOT, SOURCES

CODE = [path for path in SOURCES if path.relative_to(ROOT).parts[0] in ("engine", "api", "migrations")]

# Everything that is sent as it is: module, and the first argument.
SENT = {
    ("engine/store/connection.py", "b'SAVEPOINT step'"),
    ("engine/store/connection.py", "b'ROLLBACK TO SAVEPOINT step'"),
    ("engine/store/connection.py", "b'COMMIT'"),
    ("engine/store/connection.py", "b'ROLLBACK'"),
    ("engine/store/connection.py", "SESSION.format(wait_timeout_s=wait_timeout_s).encode()"),
    ("engine/store/connection.py", "statements.bind(name, values or {})"),
    ("engine/store/connection.py", "text"),  # of bind_rows
    ("engine/store/connection.py", "[text]"),
    ("engine/store/connection.py", "[text for _, text in texts]"),  # of bind and bind_rows
    ("engine/store/connection.py", "b';'.join(texts)"),
    ("engine/store/shard.py", "[bind(name, values) for name, values in questions]"),
    ("migrations/apply.py", "text.encode()"),  # a piece of a file of the release
    ("migrations/apply.py", "named('create_database', dsn.database)"),
    ("migrations/schema.py", "named('show_create_table', name)"),
    ("engine/history/session.py", "statement(name, keyspace=self.keyspace, **words)"),
    ("engine/history/session.py", "self._prepared[name].bind(values)"),
}
# What is called `run`, `query` or `execute` and talks to no server.
OTHERS = {
    "asyncio", "uvloop", "subprocess", "runner", "call", "session",
    "Supervisor(settings)", "_Processes(settings, events, tenants, operators)",
    "_kind(child)(settings, seat)",
}  # fmt: skip
# Who may make text of values.
BUILDERS = {
    "batch.build": {"engine/store/statements.py"},
    "batch.literal": {"engine/store/statements.py"},
    "statements.bind": {"engine/store/connection.py", "migrations/apply.py"},
    "statements.bind_rows": {"engine/store/connection.py"},
    "bind": {"engine/store/shard.py"},
    "bind_rows": set(),
    "render": {"engine/store/statements.py"},
    # Names of days, made of a date, or read from the server's own catalogue; each is checked where it is put in.
    "Name": {"engine/stages/days.py", "engine/stages/record.py"},
}
STATEMENTS = ("engine.store", "engine.store.statements", "engine._native")
NAMED = {"execute", "execute_rows", "fetch_rows"}
# Names of statements that are not written out: of the program's own words, all of them.
COMPUTED = {
    "f'add_day_to_{table}'", "f'drop_day_of_{table}'", "f'empty_day_of_{table}'", "f'merge_day_of_{table}'",
    "f'{prefix}job_names'", "f'{prefix}job_name_at'",
    "f'status_{what}'", "name", "statement",
}  # fmt: skip


def calls() -> Iterator[tuple[str, int, str, str, ast.Call]]:
    """Module, line, receiver, method and call, of every call on something."""
    for path in CODE:
        module = str(path.relative_to(ROOT))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                yield module, node.lineno, ast.unparse(node.func.value), node.func.attr, node


def test_p9_text_reaches_a_server_in_the_listed_places_alone() -> None:
    found = set()
    for module, line, receiver, method, call in calls():
        raw = method in ("run", "run_all", "query") or (method == "execute" and receiver == "self._session")
        if raw and receiver not in OTHERS and call.args:
            sent = (module, ast.unparse(call.args[0]))
            assert sent in SENT, f"{module}:{line} sends {sent[1]}"
            found.add(sent)
    assert found == SENT, "the list is as long as it must be"


def test_p9_nobody_else_has_the_driver() -> None:
    for path in CODE:
        module = str(path.relative_to(ROOT))
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if any(name == "asyncmy" for name in names):
                assert module == "engine/store/connection.py", module
            if isinstance(node, ast.Attribute) and node.attr == "_raw":
                assert module in ("engine/store/connection.py", "api/tls_door.py"), f"{module}:{node.lineno}"


def test_p9_values_become_text_in_the_builder_alone() -> None:
    for path in CODE:
        module = str(path.relative_to(ROOT))
        imported = {
            alias.asname or alias.name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom) and node.module in STATEMENTS
            for alias in node.names
        }
        for builder, allowed in BUILDERS.items():
            if builder.partition(".")[0] not in imported:
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == builder:
                    assert module in allowed, f"{module}:{node.lineno} calls {builder}"


def test_p9_statements_are_named_by_constants_of_the_code() -> None:
    for module, line, receiver, method, call in calls():
        if method not in NAMED or receiver == "self._session":
            continue
        (name, *_) = call.args
        if isinstance(name, ast.Constant):
            assert name.value in statements.statements(), f"{module}:{line}: {name.value}"
        else:
            assert ast.unparse(name) in COMPUTED, f"{module}:{line}: {ast.unparse(name)}"


@pytest.mark.parametrize("name", ["SELECT 1", "find_jobs; DROP TABLE jobs", "'", "", "find_jobs "])
def test_p9_what_is_no_name_of_a_statement_is_sent_nowhere(name: str) -> None:
    with pytest.raises(KeyError):
        statements.bind(name, {})
    with pytest.raises(KeyError):
        statements.bind_rows(name, [(1,)], {}, 1_000)


@pytest.mark.parametrize("name", ["d20260101`; DROP TABLE runs", "d-1", "D1", "", "d" * 65, "d1 ", "dé"])
def test_p9_a_name_of_a_day_is_letters_and_digits(name: str) -> None:
    with pytest.raises(ValueError, match="not a plain name"):
        statements.render(statements.Name(name))
