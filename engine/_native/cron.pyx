"""Cron expressions compiled to bit masks, time zones to arrays, and the search for next, last and number of times.

An expression becomes masks of seconds, minutes, hours and months and a table of days for each of the 28 shapes a month
can have (28 to 31 days, first weekday), which already holds `L`, `W`, `#` and the either-matches rule. A search jumps
from set bit to set bit and never steps through time.

A zone is a list of stretches with one offset each. Within a stretch the wall clock runs evenly, so a search there is a
search over wall seconds. What a clock change means stands in one number per stretch, `fresh`: the first wall second
that a wall-clock job may still fire for in it. After a

    gap of up to three hours: where the wall clock stopped; the missing times fire at the stretch's first second
    longer gap: where the wall clock goes on; the missing times fire nothing
    repeat: where the repeated times end; they fired in the first pass

An interval job looks at every wall second of every stretch instead.

Instants are seconds since 1970-01-01 UTC, wall seconds the same count read off the wall clock.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc

cdef extern from *:
    """
    #define lowest_bit(mask) __builtin_ctzll(mask)
    #define highest_bit(mask) (63 - __builtin_clzll(mask))
    #define bits_set(mask) __builtin_popcountll(mask)
    #define DAY 86400LL
    #define CYCLE (146097LL * DAY)
    #define FIRST (-62135596800LL)
    #define LAST 253402300799LL
    #define FUTURE (1LL << 61)
    #define PAST (-FUTURE)
    #define GAP_MAX (3LL * 3600)
    #define REPEAT_MAX (26LL * 3600)
    #define BUCKET (1LL << 23)
    #define ERAS_BEFORE 30
    static const int month_days[13] = {0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    static const int lowest[6] = {0, 0, 0, 1, 1, 0};
    static const int highest[6] = {59, 59, 23, 31, 12, 6};
    """
    const int64_t DAY
    const int64_t CYCLE  # 400 Gregorian years: dates, weekdays and clock rules all repeat
    const int64_t FIRST  # 0001-01-01T00:00:00Z
    const int64_t LAST  # 9999-12-31T23:59:59Z
    const int64_t FUTURE
    const int64_t PAST
    const int64_t GAP_MAX  # a longer gap is a date that never was
    const int64_t REPEAT_MAX  # no clock was ever set back further
    const int64_t BUCKET  # 97 days: a zone changes once in it, or not at all
    const int ERAS_BEFORE  # 400-year cycles added where a division wants no negative number
    const int month_days[13]
    const int lowest[6]  # of each field, second to day-of-week
    const int highest[6]
    int lowest_bit(uint64_t) noexcept nogil
    int highest_bit(uint64_t) noexcept nogil
    int bits_set(uint64_t) noexcept nogil

ABI = 2
TEXT_CHARS_MAX = 256

CYCLE_S = CYCLE
FIRST_S = FIRST
LAST_S = LAST
GAP_MAX_S = GAP_MAX
NEVER = -(1 << 63)
cdef int64_t NO_TIME = NEVER

PLAIN, MOVED, FIRST_PASS, SECOND_PASS = range(4)


class ExpressionError(ValueError):
    """An expression that is not one. `field` is its name or `expression`, `example` an expression that works."""

    def __init__(self, field: str, detail: str, example: str) -> None:
        super().__init__(f"{field}: {detail}")
        self.field = field
        self.detail = detail
        self.example = example


cdef class Expression
cdef class Zone


cdef struct Stretch:
    # A span of time with one offset: instants [start, end), wall seconds [start + offset, end + offset).
    int64_t start
    int64_t end
    int64_t offset
    int64_t fresh
    int index
    int64_t shift  # whole cycles between the arrays and here


cdef struct Month:
    # Where a search stands: a month, its first day (days since 1970-01-01) and length.
    int year
    int month
    int64_t first
    int length


cdef struct Days:
    # What the two day fields ask for, before it is laid over the shapes a month can have.
    uint32_t days  # bit n is day n
    uint32_t from_last  # bit n is the n-th day before the last
    uint32_t nearest  # bit n is the weekday nearest to day n
    bint last_weekday
    uint32_t weekdays  # bit n is weekday n
    uint32_t last_of  # bit n is the last weekday n of the month
    uint32_t nth[7]  # bit n is the n-th of that weekday
    bint either  # both fields are restricted: either matches


def compile_expression(str text not None):
    """The compiled form of five or six fields or a macro. Raises ExpressionError, which names the first wrong field."""
    if len(text) > TEXT_CHARS_MAX:
        detail = f"has {len(text)} characters; at most {TEXT_CHARS_MAX} are allowed"
        raise ExpressionError("expression", detail, "0 9 * * 1-5")
    cdef str bare = text.strip(" \t")
    if bare.startswith("@"):
        bare = _fields_of_macro(bare)
    elif bare.startswith(("TZ=", "CRON_TZ=")):
        raise ExpressionError("expression", "the zone is a setting of its own, not part of the expression", "0 9 * * *")
    return _Reader(bare).expression()


def next_times(list crons not None, list zones not None, const int64_t[::1] after not None, int64_t[::1] out not None):
    """For each expression, zone and instant the first time after it, into `out`; NEVER beyond year 9999."""
    cdef Py_ssize_t count = len(crons), index
    if len(zones) != count or after.shape[0] != count or out.shape[0] != count:
        raise ValueError("expressions, zones, instants and room for the answers must be equally many")
    for index in range(count):
        out[index] = _next(<Expression?>crons[index], <Zone?>zones[index], after[index])


def next_n(Expression cron not None, Zone zone not None, int64_t after, int count):
    """The next `count` times after an instant; fewer at the calendar's end."""
    cdef list found = []
    for _ in range(count):
        after = _next(cron, zone, after)
        if after == NO_TIME:
            break
        found.append(after)
    return found


def last_n(Expression cron not None, Zone zone not None, int64_t after, int64_t until, int count):
    """The last `count` times in (after, until], earliest first; fewer if there are not so many."""
    cdef list found = []
    cdef int64_t at = _within(until)
    after = _within(after)
    for _ in range(count):
        at = _last(cron, zone, at)
        if at <= after:
            break
        found.append(at)
        at -= 1
    found.reverse()
    return found


def count_times(Expression cron not None, Zone zone not None, int64_t after, int64_t until):
    """How many times lie in (after, until]. Costs a few steps for each month, however many times there are."""
    return _count(cron, zone, _within(after), _within(until))


def count_walls(Expression cron not None, int64_t low, int64_t end):
    """How many wall seconds in [low, end) match."""
    return _count_walls(cron, max(low, FIRST - DAY), min(end, LAST + 2 * DAY))


def clock_change(Expression cron not None, Zone zone not None, int64_t at):
    """How a time of the expression meets a clock change: PLAIN, MOVED out of a gap, FIRST_PASS or SECOND_PASS."""
    at = _within(at)
    cdef Stretch place = zone.find(at)
    cdef int64_t wall = at + place.offset
    if at == place.start and not cron.interval and _count_walls(cron, place.fresh, wall):
        return MOVED
    if wall < place.fresh:
        return SECOND_PASS
    while place.end <= at + REPEAT_MAX:
        zone.to_next(&place)
        if place.start + place.offset <= wall < place.end + place.offset:
            return FIRST_PASS
    return PLAIN


cdef inline int64_t _first_wall(Expression cron, Stretch* place) noexcept:
    """The first wall second the expression may fire for in a stretch."""
    return place.start + place.offset if cron.interval else place.fresh


cdef int64_t _next(Expression cron, Zone zone, int64_t after) noexcept:
    if after >= LAST:
        return NO_TIME
    after = max(after, FIRST - 1)
    cdef Stretch place = zone.find(after + 1)
    cdef int64_t low = _first_wall(cron, &place), wall
    if after + 1 > place.start:
        low = max(low, after + 1 + place.offset)
    wall = _next_wall(cron, low)
    while wall >= place.end + place.offset:
        if place.end > LAST:
            return NO_TIME
        zone.to_next(&place)
        # `wall` is the first match at or after `low`, and stays so unless this stretch begins outside of [low, wall].
        if not low <= _first_wall(cron, &place) <= wall:
            wall = _next_wall(cron, _first_wall(cron, &place))
        low = _first_wall(cron, &place)
    after = max(wall - place.offset, place.start)
    return after if after <= LAST else NO_TIME


cdef int64_t _last(Expression cron, Zone zone, int64_t until) noexcept:
    """The last time at or before an instant."""
    cdef Stretch place = zone.find(until)
    cdef int64_t high = until + place.offset
    cdef int64_t wall = _last_wall(cron, high)
    while wall < _first_wall(cron, &place):
        if place.start <= FIRST:
            return NO_TIME
        zone.to_previous(&place)
        # As in _next: `wall` stays the last match at or before `high` unless this stretch ends outside of [wall, high].
        if not wall <= place.end + place.offset - 1 <= high:
            wall = _last_wall(cron, place.end + place.offset - 1)
        high = place.end + place.offset - 1
    until = max(wall - place.offset, place.start)
    return until if until >= FIRST else NO_TIME


cdef int64_t _count(Expression cron, Zone zone, int64_t after, int64_t until) noexcept:
    cdef int64_t count = 0, low
    if after >= until:
        return 0
    cdef Stretch place = zone.find(after + 1)
    low = _first_wall(cron, &place)
    if after + 1 > place.start:
        low = max(low, after + 1 + place.offset)
    while True:
        count += _count_in(cron, &place, low, min(until + 1, place.end) + place.offset)
        if place.end > until:
            return count
        zone.to_next(&place)
        low = _first_wall(cron, &place)


cdef int64_t _count_in(Expression cron, Stretch* place, int64_t low, int64_t end) noexcept:
    """How many times a stretch has for the wall seconds [low, end). Those before its own first are one together."""
    cdef int64_t begin = place.start + place.offset
    if low >= begin:
        return _count_walls(cron, low, end)
    return (_count_walls(cron, low, begin + 1) > 0) + _count_walls(cron, begin + 1, end)


# --- zones ----------------------------------------------------------------------------------------------------------


@cython.final
cdef class Zone:
    """A time zone. `starts` (the first is the beginning of time) and `offsets` (seconds east) of its stretches;
    with `repeats`, the last start lies one 400-year cycle after another one, and from there all comes again."""

    cdef int64_t* starts
    cdef int32_t* offsets
    cdef int64_t* fresh
    cdef int count
    cdef int again  # where the cycle begins; the last start is the same place one cycle later. -1: no cycle
    cdef int32_t* buckets  # the stretch at each BUCKET seconds from the second start on
    cdef int bucket_count

    def __cinit__(self, const int64_t[:] starts not None, const int32_t[:] offsets not None, bint repeats):
        cdef int count = <int>starts.shape[0]
        _check_arrays(starts, offsets)
        self.count = count
        self.bucket_count = <int>((starts[count - 1] - starts[1]) // BUCKET + 1) if count > 1 else 0
        self.starts = <int64_t*>malloc(count * sizeof(int64_t))
        self.fresh = <int64_t*>malloc(count * sizeof(int64_t))
        self.offsets = <int32_t*>malloc(count * sizeof(int32_t))
        self.buckets = <int32_t*>malloc((self.bucket_count + 1) * sizeof(int32_t))
        if self.starts == NULL or self.fresh == NULL or self.offsets == NULL or self.buckets == NULL:
            raise MemoryError
        self.fill_stretches(starts, offsets)
        self.fill_buckets()
        self.again = self.find_cycle() if repeats else -1

    def __dealloc__(self):
        free(self.starts)
        free(self.fresh)
        free(self.offsets)
        free(self.buckets)

    cdef void fill_stretches(self, const int64_t[:] starts, const int32_t[:] offsets) noexcept:
        cdef int index
        cdef int64_t reached = PAST, begin
        for index in range(self.count):
            self.starts[index] = starts[index] if index else PAST
            self.offsets[index] = offsets[index]
            begin = self.starts[index] + offsets[index]
            if index:
                reached = max(reached, self.starts[index] + offsets[index - 1])
            self.fresh[index] = begin if index == 0 or begin - reached > GAP_MAX else reached

    cdef void fill_buckets(self) noexcept:
        cdef int bucket, index = 1
        for bucket in range(self.bucket_count):
            while index + 1 < self.count and self.starts[index + 1] <= self.starts[1] + bucket * BUCKET:
                index += 1
            self.buckets[bucket] = index

    cdef int find_cycle(self) except -2:
        cdef int last = self.count - 1, index
        for index in range(last):
            if self.starts[index] == self.starts[last] - CYCLE and self.fresh[index] == self.fresh[last] - CYCLE:
                return index
        raise ValueError("the arrays of a repeating zone end at no whole cycle")

    cdef inline Stretch find(self, int64_t at) noexcept:
        cdef Stretch found
        found.shift = 0
        if self.again >= 0 and at >= self.starts[self.count - 1]:
            found.shift = (at - self.starts[self.again]) // CYCLE * CYCLE
        self.enter(&found, self.search(at - found.shift))
        return found

    cdef inline int search(self, int64_t at) noexcept:
        cdef int index
        if self.count == 1 or at < self.starts[1]:
            return 0
        if at >= self.starts[self.count - 1]:
            return self.count - 1
        index = self.buckets[(at - self.starts[1]) // BUCKET]
        while self.starts[index + 1] <= at:
            index += 1
        return index

    cdef inline void enter(self, Stretch* place, int index) noexcept:
        place.index = index
        place.start = self.starts[index] + place.shift
        place.end = self.starts[index + 1] + place.shift if index + 1 < self.count else FUTURE
        place.offset = self.offsets[index]
        place.fresh = self.fresh[index] + place.shift

    cdef void to_next(self, Stretch* place) noexcept:
        if self.again >= 0 and place.index == self.count - 2:
            place.shift += CYCLE
            self.enter(place, self.again)
        else:
            self.enter(place, place.index + 1)

    cdef void to_previous(self, Stretch* place) noexcept:
        if place.shift and place.index == self.again:
            place.shift -= CYCLE
            self.enter(place, self.count - 2)
        else:
            self.enter(place, place.index - 1)

    def offset_at(self, int64_t at):
        """Seconds east of UTC at an instant."""
        return self.find(_within(at)).offset

    def changes(self, int64_t after, int64_t until, int count_max):
        """The first clock changes in (after, until]: (instant, offset before, offset after)."""
        cdef list found = []
        cdef int64_t before
        cdef Stretch place = self.find(_within(after))
        until = _within(until)
        while place.end <= until and len(found) < count_max:
            before = place.offset
            self.to_next(&place)
            found.append((place.start, before, place.offset))
        return found


cdef int _check_arrays(const int64_t[:] starts, const int32_t[:] offsets) except -1:
    cdef Py_ssize_t count = starts.shape[0], index
    if count == 0 or offsets.shape[0] != count:
        raise ValueError("a zone needs one offset for each start")
    for index in range(1, count):
        if starts[index] <= starts[index - 1] or not FIRST <= starts[index] <= LAST:
            raise ValueError("the starts of a zone must grow, from year 1 to 9999")
    return 0


cdef inline int64_t _within(int64_t at) noexcept:
    return max(FIRST - 1, min(LAST, at))


# --- wall seconds ---------------------------------------------------------------------------------------------------


cdef int64_t _days_from_civil(int year, int month) noexcept:
    """The day number of the first of a month (proleptic Gregorian; Howard Hinnant's days_from_civil)."""
    cdef uint32_t from_march = <uint32_t>(year - (month <= 2) + ERAS_BEFORE * 400)
    cdef uint32_t day_of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5
    cdef uint32_t day = from_march * 365 + from_march // 4 - from_march // 100 + from_march // 400 + day_of_year
    return <int64_t>day - 719_468 - ERAS_BEFORE * 146_097


cdef inline Month _month_of(int64_t day) noexcept:
    """The month a day number lies in (Neri and Schneider, "Euclidean affine functions and their application to calendar
    algorithms", 2022): years begin with March, so that the leap day is their last."""
    cdef Month found
    cdef uint32_t quarters = 4 * <uint32_t>(day + 719_468 + ERAS_BEFORE * 146_097) + 3
    cdef uint32_t century = quarters // 146_097
    cdef uint64_t years = <uint64_t>2_939_745 * (quarters % 146_097 | 3)
    cdef uint32_t day_of_year = <uint32_t>years // 2_939_745 // 4
    cdef uint32_t months = 2_141 * day_of_year + 197_913
    cdef bint next_year = day_of_year >= 306  # January or February
    found.year = <int>(100 * century + (years >> 32)) - ERAS_BEFORE * 400 + next_year
    found.month = (months >> 16) - (12 if next_year else 0)
    found.first = day - (months & 0xFFFF) // 2_141
    found.length = _length_of(found.year, found.month)
    return found


cdef inline int _length_of(int year, int month) noexcept:
    if month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0):
        return 29
    return month_days[month]


cdef inline void _enter_month(Month* place, int year, int month) noexcept:
    place.year = year
    place.month = month
    place.first = _days_from_civil(year, month)
    place.length = _length_of(year, month)


cdef inline uint32_t _days_in(Expression cron, Month* place) noexcept:
    """The days of a month that match, as bits."""
    if not cron.months >> place.month & 1:
        return 0
    # 1970-01-01 was a Thursday; the multiple of 7 keeps the dividend positive.
    return cron.days[place.length - 28][<uint32_t>(place.first + 4 + 7_000_000) % 7]


cdef int64_t _next_wall(Expression cron, int64_t low) noexcept:
    """The first matching wall second at or after `low`; FUTURE beyond the calendar's end."""
    cdef int64_t day = _day_of(low)
    cdef Month place = _month_of(day)
    cdef int date = <int>(day - place.first) + 1
    cdef uint32_t days = _days_in(cron, &place) >> date << date
    cdef int second
    if days >> date & 1:
        second = _next_in_day(cron, <int>(low - day * DAY))
        if second >= 0:
            return day * DAY + second
        days &= days - 1
    while days == 0:
        if place.year > 10_000:
            return FUTURE
        _to_next_month(cron, &place)
        days = _days_in(cron, &place)
    return (place.first + lowest_bit(days) - 1) * DAY + cron.first_in_day


cdef int64_t _last_wall(Expression cron, int64_t high) noexcept:
    """The last matching wall second at or before `high`; PAST before the calendar's start."""
    cdef int64_t day = _day_of(high)
    cdef Month place = _month_of(day)
    cdef int date = <int>(day - place.first) + 1
    cdef uint32_t days = _days_in(cron, &place) & _days_up_to(date)
    cdef int second
    if days >> date & 1:
        second = _last_in_day(cron, <int>(high - day * DAY))
        if second >= 0:
            return day * DAY + second
        days ^= <uint32_t>1 << date
    while days == 0:
        if place.year < 0:
            return PAST
        _to_previous_month(cron, &place)
        days = _days_in(cron, &place)
    return (place.first + highest_bit(days) - 1) * DAY + cron.last_in_day


cdef inline int64_t _day_of(int64_t wall) noexcept:
    return <int64_t>(<uint64_t>(wall + ERAS_BEFORE * CYCLE) // <uint64_t>DAY) - ERAS_BEFORE * 146_097


cdef void _to_next_month(Expression cron, Month* place) noexcept:
    cdef uint32_t later = cron.months >> (place.month + 1)
    if later:
        _enter_month(place, place.year, place.month + 1 + lowest_bit(later))
    else:
        _enter_month(place, place.year + 1, lowest_bit(cron.months))


cdef void _to_previous_month(Expression cron, Month* place) noexcept:
    cdef uint32_t earlier = cron.months & ((<uint32_t>1 << place.month) - 1)
    if earlier:
        _enter_month(place, place.year, highest_bit(earlier))
    else:
        _enter_month(place, place.year - 1, highest_bit(cron.months))


cdef inline int _next_in_day(Expression cron, int second_of_day) noexcept:
    """The first matching second of a day at or after one; -1 if there is none."""
    cdef int hour = second_of_day // 3600
    cdef int minute = second_of_day // 60 % 60
    cdef uint64_t left
    if cron.hours >> hour & 1:
        if cron.minutes >> minute & 1:
            left = cron.seconds >> (second_of_day % 60)
            if left:
                return second_of_day + lowest_bit(left)
        left = cron.minutes >> minute >> 1
        if left:
            return hour * 3600 + (minute + 1 + lowest_bit(left)) * 60 + lowest_bit(cron.seconds)
    left = cron.hours >> hour >> 1
    if left:
        return (hour + 1 + lowest_bit(left)) * 3600 + cron.first_in_day % 3600
    return -1


cdef inline int _last_in_day(Expression cron, int second_of_day) noexcept:
    """The last matching second of a day at or before one; -1 if there is none."""
    cdef int hour = second_of_day // 3600
    cdef int minute = second_of_day // 60 % 60
    cdef uint64_t left
    if cron.hours >> hour & 1:
        if cron.minutes >> minute & 1:
            left = cron.seconds & _bits_below(second_of_day % 60 + 1)
            if left:
                return second_of_day - second_of_day % 60 + highest_bit(left)
        left = cron.minutes & _bits_below(minute)
        if left:
            return hour * 3600 + highest_bit(left) * 60 + highest_bit(cron.seconds)
    left = cron.hours & _bits_below(hour)
    if left:
        return highest_bit(left) * 3600 + cron.last_in_day % 3600
    return -1


cdef inline uint64_t _bits_below(int bit) noexcept:
    return (<uint64_t>1 << bit) - 1  # bit is 60 at most


cdef int64_t _count_walls(Expression cron, int64_t low, int64_t end) noexcept:
    """How many wall seconds match in [low, end)."""
    if low >= end:
        return 0
    cdef int64_t low_day = _day_of(low), end_day = _day_of(end)
    cdef int64_t count = _count_days(cron, low_day, end_day) * cron.per_day
    if _count_days(cron, low_day, low_day + 1):
        count -= _count_in_day(cron, <int>(low - low_day * DAY))
    if _count_days(cron, end_day, end_day + 1):
        count += _count_in_day(cron, <int>(end - end_day * DAY))
    return count


cdef int64_t _count_days(Expression cron, int64_t low, int64_t end) noexcept:
    """How many days match in [low, end)."""
    cdef int64_t count = 0
    cdef Month place = _month_of(low)
    cdef uint32_t days = _days_in(cron, &place) >> (low - place.first + 1) << (low - place.first + 1)
    while place.first + place.length <= end:
        count += bits_set(days)
        _to_next_month(cron, &place)
        days = _days_in(cron, &place)
    if place.first < end:
        count += bits_set(days & _days_up_to(<int>(end - place.first)))
    return count


cdef int64_t _count_in_day(Expression cron, int second_of_day) noexcept:
    """How many seconds match in a day before one."""
    cdef int hour = second_of_day // 3600
    cdef int minute = second_of_day // 60 % 60
    cdef int64_t count = bits_set(cron.hours & _bits_below(hour)) * cron.per_hour
    if cron.hours >> hour & 1:
        count += bits_set(cron.minutes & _bits_below(minute)) * cron.per_minute
        if cron.minutes >> minute & 1:
            count += bits_set(cron.seconds & _bits_below(second_of_day % 60))
    return count


# --- expressions ----------------------------------------------------------------------------------------------------


@cython.final
cdef class Expression:
    """A compiled expression; made by `compile_expression`."""

    cdef uint64_t seconds
    cdef uint64_t minutes
    cdef uint32_t hours
    cdef uint32_t months
    cdef uint32_t days[4][7]  # by length - 28 and weekday of the 1st (0 is Sunday); bit n is day n
    cdef Days asked
    cdef int first_in_day
    cdef int last_in_day
    cdef int per_minute
    cdef int per_hour
    cdef int per_day
    cdef readonly bint interval  # its second, minute or hour field starts with a star

    def __init__(self):
        raise TypeError("an expression is made by compile_expression")  # a search in empty masks would not end

    def parts(self):
        """What the fields ask for, as bit masks: (seconds, minutes, hours, months); (days, days before the last, days
        whose nearest weekday is meant, whether the last weekday is); (weekdays, last ones of a weekday, for each
        weekday its n-th ones); whether either day field is enough."""
        cdef Days* asked = &self.asked
        return (
            (self.seconds, self.minutes, self.hours, self.months),
            (asked.days, asked.from_last, asked.nearest, asked.last_weekday),
            (asked.weekdays, asked.last_of, [asked.nth[weekday] for weekday in range(7)]),
            asked.either,
        )

    cdef void measure(self) noexcept:
        self.first_in_day = lowest_bit(self.hours) * 3600 + lowest_bit(self.minutes) * 60 + lowest_bit(self.seconds)
        self.last_in_day = highest_bit(self.hours) * 3600 + highest_bit(self.minutes) * 60 + highest_bit(self.seconds)
        self.per_minute = bits_set(self.seconds)
        self.per_hour = self.per_minute * bits_set(self.minutes)
        self.per_day = self.per_hour * bits_set(self.hours)

    cdef bint can_fire(self) noexcept:
        """Each month begins on every weekday within 400 years, February 29 included: the table decides exactly."""
        cdef int month, weekday
        cdef uint32_t found = 0
        for month in range(1, 13):
            if self.months >> month & 1:
                for weekday in range(7):
                    found |= self.days[month_days[month] - 28][weekday]
                    if month == 2:
                        found |= self.days[1][weekday]
        return found != 0


MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}

cdef enum:
    SECOND, MINUTE, HOUR, DAY_OF_MONTH, MONTH, DAY_OF_WEEK

FIELD_NAMES = ("second", "minute", "hour", "day-of-month", "month", "day-of-week")
FIELD_EXAMPLES = ("30 0 9 * * *", "*/15 * * * *", "0 9-17 * * *", "0 9 1,15 * *", "0 9 1 JAN,JUL *", "0 9 * * MON-FRI")
cdef bytes MONTH_NAMES = b"JANFEBMARAPRMAYJUNJULAUGSEPOCTNOVDEC"
cdef bytes WEEKDAY_NAMES = b"SUNMONTUEWEDTHUFRISAT"


@cython.final
cdef class _Reader:
    """Reads an expression once, from left to right."""

    cdef str text
    cdef bytes held  # keeps `chars` alive
    cdef const char* chars
    cdef int begins[7]
    cdef int ends[7]
    cdef int field  # SECOND to DAY_OF_WEEK
    cdef int begin  # of the field
    cdef int end
    cdef int at

    def __init__(self, str text):
        self.text = text
        # One byte a character, so that a position names the same character in both.
        self.held = text.encode("ascii") if text.isascii() else bytes(min(ord(char), 127) for char in text)
        self.chars = self.held

    cdef Expression expression(self):
        cdef int count = self.split()
        if count != 5 and count != 6:
            raise self.wrong_count(count)
        cdef Expression made = Expression.__new__(Expression)
        self.read_times(made, count - 5)
        self.read_days(made, &made.asked, count - 3)
        _lay_days(made)
        made.measure()
        if not made.can_fire():
            raise ExpressionError("day-of-month", "never fires: no month it may be in has such a day", "0 0 L 2 *")
        return made

    cdef int split(self) noexcept:
        """Notes where fields begin and end; stops counting at seven."""
        cdef int at = 0, count = 0, length = <int>len(self.held)
        while at < length and count < 7:
            if self.is_blank(at):
                at += 1
                continue
            self.begins[count] = at
            while at < length and not self.is_blank(at):
                at += 1
            self.ends[count] = at
            count += 1
        return count

    cdef bint is_blank(self, int at) noexcept:
        return self.chars[at] == b" " or self.chars[at] == b"\t"

    cdef int read_times(self, Expression made, int minute) except -1:
        """The seconds, if any, minutes and hours; `minute` is the place of the minute field."""
        made.interval = False
        made.seconds = 1
        if minute == 1:
            self.enter(0, SECOND)
            made.interval = self.starts_with_star()
            made.seconds = self.members(NULL)
        self.enter(minute, MINUTE)
        made.interval |= self.starts_with_star()
        made.minutes = self.members(NULL)
        self.enter(minute + 1, HOUR)
        made.interval |= self.starts_with_star()
        made.hours = <uint32_t>self.members(NULL)
        return 0

    cdef int read_days(self, Expression made, Days* days, int day_of_month) except -1:
        """The three fields that say which days; `day_of_month` is the place of the first."""
        cdef int weekday
        days.from_last = days.nearest = days.last_of = 0
        days.last_weekday = False
        for weekday in range(7):
            days.nth[weekday] = 0
        self.enter(day_of_month, DAY_OF_MONTH)
        days.either = not self.starts_with_star()
        days.days = <uint32_t>self.members(days)
        self.enter(day_of_month + 1, MONTH)
        made.months = <uint32_t>self.members(NULL)
        self.enter(day_of_month + 2, DAY_OF_WEEK)
        days.either &= not self.starts_with_star()
        days.weekdays = <uint32_t>self.members(days)
        return 0

    cdef void enter(self, int index, int field) noexcept:
        self.field = field
        self.at = self.begin = self.begins[index]
        self.end = self.ends[index]

    cdef bint starts_with_star(self) noexcept:
        return self.chars[self.begin] == b"*" or self.chars[self.begin] == b"?"

    cdef uint64_t members(self, Days* days) except? 0:
        """The comma-separated members of a field as a mask; what a mask cannot say goes into `days`."""
        cdef uint64_t mask = 0
        if days != NULL and self.end - self.begin == 1 and self.see(b"?"):
            return self.steps(lowest[self.field], highest[self.field], 1)
        while True:
            if self.see(b"*"):
                mask |= self.star()
            elif self.field == DAY_OF_MONTH and self.see_letter(b"L"):
                self.from_last(days)
            else:
                mask |= self.numbers(days)
            if self.at == self.end:
                return mask
            if not self.skip(b","):
                raise self.unexpected("a comma or the end of the field")

    cdef uint64_t star(self) except? 0:
        if self.at != self.begin:
            raise self.refused("a star may only be the first member of a list", FIELD_EXAMPLES[self.field])
        self.at += 1
        return self.steps(lowest[self.field], highest[self.field], self.step())

    cdef int from_last(self, Days* days) except -1:
        """`L`, `LW` and `L-n`."""
        cdef int before = 0
        self.at += 1
        if self.skip(b"W"):
            days.last_weekday = True
            return 0
        if self.skip(b"-"):
            before = self.number("a number of days")
            if before > 30:
                raise self.refused(f"L-{before} is out of range; there are L-0 to L-30", "0 9 L-2 * *")
        days.from_last |= <uint32_t>1 << before
        return 0

    cdef uint64_t numbers(self, Days* days) except? 0:
        """A number or name with what may follow it: a range, a step, `W`, `L` or `#n`."""
        cdef int low_at = self.at
        cdef int low = self.value()
        if self.skip(b"-"):
            return self.range_from(low, low_at)
        if self.see(b"/"):
            return self.steps(self.sunday_first(low), highest[self.field], self.step())
        if self.field == DAY_OF_MONTH and self.skip(b"W"):
            days.nearest |= <uint32_t>1 << low
            return 0
        if self.field == DAY_OF_WEEK and self.skip(b"L"):
            days.last_of |= <uint32_t>1 << self.sunday_first(low)
            return 0
        if self.field == DAY_OF_WEEK and self.skip(b"#"):
            days.nth[self.sunday_first(low)] |= <uint32_t>1 << self.ordinal()
            return 0
        return self.steps(low, low, 1)

    cdef uint64_t range_from(self, int low, int low_at) except? 0:
        cdef int high = self.range_end(low)
        if low > high:
            raise self.reversed_range(low, high, low_at)
        return self.steps(low, high, self.step())

    cdef int range_end(self, int low) except -1:
        """Sunday by name ends a week, as 7 does, unless the range is Sunday alone."""
        cdef bint named = self.at < self.end and not _is_digit(self.chars[self.at])
        cdef int high = self.value()
        return 7 if self.field == DAY_OF_WEEK and named and high == 0 and low > 0 else high

    cdef int value(self) except -1:
        """A number within the field's range, or a name."""
        if self.at < self.end and _is_digit(self.chars[self.at]):
            return self.number_in_range()
        if self.field == MONTH:
            return self.name(MONTH_NAMES) + 1
        if self.field == DAY_OF_WEEK:
            return self.name(WEEKDAY_NAMES)
        raise self.unexpected("a number")

    cdef int number_in_range(self) except -1:
        cdef int found = self.number("a number")
        cdef int top = highest[self.field] + (self.field == DAY_OF_WEEK)  # 7 is Sunday too
        if found < lowest[self.field]:
            raise self.refused(f"{found} is below {lowest[self.field]}", FIELD_EXAMPLES[self.field])
        if found > top:
            raise self.refused(f"{found} is above {top}", FIELD_EXAMPLES[self.field])
        return found

    cdef int number(self, str wanted) except -1:
        """One or two ASCII digits."""
        cdef int begin = self.at, found = 0
        while self.at < self.end and _is_digit(self.chars[self.at]):
            if self.at - begin == 2:
                raise self.refused("a number has at most two digits", FIELD_EXAMPLES[self.field])
            found = found * 10 + self.chars[self.at] - 48
            self.at += 1
        if self.at == begin:
            raise self.unexpected(wanted)
        return found

    cdef int name(self, bytes names) except -1:
        """The place of the three letters at hand among `names`."""
        cdef const char* known = names
        cdef int index
        if self.end - self.at >= 3:
            for index in range(0, <int>len(names), 3):
                if (
                    _upper(self.chars[self.at]) == known[index]
                    and _upper(self.chars[self.at + 1]) == known[index + 1]
                    and _upper(self.chars[self.at + 2]) == known[index + 2]
                ):
                    self.at += 3
                    return index // 3
        raise self.unexpected(f"a number or a name of three letters such as {names[3:6].decode()}")

    cdef int step(self) except -1:
        """The step after a slash; 1 without one."""
        if not self.skip(b"/"):
            return 1
        cdef int found = self.number("a step")
        cdef int size = highest[self.field] - lowest[self.field] + 1
        if found == 0:
            raise self.refused("a step of 0 never moves on", FIELD_EXAMPLES[self.field])
        if found > size:
            raise self.refused(f"a step of {found} is larger than the {size} values", FIELD_EXAMPLES[self.field])
        return found

    cdef int ordinal(self) except -1:
        cdef int found = self.number("which one of the month, 1 to 5,")
        if found < 1 or found > 5:
            raise self.refused(f"#{found} is out of range; a weekday comes #1 to #5 in a month", "0 9 * * FRI#2")
        return found

    cdef int sunday_first(self, int value) noexcept:
        return 0 if self.field == DAY_OF_WEEK and value == 7 else value

    cdef uint64_t steps(self, int low, int high, int step) noexcept:
        cdef uint64_t mask = 0
        while low <= high:
            mask |= <uint64_t>1 << self.sunday_first(low)
            low += step
        return mask

    cdef bint see(self, char char) noexcept:
        return self.at < self.end and self.chars[self.at] == char

    cdef bint see_letter(self, char upper) noexcept:
        return self.at < self.end and _upper(self.chars[self.at]) == upper

    cdef bint skip(self, char upper) noexcept:
        """Step over a mark or letter (given in upper case) if it is the next."""
        cdef bint found = self.see_letter(upper)
        self.at += found
        return found

    # What is wrong, as the exception to raise.

    cdef object refused(self, str detail, str example):
        return ExpressionError(FIELD_NAMES[self.field], detail, example)

    cdef object unexpected(self, str wanted):
        written = ascii(self.text[self.begin : self.end])
        if self.at == self.end:
            return self.refused(f"{written} ends where {wanted} is expected", FIELD_EXAMPLES[self.field])
        found = self.text[self.at]
        detail = f"{found!a} in {written} where {wanted} is expected"
        if found == "~" or (found in "HhRr" and self.at == self.begin):
            detail += "; times chosen by hash or chance are not offered, write them out"
        return self.refused(detail, FIELD_EXAMPLES[self.field])

    cdef object reversed_range(self, int low, int high, int low_at):
        instead = f"{_span(low, highest[self.field])},{_span(lowest[self.field], high)}"
        if self.field == DAY_OF_WEEK and low == 7:
            instead = _span(0, high)
        return self.refused(
            f"{self.text[low_at : self.at]} runs backwards; write {instead}", _with_field(self.field, instead)
        )

    cdef object wrong_count(self, int count):
        has = "over 6 fields" if count > 6 else "1 field" if count == 1 else f"{count} fields"
        detail = f"has {has}; five are needed (minute hour day-of-month month day-of-week), or six with seconds first"
        if count > 6:
            detail += "; there is no year field"
        return ExpressionError("expression", detail, "0 9 * * MON-FRI")


cdef str _span(int low, int high):
    return f"{low}-{high}" if low < high else f"{low}"


cdef str _with_field(int field, str content):
    fields = ["0", "0", "0", "*", "*", "*"]
    fields[field] = content
    return " ".join(fields if field == SECOND else fields[1:])


cdef bint _is_digit(char char) noexcept:
    return 48 <= char <= 57


cdef char _upper(char char) noexcept:
    return char - 32 if 97 <= char <= 122 else char


cdef str _fields_of_macro(str macro):
    # isascii: lower() turns the Kelvin sign into a k
    word = macro.lower() if macro.isascii() else macro
    if word in MACROS:
        return MACROS[word]
    if word.startswith("@every"):
        raise ExpressionError("expression", "@every has no place on the clock; write a step instead", "*/5 * * * *")
    if word.startswith("@reboot"):
        raise ExpressionError("expression", "@reboot has no meaning in a service; write a time", "@daily")
    raise ExpressionError("expression", f"{macro[:20]!a} is no macro; there are {' '.join(MACROS)}", "@daily")


cdef void _lay_days(Expression made) noexcept:
    """Lay what the day fields ask for over each shape a month can have."""
    cdef Days* days = &made.asked
    cdef int length, first
    cdef uint32_t by_date, by_weekday
    for length in range(28, 32):
        for first in range(7):
            by_date = _by_date(days, length, first)
            by_weekday = _by_weekday(days, length, first)
            made.days[length - 28][first] = by_date | by_weekday if days.either else by_date & by_weekday


cdef uint32_t _by_date(Days* days, int length, int first) noexcept:
    cdef uint32_t all_days = _days_up_to(length)
    cdef uint32_t found = days.days & all_days
    cdef uint32_t left = days.from_last
    while left:
        if lowest_bit(left) < length:
            found |= <uint32_t>1 << (length - lowest_bit(left))
        left &= left - 1
    left = days.nearest & all_days
    while left:
        found |= <uint32_t>1 << _nearest_weekday(lowest_bit(left), length, first)
        left &= left - 1
    if days.last_weekday:
        found |= <uint32_t>1 << _nearest_weekday(length, length, first)
    return found


cdef int _nearest_weekday(int day, int length, int first) noexcept:
    """Monday to Friday nearest to a day, within its month."""
    cdef int weekday = (first + day - 1) % 7
    if weekday == 6:
        return day - 1 if day > 1 else day + 2
    if weekday == 0:
        return day + 1 if day < length else day - 2
    return day


cdef uint32_t _by_weekday(Days* days, int length, int first) noexcept:
    cdef uint32_t found = 0, these
    cdef int weekday, begin, week
    for weekday in range(7):
        begin = 1 + (weekday - first + 7) % 7
        these = (<uint32_t>0x10204081 << begin) & _days_up_to(length)  # every seventh day
        if days.weekdays >> weekday & 1:
            found |= these
        if days.last_of >> weekday & 1:
            found |= <uint32_t>1 << highest_bit(these)
        for week in range(1, 6):
            if days.nth[weekday] >> week & 1:
                # A fifth one may lie past the 31st.
                found |= <uint32_t>(these & (<uint64_t>1 << (begin + 7 * (week - 1))))
    return found


cdef inline uint32_t _days_up_to(int length) noexcept:
    return <uint32_t>((<uint64_t>2 << length) - 2)
