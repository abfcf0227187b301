"""What a real server makes of the batch builder's text: values come through exactly, and never become SQL."""

import asyncio
from collections.abc import Iterator

import asyncmy
import pytest
from asyncmy.constants import CLIENT
from asyncmy.errors import MySQLError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine._native import batch
from engine.local.mysqld import MysqlServer
from tests.support.batch_twin import PACKET_BYTES

DATABASE = "batch"
TABLES = [
    """CREATE TABLE literals (id INT UNSIGNED PRIMARY KEY, whole BIGINT, large BIGINT UNSIGNED, fraction DOUBLE,
       text LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, bytes LONGBLOB)""",
    """CREATE TABLE keyed (id BIGINT UNSIGNED PRIMARY KEY, text VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
       folded VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_ai_ci,
       plain VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin, bytes VARBINARY(64), document JSON,
       KEY (text), KEY (folded), KEY (plain), KEY (bytes))""",
    """INSERT INTO keyed (id, text, folded, plain, bytes)
       WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 500)
       SELECT n, CONCAT('Job', n), CONCAT('Job', n), CONCAT('Job', n), CONCAT('Job', n) FROM numbers""",
    "INSERT INTO keyed (id) VALUES (18446744073709551615)",
    "ANALYZE TABLE keyed",
    "CREATE TABLE canary (id INT PRIMARY KEY)",
    "INSERT INTO canary VALUES (1), (2), (3)",
]
SQL_MODES = [
    "",
    "STRICT_ALL_TABLES",
    "NO_BACKSLASH_ESCAPES",
    "STRICT_ALL_TABLES,NO_BACKSLASH_ESCAPES,ANSI_QUOTES,PIPES_AS_CONCAT,HIGH_NOT_PRECEDENCE,IGNORE_SPACE",
]
# gbk, gb18030, sjis, cp932 and big5 have characters whose second byte is a backslash; swe7 has letters in its place.
CHARSETS = ["utf8mb4", "utf8mb3", "latin1", "gbk", "gb18030", "sjis", "cp932", "big5", "euckr", "swe7", "binary"]

INJECTIONS = [
    "'; DROP TABLE canary; -- ",
    "\\'; DROP TABLE canary; -- ",
    "'); DELETE FROM canary; -- ",
    "\u7e17'; DROP TABLE canary; -- ",  # in gbk its second byte is a backslash
    "\u8868'; DROP TABLE canary; -- ",  # in sjis
    "\u529f'; DROP TABLE canary; -- ",  # in big5
    "\u00bf'; DROP TABLE canary; -- ",
    "\u00bf\\'; DROP TABLE canary; -- ",
    "\0'; DROP TABLE canary; -- ",
    "*/; DROP TABLE canary; /*",
    "/*!50000 DROP TABLE canary */",
    '"; DROP TABLE canary; -- ',
    "`; DROP TABLE canary; -- ",
    "\x1a'; DROP TABLE canary; -- ",
    "' '; DROP TABLE canary; #",
    "'' ; DROP TABLE canary; #",
    "X'00'; DROP TABLE canary; #",
    "%s %(x)s ? :name {} \\",
    "\\",
    "\\\\'",
    "'",
    "''",
]


