"""What the processes of the tests do. They are functions of a module, so that a process can be told of them by name."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import shared_bodies
from dcpack_jax.arrays import global_batches
from dcpack_jax.backend import JaxBackend
from dcpack_jax.board import Board
from dcpack_jax.mesh import topology_of_mesh
from dcpack_jax.wire import PREFIX
from fake_time import until

import dcpack
from dcpack.comm import Communicator
from dcpack.errors import ArgumentError, PeerError
from dcpack.exchange import StaticShapes, exchange_samples, gather_samples
from dcpack.loader import CPPlanning

_ROOT = str(Path(__file__).parents[2])
if _ROOT not in sys.path:
    sys.path.insert(0, _ROOT)

from tests.loader import loader_helpers  # noqa: E402 - found through the lines above

JAX_DTYPES = ("bool", "uint8", "int8", "int16", "uint32", "int32", "float16", "bfloat16", "float8_e4m3fn", "complex64")


def contract(rank: int, size: int, service_bytes: int) -> dict[str, Any]:
    return shared_bodies.run_checks(JaxBackend(deadline_s=60.0, service_bytes=service_bytes).world())


# Arrays.


def jax_arrays(rank: int, size: int) -> int:
    """Send JAX arrays with every verb; what comes must be JAX arrays of the same bits."""
    world = JaxBackend(deadline_s=60.0, service_bytes=0).world()
    device = jax.local_devices()[-1]
    for seed, name in enumerate(JAX_DTYPES):
        given = [make_array(name, (member, 3), seed + member, device) for member in range(size)]
        for part, expected in zip(world.all_gather(given[rank]), given, strict=True):
            require_same(part, expected)
        whole = make_array(name, (2, 2), seed, device)
        root = seed % size
        received = world.broadcast(whole if rank == root else None, root)
        require_same(received, whole)
        row = make_array(name, (2 * size,), seed, device)
        back = world.all_to_all(row, [2] * size, [2] * size)
        assert bits(back) == bits(row[2 * rank : 2 * rank + 2]) * size
    return len(JAX_DTYPES)


def make_array(name: str, shape: tuple[int, ...], seed: int, device: Any) -> Any:
    kind = jax.numpy.dtype(name)
    count = int(np.prod(shape)) * kind.itemsize
    raw = np.random.default_rng(seed).integers(0, 2 if name == "bool" else 256, count, dtype=np.uint8)
    return jax.device_put(raw.view(kind).reshape(shape), device)


def bits(array: Any) -> bytes:
    return np.asarray(array).tobytes()


def require_same(actual: Any, expected: Any) -> None:
    assert isinstance(actual, jax.Array)
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    assert bits(actual) == bits(expected)


def wide_arrays(rank: int, size: int) -> list[str]:
    """64-bit values survive as NumPy arrays; as JAX arrays they need x64 on all sides, and are an error elsewhere."""
    world = JaxBackend(deadline_s=60.0, service_bytes=0).world()
    assert jax.numpy.zeros(1, "float32").dtype == jax.numpy.zeros(1, float).dtype, "x64 must be off"
    big = np.array([2**40 + rank, -(2**62)])
    for part, other in zip(world.all_gather(big), range(size), strict=True):
        assert part.dtype == np.int64
        assert part.tolist() == [2**40 + other, -(2**62)]
    assert world.broadcast(np.array(np.pi) if rank == 0 else None, 0) == np.pi
    texts = []
    if rank == 0:
        jax.config.update("jax_enable_x64", True)
    for call in (
        lambda: world.broadcast(jax.numpy.array([2**40]) if rank == 0 else None, 0),
        lambda: world.all_gather(jax.numpy.zeros(2, "float32") if rank else np.zeros(2, np.float32)),
        lambda: world.all_gather(jax.random.key(0) if rank == 0 else np.zeros(1)),
    ):
        try:
            call()
        except PeerError as error:
            texts.append(str(error).partition("\n")[0])
    jax.config.update("jax_enable_x64", True)
    received = world.broadcast(jax.numpy.array([2**40]) if rank == 0 else None, 0)
    assert received.tolist() == [2**40]
    assert received.dtype == np.int64
    assert PREFIX in texts[1]
    return texts


# Compiled programs.


def count_compilations(rank: int, size: int, num_steps: int) -> tuple[int, int]:
    """Make steps of random sizes; return how many programs were compiled, and how many sizes there were."""
    compiled = []

    def listen(event: str, duration_secs: float, **kwargs: Any) -> None:
        if event.endswith("backend_compile_duration"):
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    world = JaxBackend(deadline_s=60.0, service_bytes=0).world()
    generator = np.random.default_rng(7)
    seen = set()
    for _ in range(num_steps):
        counts = generator.integers(0, 1 << generator.integers(1, 13), (size, size))
        rows = generator.integers(0, 1 << generator.integers(1, 13), size)
        seen |= {("to", int(counts.max())), ("gather", int(rows.max()))}
        sent = np.arange(counts[rank].sum()) * size + rank
        received = world.all_to_all(sent, counts[rank], counts[:, rank])
        starts = np.cumsum(counts, axis=1) - counts
        expected = [(starts[other, rank] + np.arange(counts[other, rank])) * size + other for other in range(size)]
        assert np.array_equal(received, np.concatenate(expected))
        parts = world.all_gather(np.full(rows[rank], rank))
        assert [part.tolist() for part in parts] == [[other] * rows[other] for other in range(size)]
    return len(compiled), len(seen)


# Failures.


def wait_for_members(present: int) -> None:
    """Have whoever finds that some are missing wait until `present` members are there, however slow they are."""
    find_missing = Board._missing

    def patient(self: Board, here: str) -> list[int]:
        until(lambda: self._size - len(find_missing(self, here)) >= present)
        return find_missing(self, here)

    Board._missing = patient


def fail_in_time(rank: int, size: int, how: str, victim: int, deadline_s: float) -> Any:
    """Be `victim`, which fails, or another rank, which must raise a PeerError. Says how long that took."""
    wait_for_members(size - 1)
    world: Any = JaxBackend(deadline_s=60.0, service_bytes=0).world()
    world.barrier()
    world.all_gather(np.arange(2))
    client = world._process.client

    def others_gave_up() -> bool:
        return len(client.key_value_dir_get_bytes("test/gave up/")) == size - 1

    if rank == victim:
        if how == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "is late":
            until(others_gave_up)
        if how == "is killed inside":
            world._process.runner.start = lambda task: os.kill(os.getpid(), signal.SIGKILL)
        if how == "stays away":
            world._process.runner.start = lambda task: lambda seconds: until(others_gave_up)
    else:
        world._deadline_s = deadline_s  # of the call that fails
    started = time.monotonic()
    try:
        world.all_gather(np.arange(rank + 1))
    except PeerError as error:
        seconds, again = time.monotonic() - started, ""
        try:
            world.barrier()
        except PeerError as second:
            again = str(second)
        client.key_value_set_bytes(f"test/gave up/{rank}", b"")
        return str(error), error.rank, again, seconds
    return "went on"


def fail_in_a_guard(rank: int, size: int) -> str:
    world = JaxBackend(deadline_s=60.0).world()
    try:
        with world.guard():
            if rank == 1:
                raise ValueError("no such sample")
    except PeerError as error:
        world.barrier()
        return str(error).partition("\n")[0]
    return ""


def come_late(rank: int, size: int) -> str:
    JaxBackend(deadline_s=60.0).world()
    wait_for_members(size - 1)
    if rank == 1:
        return ""  # makes one world less than the others
    try:
        JaxBackend(deadline_s=60.0, start_deadline_s=2.0).world()
    except PeerError as error:
        return str(error)
    return "went on"


# Threads.


def exchange_in_threads(rank: int, size: int, num_turns: int) -> int:
    """Use the devices from several threads, each of which goes its own way through its calls."""
    world = JaxBackend(deadline_s=60.0, service_bytes=0).world()
    failures: list[Any] = []
    num_done = [0] * 3

    def work(number: int, communicator: Communicator) -> None:
        try:
            for turn in range(num_turns):
                # Ranks come to the same call at different times, and not in the same order.
                time.sleep(0.001 * ((rank * 7 + number * 5 + turn * 3) % 4))
                parts = communicator.all_gather(np.full(number + 1, 100 * turn + rank))
                assert [part.tolist() for part in parts] == [
                    [100 * turn + other] * (number + 1) for other in range(size)
                ]
                num_done[number] += 1
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number, world.dup())) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    return sum(num_done)


# The whole step, and meshes.


def whole_step(rank: int, size: int) -> Any:
    return shared_bodies.step(JaxBackend(deadline_s=60.0).world())


def step_on_devices(rank: int, size: int) -> Any:
    backend = JaxBackend(deadline_s=60.0)
    return shared_bodies.step(backend.world(), backend.topology())


def mesh_groups(rank: int, size: int) -> dict[str, Any]:
    """Groups along the axes of a mesh of 2 processes x 2 devices."""
    backend = JaxBackend(deadline_s=60.0)
    backend.world()
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "context"))
    found: dict[str, Any] = {axes: backend.from_mesh(mesh, axes).ranks for axes in ("data", "context")}
    found["both"] = backend.from_mesh(mesh, ("data", "context")).ranks
    crossed = jax.sharding.Mesh(np.array(jax.devices())[[0, 2, 1, 3]].reshape(2, 2), ("data", "context"))
    found["crossed"] = backend.from_mesh(crossed, "context").ranks
    torn = jax.sharding.Mesh(np.array(jax.devices())[[0, 2, 3, 1]].reshape(2, 2), ("data", "context"))
    for name, bad, axes in (("unknown", mesh, "tensor"), ("torn", torn, "context")):
        try:
            found[name] = backend.from_mesh(bad, axes).ranks
        except PeerError as error:
            found[name] = str(error).partition("\n")[0]
    topology = topology_of_mesh(mesh)
    found["topology"] = (topology.axes, topology.sizes, topology.process_of_rank.tolist())
    default = backend.topology()
    assert default is not None
    found["default"] = default.process_of_rank.tolist()
    return found


def run_alone() -> tuple[str, tuple[int, ...]]:
    world = dcpack.get_backend("jax").world()
    return type(world).__name__, world.ranks


# RL batches and TP broadcast.


def gather_and_broadcast(rank: int, size: int) -> dict[str, Any]:
    """Gather NumPy and JAX batches, and receive what rank 0 reads, over the service and over the devices."""
    found: dict[str, Any] = {}
    for way, service_bytes in (("service", 1 << 16), ("devices", 0)):
        world = JaxBackend(deadline_s=60.0, service_bytes=service_bytes).world()
        no_rows = jax.numpy.zeros((0, 3), "bfloat16")
        found[way] = (
            shared_bodies.gather_rollouts(world, np.array, np.ndarray),
            shared_bodies.gather_rollouts(world, jax.device_put, jax.Array),
            shared_bodies.broadcast_batches(
                world,
                lambda fails, no_rows=no_rows: shared_bodies.stream(jax.device_put, no_rows, fails=fails),
                jax.Array,
                jax.numpy.bfloat16,
            ),
        )
    return found


# The loader.

LOADER_MODES: dict[str, dict[str, Any]] = {
    "online": {"metadata_fn": loader_helpers.describe},
    "metadata": {"metadata": loader_helpers.LENGTHS},
    "planned_cp": {"scheduler": "uniform_cp", "cost_model": dcpack.RingCost()},
}


def load_epochs(mesh: Any, backend: Any) -> dict[str, tuple[Any, ...]]:
    """One epoch of each mode, on two processes: batches, reads, state, and number of dropped samples."""
    # Short rows, so that some samples need both ranks.
    return {
        mode: loader_helpers.one_epoch(
            mesh, loader_helpers.settings(mode, 2, backend, seq_len=20 if mode == "planned_cp" else 64), **arguments
        )
        for mode, arguments in LOADER_MODES.items()
    }


def load_on_processes(rank: int, size: int, num_epochs: int) -> tuple[dict[str, tuple[Any, ...]], str, Any]:
    """Load over a mesh of JAX's devices; with a scheduler that is refused; and train on global arrays."""
    backend = {"name": "jax", "deadline_s": 60.0}
    dcpack.get_backend(backend).world()
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    refused = ""
    try:
        loader_helpers.one_epoch(mesh, loader_helpers.settings("planned_cp", 2, backend), scheduler="dynamic_cp")
    except ArgumentError as error:
        refused = str(error)
    return load_epochs(mesh, backend), refused, train_on_global_arrays(mesh, backend, num_epochs)


