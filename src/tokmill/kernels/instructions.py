"""Steps that numba has no word for, as instructions of LLVM: each tells its type, and who emits them."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.core import cgutils

from tokmill.kernels.jit import LANES

_EIGHT = 8  # numbers of a vector


@extending.intrinsic  # type: ignore[untyped-decorator]
def add_rows(_: Any, hidden: Any, units: Any, norms: Any, rows: Any, count: Any, lane: Any) -> Any:
    """hidden += norm x unit of each of the rows, in registers; numba's own loop keeps the sums in memory.

    llvm.fma rounds once on every CPU; where there is no such instruction (x86 before 2013)
    it calls the C library for each number, slow and right.
    """

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        arrays = [
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args[:4], arguments[:4], strict=True)
        ]
        hidden, units, norms, rows = (array.data for array in arrays)
        count, lane = arguments[4:]
        vector, wide, narrow = ir.VectorType(ir.FloatType(), LANES), ir.IntType(64), ir.IntType(32)
        add = ir.FunctionType(vector, [vector] * 3)
        add = cgutils.get_or_insert_function(builder.module, add, f"llvm.fma.v{LANES}f32")
        nothing = ir.Constant(vector, ir.Undefined)
        to_all = ir.Constant(ir.VectorType(narrow, LANES), [0] * LANES)
        place = builder.bitcast(builder.gep(hidden, [lane]), vector.as_pointer())
        total = cgutils.alloca_once_value(builder, builder.load(place, align=4))
        with cgutils.for_range(builder, count) as loop:
            row = builder.sext(builder.load(builder.gep(rows, [loop.index])), wide)
            norm = builder.load(builder.gep(norms, [row]))
            norm = builder.insert_element(nothing, norm, ir.Constant(narrow, 0))
            norm = builder.shuffle_vector(norm, nothing, to_all)
            unit = builder.gep(units, [builder.add(builder.mul(row, arrays[0].nitems), lane)])
            unit = builder.load(builder.bitcast(unit, vector.as_pointer()), align=4)
            builder.store(builder.call(add, [norm, unit, builder.load(total)]), total)
        builder.store(builder.load(total), place, align=4)
        return context.get_dummy_value()

    return types.void(hidden, units, norms, rows, types.intp, types.intp), emit


@extending.intrinsic  # type: ignore[untyped-decorator]
def ones(_: Any, bits: Any) -> Any:
    """How many bits are set."""

    def emit(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.ctpop(*arguments)

    return types.uint64(types.uint64), emit


@extending.intrinsic  # type: ignore[untyped-decorator]
def trailing_zeros(_: Any, bits: Any) -> Any:
    """Of a word that has a bit."""

    def emit(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], context.get_constant(types.boolean, True))

    return types.uint64(types.uint64), emit


@extending.intrinsic  # type: ignore[untyped-decorator]
def high_half(_: Any, a: Any, b: Any) -> Any:
    """Of the product of two words."""

    def emit(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        first, second = (builder.zext(value, wide) for value in arguments)
        product = builder.mul(first, second)
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), emit


@extending.intrinsic  # type: ignore[untyped-decorator]
def prefetch(_: Any, array: Any, at: Any) -> Any:
    """Its element is on its way into the cache, to be changed there; nothing waits for it."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        fetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        place = builder.bitcast(builder.gep(data, [arguments[1]]), byte)
        builder.call(fetch, [place, *(ir.Constant(number, value) for value in (1, 3, 1))])
        return context.get_dummy_value()

    return types.void(array, types.uint64), emit