class Session:
    """One connection that would run several statements in one text, if an injection brought them."""

    def __init__(self, server: MysqlServer, runner: asyncio.Runner) -> None:
        self._runner = runner
        address = {"unix_socket": server.dsn(DATABASE).unix_socket, "user": server.dsn(DATABASE).user}
        flags = CLIENT.MULTI_STATEMENTS | CLIENT.FOUND_ROWS
        self._raw = runner.run(asyncmy.connect(**address, autocommit=True, client_flag=flags))
        self.run(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
        self.run(f"USE {DATABASE}")

    def run(self, text: str | bytes) -> list[tuple]:
        self.found = self._runner.run(self._raw.query(text))
        assert not self._raw._result.has_next, "more than one statement ran"
        return list(self._raw._result.rows or ())

    def set_up(self, sql_mode: str, charset: str) -> None:
        self.run(f"SET NAMES {charset}")
        self.run(f"SET sql_mode = '{sql_mode}'")

    def bytes_max(self) -> int:
        return self.run("SELECT @@max_allowed_packet")[0][0]

    def close(self) -> None:
        self._raw.close()


@pytest.fixture(scope="module")
def session(mysql_server: MysqlServer) -> Iterator[Session]:
    with asyncio.Runner() as runner:
        session = Session(mysql_server, runner)
        for text in TABLES:
            session.run(text)
        yield session
        session.set_up("", "utf8mb4")
        session.run(f"DROP DATABASE {DATABASE}")
        session.close()


@pytest.fixture
def plain_session(session: Session) -> Session:
    session.set_up("STRICT_ALL_TABLES", "utf8mb4")
    return session


def build(session: Session, head: str, rows: list[tuple], tail: str = "", row_open: bytes = b"(") -> list[bytes]:
    return batch.build(head.encode(), rows, tail.encode(), row_open, 2000, session.bytes_max())


def run_rows(session: Session, head: str, rows: list[tuple], tail: str = "") -> list[tuple]:
    (text,) = build(session, head, rows, tail, b"ROW(")
    return session.run(text)


def stored(session: Session) -> list[tuple]:
    """The rows of literals, text and bytes read in hex: the answer's character set is the session's."""
    rows = session.run("SELECT id, whole, large, fraction, HEX(text), HEX(bytes) FROM literals ORDER BY id")
    return [(*row[:4], *(None if cell is None else bytes.fromhex(as_text(cell)) for cell in row[4:])) for row in rows]


def as_text(cell: str | bytes) -> str:
    return cell.decode() if isinstance(cell, bytes) else cell


def expected(rows: list[tuple]) -> list[tuple]:
    return [(*row[:4], None if row[4] is None else row[4].encode(), row[5]) for row in rows]


AWKWARD = "aZ9'\"\\%;-\0\n\x1a\u7e17\u8868é€😀"
VALUES = st.tuples(
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63), 2**63 - 1, 0, -1]),
    st.none() | st.integers(0, 2**64 - 1) | st.sampled_from([2**63, 2**64 - 1]),
    st.none() | st.floats(allow_nan=False, allow_infinity=False),
    st.none() | st.text(max_size=50) | st.text(AWKWARD, max_size=20) | st.sampled_from(INJECTIONS),
    st.none() | st.binary(max_size=50) | st.sampled_from([text.encode() for text in INJECTIONS]),
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sql_mode=st.sampled_from(SQL_MODES),
    charset=st.sampled_from(CHARSETS),
    before=st.lists(VALUES, min_size=1, max_size=8),
    after=st.lists(VALUES, min_size=8, max_size=8),
)
def test_values_come_through_an_insert_an_update_and_a_query(session, sql_mode, charset, before, after) -> None:
    session.set_up(sql_mode, charset)
    session.run("DELETE FROM literals")
    rows = [(number, *values) for number, values in enumerate(before)]
    for text in build(session, "INSERT INTO literals VALUES ", rows):
        session.run(text)
    assert stored(session) == expected(rows)

    changed = [(number, *values) for number, values in enumerate(after[: len(rows)])]
    run_rows(
        session,
        "UPDATE (VALUES ",
        changed,
        ") AS k (id, whole, large, fraction, text, bytes) STRAIGHT_JOIN literals AS l ON l.id = k.id SET"
        " l.whole = k.whole, l.large = k.large, l.fraction = k.fraction, l.text = k.text, l.bytes = k.bytes",
    )
    assert session.found == len(rows)
    assert stored(session) == expected(changed)

    same = run_rows(
        session,
        "SELECT l.id FROM (VALUES ",
        changed,
        ") AS k (id, whole, large, fraction, text, bytes) STRAIGHT_JOIN literals AS l ON l.id = k.id"
        " AND l.whole <=> k.whole AND l.large <=> k.large AND l.fraction <=> k.fraction AND l.text <=> k.text"
        " AND l.bytes <=> k.bytes ORDER BY l.id",
    )
    assert same == [(number,) for number in range(len(rows))]


