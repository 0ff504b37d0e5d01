"""The top labels of 32 documents by the sum of their buckets' scores, without computing most of the sums.

Each score becomes one byte: its distance to its table's best, in steps, rounded down, at most 255. The saturating sum
of these bytes, 32 documents at a time, is a lower bound of a label's distance to the best possible sum. Only labels
within a document's limit are scored exactly; limits fall as better labels are found. A row of the bytes is one vector,
so that a label costs one load per table. LLVM maps <32 x i8> to the vector instructions of the processor.

The same scan serves three aggregations: sum (mean, logits), minimum (LEAST), and median. For the last two a byte only
holds whether a score is below the threshold, and the limit is how many may be.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types, uint32
from numba.core import cgutils
from numba.extending import intrinsic

from labelwise.kernels.jit import inner, jit

LANES = 32
STEPS = 200
"""Steps from the upper bound to the threshold; the rest up to 255 allows for larger distances."""
SUM, LEAST, MEDIAN = 0, 1, 2
_BYTES, _BITS, _LONG = ir.VectorType(ir.IntType(8), LANES), ir.IntType(LANES), ir.IntType(64)
_UNROLL = 4


@intrinsic
def lanes_within(_context: Any, rows: Any, first: Any, tables: Any, stride: Any, bytes_: Any, limits: Any) -> Any:
    """Bits of the lanes whose bytes, summed over tables rows[first : first + tables], stay within their limits.

    Table t's bytes begin at t * stride rows of 32. After every four tables the loop ends if no lane is left.
    """
    signature = types.uint32(rows, types.int64, types.int64, types.int64, bytes_, limits)

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        buckets, source, limit_data = (
            context.make_array(signature.args[i])(context, builder, arguments[i]).data for i in (0, 4, 5)
        )
        first, tables, stride = arguments[1:4]
        vectors = builder.bitcast(source, _BYTES.as_pointer())
        limit = builder.load(builder.bitcast(limit_data, _BYTES.as_pointer()), align=1)
        add = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_BYTES, [_BYTES, _BYTES]), f"llvm.uadd.sat.v{LANES}i8"
        )
        buckets = builder.gep(buckets, [first])
        total = cgutils.alloca_once(builder, _BYTES)
        left = cgutils.alloca_once(builder, _BITS)
        builder.store(ir.Constant(_BYTES, [0] * LANES), total)
        builder.store(ir.Constant(_BITS, -1), left)

        def add_table(table: Any) -> None:
            bucket = builder.zext(builder.load(builder.gep(buckets, [table])), _LONG)
            row = builder.load(builder.gep(vectors, [builder.add(builder.mul(table, stride), bucket)]), align=1)
            builder.store(builder.call(add, [builder.load(total), row]), total)

        def update_left(loop: Any | None) -> None:
            bits = builder.bitcast(builder.icmp_unsigned("<=", builder.load(total), limit), _BITS)
            builder.store(bits, left)
            if loop is not None:
                with builder.if_then(builder.icmp_unsigned("==", bits, ir.Constant(_BITS, 0)), likely=False):
                    loop.do_break()

        shift = ir.Constant(_LONG, _UNROLL.bit_length() - 1)
        blocks = builder.ashr(tables, shift)
        with cgutils.for_range(builder, blocks) as loop:
            begin = builder.shl(loop.index, shift)
            for step in range(_UNROLL):
                add_table(builder.add(begin, ir.Constant(_LONG, step)))
            update_left(loop)
        rest = builder.shl(blocks, shift)
        any_left = builder.icmp_unsigned("!=", builder.load(left), ir.Constant(_BITS, 0))
        with builder.if_then(builder.and_(any_left, builder.icmp_signed("<", rest, tables))):
            with cgutils.for_range(builder, builder.sub(tables, rest)) as loop:
                add_table(builder.add(rest, loop.index))
            update_left(None)
        return builder.load(left)

    return signature, build


@jit
def highest(scores, first, out, non_finite):
    """out[table, lane] = the highest score of a table for 32 documents from `first` on.

    `non_finite` becomes non-zero for documents with a score that is not finite.
    """
    for lane in range(LANES):
        non_finite[lane] = 0
    for table in range(scores.shape[0]):
        tops = out[table]
        for lane in range(LANES):
            tops[lane] = scores[table, 0, first + lane]
        for bucket in range(scores.shape[1]):
            row = scores[table, bucket, first : first + LANES]
            for lane in range(LANES):
                tops[lane] = max(tops[lane], row[lane])
                non_finite[lane] += row[lane] - row[lane]


@jit
def as_bytes(scores, first, tops, steps, out):
    """Steps below the top, rounded down, for each table, bucket and lane; distances are multiplied by `steps`."""
    for table in range(scores.shape[0]):
        best = tops[table]
        for bucket in range(scores.shape[1]):
            row = scores[table, bucket, first : first + LANES]
            target = out[table, bucket]
            for lane in range(LANES):
                target[lane] = np.uint8(np.int32(min((best[lane] - row[lane]) * steps[lane], np.float32(255))))


@jit
def as_flags(scores, first, threshold, weight, out):
    """0 where a score reaches its document's threshold, else `weight`."""
    for table in range(scores.shape[0]):
        for bucket in range(scores.shape[1]):
            row = scores[table, bucket, first : first + LANES]
            target = out[table, bucket]
            for lane in range(LANES):
                target[lane] = np.uint8(0) if row[lane] >= threshold[lane] else np.uint8(weight)


