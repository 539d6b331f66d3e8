"""The compiled tokenizer: converts UTF-8 bytes to type numbers, one character at a time.

The kernels work on arrays that `encode` owns, and allocate nothing: `scan_text` returns when the table of types is
almost full, so that the caller can enlarge it; otherwise the caller provides enough space for the largest possible
result. All information that must survive between two calls is in `state`, so a text may be passed in pieces that are
cut at any code point.

A type is a distinct token. A table of types consists of three arrays:

- `slots`, a hash table with open addressing, of one uint64 per slot: the upper half of the hash and the number of the
  type plus one (0: empty slot).
- `arena`, the bytes of all types, one after the other. The bytes of the current token follow them.
- `types`, two int64 per type: the start in the arena and the count. Row n + 1 contains the end of type n. A lookup has
  about three cache misses: one for the slot, one for the row, which is needed for the count anyway, one for the bytes.

Reference counting is off (`_nrt`), and arrays are passed one by one and not in a structure: reference counting would
take four times as long as the tokenization itself, and longer with more threads.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from swivel.corpus import character_classes as c
from swivel.corpus.vocabulary import BREAK
from swivel.runtime.kernels import njit_cached

# Indices into `state`.
# State of the text: bytes, hash and characters of the current token; a connector (apostrophe, hyphen or joiner) that
# belongs to the token if a word character follows (0: none); kind of the last character; progress toward the end of
# a sentence (0, AFTER_STOP or AFTER_SPACE); whether the current line is blank so far (0, 1 or BLANK_AFTER_CR); the end
# in the current token of a sigma that is final unless a cased letter follows (0: none).
LENGTH, HASH, CHARS, PENDING, LAST, SENTENCE, BLANK, SIGMA = range(8)
# State of the table: used bytes of the arena, number of types. State of the call: ids written, breaks among them,
# position of invalid UTF-8 (-1: none). Settings: the unit, whether invalid UTF-8 is an error, whether the bytes 0xFE
# and 0xFF are marks.
USED, TYPES, OUT, BREAKS, BAD, UNIT, IS_STRICT, HAS_MARKS = range(8, 16)
TEXT_STATE = slice(0, 8)  # the part of `state` that moves with a text from one worker to the next
STATE_SIZE = 16
START, COUNT = range(2)  # columns of `types`
# What one step of `scan_text` may add to a table of types: at most three tokens, of which two were split.
STEP_TYPES = 4
STEP_BYTES = 4 * c.MAX_TOKEN_BYTES

# Bit masks of a slot: type number and hash.
NUMBER = np.uint64(0xFFFFFFFF)
NOT_NUMBER = np.uint64(0xFFFFFFFF00000000)

# FNV-1a with 64 bits: the offset basis 0xCBF29CE484222325 as a signed number, and the prime.
HASH_OF_NOTHING = -0x340D631B7BDDDCDB
HASH_FACTOR = 0x100000001B3

Ints: TypeAlias = NDArray[np.int64]
Bytes: TypeAlias = NDArray[np.uint8]
Ids: TypeAlias = NDArray[np.uint32]
Codes: TypeAlias = NDArray[np.int32]
Keys: TypeAlias = NDArray[np.uint64]

# Values of state[SENTENCE].
AFTER_STOP = 1
AFTER_SPACE = 2

BLANK_AFTER_CR = 2  # value of state[BLANK]: a line feed now belongs to the carriage return before it
UNIT_DOCUMENT = c.UNITS["document"]

LINE_FEED = 0x0A
CARRIAGE_RETURN = 0x0D
APOSTROPHE = 0x27
HYPHEN = 0x2D
FULL_STOP = 0x2E
SMALL_SIGMA = 0x3C3
FINAL_SIGMA_BYTE = 0x82  # the second byte of U+03C2 in UTF-8; that of U+03C3 is 0x83
TOKEN_MARK = 0xFE
TEXT_MARK = 0xFF

_OPTIONS: dict[str, Any] = {"nogil": True, "_nrt": False}
_compile = njit_cached(**_OPTIONS)
_inline = njit_cached(forceinline=True, **_OPTIONS)  # A call copies every field of its arrays.


@_compile
def hash_bytes(data: Bytes, start: int, stop: int) -> Any:
    """Return the FNV-1a hash as a signed integer; `find_slot` mixes its bits further."""
    value = np.int64(HASH_OF_NOTHING)
    for position in range(start, stop):
        value = (value ^ np.int64(data[position])) * HASH_FACTOR
    return value


@_compile
def hash_texts(data: Bytes, ends: Ints, hashes: Ints) -> None:
    """Write the hash of each text of `data`, which end at `ends`."""
    for number in range(ends.size):
        start = ends[number - 1] if number else 0
        hashes[number] = hash_bytes(data, start, ends[number])


@_inline
def _is_type(arena: Bytes, types: Ints, number: Any, data: Bytes, start: int, length: int) -> bool:
    """Return whether the bytes of a type equal those of `data`."""
    first = types[number, START]
    if types[number + 1, START] - first != length:
        return False

    for offset in range(length):  # noqa: SIM110 (compiled)
        if arena[first + offset] != data[start + offset]:
            return False
    return True


@_inline
def find_slot(
    slots: Keys, arena: Bytes, types: Ints, data: Bytes, start: int, length: int, hashed: int
) -> tuple[Any, Any]:
    """Return the slot and the entry of a type; if it is new, its empty slot and an entry with number 0."""
    # The low bits of FNV depend on low bits only, and they select the slot: mix in the upper bits (as in SplitMix64).
    value = np.uint64(hashed)
    value = (value ^ (value >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    value ^= value >> np.uint64(32)

    mask = np.uint64(slots.shape[0] - 1)  # The number of slots is a power of two.
    upper = value & NOT_NUMBER
    slot = value & mask

    # Linear probing. The table is at most half full, so there is always an empty slot.
    while True:
        entry = slots[slot]
        if entry == np.uint64(0):
            return slot, upper
        if entry & NOT_NUMBER == upper:
            number = np.int64(entry & NUMBER) - 1
            if _is_type(arena, types, number, data, start, length):
                return slot, entry
        slot = (slot + np.uint64(1)) & mask


@_inline
def add_tail(slots: Keys, arena: Bytes, types: Ints, state: Ints, length: int, hashed: int, count: int) -> Any:
    """Add `count` to the token of `length` bytes after the used part of the arena, and return its number.

    If the token is a new type, its bytes become part of the arena.
    """
    tail = state[USED]
    slot, entry = find_slot(slots, arena, types, arena, tail, length, hashed)
    number = np.int64(entry & NUMBER)  # plus one; 0 for a new type

    if number == 0:
        state[TYPES] += 1
        state[USED] = tail + length
        number = state[TYPES]
        slots[slot] = entry | np.uint64(number)
        types[number, START] = tail + length  # the end of this type is the start of the next one

    types[number - 1, COUNT] += count
    return number - 1


@_compile
def fill_slots(slots: Keys, arena: Bytes, types: Ints, size: int) -> None:
    """Insert the first `size` types into empty slots."""
    for number in range(size):
        start = types[number, START]
        stop = types[number + 1, START]
        slot, upper = find_slot(slots, arena, types, arena, start, stop - start, hash_bytes(arena, start, stop))
        slots[slot] = upper | np.uint64(number + 1)


@_inline
def _is_in_part(hashed: int, part: int, parts: int) -> bool:
    """Return whether a type belongs to one of several parts, of about equal size, of all possible types."""
    number_of_part = ((np.uint64(hashed) * np.uint64(HASH_FACTOR)) >> np.uint64(32)) % np.uint64(parts)
    return bool(number_of_part == np.uint64(part))


@_compile
def merge_types(
    from_arena: Bytes,
    from_types: Ints,
    first: int,
    last: int,
    part: int,
    parts: int,
    slots: Keys,
    arena: Bytes,
    types: Ints,
    state: Ints,
) -> None:
    """Add types and counts of one table to another, which has enough space: those from `first` to `last` in a part."""
    for number in range(first, last):
        start = from_types[number, START]
        stop = from_types[number + 1, START]
        hashed = hash_bytes(from_arena, start, stop)
        if not _is_in_part(hashed, part, parts):
            continue

        # The bytes are written where those of a new type belong; a known type leaves them to be overwritten.
        tail = state[USED]
        for offset in range(stop - start):
            arena[tail + offset] = from_arena[start + offset]
        add_tail(slots, arena, types, state, stop - start, hashed, from_types[number, COUNT])


@_compile
def find_types(slots: Keys, arena: Bytes, types: Ints, from_arena: Bytes, from_types: Ints, numbers: Ints) -> None:
    """Fill `numbers` with the number in one table of each type of another table; -1 if it is not there."""
    for number in range(numbers.size):
        start = from_types[number, START]
        stop = from_types[number + 1, START]
        hashed = hash_bytes(from_arena, start, stop)
        _, entry = find_slot(slots, arena, types, from_arena, start, stop - start, hashed)
        numbers[number] = np.int64(entry & NUMBER) - 1


@_compile
def map_ids(ids: Ids, numbers: Ids, out: Ids) -> tuple[int, int, int]:
    """Convert type numbers to vocabulary ids; tokens whose entry in `numbers` is BREAK are left out."""
    # Returns the number of ids written, without breaks at either end, and whether there was a break at the start and at
    # the end (0 or 1).
    size = 0
    opens = 0
    is_broken = 0

    for position in range(ids.size):
        if ids[position] == BREAK:
            is_broken = 1
            continue

        new = numbers[ids[position]]
        if new == BREAK:
            continue

        # A break is written only between two ids, so that there are never two in a row.
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
    """Return the code point at a position and its size in bytes, or (-1, 1) if the bytes are not valid UTF-8."""
    first = np.int64(data[at])
    if first < 0x80:
        return first, 1
    if first < 0xC2 or first > 0xF4:
        return -1, 1

    size = 4
    if first < 0xE0:
        size = 2
    elif first < 0xF0:
        size = 3
    if at + size > data.size:
        return -1, 1

    point = first & (0x7F >> size)
    for offset in range(1, size):
        byte = np.int64(data[at + offset])
        if byte & 0xC0 != 0x80:
            return -1, 1
        point = (point << 6) | (byte & 0x3F)

    # Overlong forms, code points beyond Unicode and surrogates are invalid.
    is_overlong = (size == 3 and point < 0x800) or (size == 4 and point < 0x10000)
    if is_overlong or point > 0x10FFFF or 0xD800 <= point < 0xE000:
        return -1, 1
    return point, size


@_inline
def end_unit(state: Ints, out: Ids) -> None:
    """Write a break, unless the last id is a break."""
    # Only within a call: two calls may write two breaks in a row, which `map_ids` writes once.
    size = state[OUT]
    if size == 0 or out[size - 1] != BREAK:
        out[size] = BREAK
        state[OUT] = size + 1
        state[BREAKS] += 1


@_compile
def _end_sigma(arena: Bytes, state: Ints) -> None:
    """Make the sigma that may be final the final one, in the current token and in its hash."""
    tail = state[USED]
    arena[tail + state[SIGMA] - 1] = FINAL_SIGMA_BYTE
    state[HASH] = hash_bytes(arena, tail, tail + state[LENGTH])
    state[SIGMA] = 0


@_compile
def _follows_cased(lower: Codes, arena: Bytes, state: Ints) -> bool:
    """Return whether the last character of the current token that is not ignorable is a cased letter."""
    tail = state[USED]
    at = tail + state[LENGTH]
    while at > tail:
        at -= 1
        while at > tail and arena[at] & 0xC0 == 0x80:  # continuation bytes
            at -= 1
        point, _ = decode_point(arena, at)
        role = lower[1, point] if point < lower.shape[1] else 0
        if role != c.IGNORABLE:
            return bool(role == c.CASED)
    return False


@_inline
def _write_token(slots: Keys, arena: Bytes, types: Ints, state: Ints, out: Ids) -> None:
    """Count the current token, write its number and start an empty token."""
    if state[SIGMA] != 0:
        _end_sigma(arena, state)
    out[state[OUT]] = add_tail(slots, arena, types, state, state[LENGTH], state[HASH], 1)
    state[OUT] += 1
    state[LENGTH] = 0
    state[HASH] = HASH_OF_NOTHING


@_inline
def end_token(slots: Keys, arena: Bytes, types: Ints, state: Ints, out: Ids) -> None:
    """Write the current token, if there is one, and drop a pending connector."""
    if state[LENGTH] > 0:
        _write_token(slots, arena, types, state, out)
        if state[LAST] == c.WORD_STOP:
            end_unit(state, out)
    # A connector belongs to a token only between two word characters: the one at the end of "rock'" is dropped.
    state[CHARS] = 0
    state[PENDING] = 0


@_compile
def end_text(slots: Keys, arena: Bytes, types: Ints, state: Ints, out: Ids) -> None:
    """End the current token and unit, and reset the state of the text."""
    end_token(slots, arena, types, state, out)
    end_unit(state, out)
    state[SENTENCE] = 0
    state[BLANK] = 1


@_compile
def _put_point(point: int, lower: Codes, slots: Keys, arena: Bytes, types: Ints, state: Ints, out: Ids) -> None:
    """Append a code point to the current token as UTF-8; a token that would be too long is split."""
    if state[SIGMA] != 0:  # A cased letter after a sigma means that it is not final; another character, that it is.
        role = lower[1, point] if point < lower.shape[1] else 0
        if role == c.CASED:
            state[SIGMA] = 0
        elif role != c.IGNORABLE:
            _end_sigma(arena, state)

    size = 4
    if point < 0x80:
        size = 1
    elif point < 0x800:
        size = 2
    elif point < 0x10000:
        size = 3

    if state[LENGTH] + size > c.MAX_TOKEN_BYTES:
        _write_token(slots, arena, types, state, out)

    # Continuation bytes have 6 bits each, from last to first; the first byte has `size` leading ones.
    at = state[USED] + state[LENGTH]
    state[LENGTH] += size
    for offset in range(size - 1, 0, -1):
        arena[at + offset] = 0x80 | (point & 0x3F)
        point >>= 6
    arena[at] = point if size == 1 else ((0xF00 >> size) & 0xFF) | point

    # The hash is that of `hash_bytes`, byte by byte as the token grows, so that its end needs no second look at it.
    for offset in range(size):
        state[HASH] = (state[HASH] ^ np.int64(arena[at + offset])) * HASH_FACTOR


@_compile
def _put_word_point(point: int, lower: Codes, slots: Keys, arena: Bytes, types: Ints, state: Ints, out: Ids) -> None:
    """Append a word character in lower case, after a pending connector if there is one."""
    if state[PENDING] != 0:
        _put_point(state[PENDING], lower, slots, arena, types, state, out)
        state[PENDING] = 0
        state[CHARS] += 1
    state[CHARS] += 1

    low = lower[0, point] if point < lower.shape[1] else point
    if low == c.TWO_POINTS:  # U+0130 becomes "i" and a combining dot.
        _put_point(0x69, lower, slots, arena, types, state, out)
        low = 0x307

    is_sigma = low == c.FINAL_SIGMA
    if is_sigma:
        low = SMALL_SIGMA
    _put_point(low, lower, slots, arena, types, state, out)
    if is_sigma:
        state[LENGTH] -= 2  # Look at what precedes it.
        if _follows_cased(lower, arena, state):
            state[SIGMA] = state[LENGTH] + 2
        state[LENGTH] += 2


@_compile
def _is_exempt(short: Ints, arena: Bytes, state: Ints) -> Any:
    """Return whether the current token is a single letter or an abbreviation, whose full stop ends no sentence."""
    length = state[LENGTH]
    if length == 0 or state[PENDING] != 0:
        return False
    if state[CHARS] == 1:
        return state[LAST] == c.LETTER or state[LAST] == c.LOWER
    if state[CHARS] != length or length > 7:  # not ASCII, or longer than any abbreviation
        return False

    # Pack the token into an integer, in lower case, as `build_rules` does, and look it up.
    packed = np.int64(0)
    for at in range(state[USED], state[USED] + length):
        byte = np.int64(arena[at])
        packed = (packed << 8) | (byte + 32 if 0x41 <= byte <= 0x5A else byte)
    index = np.searchsorted(short, packed)
    return index < short.size and short[index] == packed


@_compile
def _follow_stop(kind: int, state: Ints, out: Ids) -> None:
    """Process a character after a stop: closers, white space and then no lower-case letter end the sentence."""
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
    """End the line, and the unit if it is a line or sentence, or if the line was blank."""
    if state[UNIT] != UNIT_DOCUMENT:
        end_unit(state, out)
    elif state[BLANK] == BLANK_AFTER_CR and point == LINE_FEED:  # second half of "\r\n"
        state[BLANK] = 1
        return
    elif state[BLANK] != 0:
        end_unit(state, out)

    state[BLANK] = BLANK_AFTER_CR if point == CARRIAGE_RETURN else 1


@_compile
def _take_point(
    point: Any, kinds: Bytes, lower: Codes, short: Ints, slots: Keys, arena: Bytes, types: Ints, state: Ints, out: Ids
) -> None:
    """Process one character of any kind."""
    kind = kinds[point]
    if kind == c.SOFT:  # Soft hyphens are ignored.
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
        # Normalize curly apostrophes and Unicode hyphens; a joiner stays.
        state[PENDING] = point
        if kind == c.APOSTROPHE:
            state[PENDING] = APOSTROPHE
        elif kind == c.HYPHEN:
            state[PENDING] = HYPHEN
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
    """Append a run of ASCII word characters to the current token; return the position after it."""
    # This is the fast path for most bytes of most texts: it keeps the state in registers.
    length = state[LENGTH]
    tail = state[USED]
    hashed = state[HASH]
    first = at
    stop = min(stop, at + c.MAX_TOKEN_BYTES - length)

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
    """Tokenize the characters that start in data[start:stop], until the table of types is almost full.

    Returns the position after the last character. Invalid UTF-8 separates tokens, or, in strict mode, ends the scan
    with its position in state[BAD].
    """
    # Space for the largest step is left, so that no step needs a test; the hash table stays at most half full.
    max_types = min(types.shape[0] - 1, slots.size // 2) - STEP_TYPES
    max_used = arena.size - STEP_BYTES

    at = start
    while at < stop and state[TYPES] <= max_types and state[USED] <= max_used:
        # Fast path: a run of ASCII word characters and the separator after it.
        if state[PENDING] == 0 and state[SENTENCE] == 0 and state[SIGMA] == 0:
            at = _take_run(data, at, stop, kinds, plain, arena, state)
            if at == stop:
                break

            kind = kinds[data[at]]
            if data[at] < 0x80 and (kind == c.SPACE or kind == c.OTHER):
                end_token(slots, arena, types, state, out)
                state[BLANK] = min(state[BLANK], 1) if kind == c.SPACE else 0
                at += 1
                continue

        # Slow path: any code point.
        point, size = decode_point(data, at)
        if point < 0 and state[HAS_MARKS] and data[at] >= TOKEN_MARK:
            if data[at] == TEXT_MARK:
                end_text(slots, arena, types, state, out)
            else:
                end_token(slots, arena, types, state, out)
        elif point < 0 and state[IS_STRICT]:
            state[BAD] = at
            return at
        else:  # Invalid UTF-8 is replaced by NUL, which separates tokens.
            _take_point(max(point, 0), kinds, lower, short, slots, arena, types, state, out)
        at += size

    return at


@_compile
def scan_texts(
    data: Bytes,
    stops: Ints,
    kinds: Bytes,
    plain: Bytes,
    lower: Codes,
    short: Ints,
    slots: Keys,
    arena: Bytes,
    types: Ints,
    state: Ints,
    out: Ids,
    ends: Ints,
) -> None:
    """Tokenize several texts, which end at `stops`, and fill `ends` with the positions in `out` where they end."""
    start = 0
    for number in range(stops.size):
        scan_text(data, start, stops[number], kinds, plain, lower, short, slots, arena, types, state, out)
        end_text(slots, arena, types, state, out)
        start = stops[number]
        ends[number] = state[OUT]
