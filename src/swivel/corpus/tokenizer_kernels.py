"""The compiled tokeniser: UTF-8 bytes to numbers of types, one character after the other.

Works on arrays that `types` and `encode` own. Everything it must remember between two calls lies in `state`, so a
text may be handed over in pieces cut at any code point. It allocates nothing: the caller makes room for what a piece
can hold at most.

A table of types: `slots` (open addressing; an entry is the upper half of the hash and the type's number plus one,
beside it the type's place and length in the arena, so that a search leaves the cache twice only), `arena` (the bytes
of all types, one after the other; the token that is being read lies behind them), `types` (for each, where it begins
in the arena, and its count).

Reference counting is off (`_nrt`), and arrays are passed one by one: counting takes four times as long as reading,
and more the more threads there are.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numba
import numpy as np
from numpy.typing import NDArray

from swivel.corpus import character_classes as c
from swivel.corpus.sentinels import BREAK

# `state`. Of the text: bytes, hash and characters of the token that is being read, a connector that waits for its right
# side (0: none), the kind of the last character, where a sentence end may be, whether the line is blank so far.
LENGTH, HASH, CHARS, PENDING, LAST, SENTENCE, BLANK = range(7)
# Of the table: bytes of the arena and types in use. Of the call: ids written, breaks among them, where bad UTF-8
# is (-1: nowhere). Settings: the unit, whether bad UTF-8 is an error, whether there are marks.
USED, TYPES, OUT, BREAKS, BAD, UNIT, IS_STRICT, HAS_MARKS = range(7, 15)
TEXT_STATE, STATE_SIZE = slice(0, 7), 15
START, COUNT = 0, 1  # columns of `types`

NUMBER, NOT_NUMBER = np.uint64(0xFFFFFFFF), np.uint64(0xFFFFFFFF00000000)  # of the first half of an entry
LENGTH_BITS, LENGTH_MASK = np.uint64(24), np.uint64(0xFFFFFF)  # of the second half
HASH_OF_NOTHING, HASH_FACTOR = -0x340D631B7BDDDCDB, 0x100000001B3

Ints: TypeAlias = NDArray[np.int64]
Bytes: TypeAlias = NDArray[np.uint8]
Ids: TypeAlias = NDArray[np.uint32]
Codes: TypeAlias = NDArray[np.int32]
Keys: TypeAlias = NDArray[np.uint64]

AFTER_STOP, AFTER_SPACE = 1, 2  # of SENTENCE
BLANK_AFTER_CR = 2  # of BLANK: a line feed now belongs to the line end before it
LINE_FEED, CARRIAGE_RETURN, FULL_STOP, UNIT_DOCUMENT = 0x0A, 0x0D, 0x2E, c.UNITS["document"]
TOKEN_MARK, TEXT_MARK = 0xFE, 0xFF

_OPTIONS: dict[str, Any] = {"nogil": True, "cache": True, "_nrt": False}
_compile = numba.njit(**_OPTIONS)
_inline = numba.njit(forceinline=True, **_OPTIONS)  # where a call, with all that an array is, would cost too much


@_compile
def hash_bytes(data: Bytes, start: int, stop: int) -> Any:
    """FNV-1a, as a signed number; `find_slot` mixes it once more."""
    value = np.int64(HASH_OF_NOTHING)
    for position in range(start, stop):
        value = (value ^ np.int64(data[position])) * HASH_FACTOR
    return value


@_inline
def _is_type(arena: Bytes, place: Any, data: Bytes, start: int, length: int) -> bool:
    if np.int64(place & LENGTH_MASK) != length:
        return False
    first = np.int64(place >> LENGTH_BITS)
    for offset in range(length):  # noqa: SIM110 (compiled)
        if arena[first + offset] != data[start + offset]:
            return False
    return True


@_inline
def find_slot(slots: Keys, arena: Bytes, data: Bytes, start: int, length: int, hashed: int) -> tuple[Any, Any]:
    """Return the slot and the entry of a type, or the slot where it belongs and the entry's upper half."""
    value = np.uint64(hashed)  # The low bits of FNV see only low bits: mix.
    value = (value ^ (value >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    value ^= value >> np.uint64(32)
    mask = np.uint64(slots.shape[0] - 1)
    upper = value & NOT_NUMBER
    slot = value & mask
    while True:
        entry = slots[slot, 0]
        if entry == np.uint64(0):
            return slot, upper
        if entry & NOT_NUMBER == upper and _is_type(arena, slots[slot, 1], data, start, length):
            return slot, entry
        slot = (slot + np.uint64(1)) & mask


@_inline
def add_tail(slots: Keys, arena: Bytes, types: Ints, state: Ints, length: int, hashed: int, count: int) -> Any:
    """Count the token of `length` bytes behind the arena and return its number; a new one joins the arena."""
    tail = state[USED]
    slot, entry = find_slot(slots, arena, arena, tail, length, hashed)
    low = np.int64(entry & NUMBER)
    if low == 0:
        state[TYPES] += 1
        state[USED] = tail + length
        low = state[TYPES]
        slots[slot, 0] = entry | np.uint64(low)
        slots[slot, 1] = (np.uint64(tail) << LENGTH_BITS) | np.uint64(length)
        types[low, START] = tail + length
    types[low - 1, COUNT] += count
    return low - 1


@_compile
def fill_slots(slots: Keys, arena: Bytes, types: Ints, size: int) -> None:
    """Enter the first `size` types into slots that are all empty."""
    for number in range(size):
        start, stop = types[number, START], types[number + 1, START]
        slot, upper = find_slot(slots, arena, arena, start, stop - start, hash_bytes(arena, start, stop))
        slots[slot, 0] = upper | np.uint64(number + 1)
        slots[slot, 1] = (np.uint64(start) << LENGTH_BITS) | np.uint64(stop - start)


@_compile
def merge_types(
    from_arena: Bytes, from_types: Ints, slots: Keys, arena: Bytes, types: Ints, state: Ints, numbers: Ids
) -> None:
    """Add the types and counts of a table to another, which has room; `numbers` says what each is there."""
    for number in range(numbers.size):
        start, stop, tail = from_types[number, START], from_types[number + 1, START], state[USED]
        for offset in range(stop - start):
            arena[tail + offset] = from_arena[start + offset]
        hashed = hash_bytes(from_arena, start, stop)
        numbers[number] = add_tail(slots, arena, types, state, stop - start, hashed, from_types[number, COUNT])


@_compile
def find_types(slots: Keys, arena: Bytes, data: Bytes, ends: Ints, numbers: Ints) -> None:
    """Fill in the number of each token of `data`, -1 for one that the table does not have."""
    start = 0
    for token in range(ends.size):
        hashed = hash_bytes(data, start, ends[token])
        _, entry = find_slot(slots, arena, data, start, ends[token] - start, hashed)
        numbers[token] = np.int64(entry & NUMBER) - 1
        start = ends[token]


@_compile
def map_ids(ids: Ids, numbers: Ids, out: Ids) -> tuple[int, int, int]:
    """Turn type numbers into vocabulary ids; BREAK in `numbers` leaves a token out.

    Returns how many there are, not counting the breaks at either end, and whether there are such breaks.
    """
    size, opens, is_broken = 0, 0, 0
    for position in range(ids.size):
        if ids[position] == BREAK:
            is_broken = 1
            continue
        new = numbers[ids[position]]
        if new == BREAK:
            continue
        if is_broken == 1 and size > 0:
            out[size] = BREAK
            size += 1
        elif is_broken == 1:
            opens = 1
        is_broken = 0
        out[size] = new
        size += 1
    return size, opens, is_broken


@_inline
def decode_point(data: Bytes, at: int) -> tuple[Any, int]:
    """Return a code point and its size in bytes, or (-1, 1) where the bytes are no UTF-8."""
    first = np.int64(data[at])
    if first < 0x80:
        return first, 1
    if first < 0xC2 or first > 0xF4:
        return -1, 1
    size = 2 if first < 0xE0 else (3 if first < 0xF0 else 4)
    if at + size > data.size:
        return -1, 1
    point = first & (0x7F >> size)
    for offset in range(1, size):
        byte = np.int64(data[at + offset])
        if byte & 0xC0 != 0x80:
            return -1, 1
        point = (point << 6) | (byte & 0x3F)
    is_overlong = (size == 3 and point < 0x800) or (size == 4 and point < 0x10000)
    if is_overlong or point > 0x10FFFF or 0xD800 <= point < 0xE000:
        return -1, 1
    return point, size


@_inline
def end_unit(state: Ints, out: Ids) -> None:
    """Write a break, unless there is one already."""
    size = state[OUT]
    if size == 0 or out[size - 1] != BREAK:
        out[size] = BREAK
        state[OUT] = size + 1
        state[BREAKS] += 1


@_inline
def _write_token(slots: Keys, arena: Bytes, types: Ints, state: Ints, out: Ids) -> None:
    out[state[OUT]] = add_tail(slots, arena, types, state, state[LENGTH], state[HASH], 1)
    state[OUT] += 1
    state[LENGTH] = 0
    state[HASH] = HASH_OF_NOTHING


@_inline
def end_token(slots: Keys, arena: Bytes, types: Ints, state: Ints, out: Ids) -> None:
    """Write the token that is being read, if there is one."""
    if state[LENGTH] > 0:
        _write_token(slots, arena, types, state, out)
        if state[LAST] == c.WORD_STOP:
            end_unit(state, out)
    state[CHARS] = 0
    state[PENDING] = 0


@_compile
def end_text(slots: Keys, arena: Bytes, types: Ints, state: Ints, out: Ids) -> None:
    """End the token and the unit, and forget all about the text."""
    end_token(slots, arena, types, state, out)
    end_unit(state, out)
    state[SENTENCE] = 0
    state[BLANK] = 1


@_compile
def _put_point(point: int, slots: Keys, arena: Bytes, types: Ints, state: Ints, out: Ids) -> None:
    """Append one code point to the token as UTF-8; where it would be too long, the token ends and another begins."""
    size = 1 if point < 0x80 else (2 if point < 0x800 else (3 if point < 0x10000 else 4))
    if state[LENGTH] + size > c.MAX_TOKEN_BYTES:
        _write_token(slots, arena, types, state, out)
    at = state[USED] + state[LENGTH]
    state[LENGTH] += size
    for offset in range(size - 1, 0, -1):
        arena[at + offset] = 0x80 | (point & 0x3F)
        point >>= 6
    arena[at] = point if size == 1 else ((0xF00 >> size) & 0xFF) | point
    for offset in range(size):
        state[HASH] = (state[HASH] ^ np.int64(arena[at + offset])) * HASH_FACTOR


@_compile
def _put_word_point(point: int, lower: Codes, slots: Keys, arena: Bytes, types: Ints, state: Ints, out: Ids) -> None:
    if state[PENDING] != 0:
        _put_point(state[PENDING], slots, arena, types, state, out)
        state[PENDING] = 0
        state[CHARS] += 1
    state[CHARS] += 1
    low = lower[point] if point < lower.size else point
    if low == c.TWO_POINTS:
        _put_point(0x69, slots, arena, types, state, out)
        low = 0x307
    _put_point(low, slots, arena, types, state, out)


@_compile
def _is_exempt(short: Ints, arena: Bytes, state: Ints) -> Any:
    """Whether a full stop here would stand right after an initial or an abbreviation."""
    length = state[LENGTH]
    if length == 0 or state[PENDING] != 0:
        return False
    if state[CHARS] == 1:
        return state[LAST] == c.LETTER or state[LAST] == c.LOWER
    if state[CHARS] != length or length > 7:
        return False
    packed = np.int64(0)
    for at in range(state[USED], state[USED] + length):
        byte = np.int64(arena[at])
        packed = (packed << 8) | (byte + 32 if 0x41 <= byte <= 0x5A else byte)
    found = np.searchsorted(short, packed)
    return found < short.size and short[found] == packed


@_compile
def _follow_stop(kind: int, state: Ints, out: Ids) -> None:
    """After a stop: closers, then white space, then anything but a lower-case letter end the sentence."""
    if kind == c.SPACE:
        state[SENTENCE] = AFTER_SPACE
    elif state[SENTENCE] == AFTER_SPACE:
        if kind != c.LOWER:
            end_unit(state, out)
        state[SENTENCE] = 0
    elif kind != c.CLOSER and kind != c.APOSTROPHE:
        state[SENTENCE] = 0


@_compile
def _end_line(point: int, state: Ints, out: Ids) -> None:
    if state[UNIT] != UNIT_DOCUMENT:
        end_unit(state, out)
    elif state[BLANK] == BLANK_AFTER_CR and point == LINE_FEED:
        state[BLANK] = 1
        return
    elif state[BLANK] != 0:
        end_unit(state, out)
    state[BLANK] = BLANK_AFTER_CR if point == CARRIAGE_RETURN else 1


@_compile
def _take_point(
    point: Any, kinds: Bytes, lower: Codes, short: Ints, slots: Keys, arena: Bytes, types: Ints, state: Ints, out: Ids
) -> None:
    """Read one character of any kind."""
    kind = kinds[point]
    if kind == c.SOFT:
        return
    if state[SENTENCE] != 0:
        _follow_stop(kind, state, out)
    if kind >= c.FIRST_WHITE:
        end_token(slots, arena, types, state, out)
        if kind == c.LINE:
            _end_line(point, state, out)
        elif state[BLANK] == BLANK_AFTER_CR:
            state[BLANK] = 1
        return
    state[BLANK] = 0
    if kind <= c.LAST_WORD or (kind == c.MARK and state[LENGTH] > 0):
        _put_word_point(point, lower, slots, arena, types, state, out)
        state[LAST] = kind
    elif c.JOINER <= kind <= c.HYPHEN and state[LENGTH] > 0 and state[PENDING] == 0:
        state[PENDING] = 0x27 if kind == c.APOSTROPHE else (0x2D if kind == c.HYPHEN else point)
    elif kind == c.STOP:
        is_exempt = point == FULL_STOP and _is_exempt(short, arena, state)
        end_token(slots, arena, types, state, out)
        state[SENTENCE] = 0 if is_exempt else AFTER_STOP
    else:
        end_token(slots, arena, types, state, out)
        if kind == c.WIDE_STOP:
            end_unit(state, out)


@_inline
def _take_run(data: Bytes, at: int, stop: int, kinds: Bytes, plain: Bytes, arena: Bytes, state: Ints) -> int:
    """Append ASCII word characters as long as they come, the bulk of most texts; return where they end."""
    length, tail, hashed = state[LENGTH], state[USED], state[HASH]
    first, stop = at, min(stop, at + c.MAX_TOKEN_BYTES - length)
    while at < stop:
        byte = plain[data[at]]
        if byte == 0:
            break
        arena[tail + length] = byte
        hashed = (hashed ^ np.int64(byte)) * HASH_FACTOR
        length += 1
        at += 1
    if at > first:
        state[LENGTH] = length
        state[HASH] = hashed
        state[CHARS] += at - first
        state[LAST] = kinds[data[at - 1]]
        state[BLANK] = 0
    return at


@_compile
def scan_text(
    data: Bytes,
    start: int,
    stop: int,
    kinds: Bytes,
    plain: Bytes,
    lower: Codes,
    short: Ints,
    slots: Keys,
    arena: Bytes,
    types: Ints,
    state: Ints,
    out: Ids,
) -> int:
    """Read the characters that begin in `start` to `stop`; return where it stopped, early only at bad UTF-8."""
    at = start
    while at < stop:
        if state[PENDING] == 0 and state[SENTENCE] == 0:
            at = _take_run(data, at, stop, kinds, plain, arena, state)
            if at == stop:
                break
            kind = kinds[data[at]]
            if data[at] < 0x80 and (kind == c.SPACE or kind == c.OTHER):
                end_token(slots, arena, types, state, out)
                state[BLANK] = min(state[BLANK], 1) if kind == c.SPACE else 0
                at += 1
                continue
        point, size = decode_point(data, at)
        if point < 0 and state[HAS_MARKS] and data[at] >= TOKEN_MARK:
            if data[at] == TEXT_MARK:
                end_text(slots, arena, types, state, out)
            else:
                end_token(slots, arena, types, state, out)
        elif point < 0 and state[IS_STRICT]:
            state[BAD] = at
            return at
        else:  # Bad UTF-8 separates, as NUL does.
            _take_point(max(point, 0), kinds, lower, short, slots, arena, types, state, out)
        at += size
    return at
