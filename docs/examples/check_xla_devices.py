"""Checks torch-xla on the devices of this machine, or of a pod slice, in some minutes: what our tests could not run.

    python docs/examples/check_xla_devices.py                      # a TPU host; on a pod slice the same on every worker
    CPU_NUM_DEVICES=4 PJRT_DEVICE=CPU python docs/examples/check_xla_devices.py        # to see it work without a TPU

It starts one rank for each device through ``torch_xla.launch`` (or is one, under torchrun). Every rank runs the whole
contract of communicators, each check on a world of its own, sends tensors that lie on its device, times one all-to-all,
and runs the demo's proof. It exits with 1, and says what failed on which rank, if anything is not as it must be. Needs
``pip install 'dcpack[xla]' ml_dtypes``.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from check_devices import MIB, check_native_arrays, gather_faults, prove_demo, time_all_to_all

import dcpack
from dcpack.comm import Communicator
from dcpack.testing import COMMUNICATOR_CHECKS, run_communicator_check


def main() -> None:
    """Start the ranks of this host."""
    parser = argparse.ArgumentParser(description="Checks torch-xla on this machine's devices.")
    parser.add_argument("--mib", type=int, default=64, help="MiB that each rank sends in the timed all-to-all")
    parser.add_argument("--data", nargs="+", default=[], help="text files or folders for the demo's proof")
    args = parser.parse_args()
    os.environ.setdefault("XLA_THREAD_POOL_SIZE", "32")  # for devices that share a process
    importlib.import_module("torch_xla").launch(check_rank, args=(args.mib * MIB, tuple(args.data)))


def check_rank(index: int, num_bytes: int, data: tuple[str, ...]) -> None:
    """Be one rank: run all checks; rank 0 prints the verdict.

    Args:
        index: what torch_xla hands over; the rank is the world's.
        num_bytes: what this rank sends in the timed all-to-all.
        data: texts for the demo's proof.
    """
    backend: Any = dcpack.get_backend("torch-xla")
    with backend.world() as world:
        checks: dict[str, Callable[[Communicator], Any]] = {
            name: partial(run_communicator_check, name) for name in COMMUNICATOR_CHECKS
        }
        checks["arrays_on_device"] = partial(check_native_arrays, backend)
        faults = {name: fault for name, check in checks.items() if (fault := fault_of(check))}
        seconds, _ = time_all_to_all(world, backend, num_bytes)
        proof = prove_demo(world, None, data, faults)
        found = gather_faults(world, faults)
    if world.rank == 0:
        kind = os.environ.get("PJRT_DEVICE", "")
        print(f"torch-xla, {world.size} ranks, {kind}, {len(checks)} checks on each rank")
        print(f"all-to-all of {num_bytes // MIB} MiB a rank: {seconds * 1e3:.1f} ms")
        print(proof)
        print("\n".join([f"FAILED {fault}" for fault in found] or ["ALL RIGHT"]), flush=True)
    if found:
        raise AssertionError(f"{len(found)} checks failed")


def fault_of(check: Callable[[Communicator], Any]) -> str:
    """Return how the check failed on a world of its own, or nothing; a duplicate would not use the devices."""
    try:
        with dcpack.get_backend("torch-xla").world() as fresh:
            check(fresh)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
