"""Numba kernels of random walks: expected counts of blocks of nodes, and sampled walks. They release the GIL."""

from __future__ import annotations

import numpy as np

from swivel.runtime.kernels import njit_cached

BREAK = np.uint32(0xFFFFFFFF)  # between two units of a corpus

_jit = njit_cached(nogil=True, boundscheck=False, error_model="numpy")
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MAX_TRIES = 1_000  # of a step of node2vec, before the weights of all edges of a node are computed


@_jit
def step(starts, ends, shares, before, after, weight, total):  # type: ignore[no-untyped-def]
    """Advance the walks of a block of nodes by one step, and add what they reach, times `weight`, to `total`.

    Row k of `before` has, for each node of the block, the expected number of walks that are at node k. `shares` are the
    probabilities of the steps that lead to a node: their sums are in the order of the edges, for any block and thread.
    """
    lanes = before.shape[1]
    for node in range(starts.size - 1):
        arrived = after[node]
        arrived[:] = 0.0
        for edge in range(starts[node], starts[node + 1]):
            share = shares[edge]
            origin = before[ends[edge]]
            for lane in range(lanes):
                arrived[lane] += share * origin[lane]
        for lane in range(lanes):
            total[node, lane] += weight * arrived[lane]


@_jit
def take_cells(total, first, is_upper, smallest, rows, columns, counts):  # type: ignore[no-untyped-def]
    """Write the cells of a block of nodes that are not too small, and return their number; empty arrays only count.

    Of a symmetric matrix, only cells on and above the diagonal.
    """
    used = 0
    for lane in range(total.shape[1]):
        row = first + lane
        for column in range(row if is_upper else 0, total.shape[0]):
            count = total[column, lane]
            if count > 0.0 and count >= smallest:
                if rows.size:
                    rows[used] = row
                    columns[used] = column
                    counts[used] = count
                used += 1
    return used


@_jit
def _mix(value):  # type: ignore[no-untyped-def]
    """Return 64 bits that look random and depend on `value` only (splitmix64)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@_jit
def _draw(state):  # type: ignore[no-untyped-def]
    """Return a number in [0, 1)."""
    return np.float64(_mix(state) >> np.uint64(11)) / 9007199254740992.0


@_jit
def _pick(edge_ends, first, last, state):  # type: ignore[no-untyped-def]
    """Return an edge of `first` to `last - 1` by its weight, where `edge_ends` are the running sums of all weights."""
    low = edge_ends[first - 1] if first else 0.0
    place = low + (edge_ends[last - 1] - low) * _draw(state)
    return min(first + np.searchsorted(edge_ends[first:last], place, side="right"), last - 1)


@_jit
def _has_edge(starts, ends, node, other):  # type: ignore[no-untyped-def]
    first, last = starts[node], starts[node + 1]
    place = first + np.searchsorted(ends[first:last], other)
    return place < last and ends[place] == other


@_jit
def _bias(starts, ends, previous, following, p, q):  # type: ignore[no-untyped-def]
    """Return the factor of node2vec for a step to a node."""
    if following == previous:
        return 1.0 / p
    return 1.0 if _has_edge(starts, ends, previous, following) else 1.0 / q


@_jit
def _pick_biased(starts, ends, edge_ends, node, previous, p, q, state):  # type: ignore[no-untyped-def]
    """Return an edge of `node` by its weight times its factor, computed for all of its edges."""
    first, last = starts[node], starts[node + 1]
    sums = np.empty(last - first)
    total = 0.0
    for edge in range(first, last):
        weight = edge_ends[edge] - (edge_ends[edge - 1] if edge else 0.0)
        total += weight * _bias(starts, ends, previous, ends[edge], p, q)
        sums[edge - first] = total
    return min(first + np.searchsorted(sums, total * _draw(state), side="right"), last - 1)


@_jit
def sample_walks(starts, ends, edge_ends, first, stop, seed, p, q, walks):  # type: ignore[no-untyped-def]
    """Sample the walks number `first` to `stop - 1`, each followed by BREAK; one that cannot go on ends in BREAKs.

    A walk begins at a node in proportion to its degree, as if it had been under way for ever. The random numbers depend
    on the seed and on the number of the walk, so that it does not matter which thread samples it. Steps of node2vec are
    sampled by rejection: in proportion to the weights of the edges, then accepted in proportion to 1/p, 1 or 1/q. If p
    or q is extreme, nearly all may be rejected: the step then is one by the weights of all edges.
    """
    length = walks.shape[1] - 1
    most = max(1.0, 1.0 / p, 1.0 / q)
    for walk in range(first, stop):
        row = walks[walk - first]
        row[:] = BREAK
        state = _mix(_mix(np.uint64(seed) + _GOLDEN) ^ np.uint64(walk))
        node = np.searchsorted(starts, _pick(edge_ends, 0, ends.size, state), side="right") - 1
        previous = -1

        for place in range(length):
            row[place] = node
            if starts[node] == starts[node + 1]:
                break
            for tries in range(_MAX_TRIES + 1):
                state += _GOLDEN
                if tries == _MAX_TRIES:
                    edge = _pick_biased(starts, ends, edge_ends, node, previous, p, q, state)
                else:
                    edge = _pick(edge_ends, starts[node], starts[node + 1], state)
                following = np.int64(ends[edge])
                if previous < 0 or most == 1.0 == p == q:
                    break
                state += _GOLDEN
                if _draw(state) * most < _bias(starts, ends, previous, following, p, q):
                    break
            previous = node
            node = following