@pytest.mark.parametrize("charset", CHARSETS)
@pytest.mark.parametrize("sql_mode", SQL_MODES)
def test_p9_no_value_becomes_sql(session: Session, sql_mode: str, charset: str) -> None:
    session.set_up(sql_mode, charset)
    session.run("DELETE FROM literals")
    rows = [(number, 0, 0, 0.0, text, text.encode()) for number, text in enumerate(INJECTIONS)]
    for text in build(session, "INSERT INTO literals VALUES ", rows):
        session.run(text)
    run_rows(
        session,
        "UPDATE (VALUES ",
        [(number, text) for number, text in enumerate(INJECTIONS)],
        ") AS k (id, text) STRAIGHT_JOIN literals AS l ON l.id = k.id SET l.text = k.text",
    )
    assert stored(session) == expected(rows)
    for injection in INJECTIONS:
        text, content = batch.literal(injection), batch.literal(injection.encode())
        assert session.run(b"SELECT " + text + b" = " + content) == [(1,)]
    assert session.run("SELECT COUNT(*) FROM canary") == [(3,)]


def test_any_byte_and_any_plane_of_unicode_comes_through(plain_session: Session) -> None:
    session = plain_session
    session.run("DELETE FROM literals")
    characters = "".join(chr(code) for code in range(0, 0x110000, 7) if not 0xD800 <= code < 0xE000)
    rows = [(1, 0, 0, 0.0, "".join(map(chr, range(256))), bytes(range(256)) * 2), (2, 0, 0, 0.0, characters, b"")]
    for text in build(session, "INSERT INTO literals VALUES ", rows):
        session.run(text)
    assert stored(session) == expected(rows)


def test_long_strings_come_through_values_row(plain_session: Session) -> None:
    session = plain_session
    session.run("DELETE FROM literals")
    rows = [(1, 0, 0, 0.0, "é" * 70_000, b"\\'" * 70_000), (2, 0, 0, 0.0, "short", b"")]
    columns = "(id, whole, large, fraction, text, bytes)"
    run_rows(session, "INSERT INTO literals SELECT * FROM (VALUES ", rows, f") AS k {columns}")
    assert stored(session) == expected(rows)


def key_of(session: Session, condition: str, values: list[object]) -> tuple[str, list[int]]:
    """The key by which rows of `keyed` are found, and the ids of those found."""
    head, rows = "SELECT t.id FROM (VALUES ", [(value,) for value in values]
    tail = f") AS k (c) STRAIGHT_JOIN keyed AS t ON {condition}"
    plan = run_rows(session, f"EXPLAIN FORMAT=TRADITIONAL {head}", rows, tail)
    (key,) = [as_text(row[6]) for row in plan if as_text(row[2]) == "t"]
    return key, [row[0] for row in run_rows(session, head, rows, tail)]


@pytest.mark.parametrize(
    ("condition", "values", "key", "ids"),
    [
        ("t.id = k.c", [5, 7], "PRIMARY", [5, 7]),
        ("t.id = k.c", [-5, 7], "PRIMARY", [7]),
        ("t.id = k.c", [None, 7], "PRIMARY", [7]),
        ("t.id = k.c", [7, 2**64 - 1], "PRIMARY", [7, 2**64 - 1]),  # DECIMAL
        ("t.id = k.c", [-5, 7, 2**64 - 1], "PRIMARY", [7, 2**64 - 1]),
        ("t.id = k.c", [None, None], "PRIMARY", []),
        ("t.text = k.c", ["Job5", "job6"], "text", [5]),
        ("t.folded = k.c", ["Job5", "job6"], "folded", [5, 6]),
        ("t.plain = k.c", ["Job5", "job6"], "plain", [5]),
        ("t.plain = k.c", ["Job5", "Jobé"], "plain", [5]),
        ("t.text = k.c", [b"Job5", b"job6"], "text", [5]),
        ("t.plain = k.c", [b"Job5", b"\xff"], "plain", [5]),
        ("t.bytes = k.c", [b"Job5", b"\xff", b""], "bytes", [5]),
        ("t.bytes = k.c", ["Job5", "job6"], "bytes", [5]),
        ("t.text = k.c", ["Job5", "x" * 70_000], "text", [5]),
        ("t.bytes = k.c", [b"Job5", b"x" * 70_000], "bytes", [5]),
    ],
)
@pytest.mark.parametrize("charset", ["utf8mb4", "latin1", "gbk", "binary"])
def test_rows_are_joined_through_the_index_of_their_column(plain_session, charset, condition, values, key, ids) -> None:
    plain_session.set_up("STRICT_ALL_TABLES", charset)
    assert key_of(plain_session, condition, values) == (key, ids)


