"""Small texts of every length that matters, and one exchange whose batches can be tampered with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import dcpack
from dcpack.data import TextDocuments
from dcpack.demo import DemoOptions
from dcpack.demo.proof import RankEvidence, StepProof, check_batches, conclude
from dcpack.exchange import PackedBatch, exchange_samples, gather_samples

# From one byte to several thousand, odd numbers among them, so that padding, slices and cuts all fall unevenly.
SIZES = (1, 1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 40, 63, 64, 65, 90, 127, 128, 200, 255, 256, 300, 511, 700, 900)
LONG_SIZES = (1025, 1500, 2047, 2500, 3333, 4801)
# Characters of 1, 2, 3 and 4 bytes.
PHRASE = "Gr\u00f6\u00dfe \u2211 \u6587\u5b57 \U0001f642 plain text. "


def _text(size: int, shift: int) -> bytes:
    """Exactly `size` bytes of valid UTF-8, different for each `shift`."""
    phrase = PHRASE[shift % len(PHRASE) :] + PHRASE[: shift % len(PHRASE)]
    head = (phrase * (size // len(phrase) + 1)).encode()[:size].decode(errors="ignore").encode()
    return head + b"." * (size - len(head))


@pytest.fixture(scope="session")
def texts() -> list[bytes]:
    """A few dozen documents, long and short mixed."""
    sizes = np.random.default_rng(5).permutation([*SIZES, *LONG_SIZES]).tolist()
    return [_text(size, shift) for shift, size in enumerate(sizes)]


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory: pytest.TempPathFactory, texts: list[bytes]) -> Path:
    """The texts as files."""
    folder = tmp_path_factory.mktemp("texts")
    for i, text in enumerate(texts):
        (folder / f"document {i:02}.txt").write_bytes(text)
    return folder


@dataclass(frozen=True, kw_only=True)
class Exchanged:
    """One step that was carried out without a fault, and what the proof takes."""

    batches: list[list[PackedBatch]]
    plan: dcpack.Plan
    documents: TextDocuments
    order: np.ndarray
    sharding: str

    def evidence(self, batches: Sequence[Sequence[PackedBatch]] | None = None) -> list[RankEvidence]:
        """What the proof finds on every rank, in these batches or in others."""
        found = self.batches if batches is None else batches
        return [
            check_batches(mine, self.plan, rank, self.documents, self.order, self.sharding)
            for rank, mine in enumerate(found)
        ]

    def conclude(self, batches: Sequence[Sequence[PackedBatch]] | None = None) -> StepProof:
        """The verdict on these batches, or on others."""
        return conclude(self.plan, self.evidence(batches), self.batches[0][0].global_valid_tokens)


def _exchange(documents: TextDocuments, options: DemoOptions) -> Exchanged:
    """Carry out one step of all documents, on ranks that hold them in turn."""

    def fn(communicator: dcpack.Communicator) -> tuple[list[PackedBatch], dcpack.Plan]:
        mine = range(communicator.rank, len(documents), communicator.size)
        gathered = gather_samples(communicator, [{"input_ids": documents[i]} for i in mine])
        plan = options.cluster.plan(gathered.table.lengths, scheduler=options.scheduler)
        batches = exchange_samples(communicator, gathered, plan, sharding=options.sharding, routing=options.routing)
        return batches[communicator.rank], plan

    results = dcpack.run_ranks(options.num_ranks, fn)
    order = np.concatenate([np.arange(r, len(documents), options.num_ranks) for r in range(options.num_ranks)])
    return Exchanged(
        batches=[batches for batches, _ in results],
        plan=results[0][1],
        documents=documents,
        order=order,
        sharding=options.sharding,
    )


@pytest.fixture(scope="session")
def exchange() -> Callable[[TextDocuments, DemoOptions], Exchanged]:
    return _exchange


@pytest.fixture(scope="session")
def exchanged() -> Exchanged:
    """Two ranks, capacity 8, documents of 12, 5, 4 and 3 tokens, all letters different, worked out by hand.

    Rank 0 holds documents 0 and 2, rank 1 holds 1 and 3, so sequences 0 to 3 are documents 0, 2, 1, 3 and begin at
    tokens 0, 12, 16, 21 of the step. Micro-batch 0 is sequences 0 and 1 over both ranks, zigzag in chunks of 3 and 1
    tokens; micro-batch 1 is sequence 2 on rank 0 and sequence 3 on rank 1. No slot is padding.
    """
    documents = TextDocuments.of([b"abcdefghijk", b"lmno", b"pqr", b"st"])
    return _exchange(documents, DemoOptions(num_ranks=2, capacity=8))
