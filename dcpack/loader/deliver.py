"""From a constructor to its model-parallel peers: one message a batch.

Without a spec the message is a tree (`dcpack.comm.broadcast_tree`) that says what is in it. With a spec all peers know
fields, dtypes and ranks of the arrays, and the message is bytes alone:

    int64[11] numbers of the batch | int64: the sizes that the spec leaves open | int64: sample ids | array 0 | ...

each array on a multiple of 16 bytes. An empty message is the end of the epoch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dcpack._checks import Int64Array
from dcpack.comm import Communicator, broadcast_tree
from dcpack.comm.guard import tell_failure
from dcpack.errors import ArgumentError
from dcpack.loader.batches import LoaderBatch
from dcpack.loader.roles import Roles
from dcpack.loader.specs import TensorFieldSpec

__all__ = ["Delivery", "check_batch_spec"]

_ALIGNMENT = 16
_NUMBERS = (
    *("epoch", "step", "microbatch", "num_microbatches", "num_valid_tokens", "global_valid_tokens"),
    *("cp_size", "cp_rank", "is_dummy"),
)
_HEAD = len(_NUMBERS) + 2  # and the first plan rank of the CP group, and how many sample ids there are
_STATIC = (type(None), bool, int, float, str)


def check_batch_spec(spec: Any, path: str = "model_batch_spec") -> None:
    """Refuse a spec that is no nested dict, list or tuple of `TensorFieldSpec` and static scalars.

    Raises:
        ArgumentError: says where.
    """
    if isinstance(spec, Mapping):
        for key, value in spec.items():
            if not isinstance(key, str):
                raise ArgumentError(f"{path} must be named by str, got {key!r}")
            check_batch_spec(value, f"{path}[{key!r}]")
    elif isinstance(spec, list | tuple):
        for number, value in enumerate(spec):
            check_batch_spec(value, f"{path}[{number}]")
    elif not isinstance(spec, TensorFieldSpec | bool | int | float | str) and spec is not None:
        raise ArgumentError(f"{path} must be a TensorFieldSpec, a static scalar or nested ones, got {spec!r}")


class Delivery:
    """Hands each batch of a constructor to its lane.

    Args:
        communicator: of the lane; the constructor is member 0.
        roles: who is where.
        rank: this global rank.
        spec: what batches look like, or None.
    """

    def __init__(self, communicator: Communicator, roles: Roles, rank: int, spec: Any = None) -> None:
        self._communicator = communicator
        self._roles = roles
        self._rank = rank
        self._spec = spec

    @property
    def is_constructor(self) -> bool:
        """Whether this rank hands out what others receive."""
        return self._communicator.rank == 0

    def deliver(self, batch: LoaderBatch | None) -> LoaderBatch | None:
        """Return the constructor's batch on every rank of the lane, or None at the end. Collective, one message.

        Args:
            batch: on the constructor; ignored elsewhere.

        Raises:
            PeerError: the batch cannot be sent, or does not fit the spec; on all ranks of the lane.
        """
        if self._communicator.size > 1:
            received = self._by_tree(batch) if self._spec is None else self._by_spec(batch)
            batch = batch if self.is_constructor else received
        return None if batch is None else self._placed(batch)

    def tell(self, error: BaseException) -> None:
        """Raise what went wrong on the constructor on all ranks of the lane, which wait for its batch."""
        self._communicator.agree(error)

    def _placed(self, batch: LoaderBatch) -> LoaderBatch:
        """Return the batch with the CP group of this rank rather than of the plan."""
        return batch.with_group(self._roles.cp_group(self._rank, batch.cp_ranks))

    # ---- with a header -------------------------------------------------------------------------------------------

    def _by_tree(self, batch: LoaderBatch | None) -> LoaderBatch | None:
        tree = None
        if batch is not None and self.is_constructor:
            tree = {"numbers": _numbers_of(batch), "ids": batch.sample_ids, "data": batch.data}
        received = broadcast_tree(self._communicator, tree, 0)
        return None if received is None else _batch_of(received["numbers"], received["ids"], received["data"])

    # ---- by the spec ---------------------------------------------------------------------------------------------

    def _by_spec(self, batch: LoaderBatch | None) -> LoaderBatch | None:
        message = None
        if self.is_constructor:
            with tell_failure(self._communicator):
                message = np.zeros(0, np.uint8) if batch is None else self._encode(batch)
        message = self._communicator.broadcast(message, 0)
        if self.is_constructor or len(message) == 0:
            return None
        with tell_failure(self._communicator):
            return self._decode(message)

    def _encode(self, batch: LoaderBatch) -> npt.NDArray[np.uint8]:
        leaves: list[tuple[str, TensorFieldSpec, Any]] = []
        _match(self._spec, batch.data, "batch", leaves)
        sizes: list[int] = []
        parts: list[npt.NDArray[np.uint8]] = []
        for path, spec, array in leaves:
            data, dtype, shape = self._communicator.to_wire(array)
            if not spec.fits(dtype, shape):
                wanted = f"{spec.dtype} {spec.shape}"
                raise ArgumentError(f"{path} must be {wanted} as model_batch_spec says, got {dtype} {shape}")
            sizes += [size for wanted, size in zip(spec.shape, shape, strict=True) if wanted is None]
            parts.append(self._communicator.from_wire(data, "uint8", (len(data),)))
        ids = batch.sample_ids
        head = np.array([*_numbers_of(batch), ids.size, *sizes, *ids.tolist()], np.int64).view(np.uint8)
        return np.concatenate([_padded(part) for part in (head, *parts)])

    def _decode(self, message: npt.NDArray[np.uint8]) -> LoaderBatch:
        open_sizes = _count_open(self._spec)
        fixed = message[: 8 * (_HEAD + open_sizes)].view(np.int64).tolist()
        num_ids = fixed[_HEAD - 1]
        end = 8 * (_HEAD + open_sizes + num_ids)
        ids = message[8 * (_HEAD + open_sizes) : end].view(np.int64).copy()
        reader = _SpecReader(self._communicator, message[_aligned(end) :], fixed[_HEAD:])
        return _batch_of(fixed[: _HEAD - 1], ids, reader.read(self._spec))


def _numbers_of(batch: LoaderBatch) -> list[int]:
    return [*(int(getattr(batch, name)) for name in _NUMBERS), batch.cp_ranks[0]]


def _batch_of(numbers: Sequence[int], ids: Int64Array, data: Any) -> LoaderBatch:
    values: dict[str, Any] = dict(zip(_NUMBERS, numbers, strict=False))
    first = numbers[-1]
    group = tuple(range(first, first + values["cp_size"]))  # a CP group is consecutive
    return LoaderBatch(**{**values, "is_dummy": bool(values["is_dummy"])}, cp_ranks=group, data=data, sample_ids=ids)


def _match(spec: Any, value: Any, path: str, leaves: list[tuple[str, TensorFieldSpec, Any]]) -> None:
    """Collect the arrays of a batch in the order of the spec; say where it does not fit."""
    if isinstance(spec, TensorFieldSpec):
        leaves.append((path, spec, value))
        return
    if isinstance(spec, Mapping):
        if not isinstance(value, Mapping) or list(value) != list(spec):
            raise ArgumentError(
                f"{path} must be a mapping with the keys {list(spec)} in that order, got {_shown(value)}"
            )
        for key, inner in spec.items():
            _match(inner, value[key], f"{path}[{key!r}]", leaves)
    elif isinstance(spec, list | tuple):
        if type(value) is not type(spec) or len(value) != len(spec):
            raise ArgumentError(f"{path} must be a {type(spec).__name__} of {len(spec)}, got {_shown(value)}")
        for number, inner in enumerate(spec):
            _match(inner, value[number], f"{path}[{number}]", leaves)
    elif type(value) is not type(spec) or value != spec:
        raise ArgumentError(f"{path} must be the static value {spec!r}, got {_shown(value)}")


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a mapping with the keys {list(value)}"
    return f"{value!r}" if isinstance(value, _STATIC) else f"a {type(value).__name__}"


def _count_open(spec: Any) -> int:
    """Return how many sizes a spec leaves open."""
    if isinstance(spec, TensorFieldSpec):
        return sum(size is None for size in spec.shape)
    if isinstance(spec, Mapping):
        return sum(_count_open(value) for value in spec.values())
    return sum(_count_open(value) for value in spec) if isinstance(spec, list | tuple) else 0


class _SpecReader:
    """Takes arrays from a message, in the order of the spec."""

    def __init__(self, communicator: Communicator, data: npt.NDArray[np.uint8], open_sizes: Sequence[int]) -> None:
        self._communicator = communicator
        self._data = data
        self._open = iter(open_sizes)
        self._at = 0

    def read(self, spec: Any) -> Any:
        """Return the value that `spec` describes."""
        if isinstance(spec, TensorFieldSpec):
            return self._array(spec)
        if isinstance(spec, Mapping):
            return {key: self.read(value) for key, value in spec.items()}
        if isinstance(spec, list | tuple):
            return type(spec)(self.read(value) for value in spec)
        return spec

    def _array(self, spec: TensorFieldSpec) -> Any:
        shape = tuple(next(self._open) if size is None else size for size in spec.shape)
        num_bytes = math.prod(shape) * self._communicator.wire_itemsize(spec.dtype)
        part = self._data[self._at : self._at + num_bytes]
        self._at = _aligned(self._at + num_bytes)
        return self._communicator.from_wire(self._communicator.to_wire(part)[0], spec.dtype, shape)


def _padded(part: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return np.concatenate([part, np.zeros(_aligned(len(part)) - len(part), np.uint8)])


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
