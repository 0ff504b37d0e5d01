"""Counting words and runs of words (n-grams) over texts: each different one gets a number, each text its counts.

The table keeps a word of up to 16 bytes in its slot, together with its number and the place of its latest count: one
cache line answers "which word is this, and has this text had it before?". Longer words are compared with a copy of
their bytes, so equal hashes are never taken for equal words. An n-gram is a pair of numbers, that of its first n - 1
words and that of its last word, so its bytes are never looked at. Numbers are given in the order of first appearance.

Kernels stop when an array is full; `term_table` makes it larger and calls again.
"""

from __future__ import annotations

import numpy as np

from labelwise.kernels.jit import inner, jit
from labelwise.kernels.text.words import NEEDS_PYTHON, cut, eight_bytes, fetch, fold, is_one_character

DONE, NO_PAIRS = 0, 1
NO_WORDS, NO_GRAMS, NO_NODES, NO_ARENA = range(2, 6)
NODES, WORDS, ARENA = range(3)
"""Places in `counts`: terms of any length, words among them, bytes of words kept."""

SLOT = 4
"""Numbers a word's slot: bytes 0-7 (or the hash), bytes 8-15 (or LONG and the place), term and place, hash."""
LONG = np.uint64(0xFF << 56)
"""Mark of a word of more than 16 bytes: no UTF-8 text has this byte."""
LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_FIRST_FACTOR, _SECOND_FACTOR = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
AHEAD = 12
"""How many n-grams before its turn a slot is fetched."""
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


@inner
def mixed(first: np.uint64, second: np.uint64, seed: np.uint64) -> np.uint64:
    """A hash of two numbers, good in all bits."""
    value = (first ^ seed) * _FIRST_FACTOR
    value = (value ^ value >> _HALF ^ second) * _SECOND_FACTOR
    return value ^ value >> _HALF


@inner
def first_bytes(size: int) -> np.uint64:
    """A mask of the first `size` of eight bytes, of all if there are more."""
    return _ALL >> np.uint64(max(0, 64 - 8 * size))


@inner
def word_key(text: np.ndarray, begin: int, size: int, seed: np.uint64) -> tuple[np.uint64, np.uint64, np.uint64]:
    """What a word is looked up by: its first and second 8 bytes (hash and LONG if it has more), and a hash."""
    if size <= 16:
        first = eight_bytes(text, begin) & first_bytes(size)
        second = eight_bytes(text, begin + 8) & first_bytes(max(1, size - 8))
        if size <= 8:
            second = np.uint64(0)
    else:
        first = seed
        for place in range(0, size, 8):
            first = mixed(first, eight_bytes(text, begin + place) & first_bytes(size - place), seed)
        first |= np.uint64(1)
        second = LONG
    return first, second, mixed(first, second, seed)


@inner
def find_word(
    words: np.ndarray, first: np.uint64, second: np.uint64, mix: np.uint64,
    text: np.ndarray, begin: int, size: int, arena: np.ndarray,
) -> np.uint64:  # fmt: skip
    """The place in `words` of the word's slot, or of the empty slot where it belongs."""
    mask = np.uint64(len(words) - 1)
    slot = (mix * np.uint64(SLOT)) & mask
    while True:
        if words[slot] == first:
            held = words[slot + np.uint64(1)]
            if second != LONG:
                if held == second:
                    return slot
            elif held >= LONG and same_word(text, begin, size, arena, np.int64(held ^ LONG)):
                return slot
        elif words[slot] == 0:
            return slot
        slot = (slot + np.uint64(SLOT)) & mask


@inner
def same_word(text: np.ndarray, begin: int, size: int, arena: np.ndarray, start: int) -> bool:
    """Whether the word that begins at arena[start] and ends before a 0 is text[begin : begin + size]."""
    if start + size + 8 > len(arena) or arena[start + size] != 0:
        return False
    for place in range(0, size, 8):
        unlike = eight_bytes(text, begin + place) ^ eight_bytes(arena, start + place)
        if unlike & first_bytes(size - place) != 0:
            return False
    return True


@inner
def gram_slot(grams: np.ndarray, key: np.uint64, seed: np.uint64) -> np.uint64:
    """Where the search for a pair of terms begins."""
    return (mixed(key, np.uint64(0), seed) << np.uint64(1)) & np.uint64(len(grams) - 1)


@inner
def fetch_gram(grams: np.ndarray, key: np.uint64, seed: np.uint64) -> None:
    """Have a pair's slot loaded: the table of pairs is far larger than the processor's cache."""
    fetch(grams, gram_slot(grams, key, seed))


@inner
def find_gram(grams: np.ndarray, key: np.uint64, seed: np.uint64) -> np.uint64:
    """The place in `grams` of the slot of a pair of terms, or of the empty slot where it belongs."""
    slot = gram_slot(grams, key, seed)
    while grams[slot] != 0 and grams[slot] != key:
        slot = (slot + np.uint64(2)) & np.uint64(len(grams) - 1)
    return slot


