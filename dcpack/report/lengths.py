"""What a file of lengths holds, in a few numbers and a histogram."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dcpack._checks import as_array, check_int, check_items, check_kinds, exact_sum, list_offenders
from dcpack.errors import ArgumentError
from dcpack.report.tables import format_table

__all__ = ["LengthSummary", "format_lengths", "summarise_lengths"]

_PERCENTILES = (0, 1, 5, 25, 50, 75, 90, 95, 99, 99.9, 100)
_BAR_WIDTH = 30


@dataclass(frozen=True, kw_only=True, slots=True)
class LengthSummary:
    """The lengths of many sequences.

    Attributes:
        num_sequences: all of them.
        num_empty: those without tokens.
        num_tokens: tokens of all.
        mean: mean length.
        percentiles: length by percentile: the smallest length that at least so many percent do not exceed.
        above: by capacity, the share of sequences that are longer, and the share of all tokens in them.
        histogram: by smallest length of a range (powers of two; 0 for empty ones), sequences and tokens in it.

    Example:
        >>> summarise_lengths(np.array([1, 2, 3, 10]), capacities=[4]).histogram    # from 0, 1, 2, 4, 8 on
        {0: (0, 0), 1: (1, 1), 2: (2, 5), 4: (0, 0), 8: (1, 10)}
    """

    num_sequences: int
    num_empty: int
    num_tokens: int
    mean: float
    percentiles: dict[float, int]
    above: dict[int, tuple[float, float]]
    histogram: dict[int, tuple[int, int]]

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as plain values, for JSON."""
        return asdict(self)


def summarise_lengths(lengths: npt.NDArray[np.integer[Any]], *, capacities: Sequence[int]) -> LengthSummary:
    """Return a summary of `lengths`; needs about one copy of them in memory.

    Args:
        lengths: int[n] of any width, tokens of each sequence.
        capacities: capacities to compare with, in tokens.

    Raises:
        ArgumentError: lengths below 0, or a capacity below 1.

    Example:
        >>> summary = summarise_lengths(np.array([1, 2, 3, 10]), capacities=[4])
        >>> summary.num_tokens, summary.percentiles[50], summary.above
        (16, 2, {4: (0.25, 0.625)})
    """
    lengths = as_array("lengths", lengths)  # no copy of a file that is mapped into memory
    if lengths.ndim != 1 or (lengths.size and lengths.dtype.kind not in "iu"):
        raise ArgumentError(f"lengths must be integers in one dimension, got {lengths.dtype} of shape {lengths.shape}")
    ordered = np.sort(lengths)
    if ordered.size and ordered[0] < 0:
        low = np.flatnonzero(lengths < 0).tolist()
        raise ArgumentError(f"lengths must be at least 0: {list_offenders([f'{lengths[i]} at {i}' for i in low])}")
    capacities = [check_int("capacity", capacity, minimum=1) for capacity in check_items("capacities", capacities)]
    count, total = ordered.size, exact_sum(ordered)
    edges = [0, *(2**power for power in range(int(ordered[-1]).bit_length() if count else 0))]
    at = [*(int(i) for i in np.searchsorted(ordered, edges)), count]
    spans = list(itertools.pairwise(at))
    return LengthSummary(
        num_sequences=count,
        num_empty=int(np.searchsorted(ordered, 1)),
        num_tokens=total,
        mean=total / count if count else 0.0,
        percentiles={p: int(ordered[max(int(np.ceil(count * p / 100)) - 1, 0)]) for p in _PERCENTILES if count},
        above={int(capacity): _share_above(ordered, capacity, total) for capacity in capacities},
        histogram={edge: (b - a, exact_sum(ordered[a:b])) for edge, (a, b) in zip(edges, spans, strict=True)},
    )


def _share_above(ordered: npt.NDArray[np.integer[Any]], capacity: int, total: int) -> tuple[float, float]:
    first = int(np.searchsorted(ordered, capacity, side="right"))
    longer = ordered[first:]
    return longer.size / max(ordered.size, 1), exact_sum(longer) / max(total, 1)


def format_lengths(summary: LengthSummary) -> str:
    """Return the summary as text: numbers, shares, and a histogram of sequences and of tokens.

    Args:
        summary: of `summarise_lengths`.

    Example:
        >>> print(format_lengths(summarise_lengths(np.array([1, 3]), capacities=[2])).splitlines()[0])
        2 sequences, 4 tokens, mean 2.0
    """
    check_kinds(summary=(summary, LengthSummary))
    empty = f", {summary.num_empty:,} of them empty" if summary.num_empty else ""
    lines = [f"{summary.num_sequences:,} sequences{empty}, {summary.num_tokens:,} tokens, mean {summary.mean:,.1f}"]
    if summary.percentiles:
        heads = [f"{p:g}%" for p in summary.percentiles]
        lines += ["", format_table(["percentile", *heads], [["length", *map(_grouped, summary.percentiles.values())]])]
    rows = [[_grouped(capacity), f"{n:.2%}", f"{t:.2%}"] for capacity, (n, t) in summary.above.items()]
    lines += ["", format_table(["capacity", "sequences\nabove it", "tokens\nin them"], rows)]
    shown = {edge: counts for edge, counts in summary.histogram.items() if counts[0]}
    if shown:
        lines += ["", format_table(["length from", "sequences", "", "tokens", ""], _bars(summary, shown), right=(1, 3))]
    return "\n".join(lines)


def _bars(summary: LengthSummary, shown: dict[int, tuple[int, int]]) -> list[list[str]]:
    most = [max(counts[k] for counts in shown.values()) for k in (0, 1)]
    rows = []
    for edge, counts in shown.items():
        cells = [_grouped(edge)]
        for k, whole in enumerate((summary.num_sequences, summary.num_tokens)):
            cells += [f"{counts[k] / max(whole, 1):.1%}", "#" * round(_BAR_WIDTH * counts[k] / max(most[k], 1))]
        rows.append(cells)
    return rows


def _grouped(number: int) -> str:
    return f"{number:,}"
