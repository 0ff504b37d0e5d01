"""Count words and n-grams of texts: each distinct term gets a number, each text its counts.

The hash table stores a word of up to 16 bytes in its slot, with its number and the index of its latest count: one cache
line holds both which word it is and whether the current text had it before. Longer words are compared with a copy of
their bytes, so words with equal hashes are never confused. An n-gram is a pair of numbers, that of its first n - 1
words and that of its last word, so its bytes are never read. Terms are numbered in order of first appearance.

Kernels stop when an array is full; `term_table` enlarges it and calls again.
"""

from __future__ import annotations

import numpy as np

from labelwise.kernels.jit import inner, jit
from labelwise.kernels.words import (
    NEEDS_PYTHON,
    eight_bytes,
    fold,
    is_one_character,
    prefetch,
    split_words,
)

DONE, NO_PAIRS = 0, 1
NO_WORDS, NO_GRAMS, NO_NODES, NO_ARENA = range(2, 6)
NODES, WORDS, ARENA = range(3)
"""Indices of `counts`: terms of any length, words among them, bytes of words stored."""

SLOT = 4
"""Integers per slot of a word: bytes 0-7 (or hash), bytes 8-15 (or LONG and arena offset), term and index, hash."""
LONG = np.uint64(0xFF << 56)
"""Marks a word of more than 16 bytes: no UTF-8 text has this byte."""
LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_FIRST_FACTOR, _SECOND_FACTOR = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
AHEAD = 12
"""How many n-grams ahead a slot is prefetched."""
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


@inner
def mixed(first: np.uint64, second: np.uint64, seed: np.uint64) -> np.uint64:
    """A hash of two integers, with all bits well mixed."""
    value = (first ^ seed) * _FIRST_FACTOR
    value = (value ^ value >> _HALF ^ second) * _SECOND_FACTOR
    return value ^ value >> _HALF


@inner
def first_bytes(size: int) -> np.uint64:
    """A mask of the first `size` of eight bytes, or of all eight if `size` is larger."""
    return _ALL >> np.uint64(max(0, 64 - 8 * size))


@inner
def word_key(text: np.ndarray, begin: int, size: int, seed: np.uint64) -> tuple[np.uint64, np.uint64, np.uint64]:
    """The lookup key of a word: its first and second 8 bytes (hash and LONG if it has more), and a hash."""
    if size <= 16:
        first = eight_bytes(text, begin) & first_bytes(size)
        second = eight_bytes(text, begin + 8) & first_bytes(max(1, size - 8))
        if size <= 8:
            second = np.uint64(0)
    else:
        first = seed
        for index in range(0, size, 8):
            first = mixed(first, eight_bytes(text, begin + index) & first_bytes(size - index), seed)
        first |= np.uint64(1)
        second = LONG
    return first, second, mixed(first, second, seed)


@inner
def find_word(
    words: np.ndarray, first: np.uint64, second: np.uint64, mix: np.uint64,
    text: np.ndarray, begin: int, size: int, arena: np.ndarray,
) -> np.uint64:  # fmt: skip
    """The index in `words` of the word's slot, or of the empty slot to insert it."""
    mask = np.uint64(len(words) - 1)
    slot = (mix * np.uint64(SLOT)) & mask
    while True:
        if words[slot] == first:
            stored = words[slot + np.uint64(1)]
            if second != LONG:
                if stored == second:
                    return slot
            elif stored >= LONG and same_word(text, begin, size, arena, np.int64(stored ^ LONG)):
                return slot
        elif words[slot] == 0:
            return slot
        slot = (slot + np.uint64(SLOT)) & mask


@inner
def same_word(text: np.ndarray, begin: int, size: int, arena: np.ndarray, start: int) -> bool:
    """Whether the word that begins at arena[start] and ends before a 0 is text[begin : begin + size]."""
    if start + size + 8 > len(arena) or arena[start + size] != 0:
        return False
    for index in range(0, size, 8):
        difference = eight_bytes(text, begin + index) ^ eight_bytes(arena, start + index)
        if difference & first_bytes(size - index) != 0:
            return False
    return True


@inner
def gram_slot(grams: np.ndarray, key: np.uint64, seed: np.uint64) -> np.uint64:
    """The first slot to probe for an n-gram."""
    return (mixed(key, np.uint64(0), seed) << np.uint64(1)) & np.uint64(len(grams) - 1)


@inner
def prefetch_gram(grams: np.ndarray, key: np.uint64, seed: np.uint64) -> None:
    """Prefetch an n-gram's slot: the table of n-grams is far larger than the processor's cache."""
    prefetch(grams, gram_slot(grams, key, seed))