@pytest.mark.parametrize(
    ("values", "column_type"),
    [
        ([1, -(2**63), 2**63 - 1], "bigint"),
        ([None, 1], "bigint"),
        ([2**63, 2**64 - 1], "bigint unsigned"),
        ([1, 2**64 - 1], "decimal(20,0)"),
        ([None, None], "varbinary(0)"),
        ([0.5, 1e300, None], "double"),
        (["a", "é", None], "varchar(1)"),
        (["x" * 512], "varchar(512)"),
        (["x" * 513, "short"], "text"),
        ([b"a", b"\xff\xff", None], "varbinary(2)"),
        ([b"x" * 512], "varbinary(512)"),
        ([b"x" * 513, b"short"], "blob"),
    ],
)
def test_the_server_infers_these_types_of_columns(plain_session: Session, values, column_type) -> None:
    session = plain_session
    session.run("DROP TEMPORARY TABLE IF EXISTS inferred")
    rows = [(value,) for value in values]
    run_rows(session, "CREATE TEMPORARY TABLE inferred SELECT * FROM (VALUES ", rows, ") AS k (c) LIMIT 0")
    assert as_text(session.run("SHOW COLUMNS FROM inferred")[0][1]) == column_type


def test_a_json_column_takes_str_and_no_bytes(plain_session: Session) -> None:
    document = '{"name": "it\'s é", "path": "a\\\\b"}'
    tail = ") AS k (id, document) STRAIGHT_JOIN keyed AS t ON t.id = k.id SET t.document = k.document"
    run_rows(plain_session, "UPDATE (VALUES ", [(1, document), (2, "[1]")], tail)
    assert plain_session.run("SELECT document->>'$.name' FROM keyed WHERE id = 1") == [("it's é",)]
    with pytest.raises(MySQLError, match="Cannot create a JSON value from a string with CHARACTER SET 'binary'"):
        run_rows(plain_session, "UPDATE (VALUES ", [(1, document.encode())], tail)


def test_the_largest_statements_fit_into_the_packet_the_server_takes(mysql_server, plain_session: Session) -> None:
    packet_bytes = 65_536
    was = plain_session.bytes_max()
    plain_session.run(f"SET GLOBAL max_allowed_packet = {packet_bytes}")
    try:
        with asyncio.Runner() as runner:
            narrow = Session(mysql_server, runner)
            assert narrow.bytes_max() == packet_bytes
            rows = [(n, 0, 0, 0.0, "x" * n, b"") for n in range(1500)]
            statements = build(narrow, "INSERT INTO literals VALUES ", rows)
            narrow.run("DELETE FROM literals")
            for text in statements:
                narrow.run(text)
            assert narrow.run("SELECT COUNT(*) FROM literals") == [(len(rows),)]
            head = b"SELECT LENGTH"
            content = "x" * (packet_bytes - len(head + b"(_utf8mb4'')") - PACKET_BYTES)
            (longest,) = batch.build(head, [(content,)], b"", b"(", 1, packet_bytes)
            assert narrow.run(longest) == [(len(content),)]
            with pytest.raises(ValueError, match="max_allowed_packet"):
                batch.build(head, [(content + "x",)], b"", b"(", 1, packet_bytes)
            narrow.close()
    finally:
        plain_session.run(f"SET GLOBAL max_allowed_packet = {was}")
