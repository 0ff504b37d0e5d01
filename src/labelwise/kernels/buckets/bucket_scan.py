"""The best labels of 32 documents by the sum of their buckets' scores, without working out most of the sums.

Each score becomes one byte: how far it is below its table's best, in steps, rounded down, at most 255. Added up with
saturation, 32 documents at a time, these bytes are a lower bound of how far a label is below the best that can be. Only
labels within a document's limit are looked at exactly; limits fall as better labels are found. A row of the bytes is
one vector, which makes a label as dear as one load a table. LLVM turns <32 x i8> into whatever the processor has.

The same scan serves three ways to put scores together: sums (mean, logits), the least, and the median. For the last two
a byte only says whether a score reaches what is wanted, and the limit is how many may not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from labelwise.kernels.jit import inner, jit

LANES = 32
STEPS = 200
"""Steps from the best that can be to what is wanted; the rest up to 255 is room for more."""
SUM, LEAST, MEDIAN = 0, 1, 2
_BYTES, _BITS, _LONG = ir.VectorType(ir.IntType(8), LANES), ir.IntType(LANES), ir.IntType(64)
_UNROLL = 4


@intrinsic
def lanes_within(_context: Any, rows: Any, first: Any, tables: Any, stride: Any, bytes_: Any, limits: Any) -> Any:
    """Bits of the lanes whose bytes, added over tables rows[first : first + tables], stay within their limits.

    Table t's bytes begin at t * stride rows of 32. After every four tables the search ends if no lane is left.
    """
    signature = types.uint32(rows, types.int64, types.int64, types.int64, bytes_, limits)

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        buckets, source, most = (
            context.make_array(signature.args[i])(context, builder, arguments[i]).data for i in (0, 4, 5)
        )
        first, tables, stride = arguments[1:4]
        vectors = builder.bitcast(source, _BYTES.as_pointer())
        limit = builder.load(builder.bitcast(most, _BYTES.as_pointer()), align=1)
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

        def look(loop: Any | None) -> None:
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
            look(loop)
        rest = builder.shl(blocks, shift)
        any_left = builder.icmp_unsigned("!=", builder.load(left), ir.Constant(_BITS, 0))
        with builder.if_then(builder.and_(any_left, builder.icmp_signed("<", rest, tables))):
            with cgutils.for_range(builder, builder.sub(tables, rest)) as loop:
                add_table(builder.add(rest, loop.index))
            look(None)
        return builder.load(left)

    return signature, build


@jit
def highest(scores, first, out, odd):
    """out[table, lane] = the highest score of a table for 32 documents from `first` on.

    Where a document has a score that is not finite, `odd` is not 0.
    """
    for lane in range(LANES):
        odd[lane] = 0
    for table in range(scores.shape[0]):
        tops = out[table]
        for lane in range(LANES):
            tops[lane] = scores[table, 0, first + lane]
        for bucket in range(scores.shape[1]):
            row = scores[table, bucket, first : first + LANES]
            for lane in range(LANES):
                tops[lane] = max(tops[lane], row[lane])
                odd[lane] += row[lane] - row[lane]


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
def as_flags(scores, first, wanted, weight, out):
    """0 where a score reaches what its document wants, else `weight`."""
    for table in range(scores.shape[0]):
        for bucket in range(scores.shape[1]):
            row = scores[table, bucket, first : first + LANES]
            target = out[table, bucket]
            for lane in range(LANES):
                target[lane] = np.uint8(0) if row[lane] >= wanted[lane] else np.uint8(weight)


@jit
def scan(rows, labels, begin, bytes_, active, limits, bounds, steps, scores, first, way, room, best, ids):
    """Look at labels one after the other and keep the best of each lane, sorted, in `best` and `ids` [lanes, k].

    `rows` [labels, tables] are buckets; row i is label `labels[i]`, or `begin + i` if there are no `labels`. `bounds`
    is the best sum that can be in each lane, `steps` what distances are multiplied by; both are for sums. `limits` are
    lowered on the way. `active` has a bit for each lane that counts, and `bytes_` no rows if all labels are to be
    looked at. Returns how many were looked at exactly.
    """
    tables = rows.shape[1]
    stride = scores.shape[1]
    flat, source = rows.reshape(-1), bytes_.reshape(-1)
    looked = 0
    for place in range(rows.shape[0]):
        left = active
        if len(source):
            left &= lanes_within(flat, place * tables, tables, stride, source, limits)
        while left:
            lane = _lowest_bit(left)
            left &= left - np.uint32(1)
            looked += 1
            label = labels[place] if len(labels) else begin + place
            score = exact_score(rows, place, scores, first + lane, way, room)
            if not _keep(score, label, best[lane], ids[lane]):
                continue
            if way == SUM and best[lane, -1] > -np.inf:
                limits[lane] = min(limits[lane], limit_of(best[lane, -1], tables, bounds[lane], steps[lane]))
    return looked


@jit
def scan_one(rows, labels, begin, bytes_, limit, bound, step, scores, way, room, best, ids):
    """The same for one document: `bytes_` [tables, buckets], `scores` [tables, buckets, 1], `best` and `ids` [k]."""
    tables = rows.shape[1]
    for place in range(rows.shape[0]):
        if len(bytes_):
            total = 0
            table = 0
            while table < tables and total <= limit:
                end = min(table + _UNROLL, tables)
                for one in range(table, end):
                    total += bytes_[one, rows[place, one]]
                table = end
            if total > limit:
                continue
        label = labels[place] if len(labels) else begin + place
        kept = _keep(exact_score(rows, place, scores, 0, way, room), label, best, ids)
        if kept and way == SUM and best[-1] > -np.inf:
            limit = min(limit, np.int64(limit_of(best[-1], tables, bound, step)))
    return limit


@inner
def exact_score(rows, place, scores, document, way, room):
    """The mean, least or median score of a label's buckets, as float32."""
    tables = rows.shape[1]
    if way == SUM:
        total = 0.0
        for table in range(tables):
            total += scores[table, rows[place, table], document]
        return np.float32(total / tables)
    for table in range(tables):
        room[table] = scores[table, rows[place, table], document]
    if way == LEAST:
        return room[:tables].min()
    ordered = np.sort(room[:tables])
    half = tables // 2
    if tables % 2:
        return ordered[half]
    return np.float32((np.float64(ordered[half - 1]) + ordered[half]) / 2)