@inner
def find_gram(grams: np.ndarray, key: np.uint64, seed: np.uint64) -> np.uint64:
    """The index in `grams` of an n-gram's slot, or of the empty slot to insert it."""
    slot = gram_slot(grams, key, seed)
    while grams[slot] != 0 and grams[slot] != key:
        slot = (slot + np.uint64(2)) & np.uint64(len(grams) - 1)
    return slot


@inner
def gram_key(parent: int, word: int) -> np.uint64:
    """An n-gram as one non-zero integer: the term without its last word, and that word."""
    return (np.uint64(parent) << _HALF | np.uint64(word)) + np.uint64(1)


@inner
def count_one(pairs: np.ndarray, begin: int, used: int, entry: np.uint64) -> tuple[np.uint64, int]:
    """Count a term for the text whose pairs begin at `begin`; returns its new table entry and the pairs used.

    Branch-free: whether a word occurred before in the text is unpredictable.
    """
    index = np.int64(entry & LOW)
    here = (index >= begin) & (index < used)
    index = np.uint64(index if here else used)
    now = pairs[index]
    seen = here & (now >> _HALF == entry >> _HALF)
    new = entry & ~LOW
    index = index if seen else np.uint64(used)
    pairs[index] = (now if seen else new) + np.uint64(1)
    return new | index, used + (0 if seen else 1)


@inner
def add_word(
    words: np.ndarray, slot: np.uint64, first: np.uint64, second: np.uint64, mix: np.uint64,
    text: np.ndarray, begin: int, size: int, nodes: np.ndarray, arena: np.ndarray, counts: np.ndarray,
) -> int:  # fmt: skip
    """Insert a new word into its empty slot; returns DONE, or which array is full."""
    stored = counts[ARENA]
    if 2 * SLOT * (counts[WORDS] + 1) > len(words):
        return NO_WORDS
    if counts[NODES] == len(nodes):
        return NO_NODES
    if stored + size + 9 > len(arena):  # `same_word` reads eight bytes at a time
        return NO_ARENA
    for index in range(size):
        arena[stored + index] = text[begin + index]
    arena[stored + size] = 0
    words[slot] = first
    words[slot + np.uint64(1)] = second if second != LONG else LONG | np.uint64(stored)
    words[slot + np.uint64(2)] = np.uint64(counts[NODES]) << _HALF
    words[slot + np.uint64(3)] = mix
    nodes[counts[NODES]] = -1 - stored
    counts[ARENA] += size + 1
    counts[NODES] += 1
    counts[WORDS] += 1
    return DONE


@inner
def add_gram(grams: np.ndarray, slot: np.uint64, key: np.uint64, nodes: np.ndarray, counts: np.ndarray) -> int:
    """Insert a new n-gram into its empty slot; returns DONE, or which array is full."""
    if 4 * (counts[NODES] - counts[WORDS] + 1) > len(grams):
        return NO_GRAMS
    if counts[NODES] == len(nodes):
        return NO_NODES
    grams[slot] = key
    grams[slot + np.uint64(1)] = np.uint64(counts[NODES]) << _HALF
    nodes[counts[NODES]] = np.int64(key - np.uint64(1))
    counts[NODES] += 1
    return DONE


@jit
def learn(
    buffer: np.ndarray, starts: np.ndarray, ends: np.ndarray, table: np.ndarray, lowercase: int,
    min_words: int, max_words: int, seed: np.uint64, words: np.ndarray, grams: np.ndarray, nodes: np.ndarray,
    arena: np.ndarray, counts: np.ndarray, pairs: np.ndarray, used: int, row_ends: np.ndarray,
    text: np.ndarray, edges: np.ndarray, latest: np.ndarray,
) -> tuple[int, int, int]:  # fmt: skip
    """See `TermTable.learn`. A text that did not fit is started again by the next call."""
    for row in range(len(starts)):
        size = fold(buffer, starts[row], ends[row], table, lowercase, text)
        if size < 0:
            return NEEDS_PYTHON, row, used
        runs = split_words(text, size, edges)
        if used + runs * (max_words - min_words + 1) > len(pairs):
            return NO_PAIRS, row, used
        row_begin = used
        length = np.int64(0)
        for run in range(runs):
            begin = edges[2 * run]
            size = edges[2 * run + 1] - begin
            if is_one_character(text, begin, size):
                continue
            first, second, mix = word_key(text, begin, size, seed)
            slot = find_word(words, first, second, mix, text, begin, size, arena)
            if words[slot] == 0:
                status = add_word(words, slot, first, second, mix, text, begin, size, nodes, arena, counts)
                if status != DONE:
                    return status, row, row_begin
            entry = words[slot + np.uint64(2)]
            if min_words == 1:
                entry, used = count_one(pairs, row_begin, used, entry)
                words[slot + np.uint64(2)] = entry
            edges[length] = np.int64(
                entry >> _HALF
            )  # reused for the words' numbers, which are never ahead of the edges
            length += 1
        if max_words > 1:
            status, used = learn_grams(
                edges, length, min_words, max_words, seed, grams, nodes, counts, pairs, row_begin, used, latest
            )
            if status != DONE:
                return status, row, row_begin
        row_ends[row] = used
    return DONE, len(starts), used


