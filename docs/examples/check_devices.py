"""Checks a back end on the devices of this machine, in some minutes: what dcpack's own tests could not run.

    torchrun --standalone --nproc-per-node 2 docs/examples/check_devices.py --backend torch-nccl

Every rank runs the whole contract of communicators, sends tensors or JAX arrays that lie on its device, times one
all-to-all, and runs the demo's proof on two steps of texts. It exits with 1, and says what failed on which rank, if
anything is not as it must be. ``--backend torch-hccl`` for NPUs, ``torch-gloo`` to see it work without any; ``--data``
for texts that all hosts have. Needs ``pip install 'dcpack[torch]' ml_dtypes``.

    python docs/examples/check_devices.py --backend jax --platform tpu

on every host of a TPU slice (JAX finds the others), or under ``dcpack launch``; ``--platform cpu`` for the network of
the hosts. Needs ``pip install 'dcpack[jax]'``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

import dcpack
from dcpack.comm import Communicator
from dcpack.demo import DemoOptions, run_demo
from dcpack.testing import COMMUNICATOR_CHECKS, run_communicator_check

MIB = 1 << 20


def main() -> int:
    """Run all checks and print the verdict; return the exit status."""
    parser = argparse.ArgumentParser(description="Checks a back end on this machine's devices.")
    parser.add_argument("--backend", default="torch-nccl", help="torch-nccl (default), torch-hccl, torch-gloo or jax")
    parser.add_argument("--mib", type=int, default=64, help="MiB that each rank sends in the timed all-to-all")
    parser.add_argument("--platform", help="with jax: whose devices carry payload, such as tpu, gpu or cpu")
    parser.add_argument("--data", nargs="+", default=[], help="text files or folders for the demo's proof")
    args = parser.parse_args()
    options = {} if args.platform is None else {"platform": args.platform}
    backend: Any = dcpack.get_backend(args.backend, **options)
    with backend.world() as world:
        checks: dict[str, Callable[[Communicator], Any]] = {
            name: partial(run_communicator_check, name) for name in COMMUNICATOR_CHECKS
        }
        checks["arrays_on_device"] = partial(check_native_arrays, backend)
        faults = {name: fault for name, check in checks.items() if (fault := fault_of(world, check))}
        proof = prove_demo(world, backend.topology(), args.data, faults)
        found = gather_faults(world, faults)
        seconds, device = time_all_to_all(world, backend, args.mib * MIB)
    if world.rank == 0:
        print(f"{args.backend}, {world.size} ranks, {device}, {len(checks)} checks on each rank")
        print(f"all-to-all of {args.mib} MiB a rank: {seconds * 1e3:.1f} ms")
        print(proof)
        print("\n".join([f"FAILED {fault}" for fault in found] or ["ALL RIGHT"]))
    return 1 if found else 0


def fault_of(world: Communicator, check: Callable[[Communicator], Any]) -> str:
    """Return how the check failed on a fresh duplicate of `world`, or nothing."""
    try:
        with world.dup() as fresh:
            check(fresh)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def prove_demo(
    world: Communicator, topology: dcpack.Topology | None, data: Sequence[str], faults: dict[str, str]
) -> str:
    """Run the demo's proof, put a failure of it into `faults`, and return what it says.

    Args:
        world: all processes.
        topology: their ranks, None where each is one.
        data: texts, the same on all hosts; none for those found there.
        faults: of this rank, by check.
    """
    num_ranks = world.size if topology is None else topology.num_ranks
    options = DemoOptions(
        data=tuple(data), num_ranks=num_ranks, num_steps=2, global_batch_size=32, scheduler="dynamic_cp"
    )
    result = run_demo(options, progress=lambda total: lambda: None, communicator=world, topology=topology)
    if result.is_proven:
        return result.report.splitlines()[-1]
    faults["the demo's proof"] = "not proven"
    return result.report


def gather_faults(world: Communicator, faults: dict[str, str]) -> list[str]:
    """Return the faults of all ranks, on all ranks."""
    parts = world.all_gather(np.frombuffer(json.dumps(faults).encode(), np.uint8))
    by_rank = [json.loads(bytes(part)) for part in parts]
    return [f"{name} on rank {rank}: {fault}" for rank, found in enumerate(by_rank) for name, fault in found.items()]


def check_native_arrays(backend: Any, world: Communicator) -> None:
    """Tensors, or JAX arrays, on the device come back on it, with the values that were sent."""
    rank, size = world.rank, world.size
    mine = backend.to_device(np.arange(size) + 100 * rank)
    results = {
        "all_gather": (world.all_gather(mine)[-1], np.arange(size) + 100 * (size - 1)),
        "all_to_all": (world.all_to_all(mine, [1] * size, [1] * size), 100 * np.arange(size) + rank),
        "broadcast": (
            world.broadcast(mine if rank == size - 1 else None, size - 1),
            np.arange(size) + 100 * (size - 1),
        ),
    }
    for verb, (got, wanted) in results.items():
        if got.device != mine.device or got.tolist() != wanted.tolist():
            raise AssertionError(f"{verb}: {got}, expected {wanted.tolist()} on {mine.device}")


def time_all_to_all(world: Communicator, backend: Any, num_bytes: int) -> tuple[float, str]:
    """Return the seconds of the third of three all-to-alls, and the device."""
    count = num_bytes // world.size
    payload = backend.to_device(np.zeros(count * world.size, np.uint8))
    seconds = 0.0
    for _ in range(3):
        world.barrier()
        begin = time.perf_counter()
        world.all_to_all(payload, [count] * world.size, [count] * world.size)
        world.barrier()
        seconds = time.perf_counter() - begin
    return seconds, str(payload.device)


if __name__ == "__main__":
    sys.exit(main())
