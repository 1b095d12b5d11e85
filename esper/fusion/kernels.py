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
from numba import njit
from numba.core import event

from esper.notices import notice

Given = ParamSpec("Given")
Result = TypeVar("Result")
Array = npt.NDArray[Any]
"""Numbers in single or double precision."""
TILE = 1024
"""Elements of a row of outputs that are computed at once, so that they stay in the first cache."""
CHUNK = 4096
"""Elements that are added in the precision of the data before their sum is added in double precision."""


def compiled(function: Callable[Given, Result], *, reordered: bool = True) -> Callable[Given, Result]:
    """Return a function that Numba compiles on its first call.

    The compiled code is kept beside the source or in the user's cache, if one of them can be written to. Sums may be reordered,
    and products fused with them, if `reordered`; infinities and NaN are those of the formulas as written. Compiled functions are
    inlined into their callers: otherwise, the process that compiles a caller would link another copy of them than one that loads
    it, and may round differently.
    """
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "forceinline": True}
    options["fastmath"] = {"reassoc", "contract", "nsz"} if reordered else False
    decorate: Any = njit
    try:
        return decorate(cache=True, **options)(function)
    except RuntimeError:  # there is no place for it
        return decorate(**options)(function)


as_written = partial(compiled, reordered=False)


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


# ---- convolution


@compiled
def _add_1(out: Array, x: Array, w: Array, n: int) -> None:
    for j in range(n):
        out[j] += w[0] * x[j]


@compiled
def _add_3(out: Array, x0: Array, x1: Array, x2: Array, w: Array, n: int) -> None:
    a, b, c = w[0], w[1], w[2]
    for j in range(n):
        out[j] += a * x0[j] + b * x1[j] + c * x2[j]


@compiled
def _add_3_twice(out: Array, other: Array, x0: Array, x1: Array, x2: Array, w: Array, v: Array, n: int) -> None:
    a, b, c = w[0], w[1], w[2]
    d, e, f = v[0], v[1], v[2]
    for j in range(n):
        out[j] += a * x0[j] + b * x1[j] + c * x2[j]
        other[j] += d * x0[j] + e * x1[j] + f * x2[j]


@compiled
def _rectify(x: Array) -> None:
    zero = x.dtype.type(0)
    for j in range(len(x)):
        x[j] = zero if x[j] < zero else x[j]  # NaN stays


@compiled
def _padded(x: Array, pad: int, batch: int) -> Array:
    """Return images `[I, H, L]` with `pad` columns of zeros on the left and on the right."""
    inputs, height, length = x.shape
    out = np.empty((inputs, height, length + 2 * pad * batch), x.dtype)
    for c in range(inputs):
        for h in range(height):
            out[c, h, : pad * batch] = 0
            out[c, h, pad * batch : pad * batch + length] = x[c, h]
            out[c, h, pad * batch + length :] = 0
    return out


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
    groups, inputs, height, length = x.shape
    outputs, size = weight.shape[1], weight.shape[3]
    pad = size // 2
    for g in range(groups):
        wide = _padded(x[g], pad, batch)
        for h in range(height):
            for start in range(0, length, TILE):
                n = min(TILE, length - start)
                o = 0
                while o < outputs:
                    twice = size == 3 and o + 1 < outputs
                    y = out[g, o, h, start : start + n]
                    y[:] = bias[g, o]
                    z = out[g, o + twice, h, start : start + n]
                    if twice:
                        z[:] = bias[g, o + 1]
                    for c in range(inputs):
                        for k in range(max(0, pad - h), min(size, height + pad - h)):
                            row, w = wide[c, h + k - pad, start:], weight[g, o, c, k]
                            if twice:
                                _add_3_twice(y, z, row, row[batch:], row[2 * batch :], w, weight[g, o + 1, c, k], n)
                            elif size == 3:
                                _add_3(y, row, row[batch:], row[2 * batch :], w, n)
                            else:
                                for m in range(size):
                                    _add_1(y, row[m * batch :], w[m:], n)
                    if rectify:
                        _rectify(y)
                        _rectify(z)
                    o += 1 + twice


@compiled
def _dot(x: Array, y: Array, n: int) -> float:
    total = x.dtype.type(0)
    for j in range(n):
        total += x[j] * y[j]
    return total


