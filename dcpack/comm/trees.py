"""Nested structures of arrays and plain values as one message: a JSON header, then the raw bytes of the arrays.

The message is one buffer of bytes in the memory that the back end moves, so that arrays on a device stay there:

    8 bytes: length of the header | header, JSON | array 0 | array 1 | ...        each part on a multiple of 16 bytes

In the header plain values stand for themselves, and everything else is an object of one key:
``{"dict": [[key, node], ...]}``, ``{"list": [node, ...]}``, ``{"tuple": [...]}``, ``{"array": [dtype, shape, start,
stop]}``, and ``{"scalar": [...]}`` for a NumPy scalar. Nothing is pickled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from json.encoder import encode_basestring_ascii
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from dcpack._checks import check_kinds
from dcpack.comm.communicator import Communicator
from dcpack.comm.guard import tell_failure
from dcpack.errors import ArgumentError

__all__ = ["all_gather_trees", "broadcast_tree", "decode_tree", "encode_tree", "encoded_size"]

_ALIGNMENT = 16
_PLAIN = frozenset((type(None), bool, int, float, str))
_JSON = json.JSONEncoder(separators=(",", ":"))


def broadcast_tree(communicator: Communicator, tree: Any, root: int) -> Any:
    """Return the root's nested structure on all members, by one broadcast: peers need to know nothing of it.

    Args:
        communicator: of the group.
        tree: on the root a dict with str keys, a list or a tuple, of such, or of leaves: arrays that the back end can
            send, NumPy scalars, None, bool, int of any size, float, str. Ignored elsewhere, where None will do.
        root: group-local number of the member that sends.

    Returns:
        On all members, the root included, a structure of the same types that shares no memory with `tree`. Any mapping
        comes back as a dict, in the order of its keys. Named tuples and other classes are refused. Arrays native to the
        back end lie on the device that its library uses; arrays that came together keep one buffer alive.

    Raises:
        PeerError: on all members: some rank failed or called something else, or the root's structure cannot be sent.

    Example:
        >>> from dcpack.comm import run_ranks
        >>> batch = {"input_ids": np.array([[1, 2]]), "meta": ("train", 2**70)}
        >>> run_ranks(2, lambda c: broadcast_tree(c, batch if c.rank == 0 else None, root=0))[1]
        {'input_ids': array([[1, 2]]), 'meta': ('train', 1180591620717411303424)}
    """
    check_kinds(communicator=(communicator, Communicator))
    is_root = isinstance(root, int | np.integer) and communicator.rank == root
    message = _encode_or_tell(communicator, tree) if is_root else None
    return _decode_all(communicator, [communicator.broadcast(message, root)])[0]


def all_gather_trees(communicator: Communicator, tree: Any) -> list[Any]:
    """Return every member's nested structure, in the order of the group, by one all-gather.

    Args:
        communicator: of the group.
        tree: what `broadcast_tree` takes. Members may bring structures that differ in everything.

    Raises:
        PeerError: on all members: some rank failed or called something else, or some structure cannot be sent.

    Example:
        >>> from dcpack.comm import run_ranks
        >>> run_ranks(2, lambda c: all_gather_trees(c, {"rows": ["a"] * c.rank}))[0]
        [{'rows': []}, {'rows': ['a']}]
    """
    check_kinds(communicator=(communicator, Communicator))
    return _decode_all(communicator, communicator.all_gather(_encode_or_tell(communicator, tree)))


def encoded_size(communicator: Communicator, tree: Any) -> int:
    """Return the bytes of `encode_tree(communicator, tree)`, without touching the arrays.

    Args:
        communicator: of this process.
        tree: as for `encode_tree`.

    Raises:
        ArgumentError: something in `tree` cannot be sent; says where it lies.

    Example:
        >>> from dcpack.comm import FakeBackend
        >>> world = FakeBackend().world()
        >>> encoded_size(world, {"x": np.arange(4)}) == encode_tree(world, {"x": np.arange(4)}).size
        True
    """
    check_kinds(communicator=(communicator, Communicator))
    writer = _Sizer(communicator)
    return _aligned(8 + len(_header_of(writer, tree))) + writer.num_bytes


def encode_tree(communicator: Communicator, tree: Any) -> npt.NDArray[np.uint8]:
    """Return the message of `tree` as uint8[n] on the host, to be sent among others; makes no call of the group.

    Args:
        communicator: of this process; its back end reads the arrays.
        tree: nested dicts, lists and tuples of arrays and plain values.

    Raises:
        ArgumentError: something in `tree` cannot be sent; says where it lies.

    Example:
        >>> from dcpack.comm import FakeBackend
        >>> world = FakeBackend().world()
        >>> message = encode_tree(world, {"input_ids": np.array([7, 8])})
        >>> len(message) == encoded_size(world, {"input_ids": np.array([7, 8])}), decode_tree(world, message)
        (True, {'input_ids': array([7, 8])})
    """
    check_kinds(communicator=(communicator, Communicator))
    writer = _Writer(communicator, to_host=True)
    return _host_message(_header_of(writer, tree), writer)


def decode_tree(communicator: Communicator, message: npt.NDArray[np.uint8]) -> Any:
    """Return the structure in a message of `encode_tree`; makes no call of the group.

    Args:
        communicator: of this process; its back end makes the arrays.
        message: uint8[n], whole.

    Raises:
        ArgumentError: a message that was cut or damaged.
        BackendError: this process cannot hold a dtype in it.

    Example:
        >>> from dcpack.comm import FakeBackend
        >>> world = FakeBackend().world()
        >>> decode_tree(world, encode_tree(world, [1, {"x": np.arange(2)}]))
        [1, {'x': array([0, 1])}]
    """
    check_kinds(communicator=(communicator, Communicator))
    data, dtype, _ = communicator.to_wire(message)
    if dtype != "uint8":
        raise ArgumentError(f"message must be bytes (uint8) of encode_tree, got {dtype}")
    try:
        return _Reader(communicator, data).tree()
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ArgumentError(f"message is none of encode_tree, or was damaged: {error}") from error


def _header_of(writer: _Writer, tree: Any) -> bytes:
    return writer.node(tree, None).encode("ascii")


def _encode_or_tell(communicator: Communicator, tree: Any) -> Any:
    """Encode `tree`, or make the call with its error instead, so that the others, who wait in theirs, raise it too."""
    with tell_failure(communicator):
        return _encode(communicator, tree)


def _encode(communicator: Communicator, tree: Any) -> Any:
    """Return the message for `tree`: uint8[n] of the kind that the back end moves."""
    writer = _Writer(communicator)
    header = _header_of(writer, tree)
    if all(isinstance(part, np.ndarray) for part in writer.parts):
        return communicator.to_wire(_host_message(header, writer))[0]  # in one go, wherever that is
    parts = [part if not isinstance(part, np.ndarray) else communicator.to_wire(part)[0] for part in writer.parts]
    prefix = communicator.to_wire(_prefix_of(header))[0]
    message = communicator._allocate(len(prefix) + writer.num_bytes)
    _write(message, prefix, parts)
    return message


def _host_message(header: bytes, writer: _Writer) -> npt.NDArray[np.uint8]:
    prefix = _prefix_of(header)
    message = np.empty(len(prefix) + writer.num_bytes, np.uint8)
    _write(message, prefix, writer.parts)
    return message


def _prefix_of(header: bytes) -> npt.NDArray[np.uint8]:
    prefix = np.zeros(_aligned(8 + len(header)), np.uint8)
    prefix[:8] = np.frombuffer(len(header).to_bytes(8, "little"), np.uint8)
    prefix[8 : 8 + len(header)] = np.frombuffer(header, np.uint8)
    return prefix


def _write(message: Any, prefix: Any, parts: list[Any]) -> None:
    """Fill a message: NumPy arrays all, or all of the kind that the back end moves."""
    start = len(prefix)
    message[:start] = prefix
    for data in parts:
        end = start + len(data)
        message[start:end] = data
        start = _aligned(end)
        if end < start:
            message[end:start] = 0


def _decode_all(communicator: Communicator, messages: list[Any]) -> list[Any]:
    """Return the structures in `messages`, which are the same on all members."""
    readers = [_Reader(communicator, message) for message in messages]
    if set().union(*(reader.dtypes() for reader in readers)) <= communicator.universal_dtypes:
        return [reader.tree() for reader in readers]
    with communicator.guard():  # all see the same names, so all come here: one may not be able to hold such a dtype
        return [reader.tree() for reader in readers]


# Where a node lies: where the one lies that holds it, and its key or number there; None for the outermost.
_Path = tuple["_Path", str | int] | None


def _place(path: _Path) -> str:
    return "tree" if path is None else f"{_place(path[0])}[{path[1]!r}]"


class _Writer:
    """Turns a structure into the text of its header, and collects the bytes of its arrays, those of NumPy on the host.

    Args:
        communicator: what reads arrays.
        to_host: whether the others are brought there, too.
    """

    def __init__(self, communicator: Communicator, *, to_host: bool = False) -> None:
        self.communicator = communicator
        self.to_host = to_host
        self.parts: list[Any] = []
        self.num_bytes = 0

    def node(self, tree: Any, path: _Path) -> str:
        """Return the node of `tree` as JSON; `path` says where it lies."""
        kind = type(tree)
        if kind in _PLAIN:
            return _JSON.encode(tree)
        if kind is list or kind is tuple:
            items = self._plain_items(tree)
            if items is None:
                items = f"[{','.join(self.node(value, (path, number)) for number, value in enumerate(tree))}]"
            return f'{{"{kind.__name__}":{items}}}'
        if isinstance(tree, Mapping):
            items = [self._item(key, value, path) for key, value in cast(Mapping[Any, Any], tree).items()]
            return f'{{"dict":[{",".join(items)}]}}'
        if _is_array(tree, path):
            return self._array("scalar" if isinstance(tree, np.generic) else "array", tree, path)
        raise ArgumentError(
            f"{_place(path)} is of type {kind.__name__}, which cannot be sent: dicts with str keys, lists, plain "
            "tuples, arrays, None, bool, int, float and str can"
        )

    def _plain_items(self, tree: Any) -> str | None:
        """Return a list or a tuple as JSON, in one go, if it holds plain values alone; else None."""
        return _JSON.encode(tree) if _PLAIN.issuperset(map(type, tree)) else None

    def _item(self, key: Any, value: Any, path: _Path) -> str:
        if type(key) is not str:
            raise ArgumentError(f"{_place(path)} has the key {key!r} ({type(key).__name__}): keys must be str")
        return f"[{encode_basestring_ascii(key)},{self.node(value, (path, key))}]"

    def _array(self, kind: str, array: Any, path: _Path) -> str:
        try:
            size, dtype, shape = self._take(array)
        except ArgumentError as error:
            raise ArgumentError(f"{_place(path)}: {error}") from error
        start = self.num_bytes
        self.num_bytes = _aligned(start + size)
        return f'{{"{kind}":["{dtype}",[{",".join(map(str, shape))}],{start},{start + size}]}}'

    def _take(self, array: Any) -> tuple[int, str, tuple[int, ...]]:
        on_host = self.to_host or isinstance(array, np.ndarray | np.generic)
        data, dtype, shape = (self.communicator._host_bytes if on_host else self.communicator.to_wire)(array)
        self.parts.append(data)
        return len(data), dtype, shape


def _is_array(tree: Any, path: _Path) -> bool:
    try:
        return hasattr(tree, "dtype") and hasattr(tree, "shape")
    except RuntimeError as error:  # a nested tensor, which has no shape
        raise ArgumentError(f"{_place(path)}: array cannot be sent: {error}") from error


class _Sizer(_Writer):
    """Finds out what a structure would come to."""

    def _take(self, array: Any) -> tuple[int, str, tuple[int, ...]]:
        return self.communicator.wire_size(array)


class _Reader:
    """Turns a message into the structure in it."""

    def __init__(self, communicator: Communicator, message: Any) -> None:
        self.communicator = communicator
        length = int.from_bytes(self._host_bytes(message[:8]), "little")
        if length > len(message):
            raise ArgumentError(f"message of {len(message)} bytes is none of encode_tree, or was cut")
        self.header = json.loads(self._host_bytes(message[8 : 8 + length]))
        self.data = message[_aligned(8 + length) :]

    def _host_bytes(self, part: Any) -> bytes:
        return self.communicator.from_wire(part, "uint8", (len(part),)).tobytes()

    def dtypes(self) -> set[str]:
        """Return the names of the dtypes of all arrays."""
        found: set[str] = set()
        waiting = [self.header]
        while waiting:
            node = waiting.pop()
            if not isinstance(node, dict):
                continue
            ((kind, content),) = node.items()
            if kind in ("array", "scalar"):
                found.add(content[0])
            else:
                waiting.extend(value for _, value in content) if kind == "dict" else waiting.extend(content)
        return found

    def tree(self) -> Any:
        """Return the structure."""
        return self._value(self.header)

    def _value(self, node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        ((kind, content),) = node.items()
        if kind == "dict":
            return {key: self._value(value) for key, value in content}
        if kind in ("list", "tuple"):
            values = [self._value(value) for value in content]
            return values if kind == "list" else tuple(values)
        dtype, shape, start, stop = content
        array = self.communicator.from_wire(self.data[start:stop], dtype, tuple(shape))
        return array[()] if kind == "scalar" else array


def _aligned(num_bytes: int) -> int:
    """Return `num_bytes` rounded up to the alignment."""
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
