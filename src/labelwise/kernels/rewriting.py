"""Replace words of texts: number the words of each text, then write the replacements of the numbers.

What a word is replaced by is decided in Python, once per distinct word, between the two kernels.
"""

from __future__ import annotations

import numpy as np

from labelwise.kernels.jit import jit
from labelwise.kernels.terms import DONE, add_word, find_word, word_key
from labelwise.kernels.words import NEEDS_PYTHON, fold, is_one_character, split_words

_HALF = np.uint64(32)


@jit
def number_words(
    buffer: np.ndarray, starts: np.ndarray, ends: np.ndarray, table: np.ndarray, lowercase: int, seed: np.uint64,
    words: np.ndarray, nodes: np.ndarray, arena: np.ndarray, counts: np.ndarray, text: np.ndarray, edges: np.ndarray,
    numbers: np.ndarray, used: int, row_ends: np.ndarray,
) -> tuple[int, int, int]:  # fmt: skip
    """See `TermTable.number_words`. A text whose words did not fit is started again by the next call."""
    for row in range(len(starts)):
        size = fold(buffer, starts[row], ends[row], table, lowercase, text)
        if size < 0:
            return NEEDS_PYTHON, row, used
        row_begin = used
        for run in range(split_words(text, size, edges)):
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
            numbers[used] = np.int32(words[slot + np.uint64(2)] >> _HALF)
            used += 1
        row_ends[row] = used
    return DONE, len(starts), used


@jit
def write_replacements(
    numbers: np.ndarray, row_ends: np.ndarray, starts: np.ndarray, ends: np.ndarray, replacements: np.ndarray,
    written: np.ndarray, buffer: np.ndarray, fill: bool,
) -> None:  # fmt: skip
    """Write where each text ends to `written` and, with `fill`, its words to `buffer`, each followed by a blank.

    The replacement of a word is replacements[starts[number] : ends[number]]; nothing is written for an empty one.
    """
    position = np.int64(0)
    begin = np.int64(0)
    for row in range(len(row_ends)):
        for index in range(begin, row_ends[row]):
            number = numbers[index]
            size = ends[number] - starts[number]
            if size == 0:
                continue
            if fill:
                for byte in range(size):
                    buffer[position + byte] = replacements[starts[number] + byte]
                buffer[position + size] = 32
            position += size + 1
        begin = row_ends[row]
        written[row] = position
