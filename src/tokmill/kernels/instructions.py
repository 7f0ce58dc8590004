"""Steps that numba has no word for, as instructions of LLVM: each tells its type, and who emits them."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.core import cgutils

from tokmill.kernels.jit import LANES


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