def count_targets(arrays: dict[str, jax.Array]) -> jax.Array:
    return (arrays["targets_segmentation"] != 0).sum()


def planning_sizes(mesh: Any) -> list[int]:
    """The legal CP sizes: powers of two."""
    return [size for size in (1, 2, 4) if size <= mesh.devices.size]


def train_on_global_arrays(mesh: Any, backend: Any, num_epochs: int) -> tuple[int, list[Any], int, int]:
    """Run a jitted step on all micro-batches of a loader.

    Returns:
        How often it was compiled, the CP sizes and row lengths, the bound of how many there are, and the steps.
    """
    shapes = StaticShapes(max_sequences=8, row_lengths=(12, 20))
    planning = CPPlanning(scheduler="uniform_cp", max_sequences=8, static_shapes=shapes)
    loader = dcpack.build_distributed_dataloader(
        loader_helpers.Numbered(),
        mesh,
        loader_helpers.settings("planned_cp", 2, backend, seq_len=20),
        batch_sampler=loader_helpers.sampler(),
        scheduler=planning,
        cost_model=dcpack.RingCost(),
        collate_fn=lambda packed: packed,
    )
    step: Any = jax.jit(count_targets)
    seen: set[Any] = set()
    num_steps = 0
    mine = [rank for rank, device in enumerate(mesh.devices.flat) if device.process_index == jax.process_index()]
    for _ in range(num_epochs):
        packed = []
        for batch in loader:
            packed.append(batch.data if len(mine) > 1 else (batch.data,))
            if not batch.is_last:
                continue
            assert loader.last_planned is not None
            (plan,) = loader.last_planned.plans
            rows = dict(zip(mine, zip(*packed, strict=True), strict=True))
            placed = global_batches(plan, rows, mesh, shapes=shapes, names="maxtext")
            assert sum(int(step(each.arrays)) for each in placed) == batch.global_valid_tokens
            seen |= {(each.cp_size, each.arrays["inputs"].shape[1] // each.cp_size) for each in placed}
            packed, num_steps = [], num_steps + 1
    loader.close()
    return step._cache_size(), sorted(seen), shapes.num_shapes(planning_sizes(mesh)), num_steps


# Global arrays.


def planned_step(backend: Any, seed: int, scheduler: str, shapes: StaticShapes | None) -> tuple[Any, dict[int, Any]]:
    """Plan a step of random documents for all devices and exchange it; return the plan and the batches."""
    world, topology = backend.world(), backend.topology()
    generator = np.random.default_rng(seed)
    lengths = np.minimum(5 + (generator.pareto(1.0, 24) * 20).astype(int), 60 * topology.num_ranks)
    samples = [{"input_ids": np.arange(length, dtype=np.int32) + 100 * n} for n, length in enumerate(lengths)]
    gathered = gather_samples(world, samples[world.rank :: world.size])
    plan = dcpack.plan(
        gathered.table.lengths,
        num_ranks=topology.num_ranks,
        capacity=64,
        scheduler=scheduler,
        cost=dcpack.QuadraticCost() if scheduler != "uniform_cp" else dcpack.RingCost(),
        padding=dcpack.PaddingRule(),
        max_sequences=None if shapes is None else shapes.max_sequences,
        on_empty="dummy",
    )
    return plan, exchange_samples(world, gathered, plan, topology=topology, static_shapes=shapes)


def place_step(rank: int, size: int) -> tuple[list[int], int, list[str]]:
    """Compare every shard of the global arrays with the batch of its rank; return CP sizes and how many were."""
    backend = JaxBackend(deadline_s=60.0)
    backend.world()
    shapes = StaticShapes(max_sequences=16)
    plan, batches = planned_step(backend, 3, "uniform_cp", shapes)
    found = global_batches(plan, batches, jax.devices(), shapes=shapes)
    num_compared = 0
    for number, placed in enumerate(found):
        num_groups = len(jax.devices()) // placed.cp_size
        assert placed.mesh.shape == {"data": num_groups, "context": placed.cp_size}
        for name, array in placed.arrays.items():
            assert array.shape == (num_groups, 64 * placed.cp_size)
            for shard in array.addressable_shards:
                mine = batches[jax.devices().index(shard.device)][number]
                expected = mine.slots if name == "slots" else mine.tokens[name]
                assert np.array_equal(np.asarray(shard.data), expected[None]), name
                group = mine.cp_ranks[0] // placed.cp_size
                assert shard.index[0].indices(num_groups)[0] == group
                num_compared += 1
    texts = []
    mixed = planned_step(backend, 1, "packing_aware", shapes)
    for wrong_plan, wrong_batches, devices, wrong_shapes in (
        (*mixed, jax.devices(), shapes),
        (plan, batches, jax.devices()[1:], shapes),
        (plan, batches, jax.devices(), StaticShapes(max_sequences=16, row_lengths=(32, 65))),
        (plan, {}, jax.devices(), shapes),
    ):
        try:
            global_batches(wrong_plan, wrong_batches, devices, shapes=wrong_shapes)
        except ArgumentError as error:
            texts.append(str(error))
    return [placed.cp_size for placed in found], num_compared, texts


def compile_steps(rank: int, size: int, num_steps: int) -> tuple[int, list[Any], int]:
    """Run a jitted step on every micro-batch; return how often it was compiled, the shapes, and the bound."""
    backend = JaxBackend(deadline_s=60.0)
    shapes = StaticShapes(max_sequences=16, row_lengths=(32, 64))
    seen: set[Any] = set()
    cp_sizes: set[int] = set()

    step_on: Any = jax.jit(count_targets)

    for step in range(num_steps):
        plan, batches = planned_step(backend, step, "uniform_cp", shapes)
        cp_sizes |= set(plan.cp_sizes)
        total = 0
        for placed in global_batches(plan, batches, jax.devices(), shapes=shapes, names="maxtext"):
            total += int(step_on(placed.arrays))
            seen.add((placed.cp_size, placed.arrays["inputs"].shape[1] // placed.cp_size))
        assert total == plan.lengths.sum() - len(plan.lengths), "each document but its last token has a target"
    return step_on._cache_size(), sorted(seen), shapes.num_shapes(sorted(cp_sizes))