@jit
def all_scores(rows, scores, way, begin, end, out):
    """out[document, i] = the exact score of the label in row i, for documents begin..end."""
    room = np.empty(rows.shape[1], np.float32)
    for document in range(begin, end):
        for place in range(rows.shape[0]):
            out[document, place] = exact_score(rows, place, scores, document, way, room)


@jit
def limit_of(wanted, tables, bound, step):
    """Steps that the bytes of a label may add up to if its mean is to reach `wanted`."""
    return np.uint8(min(max(distance_to(wanted, tables, bound) * step, 0.0), 254.0))


@jit
def distance_to(wanted, tables, bound):
    """How far a label's sum may be below `bound` if its mean is to reach `wanted`, with room for rounding."""
    return bound - wanted * tables + 1e-5 * (abs(bound) + abs(wanted) * tables) + 1e-30


@jit(inline="always")
def _lowest_bit(bits):
    place = 0
    while not (bits >> np.uint32(place)) & np.uint32(1):
        place += 1
    return place


@inner
def _keep(score, label, best, ids):
    """Put a label in its place if it is among the best and not there yet; equal scores go to the lower label."""
    last = len(best) - 1
    if score < best[last] or (score == best[last] and (label >= ids[last] or ids[last] < 0)) or not score > -np.inf:
        return False
    place = last
    while place >= 0 and best[place] <= score:
        if ids[place] == label:
            return False
        place -= 1
    place = last
    while place > 0 and (score > best[place - 1] or (score == best[place - 1] and label < ids[place - 1])):
        best[place], ids[place] = best[place - 1], ids[place - 1]
        place -= 1
    best[place], ids[place] = score, label
    return True


@jit
def look_at_members(rows, order, offsets, chosen, promising, scores, document, way, room, best, ids):
    """Keep the best labels of some chosen buckets of the first table; those that do well in the second are scored.

    `promising` is room for so many labels: a label's other tables are far apart in memory, so few are looked at.
    """
    second = min(1, rows.shape[1] - 1)
    first_two = np.full(len(promising), -np.inf, np.float32)
    promising[:] = -1
    for bucket in chosen:
        for place in range(offsets[bucket], offsets[bucket + 1]):
            label = order[place]
            _keep(
                scores[0, bucket, document] + scores[second, rows[label, second], document], label, first_two, promising
            )
    for label in promising:
        if label >= 0:
            _keep(exact_score(rows, label, scores, document, way, room), label, best, ids)
