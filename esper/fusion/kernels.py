"""Kernels for the images of small networks on a CPU, compiled by Numba: convolution, normalisation and pooling.

PyTorch's kernels for convolutions and batch norms vectorise over channels. A small host has fewer channels than a vector of the
CPU has elements, so most of the work is overhead: 16 convolutions from 1 to 2 channels on images of 8 x 8 reach only 6 GFLOP/s.
Here the samples of a batch lie next to each other in memory (see `batch_last`), and every loop runs over them.

Arrays are contiguous: features `[C, H, L]` or `[G, I, H, L]`, where L is the columns of an image times the samples of the batch,
column by column. A member's channels lie together, so groups are members, or parts of them.

All are in one file, since Numba keeps compiled code until the file of a function changes, whatever it calls.
"""

# M members, G groups, I inputs and O outputs of a group, C channels, H rows, W columns, L columns x samples, N places x samples,
# P places, B batch, K kernel size

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import njit, types
from numba.core import event, extending
from numba.core.extending import models, register_model

from esper.notices import notice

Given = ParamSpec("Given")
Result = TypeVar("Result")
Array = npt.NDArray[Any]
"""Numbers in single or double precision."""
Triple = tuple[int, int, int]
"""Three places in a flat array, or distances."""
CHUNK = 4096
"""Elements that are added in the precision of the data before their sum is added in double precision."""


def compiled(function: Callable[Given, Result], *, reordered: bool = True, inlined: bool = True) -> Callable[Given, Result]:
    """Return a function that Numba compiles on its first call.

    The compiled code is kept beside the source or in the user's cache, if one of them can be written to. Sums may be reordered,
    and products fused with them, if `reordered`; infinities and NaN are those of the formulas as written. Compiled functions are
    inlined into their callers: otherwise, the process that compiles a caller would link another copy of them than one that loads
    it, and may round differently.
    """
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "forceinline": inlined}
    options["fastmath"] = {"reassoc", "contract", "nsz"} if reordered else False
    decorate: Any = njit
    try:
        return decorate(cache=True, **options)(function)
    except RuntimeError:  # there is no place for it
        return decorate(**options)(function)


as_written = partial(compiled, reordered=False)
called = partial(compiled, reordered=False, inlined=False)
"""For functions whose order of additions is written out, so that all of their copies round alike; they compile once."""


@contextmanager
def announced() -> Generator[None]:
    """Announce if the body compiles kernels."""
    listener = _Announcer()
    event.register("numba:compile", listener)
    try:
        yield
    finally:
        event.unregister("numba:compile", listener)
        if listener.started:
            notice()


class _Announcer(event.Listener):
    started = False

    def on_start(self, event: event.Event) -> None:
        if not self.started:
            notice("compiling kernels for small convolutions", "(20 seconds, once per installation)")
        self.started = True

    def on_end(self, event: event.Event) -> None:
        pass


# ---- vectors: elements that stay in registers, so that a convolution reads and writes memory as little as possible


def _has_avx512() -> bool:
    try:
        return bool(get_host_cpu_features().get("avx512f"))
    except RuntimeError:  # the features of this CPU are unknown
        return False


LONG, SHORT = (64, 16) if _has_avx512() else (16, 8)
"""Elements of long and short vectors in single precision; half as many in double precision. Four long or twelve short sums fit
the CPU's registers, with what is added to them."""


class Vector(types.Type):
    """Numba's type of a vector."""

    def __init__(self, dtype: types.Float, floats: int) -> None:
        self.dtype, self.lanes = dtype, floats * 32 // dtype.bitwidth
        super().__init__(name=f"Vector({dtype}, {self.lanes})")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Vector) -> None:
        element = ir.FloatType() if fe_type.dtype == types.float32 else ir.DoubleType()
        super().__init__(dmm, fe_type, ir.VectorType(element, fe_type.lanes))


intrinsic: Any = extending.intrinsic
Generate = Callable[[Any, Any, Any, Any], Any]
"""Writes LLVM code: from Numba's context, the builder, the signature, and the arguments, to the result."""


def _place(context: Any, builder: Any, array_type: Any, array: Any, index: Any, vector: Any) -> Any:
    """Return the address of the vector that starts at an index of a flat array."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), vector.as_pointer())


def _loader(floats: int) -> Any:
    @intrinsic
    def load(typingctx: Any, array: Any, index: Any) -> tuple[Any, Generate]:
        """Return the elements of a flat array from an index on."""
        vector = Vector(array.dtype, floats)

        def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            place = _place(context, builder, array, given[0], given[1], context.get_value_type(vector))
            return builder.load(place, align=array.dtype.bitwidth // 8)

        return vector(array, types.intp), generate

    return load


def _length(floats: int) -> Any:
    @intrinsic
    def length(typingctx: Any, array: Any) -> tuple[Any, Generate]:
        """Return the length of a vector of an array's dtype."""

        def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            return context.get_constant(types.intp, Vector(array.dtype, floats).lanes)

        return types.intp(array), generate

    return length