@inner
def gram_key(parent: int, word: int) -> np.uint64:
    """An n-gram as one number that is not 0: the term without its last word, and that word."""
    return (np.uint64(parent) << _HALF | np.uint64(word)) + np.uint64(1)


@inner
def count_one(pairs: np.ndarray, begin: int, used: int, entry: np.uint64) -> tuple[np.uint64, int]:
    """Count a term for the text whose pairs begin at `begin`; its new entry in the table and the pairs used.

    There is no branch: whether a word was there before is what a processor guesses worst.
    """
    place = np.int64(entry & LOW)
    here = (place >= begin) & (place < used)
    place = np.uint64(place if here else used)
    now = pairs[place]
    seen = here & (now >> _HALF == entry >> _HALF)
    new = entry & ~LOW
    place = place if seen else np.uint64(used)
    pairs[place] = (now if seen else new) + np.uint64(1)
    return new | place, used + (0 if seen else 1)


@inner
def add_word(
    words: np.ndarray, slot: np.uint64, first: np.uint64, second: np.uint64, mix: np.uint64,
    text: np.ndarray, begin: int, size: int, nodes: np.ndarray, arena: np.ndarray, counts: np.ndarray,
) -> int:  # fmt: skip
    """Put a new word into its empty slot; DONE, or which array is full."""
    kept = counts[ARENA]
    if 2 * SLOT * (counts[WORDS] + 1) > len(words):
        return NO_WORDS
    if counts[NODES] == len(nodes):
        return NO_NODES
    if kept + size + 9 > len(arena):  # `same_word` reads eight bytes at a time
        return NO_ARENA
    for place in range(size):
        arena[kept + place] = text[begin + place]
    arena[kept + size] = 0
    words[slot] = first
    words[slot + np.uint64(1)] = second if second != LONG else LONG | np.uint64(kept)
    words[slot + np.uint64(2)] = np.uint64(counts[NODES]) << _HALF
    words[slot + np.uint64(3)] = mix
    nodes[counts[NODES]] = -1 - kept
    counts[ARENA] += size + 1
    counts[NODES] += 1
    counts[WORDS] += 1
    return DONE


@inner
def add_gram(grams: np.ndarray, slot: np.uint64, key: np.uint64, nodes: np.ndarray, counts: np.ndarray) -> int:
    """Put a new n-gram into its empty slot; DONE, or which array is full."""
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
    """See `TermTable.learn`. A text that did not fit is begun anew by the next call."""
    for row in range(len(starts)):
        size = fold(buffer, starts[row], ends[row], table, lowercase, text)
        if size < 0:
            return NEEDS_PYTHON, row, used
        runs = cut(text, size, edges)
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
            edges[length] = np.int64(entry >> _HALF)  # from here on the words' numbers, no longer their places
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
    """Number and count the n-grams of a text of so many words; what is full (or DONE) and the pairs used."""
    for place in range(length):
        latest[place] = own[place]
    for n in range(2, min(max_words, length) + 1):
        # latest[place] goes from the (n - 1)-gram that ends there to the n-gram that ends there
        for place in range(length - 1, n - 2, -1):
            ahead = max(place - AHEAD, 1)
            fetch_gram(grams, gram_key(latest[ahead - 1], own[ahead]), seed)
            key = gram_key(latest[place - 1], own[place])
            slot = find_gram(grams, key, seed)
            if grams[slot] == 0:
                status = add_gram(grams, slot, key, nodes, counts)
                if status != DONE:
                    return status, used
            entry = grams[slot + np.uint64(1)]
            if n >= min_words:
                entry, used = count_one(pairs, row_begin, used, entry)
                grams[slot + np.uint64(1)] = entry
            latest[place] = np.int64(entry >> _HALF)
    return DONE, used


@jit
def adopt_grams(
    keys: np.ndarray, done: int, numbers: np.ndarray, seed: np.uint64, grams: np.ndarray, nodes: np.ndarray,
    counts: np.ndarray,
) -> tuple[int, int]:  # fmt: skip
    """Put another table's n-grams from `done` on into this one and note their new numbers; why and where it stopped."""
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
def place_words(words: np.ndarray, larger: np.ndarray) -> None:
    """Put all words into a larger, empty table."""
    mask = np.uint64(len(larger) - 1)
    for old in range(0, len(words), SLOT):
        if words[old] != 0:
            slot = (words[old + 3] * np.uint64(SLOT)) & mask
            while larger[slot] != 0:
                slot = (slot + np.uint64(SLOT)) & mask
            for part in range(SLOT):
                larger[slot + np.uint64(part)] = words[old + part]


@jit
def place_grams(grams: np.ndarray, seed: np.uint64, larger: np.ndarray) -> None:
    """Put all n-grams into a larger, empty table."""
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
    for place in range(len(numbers)):
        node = numbers[place]
        end = ends[place]
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
            ends[place] = length
