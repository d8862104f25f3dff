"""Plans in words: one bin, and where two plans first differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dcpack._checks import Int64Array

if TYPE_CHECKING:
    from dcpack.plans import Plan

__all__ = ["bin_in_words", "difference_of_bins", "difference_of_headers", "difference_of_sequences"]


def bin_in_words(plan: Plan, index: int) -> str:
    """Return where bin `index` is computed, its entries, and its flags."""
    place = f"micro-batch {plan.microbatch[index]}, "
    first, last = plan.first_rank[index], plan.first_rank[index] + plan.cp_size[index] - 1
    place += f"ranks {first}..{last}, row {plan.row[index]}, "
    span = slice(plan.offsets[index], plan.offsets[index + 1])
    parts = zip(plan.sequence_ids[span], plan.starts[span], plan.entry_lengths[span], strict=True)
    listed = " ".join(f"{s}[{a}:{a + n}]" for s, a, n in parts)
    flags = "".join(f", {name}" for name in ("oversized", "dummy") if getattr(plan, name)[index])
    return f"{place}entries {listed or 'none'}{flags}"


def difference_of_headers(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> str | None:
    """Return the first number or option that differs, or None."""
    unequal = (key for key, value in mine.items() if value != theirs[key])
    return next((f"{key}: {mine[key]} against {theirs[key]}" for key in unequal), None)


def difference_of_sequences(name: str, mine: Int64Array, theirs: Int64Array) -> str | None:
    """Return the first sequence that `name` says otherwise of, or None."""
    if mine.size != theirs.size:
        return f"{name}: {mine.size} sequences against {theirs.size}"
    unequal = np.flatnonzero(mine != theirs)
    return (
        f"{name}: sequence {unequal[0]} has {mine[unequal[0]]} against {theirs[unequal[0]]}" if unequal.size else None
    )


def difference_of_bins(mine: Plan, theirs: Plan) -> str | None:
    """Return the first bin that differs, or None."""
    for b in range(min(mine.num_bins, theirs.num_bins)):
        words = bin_in_words(mine, b), bin_in_words(theirs, b)
        if words[0] != words[1]:
            return f"bin {b}: {words[0]} against {words[1]}"
    return None if mine.num_bins == theirs.num_bins else f"{mine.num_bins} bins against {theirs.num_bins}"
