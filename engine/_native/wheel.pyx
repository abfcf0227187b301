"""A hierarchical timing wheel: entries wait for their millisecond, and a year ahead costs no more than a second.

An entry stands on the level of the highest byte in which its time differs from the wheel's, in the slot of that byte:
level 0 holds the milliseconds of the current 256, level 1 the blocks of 256 ms after them, and so on. When the wheel's
time enters a block, its slot is dealt out over the levels below; no entry moves more often than there are levels,
however long it waits. Slots never wrap around, so the first set bit of the lowest occupied level is what comes next.

Entries are nodes of one array, linked into a ring through a sentinel per slot: adding and cancelling are O(1), a freed
node is the next one used, nothing is allocated per entry. A ring keeps the order of adding, and dealing out keeps it.
"""

from cpython cimport array
from cpython.list cimport PyList_GET_ITEM, PyList_New, PyList_SET_ITEM
from cpython.long cimport PyLong_AsLongLong, PyLong_Check
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.sequence cimport PySequence_Fast, PySequence_Fast_GET_ITEM, PySequence_Fast_GET_SIZE
from libc.stdint cimport int64_t, uint32_t, uint64_t

import array

ABI = 1

cdef extern from *:
    int lowest_bit "__builtin_ctzll"(uint64_t word) noexcept
    int zeros_above "__builtin_clzll"(uint64_t word) noexcept

cdef enum:
    LEVELS = 8                    # bytes of a time
    SLOTS = 256                   # a level
    OVERDUE = LEVELS * SLOTS      # the ring of what only waits to be taken by advance
    FIRST_ENTRY = OVERDUE + 1     # nodes below it are the sentinels, each with the number of its slot
    WORDS = OVERDUE // 64         # one bit a slot
    CAPACITY_MIN = 4096
    CAPACITY_MAX = 0x7FFFFFFF
    GENERATION_MAX = 0x7FFFFFFF   # a node that was used this often is retired, so that no handle ever names two entries

cdef struct Node:
    int64_t due_ms
    PyObject *item                # owned; NULL in sentinels and free nodes
    uint32_t next
    uint32_t prev
    uint32_t generation

cdef array.array INT64S = array.array("q")


