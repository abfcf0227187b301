"""HTTP/1.1 on the wire: request heads written, and the plainest answers read without an object per header.

Writing refuses whatever could end a line or a head early, so no caller can smuggle a second request. Reading knows one
shape of answer: complete, framed by Content-Length or without a body, every line by the strict grammar. All else is
answered with None, and llhttp reads it.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcmp, memcpy

ABI = 1

# RFC 9110 5.6.2: what may stand in a token (names of fields, methods).
cdef unsigned char TOKEN[256]
# RFC 9110 5.5: what may stand in a field's value, obs-text (0x80-0xff) included, when reading.
cdef unsigned char VALUE[256]
cdef int _octet
for _octet in range(256):
    TOKEN[_octet] = chr(_octet) in "!#$%&'*+-.^_`|~" or 48 <= _octet <= 57 or 65 <= _octet <= 90 or 97 <= _octet <= 122
    VALUE[_octet] = _octet == 9 or (32 <= _octet != 127)

cdef enum:
    EXCERPT_BYTES = 1024
    HEAD_BYTES_MAX = 16384
    LENGTH_DIGITS_MAX = 9  # more than any length that can lie complete in one read

# Fields that decide how an answer is read, or that somebody asks for.
cdef enum Field:
    OTHER
    CONTENT_LENGTH
    CONNECTION
    RETRY_AFTER
    NOT_PLAIN


def fixed_head(bytes method not None, bytes path not None, list fields not None):
    """The request line and fields that every run of a job's version shares; ``fields`` are (name, value) pairs.

    Raises ValueError for a method or name that is no token, a path with anything but visible ASCII, and a value with
    anything but visible ASCII and inner spaces or tabs.
    """
    cdef list parts = [_token(method), b" ", _visible(path), b" HTTP/1.1\r\n"]
    cdef bytes name, value
    for name, value in fields:
        parts += (_token(name), b": ", _field_value(value), b"\r\n")
    return b"".join(parts)


def run_head(
    bytes fixed not None, bytes key not None, long long scheduled_at_ms, long long attempt, long long timestamp_s,
    bytes signature not None,
):
    """A complete head: the fixed part, then what differs for each attempt. Times are UTC; see ``fixed_head``."""
    if not fixed.endswith(b"\r\n") or attempt < 0 or timestamp_s < 0:
        raise ValueError("a head needs its fixed part, and numbers that are not negative")
    _visible(key)
    _field_value(signature)
    cdef char when[32]
    cdef Py_ssize_t when_length = _write_time(when, scheduled_at_ms)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(fixed) + 2 * PyBytes_GET_SIZE(key) + PyBytes_GET_SIZE(signature)
    cdef bytes head = PyBytes_FromStringAndSize(NULL, size + when_length + 192)
    cdef char* start = PyBytes_AS_STRING(head)
    cdef char* at = start
    at = _put_bytes(at, fixed)
    at = _put_bytes(_put(at, b"Idempotency-Key: ", 17), key)
    at = _put(_put(at, b"\r\nX-Scheduled-At: ", 18), when, when_length)
    at = _put_number(_put(at, b"\r\nX-Attempt: ", 13), attempt)
    at = _put_bytes(_put(at, b"\r\nwebhook-id: ", 14), key)
    at = _put_number(_put(at, b"\r\nwebhook-timestamp: ", 21), timestamp_s)
    at = _put_bytes(_put(at, b"\r\nwebhook-signature: ", 21), signature)
    at = _put(at, b"\r\n\r\n", 4)
    return head[: at - start]


def read_answer(bytes data not None, bint to_head):
    """(status, stays open, Retry-After or None, first 1,024 bytes of the body) of an answer that is all of ``data``.

    ``to_head``: the request was a HEAD. None for whatever is not one complete answer of the plainest shape.
    """
    cdef const unsigned char* at = <const unsigned char*> PyBytes_AS_STRING(data)
    cdef const unsigned char* end = at + PyBytes_GET_SIZE(data)
    cdef const unsigned char* name
    cdef const unsigned char* value
    cdef const unsigned char* value_end
    cdef Py_ssize_t name_length
    cdef long length = -1
    cdef int status
    cdef Field field
    cdef bint stays_open = True
    cdef bytes retry_after = None

    status = _read_status(&at, end)
    if status == 0:
        return None
    # A bytes object ends in a NUL, which is in neither table: every scan stops there at the latest.
    while at[0] != c"\r":
        name = at
        while TOKEN[at[0]]:
            at += 1
        name_length = at - name
        if name_length == 0 or at[0] != c":":
            return None
        at += 1
        while at[0] == c" " or at[0] == c"\t":
            at += 1
        value = at
        while VALUE[at[0]]:
            at += 1
        if at[0] != c"\r" or at[1] != c"\n":
            return None
        value_end = at
        at += 2
        field = _field(name, name_length)
        if field == OTHER:
            continue
        while value_end > value and ((value_end - 1)[0] == c" " or (value_end - 1)[0] == c"\t"):
            value_end -= 1
        if field == CONTENT_LENGTH and length < 0:
            length = _read_length(value, value_end)
            if length < 0:
                return None
        elif field == CONNECTION and _same(value, value_end - value, b"close", 5):
            stays_open = False
        elif field == CONNECTION and _same(value, value_end - value, b"keep-alive", 10):
            pass
        elif field == RETRY_AFTER and retry_after is None:
            retry_after = (<const char*> value)[: value_end - value]
        else:
            return None
    if at[1] != c"\n":
        return None
    at += 2
    if <const char*> at - PyBytes_AS_STRING(data) > HEAD_BYTES_MAX:
        return None
    if status == 204 or status == 304 or (to_head and length >= 0):
        length = 0
    if length < 0 or end - at != length:
        return None
    return status, stays_open, retry_after, (<const char*> at)[: min(length, EXCERPT_BYTES)]


cdef int _read_status(const unsigned char** cursor, const unsigned char* end) noexcept:
    """The status of ``HTTP/1.1 nnn reason``, 0 for anything else and for 1xx; moves the cursor behind the line."""
    cdef const unsigned char* at = cursor[0]
    cdef int status
    if end - at < 17 or memcmp(at, b"HTTP/1.1 ", 9) != 0:
        return 0
    at += 9
    if not (c"2" <= at[0] <= c"5" and c"0" <= at[1] <= c"9" and c"0" <= at[2] <= c"9" and at[3] == c" "):
        return 0
    status = (at[0] - 48) * 100 + (at[1] - 48) * 10 + at[2] - 48
    at += 4
    while VALUE[at[0]]:
        at += 1
    if at[0] != c"\r" or at[1] != c"\n":
        return 0
    cursor[0] = at + 2
    return status


cdef Field _field(const unsigned char* name, Py_ssize_t length) noexcept:
    if length == 14 and _same(name, length, b"content-length", 14):
        return CONTENT_LENGTH
    if length == 10 and _same(name, length, b"connection", 10):
        return CONNECTION
    if length == 11 and _same(name, length, b"retry-after", 11):
        return RETRY_AFTER
    if (
        length == 17 and _same(name, length, b"transfer-encoding", 17)
        or length == 16 and _same(name, length, b"proxy-connection", 16)
        or length == 7 and _same(name, length, b"upgrade", 7)
    ):
        return NOT_PLAIN
    return OTHER


cdef bint _same(const unsigned char* text, Py_ssize_t length, const char* lower, Py_ssize_t lower_length) noexcept:
    """Whether a text equals a lower-case one of letters and hyphens, its own case aside."""
    cdef Py_ssize_t i
    if length != lower_length:
        return False
    for i in range(length):
        if (text[i] | 0x20 if 65 <= text[i] <= 90 else text[i]) != <unsigned char> lower[i]:
            return False
    return True


cdef long _read_length(const unsigned char* at, const unsigned char* end) noexcept:
    """A Content-Length of plain digits, -1 for anything else."""
    cdef long length = 0
    if not 0 < end - at <= LENGTH_DIGITS_MAX:
        return -1
    while at < end:
        if not c"0" <= at[0] <= c"9":
            return -1
        length = length * 10 + at[0] - 48
        at += 1
    return length


cdef bytes _token(bytes text):
    cdef const unsigned char* at = <const unsigned char*> PyBytes_AS_STRING(text)
    cdef Py_ssize_t i
    for i in range(PyBytes_GET_SIZE(text)):
        if not TOKEN[at[i]]:
            raise ValueError(f"not a token: {text!r}")
    if not text:
        raise ValueError("an empty token")
    return text


cdef bytes _visible(bytes text):
    cdef const unsigned char* at = <const unsigned char*> PyBytes_AS_STRING(text)
    cdef Py_ssize_t i
    for i in range(PyBytes_GET_SIZE(text)):
        if not 33 <= at[i] <= 126:
            raise ValueError("only visible ASCII may stand here")
    if not text:
        raise ValueError("an empty text")
    return text


cdef bytes _field_value(bytes text):
    cdef const unsigned char* at = <const unsigned char*> PyBytes_AS_STRING(text)
    cdef Py_ssize_t length = PyBytes_GET_SIZE(text)
    cdef Py_ssize_t i
    for i in range(length):
        if not (32 <= at[i] <= 126 or at[i] == 9):
            raise ValueError("a field's value may hold only visible ASCII, spaces and tabs")
    if length and (at[0] <= 32 or at[length - 1] <= 32):
        raise ValueError("a field's value may not begin or end with a space or tab")
    return text


cdef char* _put(char* at, const char* text, Py_ssize_t length) noexcept:
    memcpy(at, text, length)
    return at + length


cdef char* _put_bytes(char* at, bytes text):
    return _put(at, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))


cdef char* _put_number(char* at, long long number) noexcept:
    cdef char digits[20]
    cdef int count = 0
    while True:
        digits[count] = 48 + <char> (number % 10)
        count += 1
        number //= 10
        if number == 0:
            break
    while count:
        count -= 1
        at[0] = digits[count]
        at += 1
    return at


cdef char* _put_padded(char* at, int number, int width) noexcept:
    cdef int place
    for place in range(width - 1, -1, -1):
        at[place] = 48 + number % 10
        number //= 10
    return at + width


cdef Py_ssize_t _write_time(char* start, long long time_ms) except -1:
    """RFC 3339 in UTC, with milliseconds only where there are any; the length written, at most 24."""
    if not 0 <= time_ms < 253402300800000:
        raise ValueError("a time must lie between 1970 and 9999")
    cdef long long days = time_ms // 86400000
    cdef int rest = <int> (time_ms % 86400000)
    # Days to a date by the civil calendar whose years begin in March (H. Hinnant, chrono-compatible algorithms).
    cdef long long shifted = days + 719468
    cdef long long era = shifted // 146097
    cdef int day_of_era = <int> (shifted - era * 146097)
    cdef int year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36524 - day_of_era // 146096) // 365
    cdef int day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    cdef int month_from_march = (5 * day_of_year + 2) // 153
    cdef int month = month_from_march + 3 if month_from_march < 10 else month_from_march - 9
    cdef int year = <int> (year_of_era + era * 400) + (month <= 2)
    cdef char* at = _put_padded(start, year, 4)
    at = _put_padded(_put(at, b"-", 1), month, 2)
    at = _put_padded(_put(at, b"-", 1), day_of_year - (153 * month_from_march + 2) // 5 + 1, 2)
    at = _put_padded(_put(at, b"T", 1), rest // 3600000, 2)
    at = _put_padded(_put(at, b":", 1), rest // 60000 % 60, 2)
    at = _put_padded(_put(at, b":", 1), rest // 1000 % 60, 2)
    if rest % 1000:
        at = _put_padded(_put(at, b".", 1), rest % 1000, 3)
    return _put(at, b"Z", 1) - start
