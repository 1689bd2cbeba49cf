"""A tensor that knows where its elements lie instead of holding them.

transformers' own loading code renames keys and converts weights (`convert_and_load_state_dict_in_model`); run on these
tensors it moves no byte, and leaves parameters that say which bytes they are made of. Operations that only move
elements keep an `extent`, so that a rank can read its own part; any other operation is recorded and repeated on the
whole stored tensors when the values are needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch.utils._pytree import tree_map_only

from zerotune.loading import extents
from zerotune.loading.extents import Extent, Stored

aten = torch.ops.aten
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}


class LazyTensor(torch.Tensor):
    """Shape, type and origin of a weight.

    Attributes:
        extent: where its elements lie; None when they must be computed.
        origin: (operation, args, kwargs, which of its outputs) that makes it; None for a stored tensor.
    """

    compare: Callable[[LazyTensor, LazyTensor], bool] | None = None

    @staticmethod
    def __new__(cls, shape, dtype, extent: Extent | None, origin: tuple | None):
        made = torch.Tensor._make_wrapper_subclass(cls, tuple(shape), dtype=dtype, device="cpu")
        made.extent, made.origin = extent, origin
        return made

    def __repr__(self):
        return f"LazyTensor({tuple(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if operation is aten.equal.default:
            return cls.compare(*args)
        shapes = tree_map_only(LazyTensor, lambda one: torch.empty(one.shape, dtype=one.dtype, device="meta"), args)
        without_device = {key: value for key, value in kwargs.items() if key not in ("device", "pin_memory")}
        outcome = operation(*shapes, **without_device)
        outputs = outcome if isinstance(outcome, list | tuple) else [outcome]
        places = _places(operation, args, kwargs, outputs)
        made = [
            LazyTensor(one.shape, one.dtype, place, (operation, args, without_device, index))
            for index, (one, place) in enumerate(zip(outputs, places, strict=True))
        ]
        return type(outcome)(made) if isinstance(outcome, list | tuple) else made[0]


def stored(tensor: Stored) -> LazyTensor:
    """The tensor of a file."""
    return LazyTensor(tensor.shape, DTYPES[tensor.dtype], tensor, None)


@contextlib.contextmanager
def comparing(compare: Callable[[LazyTensor, LazyTensor], bool]) -> Iterator[None]:
    """Inside, `torch.equal` of two lazy tensors asks `compare`."""
    LazyTensor.compare = staticmethod(compare)
    try:
        yield
    finally:
        LazyTensor.compare = None


def evaluate(lazy: LazyTensor, read: Callable[[Stored], torch.Tensor]) -> torch.Tensor:
    """The values, made from whole stored tensors.

    Args:
        read: gives a stored tensor.
    """
    if lazy.origin is None:
        return read(lazy.extent)
    operation, args, kwargs, index = lazy.origin
    args = tree_map_only(LazyTensor, lambda one: evaluate(one, read), args)
    if operation in _RESHAPES:  # a lazy tensor is always row-major, a real one may have been transposed
        return args[0].reshape(args[1])
    outcome = operation(*args, **kwargs)
    return outcome[index] if isinstance(outcome, list | tuple) else outcome


def _places(operation, args, kwargs, outputs) -> list[Extent | None]:
    """Where the elements of each output lie; None for each when the operation computes."""
    unknown = [None] * len(outputs)
    inputs = args[0] if isinstance(args[0], list | tuple) else [args[0]]
    make = _STRUCTURE.get(operation)
    if make is None or not all(isinstance(one, LazyTensor) and one.extent is not None for one in inputs):
        return unknown
    return make([one.extent for one in inputs], args[1:], kwargs, [tuple(one.shape) for one in outputs]) or unknown


def _same(bases, args, kwargs, shapes):
    return bases


def _reshape(bases, args, kwargs, shapes):
    return [extents.Reshaped(bases[0], shapes[0])]


def _cat(bases, args, kwargs, shapes):
    dim = _argument(args, kwargs, 0, "dim", 0) % len(shapes[0])
    return [extents.Joined(bases, dim)]


def _stack(bases, args, kwargs, shapes):
    dim = _argument(args, kwargs, 0, "dim", 0) % len(shapes[0])
    one = (*bases[0].shape[:dim], 1, *bases[0].shape[dim:])
    return [extents.Joined([extents.Reshaped(base, one) for base in bases], dim)]


def _split(bases, args, kwargs, shapes):
    dim = _argument(args, kwargs, 1, "dim", 0) % len(shapes[0])
    begin, parts = 0, []
    for shape in shapes:
        parts.append(extents.Cut(bases[0], dim, begin, begin + shape[dim]))
        begin += shape[dim]
    return parts


def _unbind(bases, args, kwargs, shapes):
    dim = _argument(args, kwargs, 0, "dim", 0) % len(bases[0].shape)
    return [extents.Reshaped(extents.Cut(bases[0], dim, index, index + 1), shape) for index, shape in enumerate(shapes)]


def _select(bases, args, kwargs, shapes):
    dim, index = args[0] % len(bases[0].shape), args[1]
    index %= bases[0].shape[dim]
    return [extents.Reshaped(extents.Cut(bases[0], dim, index, index + 1), shapes[0])]


def _slice(bases, args, kwargs, shapes):
    dim = _argument(args, kwargs, 0, "dim", 0) % len(shapes[0])
    begin = _argument(args, kwargs, 1, "start", 0) or 0
    if _argument(args, kwargs, 3, "step", 1) != 1:
        return None
    begin = max(0, begin + bases[0].shape[dim]) if begin < 0 else min(begin, bases[0].shape[dim])
    return [extents.Cut(bases[0], dim, begin, begin + shapes[0][dim])]


def _transpose(bases, args, kwargs, shapes):
    dims = list(range(len(shapes[0])))
    first, second = args if args else (0, len(dims) - 1)
    dims[first], dims[second] = dims[second], dims[first]
    return [extents.Permuted(bases[0], tuple(dims))]


def _permute(bases, args, kwargs, shapes):
    return [extents.Permuted(bases[0], tuple(dim % len(shapes[0]) for dim in args[0]))]


def _argument(args, kwargs, position, name, default):
    return args[position] if len(args) > position else kwargs.get(name, default)


_RESHAPES = {aten.view.default, aten._unsafe_view.default}
_STRUCTURE = {
    **dict.fromkeys((aten.alias.default, aten.detach.default, aten.clone.default, aten._to_copy.default), _same),
    **dict.fromkeys((*_RESHAPES, aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims), _reshape),
    **dict.fromkeys((aten.split.Tensor, aten.split_with_sizes.default), _split),
    aten.cat.default: _cat,
    aten.stack.default: _stack,
    aten.unbind.int: _unbind,
    aten.select.int: _select,
    aten.slice.Tensor: _slice,
    aten.transpose.int: _transpose,
    aten.t.default: _transpose,
    aten.permute.default: _permute,
}