@inner
def learn_grams(
    own: np.ndarray, length: int, min_words: int, max_words: int, seed: np.uint64, grams: np.ndarray,
    nodes: np.ndarray, counts: np.ndarray, pairs: np.ndarray, row_begin: int, used: int, latest: np.ndarray,
) -> tuple[int, int]:  # fmt: skip
    """Number and count the n-grams of a text; returns DONE, or which array is full, and the pairs used."""
    for index in range(length):
        latest[index] = own[index]
    for n in range(2, min(max_words, length) + 1):
        # latest[index] changes from the (n - 1)-gram that ends there to the n-gram that ends there
        for index in range(length - 1, n - 2, -1):
            ahead = max(index - AHEAD, 1)
            prefetch_gram(grams, gram_key(latest[ahead - 1], own[ahead]), seed)
            key = gram_key(latest[index - 1], own[index])
            slot = find_gram(grams, key, seed)
            if grams[slot] == 0:
                status = add_gram(grams, slot, key, nodes, counts)
                if status != DONE:
                    return status, used
            entry = grams[slot + np.uint64(1)]
            if n >= min_words:
                entry, used = count_one(pairs, row_begin, used, entry)
                grams[slot + np.uint64(1)] = entry
            latest[index] = np.int64(entry >> _HALF)
    return DONE, used


@jit
def merge_grams(
    keys: np.ndarray, done: int, numbers: np.ndarray, seed: np.uint64, grams: np.ndarray, nodes: np.ndarray,
    counts: np.ndarray,
) -> tuple[int, int]:  # fmt: skip
    """Insert another table's n-grams from `done` on, write their new numbers; returns the status and those done."""
    for node in range(done, len(keys)):
        if keys[node] < 0:
            continue
        key = gram_key(numbers[keys[node] >> 32], numbers[keys[node] & 0xFFFFFFFF])
        slot = find_gram(grams, key, seed)
        if grams[slot] == 0:
            status = add_gram(grams, slot, key, nodes, counts)
            if status != DONE:
                return status, node
        numbers[node] = np.int64(grams[slot + np.uint64(1)] >> _HALF)
    return DONE, len(keys)


@jit
def rehash_words(words: np.ndarray, larger: np.ndarray) -> None:
    """Insert all words into a larger, empty table."""
    mask = np.uint64(len(larger) - 1)
    for old in range(0, len(words), SLOT):
        if words[old] != 0:
            slot = (words[old + 3] * np.uint64(SLOT)) & mask
            while larger[slot] != 0:
                slot = (slot + np.uint64(SLOT)) & mask
            for part in range(SLOT):
                larger[slot + np.uint64(part)] = words[old + part]


@jit
def rehash_grams(grams: np.ndarray, seed: np.uint64, larger: np.ndarray) -> None:
    """Insert all n-grams into a larger, empty table."""
    for old in range(0, len(grams), 2):
        if grams[old] != 0:
            slot = find_gram(larger, grams[old], seed)
            larger[slot] = grams[old]
            larger[slot + np.uint64(1)] = grams[old + 1]


@jit
def spell(
    nodes: np.ndarray, arena: np.ndarray, numbers: np.ndarray, ends: np.ndarray, buffer: np.ndarray, fill: bool
) -> None:
    """Write the lengths of terms to `ends`, or, with `fill`, their bytes so that they end there."""
    for index in range(len(numbers)):
        node = numbers[index]
        end = ends[index]
        length = 0
        while True:
            word = node if nodes[node] < 0 else nodes[node] & 0xFFFFFFFF
            start = -1 - nodes[word]
            size = 0
            while arena[start + size] != 0:
                size += 1
            length += size
            if fill:
                for byte in range(size):
                    buffer[end - length + byte] = arena[start + byte]
            if nodes[node] < 0:
                break
            length += 1
            if fill:
                buffer[end - length] = 32
            node = nodes[node] >> 32
        if not fill:
            ends[index] = length