@extending.intrinsic  # type: ignore[untyped-decorator]
def bucket_grams(
    _: Any,
    spelled: Any,
    start: Any,
    size: Any,
    least: Any,
    most: Any,
    buckets: Any,
    inverse: Any,
    first: Any,
    into: Any,
    held: Any,
) -> Any:
    """N-grams of `least` to `most` bytes that begin at eight places from `start` on, and end before `size`:
    FNV-1a of signed bytes, modulo `buckets`, `first` more, written to `into` from `held` on, where eight
    more than are written must fit. How many are held then.

    inverse    2^32 / buckets, so the quotient is at most 2 too small, as in a division by multiplication
    spelled    has eight bytes after `size`
    """

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        text, rows = (
            context.make_array(signature.args[k])(context, builder, arguments[k]).data for k in (0, 8)
        )
        start, size, least, most, buckets, inverse, first = arguments[1:8]
        word, narrow, byte = ir.IntType(64), ir.IntType(32), ir.IntType(8)
        words, states, bytes_ = (ir.VectorType(kind, _EIGHT) for kind in (word, narrow, byte))

        def to_all(value: Any, kind: Any) -> Any:
            nothing = ir.Constant(kind, ir.Undefined)
            one = builder.insert_element(nothing, value, ir.Constant(narrow, 0))
            return builder.shuffle_vector(
                one, nothing, ir.Constant(ir.VectorType(narrow, _EIGHT), [0] * _EIGHT)
            )

        def constant(kind: Any, value: int) -> Any:
            return ir.Constant(kind, [value] * _EIGHT)

        # both are below 2^32, and LLVM shall know it: then one instruction multiplies
        low = constant(words, (1 << 32) - 1)
        divisor, inverse = (builder.and_(to_all(value, words), low) for value in (buckets, inverse))
        first = to_all(first, words)
        state = cgutils.alloca_once_value(builder, constant(states, 2166136261))
        held = cgutils.alloca_once_value(builder, arguments[9])
        left = builder.sub(size, start)
        longest = builder.select(builder.icmp_signed("<", left, most), left, most)
        with cgutils.for_range(builder, longest) as loop:
            place = builder.gep(text, [builder.add(start, loop.index)])
            some = builder.load(builder.bitcast(place, bytes_.as_pointer()), align=1)
            mixed = builder.xor(builder.load(state), builder.sext(some, states))
            mixed = builder.mul(mixed, constant(states, 16777619))
            builder.store(mixed, state)
            with builder.if_then(builder.icmp_signed(">=", builder.add(loop.index, word(1)), least)):
                rest = builder.zext(mixed, words)
                quotient = builder.lshr(builder.mul(rest, inverse), constant(words, 32))
                rest = builder.sub(rest, builder.mul(quotient, divisor))
                for _ in range(2):
                    less = builder.sub(rest, divisor)
                    rest = builder.select(builder.icmp_signed("<", less, constant(words, 0)), rest, less)
                count = builder.load(held)
                into = builder.bitcast(builder.gep(rows, [count]), words.as_pointer())
                builder.store(builder.add(rest, first), into, align=8)
                more = builder.sub(left, loop.index)
                more = builder.select(builder.icmp_signed("<", more, word(_EIGHT)), more, word(_EIGHT))
                builder.store(builder.add(count, more), held)
        return builder.load(held)

    whole, some = types.intp, types.uint64
    return types.intp(spelled, whole, whole, whole, whole, some, some, whole, into, whole), emit


@extending.intrinsic  # type: ignore[untyped-decorator]
def add_eight(_: Any, sums: Any, at: Any, table: Any, rows: Any, count: Any, width: Any, lane: Any) -> Any:
    """sums[at:at + 8] += table[row * width + lane:][:8] of each of the rows, in registers."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        places = [
            context.make_array(signature.args[k])(context, builder, arguments[k]).data for k in (0, 2, 3)
        ]
        sums, table, rows = places
        at, count, width, lane = (arguments[k] for k in (1, 4, 5, 6))
        words, numbers = (ir.VectorType(ir.IntType(bits), _EIGHT).as_pointer() for bits in (64, 32))
        into = builder.bitcast(builder.gep(sums, [at]), words)
        total = cgutils.alloca_once_value(builder, builder.load(into, align=8))
        with cgutils.for_range(builder, count) as loop:
            row = builder.load(builder.gep(rows, [loop.index]))
            place = builder.gep(table, [builder.add(builder.mul(row, width), lane)])
            some = builder.load(builder.bitcast(place, numbers), align=4)
            some = builder.sext(some, ir.VectorType(ir.IntType(64), _EIGHT))
            builder.store(builder.add(builder.load(total), some), total)
        builder.store(builder.load(total), into, align=8)
        return context.get_dummy_value()

    whole = types.intp
    return types.void(sums, whole, table, rows, whole, whole, whole), emit


@extending.intrinsic  # type: ignore[untyped-decorator]
def word_ahead(_: Any, data: Any, at: Any) -> Any:
    """Of the 32 bytes at `at` those before the first that is 32 or less, as four words with zeros after them;
    first how many."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        text = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        word, narrow, byte = ir.IntType(64), ir.IntType(32), ir.IntType(8)
        bytes_, words = ir.VectorType(byte, 32), ir.VectorType(word, 4)
        some = builder.bitcast(builder.gep(text, [arguments[1]]), bytes_.as_pointer())
        some = builder.load(some, align=1)
        blanks = builder.icmp_unsigned("<=", some, ir.Constant(bytes_, [32] * 32))
        marks = builder.or_(builder.zext(builder.bitcast(blanks, narrow), word), word(1 << 32))
        size = builder.cttz(marks, context.get_constant(types.boolean, True))
        nothing = ir.Constant(bytes_, ir.Undefined)
        sizes = builder.insert_element(nothing, builder.trunc(size, byte), narrow(0))
        sizes = builder.shuffle_vector(sizes, nothing, ir.Constant(ir.VectorType(narrow, 32), [0] * 32))
        inside = builder.icmp_signed("<", ir.Constant(bytes_, list(range(32))), sizes)
        kept = builder.select(inside, some, ir.Constant(bytes_, [0] * 32))
        kept = builder.bitcast(kept, words)
        parts = [builder.extract_element(kept, narrow(k)) for k in range(4)]
        return context.make_tuple(builder, signature.return_type, [size, *parts])

    return types.UniTuple(types.uint64, 5)(data, types.uint64), emit
