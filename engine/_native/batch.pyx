"""Values and rows as SQL text, so that a statement carries thousands of rows; see the stub for the contract.

Every literal is ASCII and means the same under any sql_mode and any connection character set, which is what keeps
values from becoming SQL:

* bytes are `X'…'`: nothing but hex digits stands between the quotes.
* str is `_utf8mb4'…'` if it has only printable ASCII without quote and backslash, else `_utf8mb4 X'…'`. Between quotes
  only those two, and multi-byte characters in gbk, sjis and the like, can end or extend a literal. The introducer
  makes the server take the bytes as they are, and gives all strings of a column one character set.
* int is decimal, float the shortest decimal that reads back equal, always with an exponent: `1.5` would be a DECIMAL.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_Check
from cpython.long cimport PyLong_AsUnsignedLongLong, PyLong_Check
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.sequence cimport PySequence_Fast, PySequence_Fast_GET_ITEM, PySequence_Fast_GET_SIZE
from cpython.unicode cimport PyUnicode_AsUTF8String
from libc.math cimport isfinite
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memchr, memcpy, memmove, strlen

ABI = 1

cdef extern from "Python.h":
    const Py_ssize_t PY_SSIZE_T_MAX
    int PyUnicode_Check(object value) noexcept
    bint PyUnicode_IS_ASCII(object value) noexcept
    void *PyUnicode_DATA(object value) noexcept
    Py_ssize_t PyUnicode_GET_LENGTH(object value) noexcept
    long long PyLong_AsLongLongAndOverflow(object value, int *overflow) except? -1
    char *PyOS_double_to_string(double value, char format_code, int precision, int flags, int *kind) except NULL

cdef enum:
    INT_BYTES_MAX = 24    # 20 digits and a sign
    TEXT_BYTES_MIN = 128  # of the buffer to start with
    PACKET_BYTES = 16     # of max_allowed_packet, for what stands beside the text in its packet

cdef enum Kind:
    NOTHING, INT, FLOAT, STR, BYTES

cdef tuple KIND_NAMES = ("None", "int", "float", "str", "bytes")

cdef struct Text:
    char *data
    Py_ssize_t size
    Py_ssize_t capacity
    Py_ssize_t bytes_max   # of one value; no memory is spent on more
    Py_ssize_t row         # where it stands, for the messages
    Py_ssize_t column

cdef char[512] HEX_PAIRS
cdef char[200] DIGIT_PAIRS
cdef uint8_t[256] IS_PLAIN

cdef int i
for i in range(256):
    HEX_PAIRS[2 * i] = b"0123456789ABCDEF"[i >> 4]
    HEX_PAIRS[2 * i + 1] = b"0123456789ABCDEF"[i & 15]
    IS_PLAIN[i] = 0x20 <= i < 0x7F and i != 0x27 and i != 0x5C   # all printable but ' and \
for i in range(100):
    DIGIT_PAIRS[2 * i] = 0x30 + i // 10
    DIGIT_PAIRS[2 * i + 1] = 0x30 + i % 10


def build(bytes head not None, rows, bytes tail not None, bytes row_open not None, Py_ssize_t rows_max,
          Py_ssize_t bytes_max):
    if rows_max < 1:
        raise ValueError(f"rows_max must be at least 1, got {rows_max}")
    cdef tuple fixed_rows = tuple(rows)   # turning a row into values may run foreign code, which may change a list
    cdef Text text = Text(NULL, 0, 0, bytes_max, 0, 0)
    try:
        grow(&text, TEXT_BYTES_MIN)
        return write_statements(&text, head, fixed_rows, tail, row_open, rows_max)
    finally:
        PyMem_Free(text.data)


def literal(value):
    cdef Text text = Text(NULL, 0, 0, PY_SSIZE_T_MAX, -1, -1)
    try:
        grow(&text, TEXT_BYTES_MIN)
        write_value(&text, value)
        return PyBytes_FromStringAndSize(text.data, text.size)
    finally:
        PyMem_Free(text.data)


# Statements

cdef list write_statements(Text *text, bytes head, tuple rows, bytes tail, bytes row_open, Py_ssize_t rows_max):
    cdef Py_ssize_t size_max = text.bytes_max - PACKET_BYTES - len(tail)
    cdef Py_ssize_t row_start, in_statement = 0
    cdef list statements = []
    cdef Columns columns = Columns()
    write_bytes(text, head)
    for text.row in range(len(rows)):
        if in_statement:
            write_bytes(text, b",")
        row_start = text.size
        write_row(text, rows[text.row], row_open, columns)
        if text.size > size_max and in_statement:
            statements.append(statement_of(text, row_start - 1, tail))
            restart(text, len(head), row_start)
            in_statement = 0
        if text.size > size_max:
            raise too_large(text, text.size)
        in_statement += 1
        if in_statement == rows_max:
            statements.append(statement_of(text, text.size, tail))
            restart(text, len(head), text.size)
            in_statement = 0
    if in_statement:
        statements.append(statement_of(text, text.size, tail))
    return statements


cdef bytes statement_of(Text *text, Py_ssize_t size, bytes tail):
    cdef bytes statement = PyBytes_FromStringAndSize(NULL, size + len(tail))
    memcpy(PyBytes_AS_STRING(statement), text.data, size)
    memcpy(PyBytes_AS_STRING(statement) + size, PyBytes_AS_STRING(tail), len(tail))
    return statement


cdef void restart(Text *text, Py_ssize_t head_size, Py_ssize_t row_start) noexcept:
    """The head again, and behind it what was written from ``row_start`` on."""
    memmove(text.data + head_size, text.data + row_start, text.size - row_start)
    text.size = head_size + text.size - row_start


# Rows

cdef class Columns:
    """The kind of each column, set by its first value that is not None."""

    cdef uint8_t *kinds
    cdef Py_ssize_t count

    def __dealloc__(self):
        PyMem_Free(self.kinds)

    cdef int start(self, Py_ssize_t count) except -1:
        if count == 0:
            raise ValueError("row 0 is empty")
        self.kinds = <uint8_t *>PyMem_Calloc(count, 1)
        if self.kinds == NULL:
            raise MemoryError()
        self.count = count
        return 0


cdef int write_row(Text *text, object row, bytes row_open, Columns columns) except -1:
    cdef object values = PySequence_Fast(row, "a row must be a sequence of values")
    cdef Kind kind, before
    if columns.count == 0:
        columns.start(PySequence_Fast_GET_SIZE(values))
    if PySequence_Fast_GET_SIZE(values) != columns.count:
        raise ValueError(f"row {text.row} has {len(values)} values, those before have {columns.count}")
    write_bytes(text, row_open)
    for text.column in range(columns.count):
        if text.column:
            write_bytes(text, b",")
        kind = write_value(text, <object>PySequence_Fast_GET_ITEM(values, text.column))
        before = <Kind>columns.kinds[text.column]
        if kind != before and kind != NOTHING:
            if before != NOTHING:
                raise TypeError(f"{place(text)}: {KIND_NAMES[kind]} in a column of {KIND_NAMES[before]}")
            columns.kinds[text.column] = kind
    write_bytes(text, b")")
    return 0


# Values

cdef Kind write_value(Text *text, object value) except *:
    if PyLong_Check(value):   # bool too
        write_int(text, value)
        return INT
    if value is None:
        write_bytes(text, b"NULL")
        return NOTHING
    if PyBytes_Check(value):
        write_quoted(text, b"X'", <uint8_t *>PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value), True)
        return BYTES
    if PyUnicode_Check(value):
        write_str(text, value)
        return STR
    if PyFloat_Check(value):
        write_float(text, PyFloat_AS_DOUBLE(value))
        return FLOAT
    raise TypeError(f"{place(text)}: a value must be None, bool, int, float, str or bytes, got {type(value).__name__}")


cdef int write_int(Text *text, object value) except -1:
    cdef int overflow = 0
    cdef int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow == 0:
        return write_digits(text, -<uint64_t>number if number < 0 else <uint64_t>number, number < 0)
    try:
        return write_digits(text, PyLong_AsUnsignedLongLong(value), False)
    except OverflowError:
        raise ValueError(f"{place(text)}: the int does not fit into 64 bits") from None


cdef int write_digits(Text *text, uint64_t number, bint negative) except -1:
    cdef char[INT_BYTES_MAX] digits
    cdef int start = INT_BYTES_MAX
    while number >= 100:
        start -= 2
        memcpy(&digits[start], &DIGIT_PAIRS[number % 100 * 2], 2)
        number //= 100
    start -= 2
    memcpy(&digits[start], &DIGIT_PAIRS[number * 2], 2)
    if number < 10:
        start += 1
    if negative:
        start -= 1
        digits[start] = c"-"
    return write(text, &digits[start], INT_BYTES_MAX - start)


cdef int write_float(Text *text, double number) except -1:
    if not isfinite(number):
        raise ValueError(f"{place(text)}: a float must be finite, got {number}")
    cdef char *digits = PyOS_double_to_string(number, c"r", 0, 0, NULL)
    cdef Py_ssize_t size = strlen(digits)
    try:
        write(text, digits, size)
        if memchr(digits, c"e", size) == NULL:
            write_bytes(text, b"e0")
    finally:
        PyMem_Free(digits)
    return 0


cdef int write_str(Text *text, object value) except -1:
    cdef uint8_t *characters
    if PyUnicode_IS_ASCII(value):
        characters = <uint8_t *>PyUnicode_DATA(value)
        if is_plain(characters, PyUnicode_GET_LENGTH(value)):
            return write_quoted(text, b"_utf8mb4'", characters, PyUnicode_GET_LENGTH(value), False)
        return write_quoted(text, b"_utf8mb4 X'", characters, PyUnicode_GET_LENGTH(value), True)
    try:
        encoded = PyUnicode_AsUTF8String(value)
    except UnicodeEncodeError as error:
        raise ValueError(f"{place(text)}: a str must be Unicode: {error.reason} at {error.start}") from None
    return write_quoted(text, b"_utf8mb4 X'", <uint8_t *>PyBytes_AS_STRING(encoded), PyBytes_GET_SIZE(encoded), True)


cdef bint is_plain(const uint8_t *characters, Py_ssize_t count) noexcept:
    cdef uint8_t plain = 1
    cdef Py_ssize_t at
    for at in range(count):
        plain &= IS_PLAIN[characters[at]]
    return plain


cdef int write_quoted(Text *text, bytes opening, const uint8_t *content, Py_ssize_t count, bint in_hex) except -1:
    cdef Py_ssize_t at, size = count * 2 if in_hex else count
    if size > text.bytes_max:
        raise too_large(text, size)
    write_bytes(text, opening)
    reserve(text, size + 1)
    cdef char *end = text.data + text.size
    if in_hex:
        for at in range(count):
            memcpy(end + 2 * at, &HEX_PAIRS[2 * content[at]], 2)
    else:
        memcpy(end, content, size)
    end[size] = c"'"
    text.size += size + 1
    return 0


# Text

cdef inline int write_bytes(Text *text, bytes piece) except -1:
    return write(text, PyBytes_AS_STRING(piece), PyBytes_GET_SIZE(piece))


cdef inline int write(Text *text, const char *piece, Py_ssize_t size) except -1:
    reserve(text, size)
    memcpy(text.data + text.size, piece, size)
    text.size += size
    return 0


cdef inline int reserve(Text *text, Py_ssize_t size) except -1:
    if text.size + size > text.capacity:
        grow(text, max(2 * text.capacity, text.size + size))
    return 0


cdef int grow(Text *text, Py_ssize_t capacity) except -1:
    cdef char *data = <char *>PyMem_Realloc(text.data, capacity)
    if data == NULL:
        raise MemoryError(f"no room for {capacity} bytes of SQL")
    text.data = data
    text.capacity = capacity
    return 0


# Messages never show a value: it may be a secret.

cdef str place(Text *text):
    return "value" if text.row < 0 else f"row {text.row}, column {text.column}"


cdef object too_large(Text *text, Py_ssize_t size):
    return ValueError(
        f"row {text.row} takes at least {size} bytes, the server {text.bytes_max} a statement (max_allowed_packet)"
    )
