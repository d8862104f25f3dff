"""Small problems for the parts of `dynamic_cp`, and their groups in plain values."""

from __future__ import annotations

from typing import Any

import numpy as np

from dcpack.cost import RingCost
from dcpack.scheduling import MicroBatch, Problem

__all__ = ["LINEAR", "problem", "seen"]

LINEAR = RingCost(linear=1.0, quadratic=0.0, ring_intra=0.0, ring_inter=0.0)  # time is tokens / CP size


def problem(lengths: list[int], num_ranks: int, **changes: Any) -> Problem:
    """Return a problem of sequences that are not cut, 100 tokens a rank, powers of two; `changes` win."""
    options: dict[str, Any] = {
        "sequence_ids": np.arange(len(lengths)),
        "lengths": np.array(lengths, np.int64),
        "oversized": np.zeros(len(lengths), np.bool_),
        "num_ranks": num_ranks,
        "capacity": 100,
        "cp_sizes": tuple(size for size in (1, 2, 4, 8, 16) if size <= num_ranks),
        "padding": None,
        "microbatch_multiple": 1,
        "max_sequences": None,
        "on_empty": "error",
        "cost": LINEAR,
        "sync": "microbatch",
    }
    return Problem(**{**options, **changes})


def seen(groups: MicroBatch | None) -> list[tuple[int, list[int]]] | None:
    """Return CP size and items of each group."""
    return None if groups is None else [(group.cp_size, group.items) for group in groups]
