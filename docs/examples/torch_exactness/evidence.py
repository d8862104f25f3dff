"""Which of the hard cases a run has met: a proof that met none of them proves nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dcpack.comm import Communicator
from dcpack.exchange import PackedBatch

__all__ = ["Cases", "Evidence"]

_COLUMNS = ("step", "microbatch", "first", "rank", "cp_size", "here", "valid", "dummy", "sequences", "single", "ragged")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cases:
    """How often each case occurred, over all ranks.

    Attributes:
        cp_sizes: the CP sizes that occurred.
        num_microbatches: the largest number of micro-batches in a step.
        steps_without_valid: steps in which no token counts.
        ranks_without_valid: ranks without any token that counts in a step that has some.
        uneven_bins: bins over several ranks in which one has over four times the valid tokens of another.
        dummies: rows that only keep a rank busy.
        packed_cp_bins: bins over several ranks with more than one sequence.
        ragged_cp_sequences: sequences over several ranks whose length is no multiple of twice their number.
        single_tokens: sequences of length 1.
    """

    cp_sizes: tuple[int, ...]
    num_microbatches: int
    steps_without_valid: int
    ranks_without_valid: int
    uneven_bins: int
    dummies: int
    packed_cp_bins: int
    ragged_cp_sequences: int
    single_tokens: int


@dataclass(slots=True)
class Evidence:
    """What one rank has computed on, batch by batch."""

    num_steps: int = 0
    rows: list[list[int]] = field(default_factory=list)

    def add(self, batches: Sequence[PackedBatch], *, rank: int) -> None:
        """Note the batches of one step."""
        for batch in batches:
            lengths = np.diff(batch.cu_seqlens)
            ragged = np.count_nonzero(lengths % (2 * batch.cp_size)) if batch.cp_size > 1 else 0
            single = 0 if batch.is_dummy else np.count_nonzero(lengths == 1)
            place = [self.num_steps, batch.microbatch, batch.cp_ranks[0], rank, batch.cp_size]
            counts = [batch.num_valid_tokens, batch.global_valid_tokens, int(batch.is_dummy), batch.num_sequences]
            self.rows.append([*place, *counts, int(single), int(ragged)])
        self.num_steps += 1

    def gather(self, world: Communicator) -> Cases:
        """Return what all ranks together have met. Collective."""
        mine = np.array(self.rows, np.int64).reshape(-1, len(_COLUMNS))
        return _count_cases(np.concatenate([np.asarray(part) for part in world.all_gather(mine)]))


def _count_cases(table: np.ndarray) -> Cases:
    column = {name: table[:, i] for i, name in enumerate(_COLUMNS)}
    some = column["valid"] > 0
    _, of_rank = np.unique(table[some][:, [0, 3]], axis=0, return_inverse=True)
    of_bins, first_rows, bin_of = np.unique(table[:, :3], axis=0, return_index=True, return_inverse=True)
    most, least = np.zeros(len(of_bins)), np.full(len(of_bins), np.inf)
    np.maximum.at(most, bin_of.ravel(), column["here"])
    np.minimum.at(least, bin_of.ravel(), column["here"])
    shared = column["cp_size"][first_rows] > 1
    return Cases(
        cp_sizes=tuple(np.unique(column["cp_size"]).tolist()),
        num_microbatches=int(column["microbatch"].max()) + 1,
        steps_without_valid=np.unique(column["step"][~some]).size,
        ranks_without_valid=int(np.count_nonzero(np.bincount(of_rank.ravel(), column["here"][some]) == 0)),
        uneven_bins=int(np.count_nonzero(shared & (most > 4 * least))),
        dummies=int(column["dummy"].sum()),
        packed_cp_bins=int(np.count_nonzero(shared & (column["sequences"][first_rows] > 1))),
        ragged_cp_sequences=int(column["ragged"][first_rows].sum()),
        single_tokens=int(column["single"][first_rows].sum()),
    )
