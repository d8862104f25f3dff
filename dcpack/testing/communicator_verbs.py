"""Conformance checks of the verbs that move arrays: results to the bit, layouts, memory, counters, rounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from dcpack.comm import Communicator
from dcpack.testing.expect import DTYPE_NAMES, pattern, require, require_identical

__all__ = ["VERB_CHECKS"]

_Counts = Callable[[int, int], int]


def all_gather_uneven(communicator: Communicator) -> None:
    """Rank r gives r rows, so that rank 0 gives none."""
    for tail in ((), (3,), (2, 0), (2, 1, 2)):
        expected = [pattern("int32", (rank, *tail), seed=rank) for rank in range(communicator.size)]
        gathered = communicator.all_gather(expected[communicator.rank])
        require(len(gathered) == communicator.size, f"all_gather gave {len(gathered)} arrays")
        for rank, array in enumerate(gathered):
            require_identical(array, expected[rank], f"part of rank {rank} with rows of shape {tail}")


def all_gather_empty(communicator: Communicator) -> None:
    """Nobody gives a row; dtype and dims survive."""
    for array in communicator.all_gather(np.zeros((0, 5), np.float16)):
        require_identical(array, np.zeros((0, 5), np.float16), "an empty part")


def all_gather_scalars(communicator: Communicator) -> None:
    """Arrays without dims."""
    for rank, array in enumerate(communicator.all_gather(np.int64(communicator.rank - 2**40))):
        require_identical(array, np.array(rank - 2**40), f"scalar of rank {rank}")


def all_gather_dtypes(communicator: Communicator) -> None:
    """Every dtype, to the bit."""
    for dtype in DTYPE_NAMES:
        expected = [pattern(dtype, (rank + 2, 3), seed=rank) for rank in range(communicator.size)]
        for rank, array in enumerate(communicator.all_gather(expected[communicator.rank])):
            require_identical(array, expected[rank], f"{dtype} part of rank {rank}")


def _exchange(communicator: Communicator, counts: _Counts, dtype: str = "int64") -> None:
    """Run an all-to-all where i sends ``counts(i, j)`` elements to j, and require the right ones."""
    me, members = communicator.rank, range(communicator.size)

    def block(sender: int, receiver: int) -> npt.NDArray[Any]:
        return pattern(dtype, (counts(sender, receiver),), seed=1000 * sender + receiver)

    send_counts, recv_counts = [counts(me, other) for other in members], [counts(other, me) for other in members]
    buffer = np.concatenate([block(me, other) for other in members])
    received = communicator.all_to_all(buffer, send_counts, recv_counts)
    require_identical(received, np.concatenate([block(other, me) for other in members]), f"{dtype} from all")


def all_to_all_even(communicator: Communicator) -> None:
    """Equal blocks."""
    _exchange(communicator, lambda sender, receiver: 3)


def all_to_all_uneven(communicator: Communicator) -> None:
    """Blocks of all sizes, empty ones among them."""
    _exchange(communicator, lambda sender, receiver: (sender + 3 * receiver) % 4)


def all_to_all_silent_ranks(communicator: Communicator) -> None:
    """Rank 0 sends nothing; the last rank receives nothing."""
    last = communicator.size - 1
    _exchange(communicator, lambda sender, receiver: 0 if sender == 0 or receiver == last else 2)


def all_to_all_one_pair(communicator: Communicator) -> None:
    """Only rank 0 sends, only to the last rank."""
    last = communicator.size - 1
    _exchange(communicator, lambda sender, receiver: 5 if sender == 0 and receiver == last else 0)


def all_to_all_own_only(communicator: Communicator) -> None:
    """Everyone sends to itself only."""
    _exchange(communicator, lambda sender, receiver: 4 if sender == receiver else 0)


def all_to_all_nothing(communicator: Communicator) -> None:
    """Nobody sends anything; the dtype survives."""
    _exchange(communicator, lambda sender, receiver: 0, "float32")


def all_to_all_dtypes(communicator: Communicator) -> None:
    """Every dtype, to the bit."""
    for dtype in DTYPE_NAMES:
        _exchange(communicator, lambda sender, receiver: (2 * sender + receiver) % 3, dtype)


def broadcast_roots(communicator: Communicator) -> None:
    """Every root, arrays of any number of dims; receivers know nothing of them."""
    for root in range(communicator.size):
        for shape in ((), (0, 5), (4,), (2, 3, 2)):
            expected = pattern("float64", shape, seed=root)
            array = communicator.broadcast(expected if communicator.rank == root else None, root)
            require_identical(array, expected, f"array of shape {shape} from {root}")


def broadcast_dtypes(communicator: Communicator) -> None:
    """Every dtype, to the bit."""
    for seed, dtype in enumerate(DTYPE_NAMES):
        root = seed % communicator.size
        expected = pattern(dtype, (3, 2), seed)
        array = communicator.broadcast(expected if communicator.rank == root else None, root)
        require_identical(array, expected, f"{dtype} from {root}")


def broadcast_ignores_receivers(communicator: Communicator) -> None:
    """An array that a receiver passes does not matter."""
    mine = np.full(communicator.rank + 1, communicator.rank)
    require_identical(communicator.broadcast(mine, 0), np.array([0]), "array from 0")


def layouts(communicator: Communicator) -> None:
    """Input that is not contiguous, not native in byte order, read-only, or not an array yet."""
    plain = pattern("int32", (6, 4), seed=3)
    read_only = plain.copy()
    read_only.setflags(write=False)
    inputs: dict[str, tuple[Any, npt.NDArray[Any]]] = {
        "strided": (plain[::2, 1::2], plain[::2, 1::2].copy()),
        "reversed": (plain[::-1], plain[::-1].copy()),
        "in Fortran order": (np.asfortranarray(plain), plain),
        "with swapped bytes": (plain.astype(plain.dtype.newbyteorder()), plain),
        "read-only": (read_only, plain),
        "a list": ([[1, 2], [3, 4]], np.array([[1, 2], [3, 4]])),
    }
    for name, (array, expected) in inputs.items():
        for gathered in communicator.all_gather(array):
            require_identical(gathered, expected, f"all_gather of input that is {name}")
        require_identical(communicator.broadcast(array, 0), expected, f"broadcast of input that is {name}")
        if name != "a list":
            column = array[:, 0]
            counts = [len(column) if rank == communicator.rank else 0 for rank in range(communicator.size)]
            received = communicator.all_to_all(column, counts, counts)
            require_identical(received, expected[:, 0].copy(), f"all_to_all of input that is {name}")


def no_shared_memory(communicator: Communicator) -> None:
    """Results share no memory with the input or each other, on any rank, and the input stays as it was."""
    size = communicator.size
    mine = np.arange(8 * size) + communicator.rank
    kept = mine.copy()
    results = [
        *communicator.all_gather(mine),
        communicator.all_to_all(mine, [8] * size, [8] * size),
        communicator.broadcast(mine, 0),
    ]
    require_identical(mine, kept, "the input")
    contents = [result.copy() for result in results]
    mine[:] = -1  # the input was handed over: changing it afterwards changes no result anywhere
    communicator.barrier()
    for result, content in zip(results, contents, strict=True):
        require_identical(result, content, "a result after a sender changed its input")
    for index, result in enumerate(results):
        result[:] = -2 - communicator.rank
        require(not np.shares_memory(result, mine), f"result {index} shares memory with the input")
        for other in results[index + 1 :]:
            require(not np.shares_memory(result, other), f"result {index} shares memory with another")
    communicator.barrier()
    for result in results:
        require_identical(result, np.full_like(result, -2 - communicator.rank), "a result after others wrote to theirs")


def rounds(communicator: Communicator) -> None:
    """Messages far above the limit travel in rounds of 7 bytes; the smallest limit of the group holds for all."""
    if communicator.rank == communicator.size - 1:
        communicator.max_message_bytes = 7
    all_gather_uneven(communicator)
    all_gather_dtypes(communicator)
    all_to_all_uneven(communicator)
    all_to_all_silent_ranks(communicator)
    all_to_all_dtypes(communicator)
    broadcast_roots(communicator)


def counters(communicator: Communicator) -> None:
    """Calls by verb, and payload bytes without what stays on its rank."""
    size, me = communicator.size, communicator.rank
    communicator.barrier()
    communicator.all_gather(np.zeros((me, 2), np.int16))  # 4 bytes a row
    communicator.all_to_all(np.zeros(me * size), [me] * size, list(range(size)))  # 8 bytes an element
    communicator.broadcast(np.zeros(3, np.uint8) if me == 0 else None, 0)
    counted = communicator.counters
    called = {verb: count for verb, count in counted.calls.items() if count}
    require(called == {"barrier": 1, "all_gather": 1, "all_to_all": 1, "broadcast": 1}, f"calls are {called}")
    others = sum(range(size)) - me
    sent = 4 * me * (size - 1) + 8 * me * (size - 1) + (3 * (size - 1) if me == 0 else 0)
    received = 4 * others + 8 * others + (0 if me == 0 else 3)
    require(counted.bytes_sent == sent, f"bytes_sent is {counted.bytes_sent}, expected {sent}")
    require(counted.bytes_received == received, f"bytes_received is {counted.bytes_received}, expected {received}")


VERB_CHECKS: tuple[Callable[[Communicator], None], ...] = (
    all_gather_uneven,
    all_gather_empty,
    all_gather_scalars,
    all_gather_dtypes,
    all_to_all_even,
    all_to_all_uneven,
    all_to_all_silent_ranks,
    all_to_all_one_pair,
    all_to_all_own_only,
    all_to_all_nothing,
    all_to_all_dtypes,
    broadcast_roots,
    broadcast_dtypes,
    broadcast_ignores_receivers,
    layouts,
    no_shared_memory,
    rounds,
    counters,
)
"""The checks of the three verbs."""
