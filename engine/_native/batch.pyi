"""Values and rows as SQL text for MySQL. Values never become SQL, whatever sql_mode and character set the session has.

None, bool (1 and 0), int (-2**63 to 2**64 - 1), finite float, str and bytes come through exactly. What else to know
about rows behind `JOIN (VALUES ROW(…), …) AS k (…)`, where MySQL infers the type of each column from its literals
(each point is a test, tests/native/test_batch_mysql.py):

* A column has one kind, None aside; a mixture is refused here, because MySQL would quietly compare ints with strings
  as doubles, and strings with bytes as bytes.
* Ints are BIGINT; a column with ints both above and below 2**63 is DECIMAL(20), one of None alone VARBINARY(0). Both
  still join BIGINT UNSIGNED through its index, value by value.
* Strings are utf8mb4; compared with a column of a table they follow that column's collation and use its index, also
  with an ascii column.
* bytes are VARBINARY and compare byte by byte, also with a text column. A JSON column takes str only.
* A column with a value longer than 512 characters or bytes is a TEXT or BLOB: slower to build, still exact.
"""

from collections.abc import Sequence

ABI: int

def build(
    head: bytes,
    rows: Sequence[Sequence[object]],
    tail: bytes,
    row_open: bytes,
    rows_max: int,
    bytes_max: int,
) -> list[bytes]:
    """Statements ``head`` row, row, … ``tail``, each with at most ``rows_max`` rows and as many as fit.

    A row is ``row_open``, which is ``(`` or ``ROW(``, its values, and ``)``. ``bytes_max`` is the server's
    max_allowed_packet. No rows give no statement. Rows are numbered from 0 in the messages, which never show a value.

    ValueError: rows of different length, a row too large for a statement of its own, an int, float or str outside of
    the above. TypeError: another type, or a column of two kinds.
    """

def literal(value: object) -> bytes:
    """One value as it would stand in a row."""