@jit
def scan(rows, labels, begin, bytes_, active, limits, bounds, steps, scores, first, aggregation, scratch, best, ids):
    """Scan labels in order and keep the best of each lane, sorted, in `best` and `ids` [lanes, k].

    `rows` [labels, tables] are buckets; row i is label `labels[i]`, or `begin + i` if there are no `labels`. `bounds`
    is the upper bound of sums per lane, `steps` the factor of distances; both are for sums. `limits` are lowered during
    the scan. `active` has a bit per lane in use, and `bytes_` no rows if all labels are to be scored. Returns how many
    were scored exactly.
    """
    tables = rows.shape[1]
    stride = scores.shape[1]
    flat, source = rows.reshape(-1), bytes_.reshape(-1)
    n_scored = 0
    for row in range(rows.shape[0]):
        left = active
        if len(source):
            left &= lanes_within(flat, row * tables, tables, stride, source, limits)
        while left:
            lane = _lowest_bit(left)
            left &= left - np.uint32(1)
            n_scored += 1
            label = labels[row] if len(labels) else begin + row
            score = exact_score(rows, row, scores, first + lane, aggregation, scratch)
            if not insert_best(score, label, best[lane], ids[lane]):
                continue
            if aggregation == SUM and best[lane, -1] > -np.inf:
                limits[lane] = min(limits[lane], limit_of(best[lane, -1], tables, bounds[lane], steps[lane]))
    return n_scored


@jit
def scan_one(rows, labels, begin, bytes_, limit, bound, step, scores, aggregation, scratch, best, ids):
    """`scan` for one document: `bytes_` [tables, buckets], `scores` [tables, buckets, 1], `best` and `ids` [k]."""
    tables = rows.shape[1]
    for row in range(rows.shape[0]):
        if len(bytes_):
            total = 0
            table = 0
            while table < tables and total <= limit:
                end = min(table + _UNROLL, tables)
                for one in range(table, end):
                    total += bytes_[one, rows[row, one]]
                table = end
            if total > limit:
                continue
        label = labels[row] if len(labels) else begin + row
        kept = insert_best(exact_score(rows, row, scores, 0, aggregation, scratch), label, best, ids)
        if kept and aggregation == SUM and best[-1] > -np.inf:
            limit = min(limit, np.int64(limit_of(best[-1], tables, bound, step)))
    return limit


@jit  # not `inner`: inlined, it slows the scan down
def exact_score(rows, row, scores, document, aggregation, scratch):
    """The mean, minimum or median score of a label's buckets, as float32."""
    tables = rows.shape[1]
    if aggregation == SUM:
        total = 0.0
        for table in range(tables):
            total += scores[table, rows[row, table], document]
        return np.float32(total / tables)
    for table in range(tables):
        scratch[table] = scores[table, rows[row, table], document]
    if aggregation == LEAST:
        return scratch[:tables].min()
    ordered = np.sort(scratch[:tables])
    half = tables // 2
    if tables % 2:
        return ordered[half]
    return np.float32((np.float64(ordered[half - 1]) + ordered[half]) / 2)


@jit
def all_scores(rows, scores, aggregation, begin, end, out):
    """out[document, i] = the exact score of the label in row i, for documents begin..end."""
    scratch = np.empty(rows.shape[1], np.float32)
    for document in range(begin, end):
        for row in range(rows.shape[0]):
            out[document, row] = exact_score(rows, row, scores, document, aggregation, scratch)


@jit
def limit_of(threshold, tables, bound, step):
    """The largest sum of a label's bytes with which its mean can reach `threshold`."""
    return np.uint8(min(max(distance_to(threshold, tables, bound) * step, 0.0), 254.0))