def _filler(floats: int) -> Any:
    @intrinsic
    def fill(typingctx: Any, number: Any) -> tuple[Any, Generate]:
        """Return a vector of equal numbers."""
        vector = Vector(number, floats)

        def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            return _spread(builder, context.get_value_type(vector), given[0])

        return vector(number), generate

    return fill


_load, _load_short = _loader(LONG), _loader(SHORT)
_long, _short = _length(LONG), _length(SHORT)
_full, _full_short = _filler(LONG), _filler(SHORT)


@intrinsic
def _store(typingctx: Any, array: Any, index: Any, vector: Any) -> tuple[Any, Generate]:
    """Write a vector into a flat array from an index on."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        place = _place(context, builder, array, given[0], given[1], given[2].type)
        builder.store(given[2], place, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, vector), generate


def _spread(builder: Any, vector: Any, number: Any) -> Any:
    unknown, index = ir.Constant(vector, ir.Undefined), ir.IntType(32)
    first = builder.insert_element(unknown, number, ir.Constant(index, 0))
    return builder.shuffle_vector(first, unknown, ir.Constant(ir.VectorType(index, vector.count), [0] * vector.count))


@intrinsic
def _plus(typingctx: Any, total: Any, x: Any, y: Any) -> tuple[Any, Generate]:
    """Return a vector plus the product of a vector or a number and a vector."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        vector = given[0].type
        factor = given[1] if isinstance(x, Vector) else _spread(builder, vector, given[1])
        name = f"llvm.fmuladd.v{vector.count}{'f32' if vector.element == ir.FloatType() else 'f64'}"
        fused = builder.module.declare_intrinsic(name, (), ir.FunctionType(vector, [vector] * 3))
        return builder.call(fused, [factor, given[2], given[0]])

    return total(total, x, y), generate


@intrinsic
def _rectified(typingctx: Any, x: Any) -> tuple[Any, Generate]:
    """Return a vector with 0 in place of its negative elements; NaN stays."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        zero = ir.Constant(given[0].type, None)
        return builder.select(builder.fcmp_ordered("<", given[0], zero), zero, given[0])

    return x(x), generate


@intrinsic
def _total(typingctx: Any, x: Any) -> tuple[Any, Generate]:
    """Return the sum of a vector's elements."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        value, index = given[0], ir.IntType(32)
        while value.type.count > 1:
            half = value.type.count // 2
            unknown = ir.Constant(value.type, ir.Undefined)
            parts = (ir.Constant(ir.VectorType(index, half), [*range(start, start + half)]) for start in (0, half))
            value = builder.fadd(*(builder.shuffle_vector(value, unknown, part) for part in parts))
        return builder.extract_element(value, ir.Constant(index, 0))

    return x.dtype(x), generate


# ---- convolution


@compiled
def _copy(x: Array, out: Array) -> None:
    for j in range(len(out)):  # slices copy as fast, but the code for their errors takes seconds to compile
        out[j] = x[j]


@compiled
def _clear(out: Array) -> None:
    for j in range(len(out)):
        out[j] = 0


@compiled
def _padded(x: Array, margin: int, after: int) -> Array:
    """Return images `[I, H, L]`, flat, with `margin` zeros before each row and `after` behind it; a vector of zeros follows."""
    inputs, height, length = x.shape
    wide = margin + length + after
    out = np.empty(inputs * height * wide + _long(x), x.dtype)
    for c in range(inputs):
        for h in range(height):
            place = (c * height + h) * wide
            _clear(out[place : place + margin])
            _copy(x[c, h], out[place + margin : place + margin + length])
            _clear(out[place + margin + length : place + wide])
    _clear(out[inputs * height * wide :])
    return out


@compiled
def _filter_four(
    x: Array,
    start: int,
    steps: Triple,
    w: Array,
    shape: tuple[int, int, int, int],
    bias: Array,
    out: Array,
    at: int,
    step: int,
    rectify: bool,
) -> None:
    """Compute a vector of each of four outputs, which share what they read; see `_filter`.

    Args:
        w: flat weights, from those of the first output on.
        shape: inputs, first row of the kernel and the one after the last, size of the kernel.
    """
    inputs, first, last, size = shape
    other = inputs * size * size
    a, b, c, d = _full(bias[0]), _full(bias[1]), _full(bias[2]), _full(bias[3])
    for i in range(inputs):
        for k in range(first, last):
            place, q = start + i * steps[0] + (k - first) * steps[1], (i * size + k) * size
            for m in range(size):
                part = _load(x, place + m * steps[2])
                a = _plus(a, w[q + m], part)
                b = _plus(b, w[q + m + other], part)
                c = _plus(c, w[q + m + 2 * other], part)
                d = _plus(d, w[q + m + 3 * other], part)
    _store(out, at, _rectified(a) if rectify else a)
    _store(out, at + step, _rectified(b) if rectify else b)
    _store(out, at + 2 * step, _rectified(c) if rectify else c)
    _store(out, at + 3 * step, _rectified(d) if rectify else d)