cdef class Wheel:
    """Entries by due time. The wheel's own time never goes back; see the stub for the contract of each method."""

    cdef readonly int64_t now_ms
    cdef Node *nodes
    cdef uint64_t occupied[WORDS + 1]   # one more word for OVERDUE, never searched
    cdef uint32_t capacity, used, free_head, free_count, live
    cdef uint64_t edits                 # entries that came or went

    def __cinit__(self, int64_t now_ms):
        if now_ms < 0:
            raise ValueError(f"now_ms must not be negative, got {now_ms}")
        self.now_ms = now_ms
        self.used = FIRST_ENTRY
        self._grow(CAPACITY_MIN)
        for slot in range(FIRST_ENTRY):
            self.nodes[slot].item = NULL
            self._empty(slot)

    def __dealloc__(self):
        cdef uint32_t at
        for at in range(FIRST_ENTRY, self.used):
            if self.nodes[at].item != NULL:
                Py_DECREF(<object>self.nodes[at].item)
        PyMem_Free(self.nodes)

    @classmethod
    def __class_getitem__(cls, item):   # Wheel[Run], which the stub allows, at run time
        return cls

    def __len__(self):
        return self.live

    def add(self, due_ms, item):
        cdef int64_t due = checked_due(<PyObject *>due_ms)
        self._reserve(1)
        return self._insert(due, <PyObject *>item)

    def add_many(self, due_ms, list items not None):
        cdef object dues = PySequence_Fast(due_ms, "due_ms must be a sequence of ints")
        cdef Py_ssize_t i, count = PySequence_Fast_GET_SIZE(dues)
        cdef array.array handles = array.clone(INT64S, count, zero=False)
        if count != len(items):
            raise ValueError(f"as many items as times are needed, got {len(items)} and {count}")
        cdef int64_t *cells = <int64_t *>handles.data.as_longlongs
        for i in range(count):   # all are checked before the first is added: cells hold times now, handles later
            cells[i] = checked_due(PySequence_Fast_GET_ITEM(dues, i))
        self._reserve(count)
        for i in range(count):
            cells[i] = self._insert(cells[i], PyList_GET_ITEM(items, i))
        return handles

    def cancel(self, int64_t handle):
        cdef uint32_t at = handle & 0xFFFFFFFF
        if at < FIRST_ENTRY or at >= self.used or self.nodes[at].item == NULL:
            return None
        if self.nodes[at].generation != handle >> 32:
            return None
        item = <object>self.nodes[at].item
        Py_DECREF(item)   # the wheel's reference; the local one keeps it
        self._unlink(at)
        self._free(at)
        return item

    def advance(self, int64_t now_ms):
        cdef int slot = self._first_occupied()
        while slot >= 0 and self._start_ms(slot) <= now_ms:
            self.now_ms = self._start_ms(slot)
            if slot < SLOTS:
                self._move_to_overdue(slot)
            else:
                self._deal_out(slot)
            slot = self._first_occupied()
        if now_ms > self.now_ms:
            self.now_ms = now_ms
        return self._take_overdue(now_ms)

    def next_due_ms(self):
        cdef int slot = self._first_occupied()
        if self.nodes[OVERDUE].next != OVERDUE:
            return self._overdue_min_ms()
        return self._start_ms(slot) if slot >= 0 else -1

    def clear(self):
        cdef list items = []
        cdef uint32_t at
        for at in range(FIRST_ENTRY, self.used):
            if self.nodes[at].item != NULL:
                items.append(<object>self.nodes[at].item)
        for at in range(FIRST_ENTRY, self.used):
            if self.nodes[at].item != NULL:
                Py_DECREF(<object>self.nodes[at].item)
                self._free(at)
        for at in range(<uint32_t>FIRST_ENTRY):
            self._empty(at)
        return items

    # The array of nodes

    cdef int _reserve(self, Py_ssize_t count) except -1:
        """Room for so many more entries, so that inserting cannot fail half-way."""
        cdef Py_ssize_t missing = count - self.free_count - (self.capacity - self.used)
        if missing > 0:
            self._grow(self.capacity + max(missing, <Py_ssize_t>self.capacity))
        return 0

    cdef int _grow(self, Py_ssize_t capacity) except -1:
        cdef Node *nodes = NULL
        if capacity <= CAPACITY_MAX:
            nodes = <Node *>PyMem_Realloc(self.nodes, capacity * sizeof(Node))
        if nodes == NULL:
            raise MemoryError(f"no room for {capacity} timer entries")
        self.nodes = nodes
        self.capacity = capacity
        return 0

    cdef inline int64_t _insert(self, int64_t due_ms, PyObject *item) noexcept:
        cdef uint32_t at = self.free_head
        if at:
            self.free_head = self.nodes[at].next
            self.free_count -= 1
        else:
            at = self.used
            self.used += 1
            self.nodes[at].generation = 0
        self.live += 1
        self.edits += 1
        Py_INCREF(<object>item)
        self.nodes[at].item = item
        self.nodes[at].due_ms = due_ms
        self._append(OVERDUE if due_ms <= self.now_ms else self._slot(due_ms), at)
        return <int64_t>self.nodes[at].generation << 32 | at

    cdef inline void _free(self, uint32_t at) noexcept:
        cdef Node *node = &self.nodes[at]
        node.item = NULL
        self.live -= 1
        self.edits += 1
        if node.generation == GENERATION_MAX:
            return
        node.generation += 1
        node.next = self.free_head
        self.free_head = at
        self.free_count += 1

    # Slots

    cdef inline uint32_t _slot(self, int64_t due_ms) noexcept:
        """Where a time that is not past belongs, seen from now."""
        cdef int level = (63 - zeros_above((due_ms ^ self.now_ms) | 1)) >> 3
        return level << 8 | ((due_ms >> (level << 3)) & 0xFF)

    cdef inline int64_t _start_ms(self, int slot) noexcept:
        """The first millisecond of an occupied slot."""
        cdef int shift = slot >> 8 << 3
        cdef uint64_t block = <uint64_t>SLOTS << shift   # 0 on the top level, which covers all times
        return (self.now_ms & ~<int64_t>(block - 1)) | <int64_t>(slot & 0xFF) << shift

    cdef inline int _first_occupied(self) noexcept:
        cdef int word
        for word in range(WORDS):
            if self.occupied[word]:
                return word << 6 | lowest_bit(self.occupied[word])
        return -1

    cdef void _deal_out(self, uint32_t slot) noexcept:
        """The wheel's time has entered this block: its entries go to lower levels."""
        cdef uint32_t following, at = self.nodes[slot].next
        self._empty(slot)
        while at != slot:
            following = self.nodes[at].next
            self._append(self._slot(self.nodes[at].due_ms), at)
            at = following

    # Rings

    cdef inline void _append(self, uint32_t slot, uint32_t at) noexcept:
        cdef uint32_t last = self.nodes[slot].prev
        self.nodes[at].prev = last
        self.nodes[at].next = slot
        self.nodes[last].next = at
        self.nodes[slot].prev = at
        self.occupied[slot >> 6] |= <uint64_t>1 << (slot & 63)

    cdef inline void _unlink(self, uint32_t at) noexcept:
        cdef uint32_t before = self.nodes[at].prev, after = self.nodes[at].next
        self.nodes[before].next = after
        self.nodes[after].prev = before
        if before == after:   # it was the only one: both are the sentinel
            self.occupied[after >> 6] &= ~(<uint64_t>1 << (after & 63))

    cdef inline void _empty(self, uint32_t slot) noexcept:
        self.nodes[slot].next = self.nodes[slot].prev = slot
        self.occupied[slot >> 6] &= ~(<uint64_t>1 << (slot & 63))

    # The overdue ring

    cdef void _move_to_overdue(self, uint32_t slot) noexcept:
        """The whole ring of an occupied slot, in one piece, behind what is there."""
        cdef uint32_t first = self.nodes[slot].next, last = self.nodes[slot].prev, end = self.nodes[OVERDUE].prev
        self._empty(slot)
        self.nodes[end].next = first
        self.nodes[first].prev = end
        self.nodes[last].next = OVERDUE
        self.nodes[OVERDUE].prev = last

    cdef list _take_overdue(self, int64_t now_ms):
        """What is due by ``now_ms``: all of it, but for entries added while the caller's clock was behind the wheel's."""
        cdef uint32_t following, at
        cdef Py_ssize_t i = 0, count = 0
        cdef list items = None
        cdef uint64_t edits = self.edits - 1
        while edits != self.edits:
            edits = self.edits
            count = self._overdue_count(now_ms)
            items = PyList_New(count)   # may collect garbage, whose finalizers may add and cancel: then count again
        at = self.nodes[OVERDUE].next
        while i < count:
            following = self.nodes[at].next
            if self.nodes[at].due_ms <= now_ms:
                PyList_SET_ITEM(items, i, <object>self.nodes[at].item)   # the wheel's reference becomes the list's
                i += 1
                self._unlink(at)
                self._free(at)
            at = following
        return items

    cdef Py_ssize_t _overdue_count(self, int64_t now_ms) noexcept:
        cdef uint32_t at = self.nodes[OVERDUE].next
        cdef Py_ssize_t count = 0
        while at != OVERDUE:
            count += self.nodes[at].due_ms <= now_ms
            at = self.nodes[at].next
        return count

    cdef int64_t _overdue_min_ms(self) noexcept:
        cdef uint32_t at = self.nodes[OVERDUE].next
        cdef int64_t found = self.nodes[at].due_ms
        while at != OVERDUE:
            found = min(found, self.nodes[at].due_ms)
            at = self.nodes[at].next
        return found

    # For tests

    def wear_out(self):
        cdef uint32_t at = self.free_head
        while at:
            self.nodes[at].generation = GENERATION_MAX
            at = self.nodes[at].next

    def check_invariants(self):
        cdef uint32_t slot, at
        cdef Py_ssize_t linked = 0, unused = 0
        for slot in range(<uint32_t>FIRST_ENTRY):
            at = slot
            while self.nodes[at].next != slot:
                assert self.nodes[self.nodes[at].next].prev == at, f"ring {slot} is torn behind node {at}"
                at = self.nodes[at].next
                self._check_entry(slot, at)
                linked += 1
            assert self.nodes[slot].prev == at, f"ring {slot} is open"
            occupied = self.occupied[slot >> 6] >> (slot & 63) & 1
            assert slot == OVERDUE or occupied == (at != slot), f"bit of slot {slot} is {occupied}"
        at = self.free_head
        while at:
            assert self.nodes[at].item == NULL, f"free node {at} holds an item"
            at = self.nodes[at].next
            unused += 1
        retired = self.used - FIRST_ENTRY - linked - unused
        assert linked == self.live, f"{linked} entries are linked, {self.live} counted"
        assert unused == self.free_count, f"{unused} nodes are free, {self.free_count} counted"
        assert retired >= 0, f"{-retired} nodes stand in two places"

    cdef int _check_entry(self, uint32_t slot, uint32_t at) except -1:
        cdef int64_t due_ms = self.nodes[at].due_ms
        assert FIRST_ENTRY <= at < self.used, f"node {at} is no entry"
        assert self.nodes[at].item != NULL, f"entry {at} holds nothing"
        assert (due_ms <= self.now_ms) == (slot == OVERDUE), f"entry due {due_ms} in slot {slot} at {self.now_ms}"
        assert slot == OVERDUE or slot == self._slot(due_ms), f"entry due {due_ms} stands in slot {slot}"
        return 0


cdef inline int64_t checked_due(PyObject *due_ms) except -1:
    if not PyLong_Check(<object>due_ms):   # no __index__: foreign code must not run in the middle of a batch
        raise TypeError(f"due_ms must be an int, got {type(<object>due_ms).__name__}")
    cdef int64_t due = PyLong_AsLongLong(<object>due_ms)
    if due < 0:
        raise ValueError(f"due_ms must not be negative, got {due}")
    return due