@compiled
def _dot_3(x0: Array, x1: Array, x2: Array, y: Array, n: int) -> tuple[float, float, float]:
    zero = y.dtype.type(0)
    a, b, c = zero, zero, zero
    for j in range(n):
        a += x0[j] * y[j]
        b += x1[j] * y[j]
        c += x2[j] * y[j]
    return a, b, c


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
    pad = size // 2
    total = np.empty(size, np.float64)
    for g in range(groups):
        wide = _padded(x[g], pad, batch)
        for o in range(outputs):
            for c in range(inputs):
                for k in range(size):
                    total[:] = 0
                    for h in range(max(0, pad - k), min(height, height + pad - k)):
                        row, d = wide[c, h + k - pad], grad[g, o, h]
                        if size == 3:
                            p, q, r = _dot_3(row, row[batch:], row[2 * batch :], d, length)
                            total[0] += p
                            total[1] += q
                            total[2] += r
                        else:
                            for m in range(size):
                                total[m] += _dot(row[m * batch :], d, length)
                    out[g, o, c, k] = total


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
    groups, inputs, length = x.shape
    for g in range(groups):
        for start in range(0, length, TILE):
            n = min(TILE, length - start)
            for o in range(weight.shape[1]):
                y, w = out[g, o, start : start + n], weight[g, o]
                y[:] = bias[g, o]
                c = 0
                while c < inputs:
                    if c + 2 < inputs:
                        _add_3(y, x[g, c, start:], x[g, c + 1, start:], x[g, c + 2, start:], w[c:], n)
                        c += 3
                    else:
                        _add_1(y, x[g, c, start:], w[c:], n)
                        c += 1
                if rectify:
                    _rectify(y)


@compiled
def mix_weight(x: Array, grad: Array, out: Array) -> None:
    """Compute the gradient of the weights of `mix` `[G, O, I]`, overwritten, from that of its results `[G, O, N]`."""
    groups, inputs, length = x.shape
    for g in range(groups):
        out[g] = 0
        for start in range(0, length, CHUNK):
            n = min(CHUNK, length - start)
            for o in range(out.shape[1]):
                d = grad[g, o, start : start + n]
                c = 0
                while c < inputs:
                    if c + 2 < inputs:
                        p, q, r = _dot_3(x[g, c, start:], x[g, c + 1, start:], x[g, c + 2, start:], d, n)
                        out[g, o, c] += p
                        out[g, o, c + 1] += q
                        out[g, o, c + 2] += r
                        c += 3
                    else:
                        out[g, o, c] += _dot(x[g, c, start:], d, n)
                        c += 1


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
    """Return mean and variance of `[N]`."""
    mean, var = 0.0, 0.0
    for start in range(0, len(x), CHUNK):
        mean += _sum(x[start : start + CHUNK])
    mean /= len(x)
    for start in range(0, len(x), CHUNK):
        var += _squares(x[start : start + CHUNK], x.dtype.type(mean))
    return mean, var / len(x)


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
        scale = x.dtype.type(weight[c] / np.sqrt(var[c] + eps))
        _scaled(x[c], scale, x.dtype.type(bias[c] - mean[c] * scale), out[c], rectify)


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
    out: Array,
    weight: Array,
    mean: Array,
    var: Array,
    eps: float,
    rectify: bool,
    grad_x: Array,
    grad_weight: Array,
    grad_bias: Array,
) -> None:
    """Compute the gradients of `normalise_channels`: of x `[C, N]`, weight `[C]` and bias `[C]`, all overwritten.

    Args:
        grad: gradient of the results `[C, N]`.
        out: the results `[C, N]`; read only if `rectify`.
    """
    for c in range(x.shape[0]):
        count, inverse, centre = x.shape[1], 1.0 / np.sqrt(var[c] + eps), x.dtype.type(mean[c])
        total, product = 0.0, 0.0
        for start in range(0, count, CHUNK):
            part = slice(start, start + CHUNK)
            if rectify:
                p, q = _sums_rectified(grad[c, part], x[c, part], out[c, part], centre)
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
            _combined_rectified(grad[c], x[c], out[c], one(scale), one(slope), one(shift), grad_x[c])
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
def _sums_rectified(grad: Array, x: Array, out: Array, centre: float) -> tuple[float, float]:
    zero = x.dtype.type(0)
    total, product = zero, zero
    for j in range(len(x)):
        g = zero if out[j] <= zero else grad[j]
        total += g
        product += g * (x[j] - centre)
    return total, product


@compiled
def _combined(grad: Array, x: Array, scale: float, slope: float, shift: float, out: Array) -> None:
    for j in range(len(x)):
        out[j] = scale * grad[j] + slope * x[j] + shift


@compiled
def _combined_rectified(grad: Array, x: Array, y: Array, scale: float, slope: float, shift: float, out: Array) -> None:
    zero = x.dtype.type(0)
    for j in range(len(x)):
        g = zero if y[j] <= zero else grad[j]
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
    features: Array,
    out: Array,
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
        results, given_grad = out[m].reshape(outputs, length), grad[m].reshape(outputs, length)
        flat = features[m].reshape(outputs, length)
        normalise_channels_backward(
            given_grad, flat, results, weight[m], mean[m], var[m], eps, True, flat_slope, grad_weight[m], grad_shift[m]
        )
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