@compiled
def _filter_two(
    x: Array,
    start: int,
    steps: Triple,
    w: Array,
    shape: tuple[int, int, int, int],
    bias: Array,
    out: Array,
    at: int,
    step: int,
    rectify: bool,
) -> None:
    """Compute a vector of each of two outputs, or of one twice; see `_filter`."""
    inputs, first, last, size = shape
    two = min(1, len(bias) - 1)
    other = two * inputs * size * size
    a, b = _full(bias[0]), _full(bias[two])
    for i in range(inputs):
        for k in range(first, last):
            place, q = start + i * steps[0] + (k - first) * steps[1], (i * size + k) * size
            for m in range(size):
                part = _load(x, place + m * steps[2])
                a = _plus(a, w[q + m], part)
                b = _plus(b, w[q + m + other], part)
    _store(out, at, _rectified(a) if rectify else a)
    _store(out, at + two * step, _rectified(b) if rectify else b)


@compiled
def _filter(
    x: Array,
    start: int,
    steps: Triple,
    weight: Array,
    rows: tuple[int, int],
    bias: Array,
    out: Array,
    at: int,
    step: int,
    n: int,
    rectify: bool,
) -> None:
    """Compute a row of each output: the bias plus the sum of the weights times inputs.

    Args:
        x: flat inputs, followed by a vector that may be read.
        start: place of the first input, in the first row of the kernel that is inside of the image.
        steps: from there to the next input, row and column of the kernel.
        weight: `[O, I, K, K]`.
        rows: first row of the kernel that is inside of the image, and the one after the last.
        bias: `[O]`.
        out: flat outputs, overwritten.
        at: place of the first output.
        step: from there to the next output.
        n: length of a row.
        rectify: if true, negative results are set to 0.
    """
    outputs, inputs, size, _ = weight.shape
    lanes, per_output, w = _long(x), inputs * size * size, weight.reshape(-1)
    short = n < lanes
    target, first, stride = (np.empty(outputs * lanes, out.dtype), 0, lanes) if short else (out, at, step)
    for block in range(0, n, lanes):
        j = 0 if short else min(block, n - lanes)
        for o in range(0, outputs - 3, 4):
            place, own = first + j + o * stride, w[o * per_output :]
            _filter_four(x, start + j, steps, own, (inputs, *rows, size), bias[o:], target, place, stride, rectify)
        for o in range(outputs - outputs % 4, outputs, 2):
            place, own = first + j + o * stride, w[o * per_output :]
            _filter_two(x, start + j, steps, own, (inputs, *rows, size), bias[o:], target, place, stride, rectify)
    if short:
        for o in range(outputs):
            _copy(target[o * lanes :], out[at + o * step : at + o * step + n])


@compiled
def convolve(x: Array, weight: Array, bias: Array, out: Array, batch: int, rectify: bool) -> None:
    """Convolve with square kernels of odd size, with stride 1 and zeros around the image.

    Args:
        x: `[G, I, H, L]`.
        weight: `[G, O, I, K, K]`.
        bias: `[G, O]`.
        out: `[G, O, H, L]`, overwritten.
        batch: B.
        rectify: if true, negative results are set to 0.
    """
    groups, _, height, length = x.shape
    outputs, size = weight.shape[1], weight.shape[3]
    pad, flat = size // 2, out.reshape(-1)
    wide = length + 2 * pad * batch
    for g in range(groups):
        images = _padded(x[g], pad * batch, pad * batch)
        for h in range(height):
            first, last = max(0, pad - h), min(size, height + pad - h)
            start, at = (h + first - pad) * wide, (g * outputs * height + h) * length
            steps, step = (height * wide, wide, batch), height * length
            _filter(images, start, steps, weight[g], (first, last), bias[g], flat, at, step, length, rectify)


@compiled
def mix(x: Array, weight: Array, bias: Array, out: Array, rectify: bool) -> None:
    """Mix channels, as a convolution with kernels of size 1 does.

    Args:
        x: `[G, I, N]`, N samples times places.
        weight: `[G, O, I]`.
        bias: `[G, O]`.
        out: `[G, O, N]`, overwritten.
        rectify: if true, negative results are set to 0.
    """
    groups, inputs, n = x.shape
    outputs, flat = weight.shape[1], out.reshape(-1)
    for g in range(groups):
        images = _padded(x[g].reshape(inputs, 1, n), 0, 0) if n < _long(x) else x[g].reshape(-1)
        maps = weight[g].reshape(outputs, inputs, 1, 1)
        _filter(images, 0, (n, 0, 0), maps, (0, 1), bias[g], flat, g * outputs * n, n, n, rectify)


@compiled
def _whole_vectors(x: Array) -> tuple[Array, int]:
    """Return `[C, N]`, flat, and the length of its rows, with zeros after each row so that it has whole short vectors."""
    channels, n = x.shape
    wide = n + -n % _short(x)
    if wide == n:
        return x.reshape(-1), n
    out = np.zeros(channels * wide, x.dtype)
    for c in range(channels):
        _copy(x[c], out[c * wide : c * wide + n])
    return out, wide