@jit
def distance_to(threshold, tables, bound):
    """How far a label's sum may be below `bound` if its mean is to reach `threshold`, with a tolerance for rounding."""
    return bound - threshold * tables + 1e-5 * (abs(bound) + abs(threshold) * tables) + 1e-30


@jit(inline="always")
def _lowest_bit(bits):
    index = 0
    while not (bits >> np.uint32(index)) & np.uint32(1):
        index += 1
    return index


@jit
def insert_best(score, label, best, ids):
    """Insert a label at its rank if it is among the best and not there yet; ties go to the lower label."""
    last = len(best) - 1
    if score < best[last] or (score == best[last] and (label >= ids[last] or ids[last] < 0)) or not score > -np.inf:
        return False
    rank = last
    while rank >= 0 and best[rank] <= score:
        if ids[rank] == label:
            return False
        rank -= 1
    rank = last
    while rank > 0 and (score > best[rank - 1] or (score == best[rank - 1] and label < ids[rank - 1])):
        best[rank], ids[rank] = best[rank - 1], ids[rank - 1]
        rank -= 1
    best[rank], ids[rank] = score, label
    return True


@jit
def score_members(rows, order, offsets, chosen, promising, scores, document, aggregation, scratch, best, ids):
    """Keep the best labels of the `chosen` buckets of the first table; the best by the first two tables are scored.

    `promising` is scratch whose size limits how many: a label's buckets are far apart in memory, so few are scored.
    """
    second = min(1, rows.shape[1] - 1)
    first_two = np.full(len(promising), -np.inf, np.float32)
    promising[:] = -1
    for bucket in chosen:
        for index in range(offsets[bucket], offsets[bucket + 1]):
            label = order[index]
            insert_best(
                scores[0, bucket, document] + scores[second, rows[label, second], document], label, first_two, promising
            )
    for label in promising:
        if label >= 0:
            insert_best(exact_score(rows, label, scores, document, aggregation, scratch), label, best, ids)


# --- bucket candidates ---
# Approximate decoding: labels in the best buckets of several tables, scored exactly.

MAX_HITS = 255
"""Maximum count of the tables that a label is found in: one byte."""


@jit
def best_candidates(scores, rows, order, offsets, chosen, hits, aggregation, counts, best, ids):
    """The best labels of one document among those in its chosen buckets of `hits` tables, or of fewer if too few.

    `scores` [tables, buckets, 1], `rows` [labels, tables], `order` and `offsets` the members of buckets, `chosen`
    [tables, n] the buckets, `counts` one byte per label, zero before and after. `best` and `ids` are the result.
    """
    tables = len(chosen)
    size = 0
    for table in range(tables):
        for bucket in chosen[table]:
            size += offsets[table, bucket + 1] - offsets[table, bucket]
    candidates = np.empty(size, np.int32)
    n_candidates = 0
    enough = np.zeros(tables + 1, np.int64)
    for table in range(tables):
        for bucket in chosen[table]:
            for index in range(offsets[table, bucket], offsets[table, bucket + 1]):
                label = order[table, index]
                if counts[label] == 0:
                    candidates[n_candidates] = label
                    n_candidates += 1
                if counts[label] < MAX_HITS:
                    counts[label] += 1
                    enough[counts[label]] += 1
    while hits > 1 and enough[hits] < len(best):
        hits -= 1
    scratch = np.empty(tables, np.float32)
    for index in range(n_candidates):
        label = candidates[index]
        if counts[label] >= hits:
            insert_best(exact_score(rows, label, scores, 0, aggregation, scratch), label, best, ids)
        counts[label] = 0


# --- least loaded ---
# Assign labels to the least loaded of their preferred buckets (the power of several choices).


@jit
def least_loaded(choices, order, n_buckets):
    """The bucket of each label: of its `choices` [labels, n], best first, the one with the fewest labels so far.

    Labels are assigned in the given order; ties go to the better bucket.
    """
    loads = np.zeros(n_buckets, np.int64)
    chosen = np.empty(len(choices), np.int64)
    for label in order:
        best = choices[label, 0]
        for bucket in choices[label, 1:]:
            if loads[bucket] < loads[best]:
                best = bucket
        chosen[label] = best
        loads[best] += 1
    return chosen


# --- murmur ---
# MurmurHash3 (32 bits, x86) of four-byte integers: the hash of feature hashing and of MACH's tables.


@jit
def murmur_buckets(first, count, seed, buckets, out):
    """out[i] = the signed hash of first + i, modulo buckets (never negative), for i in 0..count."""
    for index in range(count):
        out[index] = _signed(_hashed(uint32(first + index), uint32(seed))) % buckets


@jit(inline="always")
def _signed(number):
    return np.int64(number) - (np.int64(1) << 32) if number >= uint32(0x80000000) else np.int64(number)


