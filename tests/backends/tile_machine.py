"""Runs cutile's kernels on the CPU: a stand-in for `cuda.tile` whose arrays lie in host memory.

It takes what a launch passes, reads it by the documented layout of arguments, and executes every
block in turn with NumPy. It is strict where the hardware is silent: a tile that lies outside its
array, a promise of the signature that is broken, a store to an address that no call names.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unigemm.problem.dtypes import DType, numpy_dtype


@dataclass(frozen=True)
class Array:
    """An array parameter: a view of memory, by elements."""

    memory: np.ndarray
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def dtype(self):
        return self.memory.dtype

    def addresses(self, ranges):
        grid = np.ix_(*ranges)
        return self.offset + sum(i * step for i, step in zip(grid, self.strides, strict=True))

    def slice(self, axis, start, stop):
        length = self.shape[axis]
        assert 0 <= start < length and start <= stop <= length, f"{start}:{stop} of {length}"  # noqa: PT018
        shape = (*self.shape[:axis], int(stop - start), *self.shape[axis + 1 :])
        return Array(
            self.memory, self.offset + int(start) * self.strides[axis], shape, self.strides
        )

    def tiled_view(self, tile_shape, *, padding_mode=None, traversal_steps=None):
        return TiledView(self, tile_shape, padding_mode, traversal_steps or tile_shape)


@dataclass(frozen=True)
class TiledView:
    """An array in tiles that begin at multiples of steps, in bounds where they begin."""

    array: Array
    tile_shape: tuple[int, ...]
    padding_mode: str | None
    steps: tuple[int, ...]

    def num_tiles(self, axis):
        return -(-self.array.shape[axis] // self.steps[axis])

    def ranges(self, index):
        ranges = []
        for axis, i in enumerate(index):
            assert 0 <= i < self.num_tiles(axis), f"tile {index} lies outside {self}"
            begin = i * self.steps[axis]
            end = min(begin + self.tile_shape[axis], self.array.shape[axis])
            ranges.append(range(begin, end))
        return ranges

    def load(self, index, *, check_bounds=True, latency=None):
        assert self.padding_mode == "zero"
        assert latency is None or 1 <= latency <= 10
        ranges = self.ranges(index)
        assert check_bounds or tuple(map(len, ranges)) == self.tile_shape, "a tile is cut off"
        tile = np.zeros(self.tile_shape, self.array.dtype)
        tile[tuple(slice(len(r)) for r in ranges)] = self.array.memory[self.array.addresses(ranges)]
        return tile

    def store(self, index, tile, *, allow_tma=None):
        assert allow_tma in (None, False)
        assert (tile.dtype, tile.shape) == (self.array.dtype, self.tile_shape)
        ranges = self.ranges(index)
        self.array.memory[self.array.addresses(ranges)] = tile[tuple(slice(len(r)) for r in ranges)]


class Machine:
    """The names that the kernels use of `cuda.tile`."""

    class PaddingMode:
        ZERO = "zero"

    class RoundingMode:
        APPROX = FULL = "quick"

    class MemoryOrder:
        RELAXED = "relaxed"

    int8, int32, int64 = np.dtype(np.int8), np.dtype(np.int32), np.dtype(np.int64)
    float64, float32 = np.dtype(np.float64), np.dtype(np.float32)
    tfloat32 = np.dtype(np.float32)
    float8_e4m3fn = numpy_dtype(DType.FLOAT8_E4M3FN)
    float8_e5m2 = numpy_dtype(DType.FLOAT8_E5M2)

    static_iter = staticmethod(iter)

    @staticmethod
    def cdiv(a, b):
        return -(-a // b)

    @staticmethod
    def astype(number, dtype):
        if dtype.kind == "f":
            return dtype.type(number)
        limits = np.iinfo(dtype)
        assert np.all((limits.min <= number) & (number <= limits.max)), f"{number} is no {dtype}"
        return number.astype(dtype) if isinstance(number, np.ndarray) else number

    @staticmethod
    def zeros(shape, dtype):
        return np.zeros(shape, dtype)

    @staticmethod
    def static_eval(value):
        return value

    @staticmethod
    def load(array, index, shape, padding_mode=None, check_bounds=True, latency=None):
        view = array.tiled_view(shape, padding_mode=padding_mode)
        return view.load(index, check_bounds=check_bounds, latency=latency)

    @staticmethod
    def store(array, index, tile):
        array.tiled_view(tile.shape).store(index, tile)

    @staticmethod
    def gather(array, index, padding_value=0):
        there = (np.asarray(index) >= 0) & (np.asarray(index) < array.shape[0])
        found = array.memory[array.offset + np.where(there, index, 0)] if there.any() else 0
        found = np.where(there, found, padding_value).astype(array.dtype)
        return found if np.ndim(index) else array.dtype.type(found[()])

    @staticmethod
    def scatter(array, index, values, mask=True):
        index, values, mask = np.broadcast_arrays(index, values, mask)
        there = mask & (index >= 0) & (index < array.shape[0])
        array.memory[array.offset + index[there]] = values[there]

    @staticmethod
    def scan(tile, axis, function, identity):
        found = [identity]
        for each in tile:
            found.append(function(found[-1], each))
        assert axis == 0
        return np.array(found[1:], tile.dtype)

    cumsum, sum = staticmethod(np.cumsum), staticmethod(np.sum)

    @staticmethod
    def where(condition, tile, other):
        if np.ndim(condition) or not np.ndim(tile):
            return np.where(condition, tile, other)
        return tile if condition else np.full_like(tile, other)

    floor, ceil, exp, log, log2, sqrt = map(
        staticmethod, (np.floor, np.ceil, np.exp, np.log, np.log2, np.sqrt)
    )
    broadcast_to, full = staticmethod(np.broadcast_to), staticmethod(np.full)

    @staticmethod
    def exp2(tile, flush_to_zero=False):
        return np.exp2(tile)

    @staticmethod
    def tanh(tile, rounding_mode=None):
        return np.tanh(tile)

    @staticmethod
    def truediv(tile, other, rounding_mode=None):
        return tile / other

    @staticmethod
    def arange(size, dtype):
        return np.arange(size, dtype=dtype)

    @staticmethod
    def bitcast(tile, dtype):
        return np.ascontiguousarray(tile).view(dtype)

    @staticmethod
    def max(tile, axis=None):
        return np.max(tile, axis)

    @staticmethod
    def extract(tile, index, shape):
        parts = (slice(i * n, (i + 1) * n) for i, n in zip(index, shape, strict=True))
        return tile[tuple(parts)]

    @staticmethod
    def atomic_max(array, index, number, *, check_bounds, memory_order):
        at = array.offset + index
        array.memory[at] = max(array.memory[at], number)

    @staticmethod
    def abs(number):
        return abs(number)

    @staticmethod
    def minimum(number, other, propagate_nan=False):
        return np.minimum(number, other) if propagate_nan else np.fmin(number, other)

    @staticmethod
    def maximum(number, other, propagate_nan=False):
        return np.maximum(number, other) if propagate_nan else np.fmax(number, other)

    @staticmethod
    def transpose(tile):
        return tile.T

    @staticmethod
    def mma(x, y, total):
        wide = np.float64 if total.dtype.kind == "f" else np.int64
        return (total + x.astype(wide) @ y.astype(wide)).astype(total.dtype)


def take_array(arguments, memories, size, dtype, dimensions=4, alignment=None, single=False):
    """Read an array off the front of a call's arguments: address, extents, strides.

    All strides but the last keep the promised alignment, and the last is one, but where there is a
    single element.
    """
    address, *rest = (arguments.pop(0) for _ in range(1 + 2 * dimensions))
    shape, strides = tuple(rest[:dimensions]), tuple(rest[dimensions:])
    memory, base = memories[address >> 32], (address >> 32) << 32
    native = numpy_dtype(dtype)
    assert memory.dtype == native
    assert (address - base) % size == 0
    assert all(step > 0 and step * size % (alignment or size) == 0 for step in strides[:-1])
    assert strides[-1] == 1 or (single and shape[-2:] == (1, 1))
    return Array(memory, (address - base) // size, shape, strides)
