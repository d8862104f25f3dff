"""Concatenate, then split: one stream of tokens, cut at the capacity.

Not a packer of whole items: sequences are cut where a bin ends, so every bin but the last is full, and a sequence may
lie in several bins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dcpack._checks import Int64Array, as_lengths, check_int, frozen
from dcpack.errors import InfeasibleError
from dcpack.packing.base import check_total

__all__ = ["SplitBins", "concat_then_split"]

_MOST_BINS = 2**28  # some gigabytes; more is a mistake in a length or the capacity


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SplitBins:
    """Bins of pieces of sequences, in compressed form.

    Bin b holds the pieces ``offsets[b]`` to ``offsets[b + 1] - 1``. Piece p is the real tokens
    ``starts[p] : starts[p] + lengths[p]`` of sequence ``sequence_ids[p]``. All arrays are read-only.

    Attributes:
        sequence_ids: int64[p], the sequence of each piece.
        starts: int64[p], the first token of each piece in its sequence.
        lengths: int64[p], real tokens of each piece, at least 1.
        offsets: int64[b + 1], from 0 to p, where each bin starts.

    Example:
        >>> concat_then_split([3, 2], 4).num_bins
        2
    """

    sequence_ids: Int64Array
    starts: Int64Array
    lengths: Int64Array
    offsets: Int64Array

    @property
    def num_bins(self) -> int:
        """Number of bins.

        Example:
            >>> concat_then_split([], 4).num_bins
            0
        """
        return self.offsets.size - 1


def concat_then_split(
    lengths: npt.ArrayLike, capacity: int, *, multiple: int = 1, max_sequences: int | None = None
) -> SplitBins:
    """Lay all sequences end to end and cut the stream into bins.

    Each sequence is padded to a multiple of `multiple` first, and the stream is cut at multiples of the capacity
    rounded down to that multiple. So a cut inside a sequence falls on a multiple too: every piece but the last of its
    sequence is a whole multiple of real tokens, and padded pieces fill every bin but the last exactly. With
    `max_sequences` a bin may also end earlier, at the end of its last permitted piece.

    Example with lengths 5, 3, capacity 9 and multiple 2: the padded stream has 6 + 4 tokens, bins hold 8. Bin 0 is
    sequence 0 whole (5 real tokens) and the first 2 tokens of sequence 1; bin 1 is the last token of sequence 1.

    Args:
        lengths: int64[n], real tokens of each sequence; a sequence of length 0 gives no piece.
        capacity: padded tokens that a bin holds at most.
        multiple: what the padded length of every piece is a multiple of, in tokens.
        max_sequences: pieces that a bin holds at most; None is no limit.

    Returns:
        The bins of pieces, in the order of the stream.

    Raises:
        ArgumentError: an argument of the wrong type, shape or range.
        InfeasibleError: a capacity below the multiple.

    Example:
        >>> bins = concat_then_split([5, 3], 9, multiple=2)
        >>> bins.sequence_ids, bins.starts, bins.lengths, bins.offsets
        (array([0, 1, 1]), array([0, 0, 2]), array([5, 2, 1]), array([0, 2, 3]))
    """
    checked = as_lengths("lengths", lengths)
    check_total("lengths", checked)
    capacity = check_int("capacity", capacity, minimum=1)
    multiple = check_int("multiple", multiple, minimum=1, maximum=2**31 - 1)
    if capacity < multiple:
        raise InfeasibleError(f"a capacity of {capacity} tokens is below the padding multiple of {multiple}")
    ids = np.flatnonzero(checked)
    padded = -(-checked[ids] // multiple) * multiple
    check_total("padded lengths", padded)
    ends = np.cumsum(padded)
    total = int(padded.sum())
    span = min(capacity // multiple * multiple, max(total, 1))  # a huge capacity is no more than the whole stream
    if -(-total // span) > _MOST_BINS:
        raise InfeasibleError(f"{total} padded tokens in bins of {span} are more than {_MOST_BINS} bins")
    if max_sequences is None:
        bin_ends = np.minimum(np.arange(1, -(-total // span) + 1) * span, total)
    else:
        bin_ends = _capped_bin_ends(ends, span, check_int("max_sequences", max_sequences, minimum=1))
    # A piece ends where its sequence or its bin ends; what it belongs to is looked up by where it ends.
    piece_ends = np.union1d(ends, bin_ends)
    piece_starts = np.concatenate([[0], piece_ends[:-1]])[: piece_ends.size]
    owner = np.searchsorted(ends, piece_ends)
    starts = piece_starts - (ends - padded)[owner]
    real = np.minimum(starts + (piece_ends - piece_starts), checked[ids][owner]) - starts
    offsets = np.concatenate([[0], np.searchsorted(piece_ends, bin_ends, side="right")])
    return SplitBins(
        sequence_ids=frozen(ids[owner]), starts=frozen(starts), lengths=frozen(real), offsets=frozen(offsets)
    )


def _capped_bin_ends(ends: Int64Array, span: int, max_sequences: int) -> Int64Array:
    """Return where bins end in the stream when each holds at most `max_sequences` pieces; a loop over bins."""
    total = int(ends[-1]) if ends.size else 0
    bin_ends: list[int] = []
    position = 0
    while position < total:
        first = int(np.searchsorted(ends, position, side="right"))  # the sequence that this bin starts in
        last = min(first + max_sequences, ends.size) - 1
        position = min(position + span, int(ends[last]))
        bin_ends.append(position)
    return np.array(bin_ends, np.int64)