@jit(inline="always")
def _rotated(number, bits):
    return uint32(uint32(number << uint32(bits)) | uint32(number >> uint32(32 - bits)))


@jit(inline="always")
def _hashed(key, seed):
    mixed = uint32(_rotated(uint32(key * uint32(0xCC9E2D51)), 15) * uint32(0x1B873593))
    state = uint32(uint32(_rotated(uint32(seed ^ mixed), 13) * uint32(5)) + uint32(0xE6546B64))
    state = uint32(state ^ uint32(4))
    state = uint32(uint32(state ^ uint32(state >> uint32(16))) * uint32(0x85EBCA6B))
    state = uint32(uint32(state ^ uint32(state >> uint32(13))) * uint32(0xC2B2AE35))
    return uint32(state ^ uint32(state >> uint32(16)))


# --- universal hash ---
# A 2-universal hash of consecutive integers: ((a x + b) mod p) mod buckets, with p below 2 ** 31.


@jit
def universal_rows(first, factors, shifts, prime, buckets, out):
    """out[i, t] = the bucket of first + i by a = factors[t] and b = shifts[t].

    From one integer to the next only a is added, modulo p. The last modulo uses a product with 1 / buckets: the
    quotient is exact or off by one, which the remainder shows.
    """
    tables = len(factors)
    mixed = np.empty(tables, np.int64)
    for table in range(tables):
        mixed[table] = (factors[table] * first + shifts[table]) % prime
    inverse = 1.0 / buckets
    for index in range(len(out)):
        row = out[index]
        for table in range(tables):
            number = mixed[table]
            rest = number - np.int64(number * inverse) * buckets
            rest += buckets if rest < 0 else 0
            rest -= buckets if rest >= buckets else 0
            row[table] = rest
            number += factors[table]
            mixed[table] = number - prime if number >= prime else number


# --- digit scan ---
# The k best codes by the sum of their digits' scores, one document after the other.


@jit
def best_codes(scores, radices, n_codes, best, codes, begin, end):
    """Write the best codes below `n_codes` of documents begin..end, best first, ties in order of codes.

    `scores` [documents, digits' values side by side], `best` and `codes` [documents, k] are the result; ranks that no
    finite score fills keep -inf and -1. After each digit the k best prefixes suffice: whatever follows them may follow
    any other. The one exception is the last prefix that has codes at all, which may lack some; it is always kept.
    """
    k, depth = best.shape[1], len(radices)
    kept, kept_nodes = np.empty(k + 1, np.float32), np.empty(k + 1, np.int64)
    found, found_nodes = np.empty(k, np.float32), np.empty(k, np.int64)
    for document in range(begin, end):
        place, first = np.int64(1), np.int64(0)
        for digit in range(depth):
            place *= radices[digit]
        kept[0], kept_nodes[0] = 0.0, 0
        n_kept = 1
        for digit in range(depth):
            radix = radices[digit]
            place //= radix
            n_nodes = (n_codes + place - 1) // place
            last = n_nodes - 1 if n_codes % place else n_nodes  # the prefix that lacks codes
            for rank in range(k):
                found[rank], found_nodes[rank] = -np.inf, -1
            last_score = np.float32(-np.inf)
            for prefix in range(n_kept):
                node = kept_nodes[prefix] * radix
                own = kept[prefix]
                count = min(radix, n_nodes - node)
                for value in range(count):
                    score = own + scores[document, first + value]
                    if node + value == last:
                        last_score = score
                    elif score >= found[k - 1]:
                        _insert(score, node + value, found, found_nodes)
            n_kept = 0
            for rank in range(k):
                if found_nodes[rank] >= 0:
                    kept[n_kept], kept_nodes[n_kept] = found[rank], found_nodes[rank]
                    n_kept += 1
            if last < n_nodes:
                kept[n_kept], kept_nodes[n_kept] = last_score, last
                n_kept += 1
            first += min(radix, n_nodes)
        for rank in range(n_kept):
            best[document, rank], codes[document, rank] = kept[rank], kept_nodes[rank]


@inner
def _insert(score, node, best, nodes):
    """Insert into a list sorted by score, then by node; NaN and -inf are never inserted."""
    rank = len(best) - 1
    if not (score > best[rank] or (score == best[rank] and score > -np.inf and node < nodes[rank])):
        return
    while rank > 0 and (score > best[rank - 1] or (score == best[rank - 1] and node < nodes[rank - 1])):
        best[rank], nodes[rank] = best[rank - 1], nodes[rank - 1]
        rank -= 1
    best[rank], nodes[rank] = score, node
