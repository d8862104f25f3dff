"""What processes of any back end do in tests, so that their results can be compared."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

import dcpack
from dcpack.comm import Communicator
from dcpack.exchange import PackedBatch, check_same_plan, exchange_samples, gather_samples, restore
from dcpack.testing import COMMUNICATOR_CHECKS, run_communicator_check


def run_checks(world: Communicator, names: list[str] | None = None) -> dict[str, Any]:
    """Run each check on a fresh duplicate of `world` and return its proof, or how it failed, by name."""
    found: dict[str, Any] = {}
    for name in names or COMMUNICATOR_CHECKS:
        try:
            with world.dup() as fresh:
                found[name] = run_communicator_check(name, fresh)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def document(number: int) -> np.ndarray:
    """Return the tokens of a document: the same everywhere, of a length between 3 and about 900."""
    generator = np.random.default_rng(number)
    return generator.integers(0, 50_000, 3 + int(generator.pareto(1.2) * 20) % 900).astype(np.int32)


def digest_of(batches: Sequence[PackedBatch]) -> str:
    """Return a digest of every array of the batches, names, dtypes and shapes included."""
    content = hashlib.blake2b(digest_size=16)
    for batch in batches:
        for name in sorted(batch.tokens):
            array = batch.tokens[name]
            content.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
        for offsets in (batch.cu_seqlens, batch.cu_seqlens_padded, batch.local_cu_seqlens, batch.slots):
            content.update(offsets.tobytes())
    return content.hexdigest()


def step(communicator: Communicator, topology: dcpack.Topology | None = None) -> tuple[str, dict[int, str], bool]:
    """Gather, plan, exchange, restore; return the plan's digest, those of the batches by rank, and if all came back."""
    samples = [{"input_ids": document(n)} for n in range(communicator.rank, 40, communicator.size)]
    num_ranks = communicator.size if topology is None else topology.num_ranks
    gathered = gather_samples(communicator, samples)
    plan = dcpack.plan(gathered.table.lengths, num_ranks=num_ranks, capacity=256, padding=dcpack.PaddingRule())
    check_same_plan(communicator, plan)
    batches = exchange_samples(communicator, gathered, plan, topology=topology)
    content = {rank: digest_of(mine) for rank, mine in batches.items()}
    tokens = {rank: [batch.tokens["input_ids"] for batch in mine] for rank, mine in batches.items()}
    returned = restore(communicator, gathered, plan, batches, tokens, topology=topology)
    identical = all(
        back is not None and np.array_equal(back, sample["input_ids"])
        for back, sample in zip(returned, samples, strict=True)
    )
    assert any(size > 1 for size in plan.cp_size.tolist()), "the step must use CP"
    return plan.digest(), content, identical
