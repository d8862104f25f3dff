"""What processes of any back end do in tests, so that their results can be compared."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

import dcpack
from dcpack import BatchedDataDict, PeerError, TPBroadcastDataLoader
from dcpack.batched_data_dict import PackedColumn
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


# RL batches.


def rollouts(rank: int, make: Callable[..., Any]) -> BatchedDataDict:
    """Rank r has r rows of r tokens, so that rank 0 has none."""
    return BatchedDataDict(
        ids=make(np.full((rank, rank), rank, np.int32)),
        logprobs=make(np.full(rank, rank / 2, np.float32)),
        texts=[f"rank {rank}"] * rank,
        images=PackedColumn(make(np.full((rank, 2), rank, np.int32)), [0] * rank + [rank] if rank else [0]),
    )


def gather_rollouts(world: Communicator, make: Callable[..., Any], kind: type[Any]) -> dict[str, Any]:
    """Gather the rollouts of all ranks, whose arrays are of a kind; return them as plain values."""
    gathered = rollouts(world.rank, make).all_gather(world)
    assert isinstance(gathered["ids"], kind)
    assert isinstance(gathered["images"].values, kind)
    return {
        "ids": np.asarray(gathered["ids"]).tolist(),
        "logprobs": np.asarray(gathered["logprobs"]).tolist(),
        "texts": gathered["texts"],
        "images": (np.asarray(gathered["images"].values).tolist(), gathered["images"].offsets.tolist()),
    }


def gathered_rollouts(size: int) -> dict[str, Any]:
    """What `gather_rollouts` must return; all images of a rank belong to its last row."""
    ranks = [rank for rank in range(size) for _ in range(rank)]  # 1, 2, 2, 3, 3, 3
    counts = [rank if row == rank - 1 else 0 for rank in range(size) for row in range(rank)]
    return {
        "ids": [[rank] * rank + [0] * (size - 1 - rank) for rank in ranks],
        "logprobs": [rank / 2 for rank in ranks],
        "texts": [f"rank {rank}" for rank in ranks],
        "images": ([[rank, rank] for rank in ranks], np.cumsum([0, *counts]).tolist()),
    }


# TP broadcast.


def stream(make: Callable[..., Any], no_rows: Any, *, fails: bool) -> Iterator[Any]:
    """Two batches, of which the second has no rows; fails at the end if asked to."""
    yield {"ids": make(np.arange(6, dtype=np.int32).reshape(2, 3)), "meta": ["a", 1.5]}
    yield {"ids": no_rows, "meta": ["b", None]}
    if fails:
        raise OSError("disk gone")


def broadcast_batches(
    world: Communicator, make_loader: Callable[[bool], Iterable[Any]], kind: type[Any], no_rows_dtype: Any
) -> list[Any]:
    """Receive the leader's `stream`, and then one that fails; return what was seen, as plain values."""
    source = make_loader(False) if world.rank == 0 else None
    first, second = TPBroadcastDataLoader(source, world)
    assert isinstance(first["ids"], kind)
    assert second["ids"].dtype == no_rows_dtype
    seen: list[Any] = [first["ids"].tolist(), first["meta"], list(second["ids"].shape), second["meta"]]
    loader = TPBroadcastDataLoader(make_loader(True), world)
    try:
        len(loader)
    except TypeError:
        seen.append("no length")
    batches = []
    try:
        for batch in loader:
            batches.append(batch)
    except PeerError as error:
        seen.append((len(batches), error.rank, error.cause))
    return seen


BROADCAST_SEEN: list[Any] = [[[0, 1, 2], [3, 4, 5]], ["a", 1.5], [0, 3], ["b", None], "no length", (2, 0, "OSError")]
"""What `broadcast_batches` must return on all ranks."""