@called
def _dots_four(x: Array, places: Triple, y: Array, start: int, step: int, n: int, out: Array) -> None:
    """Add the scalar products of four rows of `y` and three of `x` to `[4, 3]`; see `_dots`."""
    zero = _full_short(x.dtype.type(0))
    a0, a1, a2, b0, b1, b2 = zero, zero, zero, zero, zero, zero
    c0, c1, c2, d0, d1, d2 = zero, zero, zero, zero, zero, zero
    for j in range(0, n, _short(x)):
        x0, x1, x2 = _load_short(x, places[0] + j), _load_short(x, places[1] + j), _load_short(x, places[2] + j)
        y0 = _load_short(y, start + j)
        a0, a1, a2 = _plus(a0, x0, y0), _plus(a1, x1, y0), _plus(a2, x2, y0)
        y1 = _load_short(y, start + step + j)
        b0, b1, b2 = _plus(b0, x0, y1), _plus(b1, x1, y1), _plus(b2, x2, y1)
        y2 = _load_short(y, start + 2 * step + j)
        c0, c1, c2 = _plus(c0, x0, y2), _plus(c1, x1, y2), _plus(c2, x2, y2)
        y3 = _load_short(y, start + 3 * step + j)
        d0, d1, d2 = _plus(d0, x0, y3), _plus(d1, x1, y3), _plus(d2, x2, y3)
    _add_totals(out, 0, a0, a1, a2)
    _add_totals(out, 1, b0, b1, b2)
    _add_totals(out, 2, c0, c1, c2)
    _add_totals(out, 3, d0, d1, d2)


@called
def _dots_two(x: Array, places: Triple, y: Array, start: int, step: int, n: int, out: Array) -> None:
    """Add the scalar products of two rows of `y` and three of `x` to `[2, 3]`; see `_dots`."""
    zero = _full_short(x.dtype.type(0))
    a0, a1, a2, b0, b1, b2 = zero, zero, zero, zero, zero, zero
    for j in range(0, n, _short(x)):
        x0, x1, x2 = _load_short(x, places[0] + j), _load_short(x, places[1] + j), _load_short(x, places[2] + j)
        y0, y1 = _load_short(y, start + j), _load_short(y, start + step + j)
        a0, a1, a2 = _plus(a0, x0, y0), _plus(a1, x1, y0), _plus(a2, x2, y0)
        b0, b1, b2 = _plus(b0, x0, y1), _plus(b1, x1, y1), _plus(b2, x2, y1)
    _add_totals(out, 0, a0, a1, a2)
    _add_totals(out, 1, b0, b1, b2)


@called
def _add_totals(out: Array, row: int, x0: Any, x1: Any, x2: Any) -> None:
    out[row, 0] += _total(x0)
    out[row, 1] += _total(x1)
    out[row, 2] += _total(x2)


@called
def _dots(x: Array, places: Triple, y: Array, start: int, step: int, n: int, out: Array) -> None:
    """Add the scalar products of rows of `y` and of three rows of `x`.

    Args:
        x: flat.
        places: of the three rows of `x`.
        y: flat.
        start: place of the first row of `y`.
        step: from there to the next.
        n: length of the rows, in whole short vectors.
        out: sums in double precision `[O, 3]`.
    """
    outputs = len(out)
    for o in range(0, outputs - 3, 4):
        _dots_four(x, places, y, start + o * step, step, n, out[o : o + 4])
    for o in range(outputs - outputs % 4, outputs - 1, 2):
        _dots_two(x, places, y, start + o * step, step, n, out[o : o + 2])
    if outputs % 2:
        pair = np.zeros((2, 3))
        _dots_two(x, places, y, start + (outputs - 1) * step, 0, n, pair)
        for m in range(3):
            out[outputs - 1, m] += pair[0, m]


