"""What the processes of the tests do. They are functions of a module, so that a process can be told of them by name."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import numpy as np
import patience
import pytest
import shared_bodies
import torch
import torch.distributed as dist
from dcpack_torch import communicator as torch_communicator
from dcpack_torch.backend import TorchBackend, TorchGlooBackend
from dcpack_torch.environment import current_launch
from dcpack_torch.wire import TENSOR_DTYPES
from torch.distributed.device_mesh import init_device_mesh

import dcpack
from dcpack.comm import Communicator, all_gather_trees, broadcast_tree, encode_tree, encoded_size
from dcpack.errors import ArgumentError, PeerError


def contract(rank: int, size: int, most_inline: int | None = None) -> dict[str, Any]:
    if most_inline is not None:
        torch_communicator._MOST_INLINE = most_inline
    return shared_bodies.run_checks(TorchGlooBackend(deadline_s=60.0).world())


def world_of_one(rank: int, size: int) -> dict[str, Any]:
    return shared_bodies.run_checks(TorchGlooBackend().world())


# What travels with the control messages.


def count_moves(communicator: Any) -> list[str]:
    """Return a list that grows with each collective of the library."""
    moves: list[str] = []
    for name in ("_exchange", "_move"):
        inner = getattr(communicator, name)

        def counted(*args: Any, name: str = name, inner: Any = inner) -> Any:
            moves.append(name)
            return inner(*args)

        setattr(communicator, name, counted)
    return moves


def messages_about_the_limit(rank: int, size: int) -> list[int]:
    """Every verb with messages below, at and above the bytes that travel inline; the collectives of each."""
    world: Any = TorchGlooBackend(deadline_s=60.0).world()
    limit = world.inline_bytes
    moves, counts = count_moves(world), []
    for num_bytes in (0, limit - 1, limit, limit + 1):
        # Only the last rank has so much; all must come to the same way.
        sizes = [num_bytes if member == size - 1 else member for member in range(size)]
        parts = [np.full(n, member + 1, np.uint8) for member, n in enumerate(sizes)]
        found = world.all_gather(parts[rank])
        assert [part.tolist() for part in found] == [part.tolist() for part in parts]
        assert all((part.flags.writeable and part.flags.owndata) or part.base is not None for part in found)
        found[rank][:] = 99
        assert set(parts[rank].tolist()) <= {rank + 1}, "memory is shared"
        counts.append(len(moves))
        moves.clear()
        root = size - 1
        assert world.broadcast(parts[root] if rank == root else None, root).tolist() == parts[root].tolist()
        counts.append(len(moves))
        moves.clear()
        table = [[num_bytes if (i, j) == (size - 1, 0) else i + j for j in range(size)] for i in range(size)]
        sent = np.concatenate([np.full(n, 10 * rank + j, np.uint8) for j, n in enumerate(table[rank])])
        got = world.all_to_all(sent, table[rank], [table[i][rank] for i in range(size)])
        assert got.tolist() == [10 * i + rank for i in range(size) for _ in range(table[i][rank])]
        counts.append(len(moves))
        moves.clear()
    world.max_message_bytes = limit // 2  # what is too long for a message goes in rounds, whatever would fit
    assert world.broadcast(np.arange(limit) % 7 if rank == 0 else None, 0).tolist() == [i % 7 for i in range(limit)]
    return counts


def sizes_without_bytes(rank: int, size: int) -> int:
    """What a structure would come to, for tensors and arrays of all kinds, and those that cannot travel."""
    world = TorchGlooBackend().world()
    odd = torch.arange(24.0).reshape(4, 6)
    leaves: list[Any] = [make_tensor(name, shape, 3) for name in TENSOR_DTYPES for shape in ((), (0, 2), (3, 5))]
    leaves += [odd.T, odd[:, ::2], np.arange(6).reshape(2, 3)[:, ::2], np.float32(2), np.arange(3, dtype=">i4")]
    for leaf in leaves:
        data, name, shape = world.to_wire(leaf)
        assert world.wire_size(leaf) == (len(data), name, shape), name
        assert encoded_size(world, {"leaf": leaf}) == len(encode_tree(world, {"leaf": leaf}))
    for leaf in (torch.zeros(2, device="meta"), torch.eye(2).to_sparse(), np.array([object()])):
        with pytest.raises(ArgumentError, match="cannot be sent"):
            world.wire_size(leaf)
    return len(leaves)


# Tensors.


def make_tensor(name: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Return a tensor of arbitrary bits."""
    dtype = TENSOR_DTYPES[name]
    count = int(np.prod(shape, dtype=np.int64))
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    highest = 2 if name == "torch.bool" else 256
    bits = np.random.default_rng(seed).integers(0, highest, count * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(bits).view(dtype).reshape(shape)


def require_same_tensor(actual: Any, expected: torch.Tensor) -> None:
    assert isinstance(actual, torch.Tensor)
    assert (actual.dtype, actual.shape, actual.device) == (expected.dtype, expected.shape, expected.device)
    assert actual.reshape(-1).view(torch.uint8).tolist() == expected.reshape(-1).contiguous().view(torch.uint8).tolist()


def tensors(rank: int, size: int) -> int:
    world = TorchGlooBackend(deadline_s=60.0).world()
    num_compared = 0
    for limit in (1 << 30, 7):
        world.max_message_bytes = limit
        for seed, name in enumerate(TENSOR_DTYPES):
            given = [make_tensor(name, (member, 3), seed + member) for member in range(size)]
            for part, expected in zip(world.all_gather(given[rank]), given, strict=True):
                require_same_tensor(part, expected)
            blocks = [[make_tensor(name, (i + 2 * j,), 10 * i + j) for j in range(size)] for i in range(size)]
            received = world.all_to_all(
                torch.cat([block.view(torch.uint8) for block in blocks[rank]]).view(TENSOR_DTYPES[name]),
                [len(block) for block in blocks[rank]],
                [len(blocks[other][rank]) for other in range(size)],
            )
            sent_here = [blocks[other][rank].view(torch.uint8) for other in range(size)]
            require_same_tensor(received, torch.cat(sent_here).view(TENSOR_DTYPES[name]))
            root = seed % size
            whole = make_tensor(name, (2, 2, 1), seed)
            require_same_tensor(world.broadcast(whole if rank == root else None, root), whole)
            num_compared += 1
    odd = torch.arange(12.0).reshape(3, 4)
    for given, expected in (
        (odd.T, odd.T),
        (odd[:, ::2], odd[:, ::2]),
        (torch.tensor(5), torch.tensor(5)),
        (torch.zeros(0, 3), torch.zeros(0, 3)),
        (torch.tensor(np.zeros(0, np.float32)), torch.zeros(0)),
        (odd.clone().requires_grad_(), odd),
        (torch.tensor([1 + 2j]).conj(), torch.tensor([1 - 2j])),
    ):
        for part in world.all_gather(given):
            require_same_tensor(part, expected)
            assert not part.requires_grad
    return num_compared


def tensor_trees(rank: int, size: int) -> int:
    """Tensors of all dtypes and NumPy arrays side by side in one structure, from each root, in rounds too."""
    world = TorchGlooBackend(deadline_s=60.0).world()
    num_compared = 0
    for root in range(size):
        world.max_message_bytes = 1 << 30 if root else 7
        given = {name: make_tensor(name, (root + 1, 3), root) for name in TENSOR_DTYPES}
        odd = [torch.arange(12.0).reshape(3, 4).T, torch.tensor(5), torch.zeros(0, 3), torch.ones(2).requires_grad_()]
        tree = {"tensors": given, "odd": odd, "array": np.arange(3, dtype=np.int16)}
        received = broadcast_tree(world, tree if rank == root else None, root)
        for name, expected in given.items():
            require_same_tensor(received["tensors"][name], expected)
            num_compared += 1
        for actual, expected in zip(received["odd"], odd, strict=True):
            require_same_tensor(actual, expected.detach())
        assert isinstance(received["array"], np.ndarray)
        assert received["array"].tolist() == [0, 1, 2]
        parts = all_gather_trees(world, [torch.full((rank,), rank)] if rank else None)
        assert parts[0] is None
        for member in range(1, size):
            require_same_tensor(parts[member][0], torch.full((member,), member))
    return num_compared


def tensor_memory(rank: int, size: int) -> None:
    world = TorchGlooBackend(deadline_s=60.0).world()
    mine = torch.arange(2 * size) + rank
    results = [*world.all_gather(mine), world.all_to_all(mine, [2] * size, [2] * size), world.broadcast(mine, 0)]
    kept = [result.clone() for result in results]
    mine[:] = -1
    world.barrier()
    for index, result in enumerate(results):
        assert torch.equal(result, kept[index])
        result[:] = index + 100
    world.barrier()
    assert [int(result[0]) for result in results] == [index + 100 for index in range(len(results))]


def mixed_kinds(rank: int, size: int) -> str:
    world = TorchGlooBackend(deadline_s=60.0).world()
    text = ""
    try:
        world.all_gather(torch.zeros(2) if rank == 0 else np.zeros(2, np.float32))
    except PeerError as error:
        text = str(error)
    bad: Any = torch.zeros(2).to_sparse() if rank == 1 else torch.zeros(2)
    try:
        world.all_gather(bad)
    except PeerError as error:
        text += "\n" + str(error)
    world.barrier()
    return text


# Failures.


def fail_in_time(rank: int, size: int, how: str, victim: int, deadline_s: float) -> Any:
    """Be `victim`, which fails, or another rank, which must raise a PeerError. Says how long that took."""
    patience.wait_for_notes(size - 1)
    world: Any = TorchGlooBackend(deadline_s=60.0).world()
    world.barrier()
    world._deadline_s = deadline_s  # of the call that fails
    if rank == victim:
        if how == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "raises":
            raise ValueError("no such sample")
        if how == "leaves":
            return None
        if how == "is late":
            patience.wait_for_verdict(world)
        if how == "is killed inside":
            world._all_gather_bytes = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
    world.all_gather(np.arange(4096 + rank))  # more than travels with the control messages
    return "went on"


def fail_in_a_guard(rank: int, size: int) -> None:
    world = TorchGlooBackend(deadline_s=60.0).world()
    with world.guard():
        if rank == 1:
            raise ValueError("no such sample")


def differ(rank: int, size: int) -> list[str]:
    world = TorchGlooBackend(deadline_s=60.0).world()
    texts = []
    for call in (
        lambda: world.barrier() if rank == 1 else world.all_gather(np.zeros(1)),
        lambda: world.all_to_all(np.zeros(size), [1] * size, [1] * (size - 1) + [2 if rank == 0 else 1]),
    ):
        try:
            call()
        except PeerError as error:
            texts.append(str(error))
    world.barrier()
    return texts


def break_a_child(rank: int, size: int) -> tuple[str, Any, Any]:
    """Break a duplicate, then make another of the same ranks."""
    patience.wait_for_notes(size - 1)
    world: Any = TorchGlooBackend(deadline_s=60.0).world()
    child: Any = world.dup()
    child.barrier()
    child._deadline_s = 2.0
    broken, text = child._group.uid, ""
    if rank == 1:
        patience.wait_for_verdict(child)
    for _ in range(2):
        try:
            child.barrier()
        except PeerError as error:
            text += f"{error}\n"
    child.close()
    with world.dup() as other:
        other.barrier()
        return text, broken, other._group.uid


def come_late(rank: int, size: int) -> None:
    if rank == 2:
        return
    patience.wait_for_starters(size - 1)
    TorchGlooBackend(deadline_s=60.0, start_deadline_s=1.0).world()


# Groups.


def mesh_groups(rank: int, size: int) -> dict[str, Any]:
    backend = TorchGlooBackend(deadline_s=60.0)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    groups: dict[str, Any] = {}
    for axes in ("dp", "cp", ("dp", "cp"), ("cp", "dp")):  # the order of the names does not matter
        group = backend.from_mesh(mesh, axes)
        assert [int(array) for array in group.all_gather(np.int64(rank))] == list(group.ranks)
        groups["+".join([axes] if isinstance(axes, str) else axes)] = group.ranks
    try:
        backend.from_mesh(mesh, "tp")
    except PeerError as error:
        groups["text"] = str(error)
    groups["topology"] = backend.from_mesh(dcpack.Topology(axes=("dp", "cp"), sizes=(2, 2)), ("cp",)).ranks
    return groups


def group_as_world(rank: int, size: int) -> tuple[Any, ...]:
    members = [3, 1]
    group: Any = dist.new_group(members)
    if rank not in members:
        try:
            TorchGlooBackend(group=group).world()
        except Exception as error:
            return (f"{type(error).__name__}: {error}",)
    world = TorchGlooBackend(group=group, deadline_s=60.0).world()
    second = TorchGlooBackend(group=group, deadline_s=60.0).world()
    assert [int(array) for array in second.all_gather(np.int64(rank))] == list(second.ranks)
    return world.ranks, world.rank, [int(array) for array in world.all_gather(np.int64(rank))]


def groups_are_used_again(rank: int, size: int) -> dict[str, Any]:
    backend = TorchGlooBackend(deadline_s=60.0, max_groups=6)
    world: Any = backend.world()
    assert backend.world() is world
    pool = world._pool
    uids = set()
    for turn in range(30):
        with world.dup() as duplicate, world.split([[0, 1], [2, 3]]) as pair:
            uids |= {duplicate._group.uid, pair._group.uid}
            assert pair.size == 2
            assert [int(array) for array in duplicate.all_gather(np.int64(turn))] == [turn] * size
        with world.split([[member] for member in range(size)]) as alone:
            assert alone._group is None
    repeated = len(uids), pool.num_in_use, pool.num_kept
    # One rank keeps its end open: then the others may not use the group again, though theirs is free.
    held = world.dup()
    if rank != 2:
        held.close()
    other = world.dup()
    different = held._group is None or other._group is not held._group
    uid = np.frombuffer(other._group.uid.encode().ljust(80), np.uint8)
    shared_uid = {bytes(part) for part in world.all_gather(uid)}
    other.close()
    held.close()
    # Other ranks than before: kept groups make room.
    for partition in ([[0, 2], [1, 3]], [[0, 3], [1, 2]], [[0, 1, 2], [3]], [[3, 2, 1, 0]], [[1, 0], [3, 2]]):
        with world.split(partition) as child:
            child.barrier()
    most = pool.num_in_use + pool.num_kept
    opened = []
    text = ""
    try:
        for _ in range(20):
            opened.append(world.dup())
    except PeerError as error:
        text = str(error)
    num_opened = len(opened)
    opened.pop().close()
    opened.append(world.dup())
    opened[-1].barrier()
    del opened  # forgotten without a close: they count no more
    world.dup().barrier()
    return {
        "repeated": repeated,
        "different": different,
        "agreed": len(shared_uid) == 1,
        "most": most,
        "text": text,
        "num_opened": num_opened,
    }


def split_in_threads(rank: int, size: int) -> int:
    world = TorchGlooBackend(deadline_s=60.0).world()
    seen: list[Any] = []

    def work(communicator: Communicator) -> None:
        try:
            for turn in range(8):
                with communicator.split([list(range(size))[:: 1 if turn % 2 else -1]]) as child:
                    seen.append([int(array) for array in child.all_gather(np.int64(rank))] == list(child.ranks))
        except Exception as error:
            seen.append(error)

    threads = [threading.Thread(target=work, args=(world.dup(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(value is True for value in seen), seen
    return len(seen)


# The whole step.


def whole_step(rank: int, size: int) -> tuple[str, dict[int, str], bool]:
    return shared_bodies.step(TorchGlooBackend(deadline_s=60.0).world())


def first_error(backend: TorchBackend) -> str:
    """Return what making the world raises, empty if nothing."""
    try:
        backend.world()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def lose_two(rank: int, size: int, deadline_s: float) -> None:
    patience.wait_for_notes(size - 2)
    world: Any = TorchGlooBackend(deadline_s=60.0).world()
    world.barrier()
    world._deadline_s = deadline_s
    if rank in (1, 2):
        os.kill(os.getpid(), signal.SIGKILL)
    world.barrier()


def place_here(rank: int, size: int) -> tuple[int, int, int | None]:
    """Say where this process is."""
    found = current_launch()
    return found.rank, found.world_size, found.local_rank