@compiled
def convolve_weight(x: Array, grad: Array, out: Array, batch: int) -> None:
    """Compute the gradient of the weights of `convolve`.

    Args:
        x: `[G, I, H, L]`.
        grad: gradient of the outputs `[G, O, H, L]`.
        out: `[G, O, I, K, K]`, overwritten.
        batch: B.
    """
    groups, inputs, height, length = x.shape
    outputs, size = out.shape[1], out.shape[3]
    pad, band = size // 2, max(1, CHUNK // length)
    wide = length + 2 * pad * batch + -length % _short(x)  # the rows of gradients end with as many zeros
    triples = (size + 2) // 3
    total = np.empty((inputs, size, triples, outputs, 3), np.float64)
    for g in range(groups):
        images = _padded(x[g], pad * batch, wide - length - pad * batch)
        given, row = _whole_vectors(grad[g].reshape(outputs * height, length))
        total[:] = 0
        for top in range(0, height, band):
            for i in range(inputs):
                for k in range(size):
                    for m in range(triples):
                        second, third = min(3 * m + 1, size - 1) * batch, min(3 * m + 2, size - 1) * batch
                        for h in range(max(top, pad - k), min(top + band, height + pad - k, height)):
                            place = (i * height + h + k - pad) * wide
                            places = (place + 3 * m * batch, place + second, place + third)
                            _dots(images, places, given, h * row, height * row, row, total[i, k, m])
        for o in range(outputs):
            for i in range(inputs):
                for k in range(size):
                    for m in range(size):
                        out[g, o, i, k, m] = total[i, k, m // 3, o, m % 3]


@compiled
def mix_weight(x: Array, grad: Array, out: Array) -> None:
    """Compute the gradient of the weights of `mix` `[G, O, I]`, overwritten, from that of its results `[G, O, N]`."""
    groups, inputs, _ = x.shape
    outputs = out.shape[1]
    total = np.empty(((inputs + 2) // 3, outputs, 3), np.float64)
    for g in range(groups):
        values, row = _whole_vectors(x[g])
        given, _ = _whole_vectors(grad[g])
        total[:] = 0
        for start in range(0, row, CHUNK):
            for i in range(0, inputs, 3):
                second, third = min(i + 1, inputs - 1), min(i + 2, inputs - 1)
                places = (i * row + start, second * row + start, third * row + start)
                _dots(values, places, given, start, row, min(CHUNK, row - start), total[i // 3])
        for o in range(outputs):
            for i in range(inputs):
                out[g, o, i] = total[i // 3, o, i % 3]


# ---- norms


@compiled
def _sum(x: Array) -> float:
    total = x.dtype.type(0)
    for j in range(len(x)):
        total += x[j]
    return total


@compiled
def channel_sums(x: Array, out: Array) -> None:
    """Sum `[C, N]` over N into `[C]`."""
    for c in range(x.shape[0]):
        total = 0.0
        for start in range(0, x.shape[1], CHUNK):
            total += _sum(x[c, start : start + CHUNK])
        out[c] = total


@compiled
def _product(x: Array, y: Array) -> float:
    total = x.dtype.type(0)
    for j in range(len(x)):
        total += x[j] * y[j]
    return total


@compiled
def _squares(x: Array, centre: float) -> float:
    total = x.dtype.type(0)
    for j in range(len(x)):
        total += (x[j] - centre) * (x[j] - centre)
    return total


@compiled
def _moments(x: Array) -> tuple[float, float]:
    """Return mean and variance of `[N]`, which is read from memory once.

    Chan, Golub and LeVeque, "Algorithms for computing the sample variance", 1983.
    """
    total, squares = 0.0, 0.0
    for start in range(0, len(x), CHUNK):
        part = x[start : start + CHUNK]
        count, added = len(part), float(_sum(part))
        squares += _squares(part, x.dtype.type(added / count))
        if start:
            apart = added / count - total / start
            squares += apart * apart * start * count / (start + count)
        total += added
    return total / len(x), squares / len(x)


@compiled
def normalise_channels(
    x: Array, weight: Array, bias: Array, out: Array, mean: Array, var: Array, eps: float, rectify: bool
) -> None:
    """Normalise each channel over the samples and places of a batch, as batch norm does in training.

    Args:
        x: `[C, N]`, N samples times places.
        weight: `[C]`.
        bias: `[C]`.
        out: `[C, N]`, overwritten.
        mean: mean of each channel `[C]`, overwritten.
        var: biased variance of each channel `[C]`, overwritten.
        eps: added to the variance.
        rectify: if true, negative results are set to 0.
    """
    for c in range(x.shape[0]):
        mean[c], var[c] = _moments(x[c])
        scale, shift = _affine(x, weight[c], bias[c], mean[c], var[c], eps)
        _scaled(x[c], scale, shift, out[c], rectify)


@compiled
def _affine(x: Array, weight: float, bias: float, mean: float, var: float, eps: float) -> tuple[float, float]:
    """Return scale and shift of a normalised channel, in the precision of `x`."""
    scale = x.dtype.type(weight / np.sqrt(var + eps))
    return scale, x.dtype.type(bias - mean * scale)


@compiled
def _scaled(x: Array, scale: float, shift: float, out: Array, rectify: bool) -> None:
    zero = x.dtype.type(0)
    if rectify:
        for j in range(len(x)):
            y = x[j] * scale + shift
            out[j] = zero if y < zero else y  # NaN stays
    else:
        for j in range(len(x)):
            out[j] = x[j] * scale + shift


@compiled
def normalise_channels_backward(
    grad: Array,
    x: Array,
    weight: Array,
    bias: Array,
    mean: Array,
    var: Array,
    eps: float,
    rectify: bool,
    grad_x: Array,
    grad_weight: Array,
    grad_bias: Array,
) -> None:
    """Compute the gradients of `normalise_channels`: of x `[C, N]`, weight `[C]` and bias `[C]`, all overwritten.

    Which results a ReLU set to 0 is computed again, which is faster than reading the results.

    Args:
        grad: gradient of the results `[C, N]`.
    """
    for c in range(x.shape[0]):
        count, inverse, centre = x.shape[1], 1.0 / np.sqrt(var[c] + eps), x.dtype.type(mean[c])
        a, b = _affine(x, weight[c], bias[c], mean[c], var[c], eps)
        total, product = 0.0, 0.0
        for start in range(0, count, CHUNK):
            part = slice(start, start + CHUNK)
            if rectify:
                p, q = _sums_rectified(grad[c, part], x[c, part], a, b, centre)
            else:
                p, q = _sums(grad[c, part], x[c, part], centre)
            total += p
            product += q
        grad_bias[c], grad_weight[c] = total, product * inverse
        scale = weight[c] * inverse
        slope = -scale * product * inverse * inverse / count
        shift = -scale * total / count - slope * mean[c]
        one = x.dtype.type
        if rectify:
            _combined_rectified(grad[c], x[c], a, b, one(scale), one(slope), one(shift), grad_x[c])
        else:
            _combined(grad[c], x[c], one(scale), one(slope), one(shift), grad_x[c])


@compiled
def _sums(grad: Array, x: Array, centre: float) -> tuple[float, float]:
    total, product = x.dtype.type(0), x.dtype.type(0)
    for j in range(len(x)):
        total += grad[j]
        product += grad[j] * (x[j] - centre)
    return total, product


@compiled
def _sums_rectified(grad: Array, x: Array, a: float, b: float, centre: float) -> tuple[float, float]:
    """Return the sums of a gradient, and of its product with `x`, where a * x + b is positive."""
    zero = x.dtype.type(0)
    total, product = zero, zero
    for j in range(len(x)):
        g = zero if x[j] * a + b <= zero else grad[j]
        total += g
        product += g * (x[j] - centre)
    return total, product


@compiled
def _combined(grad: Array, x: Array, scale: float, slope: float, shift: float, out: Array) -> None:
    for j in range(len(x)):
        out[j] = scale * grad[j] + slope * x[j] + shift


@compiled
def _combined_rectified(grad: Array, x: Array, a: float, b: float, scale: float, slope: float, shift: float, out: Array) -> None:
    zero = x.dtype.type(0)
    for j in range(len(x)):
        g = zero if x[j] * a + b <= zero else grad[j]
        out[j] = scale * g + slope * x[j] + shift


@compiled
def normalise_groups(
    x: Array, weight: Array, bias: Array, out: Array, mean: Array, inverse: Array, eps: float, rectify: bool
) -> None:
    """Normalise each sample's groups of channels over the group and all places, as group norm does.

    Args:
        x: `[G, I, P, B]`, P places.
        weight: `[G, I]`.
        bias: `[G, I]`.
        out: `[G, I, P, B]`, overwritten.
        mean: mean of each group `[G, B]`, overwritten.
        inverse: reciprocal of the standard deviation `[G, B]`, overwritten.
        eps: added to the variance.
        rectify: if true, negative results are set to 0.
    """
    groups, inputs, places, batch = x.shape
    one = x.dtype.type
    for g in range(groups):
        centre, scale = mean[g], inverse[g]
        centre[:] = 0
        scale[:] = 0
        for c in range(inputs):
            for p in range(places):
                _add(centre, x[g, c, p])
        for b in range(batch):
            centre[b] /= inputs * places
        for c in range(inputs):
            for p in range(places):
                _add_square(scale, x[g, c, p], centre)
        for b in range(batch):
            scale[b] = one(1) / np.sqrt(scale[b] / (inputs * places) + one(eps))
        for c in range(inputs):
            for p in range(places):
                _normalised(x[g, c, p], centre, scale, weight[g, c], bias[g, c], out[g, c, p], rectify)


@compiled
def _add(out: Array, x: Array) -> None:
    for b in range(len(out)):
        out[b] += x[b]


@compiled
def _add_square(out: Array, x: Array, centre: Array) -> None:
    for b in range(len(out)):
        out[b] += (x[b] - centre[b]) * (x[b] - centre[b])


@compiled
def _normalised(x: Array, centre: Array, scale: Array, weight: float, bias: float, out: Array, rectify: bool) -> None:
    zero = x.dtype.type(0)
    if rectify:
        for b in range(len(x)):
            y = (x[b] - centre[b]) * scale[b] * weight + bias
            out[b] = zero if y < zero else y  # NaN stays
    else:
        for b in range(len(x)):
            out[b] = (x[b] - centre[b]) * scale[b] * weight + bias


@compiled
def normalise_groups_backward(
    grad: Array,
    x: Array,
    out: Array,
    weight: Array,
    mean: Array,
    inverse: Array,
    rectify: bool,
    grad_x: Array,
    grad_weight: Array,
    grad_bias: Array,
) -> None:
    """Compute the gradients of `normalise_groups`: of x `[G, I, P, B]`, weight `[G, I]` and bias `[G, I]`, all overwritten.

    Args:
        grad: gradient of the results `[G, I, P, B]`.
        out: the results; read only if `rectify`.
    """
    groups, inputs, places, batch = x.shape
    total, product = np.empty(batch, x.dtype), np.empty(batch, x.dtype)
    part, slope = np.empty(batch, x.dtype), np.empty(batch, x.dtype)
    for g in range(groups):
        total[:] = 0
        product[:] = 0
        for c in range(inputs):
            part[:] = 0
            slope[:] = 0
            for p in range(places):
                _add_group_sums(grad[g, c, p], x[g, c, p], out[g, c, p], mean[g], rectify, part, slope)
            grad_bias[g, c], grad_weight[g, c] = _sum(part), _product(slope, inverse[g])
            for b in range(batch):
                total[b] += weight[g, c] * part[b]
                product[b] += weight[g, c] * slope[b]
        for b in range(batch):
            total[b] /= inputs * places
            product[b] *= inverse[g, b] * inverse[g, b] / (inputs * places)
        for c in range(inputs):
            for p in range(places):
                _group_gradient(
                    grad[g, c, p],
                    x[g, c, p],
                    out[g, c, p],
                    mean[g],
                    inverse[g],
                    weight[g, c],
                    total,
                    product,
                    rectify,
                    grad_x[g, c, p],
                )


@compiled
def _add_group_sums(grad: Array, x: Array, out: Array, centre: Array, rectify: bool, total: Array, product: Array) -> None:
    zero = x.dtype.type(0)
    if rectify:
        for b in range(len(x)):
            g = zero if out[b] <= zero else grad[b]
            total[b] += g
            product[b] += g * (x[b] - centre[b])
    else:
        for b in range(len(x)):
            total[b] += grad[b]
            product[b] += grad[b] * (x[b] - centre[b])


@compiled
def _group_gradient(
    grad: Array,
    x: Array,
    y: Array,
    centre: Array,
    scale: Array,
    weight: float,
    total: Array,
    product: Array,
    rectify: bool,
    out: Array,
) -> None:
    zero = x.dtype.type(0)
    if rectify:
        for b in range(len(x)):
            g = zero if y[b] <= zero else grad[b]
            out[b] = scale[b] * (g * weight - total[b] - (x[b] - centre[b]) * product[b])
    else:
        for b in range(len(x)):
            out[b] = scale[b] * (grad[b] * weight - total[b] - (x[b] - centre[b]) * product[b])


# ---- pooling


@compiled
def pool(x: Array, out: Array, place: npt.NDArray[np.uint8]) -> None:
    """Take the maximum of every 2 x 2 places; an odd row or column at the end is left out.

    Args:
        x: `[C, H, W, B]`.
        out: `[C, H // 2, W // 2, B]`, overwritten.
        place: which of the four is the maximum, row by row, overwritten.
    """
    channels, height, width, _ = out.shape
    for c in range(channels):
        for h in range(height):
            for w in range(width):
                top, low = x[c, 2 * h], x[c, 2 * h + 1]
                _maximum(top[2 * w], top[2 * w + 1], low[2 * w], low[2 * w + 1], out[c, h, w], place[c, h, w])


@compiled
def _maximum(x0: Array, x1: Array, x2: Array, x3: Array, out: Array, place: npt.NDArray[np.uint8]) -> None:
    for j in range(len(out)):
        best, k = x0[j], np.uint8(0)
        y = x1[j]
        later = (y > best) | (y != y)  # as in PyTorch, NaN is the maximum
        best, k = (y if later else best), (np.uint8(1) if later else k)
        y = x2[j]
        later = (y > best) | (y != y)
        best, k = (y if later else best), (np.uint8(2) if later else k)
        y = x3[j]
        later = (y > best) | (y != y)
        out[j], place[j] = (y if later else best), (np.uint8(3) if later else k)


@compiled
def pool_backward(grad: Array, place: npt.NDArray[np.uint8], grad_x: Array) -> None:
    """Compute the gradient of `pool` `[C, H, W, B]`, overwritten."""
    zero = grad.dtype.type(0)
    channels, height, width, _ = grad.shape
    for c in range(channels):
        for h in range(grad_x.shape[1]):
            for w in range(grad_x.shape[2]):
                part = grad_x[c, h, w]
                if h // 2 >= height or w // 2 >= width:
                    part[:] = 0
                    continue
                d, k, own = grad[c, h // 2, w // 2], place[c, h // 2, w // 2], np.uint8(2 * (h % 2) + w % 2)
                for j in range(len(part)):
                    part[j] = d[j] if k[j] == own else zero


# ---- blocks: one member's features fit into a cache, those of all do not, so each member goes through the whole block first


@compiled
def run_block(
    x: Array,
    place: npt.NDArray[np.uint8],
    given: Array,
    filters: Array,
    bias: Array,
    weight: Array,
    shift: Array,
    features: Array,
    out: Array,
    mean: Array,
    var: Array,
    running_mean: Array,
    running_var: Array,
    momentum: float,
    eps: float,
    pools: bool,
) -> None:
    """Compute a block: pooling (if `pools`), convolution, batch norm and ReLU.

    Args:
        x: `[M, I, H, W, B]` before pooling; read only if `pools`.
        place: see `pool`, overwritten if `pools`.
        given: inputs of the convolution `[M, I, H, W, B]`, overwritten if `pools`.
        filters: `[M, O, I, K, K]`.
        bias: of the convolution `[M, O]`.
        weight: of the norm `[M, O]`.
        shift: bias of the norm `[M, O]`.
        features: results of the convolution `[M, O, H, W, B]`, overwritten.
        out: results of the block `[M, O, H, W, B]`, overwritten.
        mean: mean of each channel `[M, O]`, overwritten.
        var: biased variance of each channel `[M, O]`, overwritten.
        running_mean: running mean `[M, O]`, updated.
        running_var: running variance `[M, O]`, updated with the unbiased one.
        momentum: weight of this batch in the running statistics.
        eps: added to the variance.
    """
    members, inputs, height, width, batch = given.shape
    outputs, length = filters.shape[1], height * width * batch
    unbiased = length / max(1, length - 1)
    for m in range(members):
        if pools:
            pool(x[m], given[m], place[m])
        own = slice(m, m + 1)
        rows = given[own].reshape(1, inputs, height, width * batch)
        convolve(rows, filters[own], bias[own], features[own].reshape(1, outputs, height, width * batch), batch, False)
        flat, results = features[m].reshape(outputs, length), out[m].reshape(outputs, length)
        normalise_channels(flat, weight[m], shift[m], results, mean[m], var[m], eps, True)
        for o in range(outputs):
            # so that an infinite value stays infinite, as in PyTorch
            running_mean[m, o] = (1 - momentum) * running_mean[m, o] + momentum * mean[m, o]
            running_var[m, o] = (1 - momentum) * running_var[m, o] + momentum * unbiased * var[m, o]


@compiled
def run_block_backward(
    grad: Array,
    given: Array,
    place: npt.NDArray[np.uint8],
    turned: Array,
    weight: Array,
    shift: Array,
    features: Array,
    mean: Array,
    var: Array,
    eps: float,
    pools: bool,
    wanted: bool,
    grad_x: Array,
    grad_filters: Array,
    grad_bias: Array,
    grad_weight: Array,
    grad_shift: Array,
) -> None:
    """Compute the gradients of `run_block`, all overwritten.

    Args:
        grad: gradient of its results `[M, O, H, W, B]`.
        turned: filters with inputs and outputs exchanged, turned by half a circle `[M, I, O, K, K]`.
        wanted: if false, `grad_x` is not computed.
    """
    members, inputs, height, width, batch = given.shape
    outputs, length = weight.shape[1], height * width * batch
    slope = np.empty((1, outputs, height, width * batch), grad.dtype)
    flat_slope = slope.reshape(outputs, length)
    before = np.empty((1, inputs, height, width * batch), grad.dtype)
    zero = np.zeros((1, inputs), grad.dtype)
    for m in range(members):
        own = slice(m, m + 1)
        flat, after = features[m].reshape(outputs, length), grad[m].reshape(outputs, length)
        affine, norm = (weight[m], shift[m]), (flat_slope, grad_weight[m], grad_shift[m])
        normalise_channels_backward(after, flat, *affine, mean[m], var[m], eps, True, *norm)
        rows = given[own].reshape(1, inputs, height, width * batch)
        convolve_weight(rows, slope, grad_filters[own], batch)
        grad_bias[m] = 0  # the norm removes any constant
        if wanted and pools:
            convolve(slope, turned[own], zero, before, batch, False)
            pool_backward(before.reshape(inputs, height, width, batch), place[m], grad_x[m])
        elif wanted:
            convolve(slope, turned[own], zero, grad_x[own].reshape(1, inputs, height, width * batch), batch, False)


# ---- rows: the features of a member are a row; results are those of the formulas as written, bit for bit


@as_written
def copy_rows(x: Array, places: Array, out: Array) -> None:
    """Copy the rows at these places of `x` `[M, K]` to the same places of `out`."""
    for m in places:
        out[m] = x[m]


@as_written
def take_rows(x: Array, places: Array, out: Array) -> None:
    """Set `out` `[L, K]` to the rows at these places of `x` `[M, K]`."""
    for index in range(len(places)):
        out[index] = x[places[index]]


@as_written
def take_scaled(x: Array, places: Array, scale: Array, out: Array) -> None:
    """Set `out` `[L, K]` to the rows at these places of `x` `[M, K]`, times `scale` `[L]`."""
    for index in range(len(places)):
        row, factor = x[places[index]], scale[index]
        for k in range(len(row)):
            out[index, k] = row[k] * factor


@as_written
def add_scaled(x: Array, part: Array, rows: Array, scale: Array, places: Array, out: Array) -> None:
    """Set `out` `[M, K]` at these places to `x` plus the given rows of `part` times `scale`; other places keep their values.

    Args:
        x: `[M, K]`.
        part: `[L, K]`.
        rows: a row of `part` for each place.
        scale: a factor for each place.
        places: rows of `x` and `out`.
        out: `[M, K]`.
    """
    for index in range(len(places)):
        row, other, factor, m = x[places[index]], part[rows[index]], scale[index], places[index]
        for k in range(len(row)):
            out[m, k] = row[k] + other[k] * factor
