"""What becomes of sequences that are longer than any bin can hold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dcpack._checks import (
    BoolArray,
    Int64Array,
    as_lengths,
    check_choice,
    check_int,
    check_kinds,
    exact_sum,
    frozen,
    list_offenders,
)
from dcpack.errors import InfeasibleError

__all__ = ["OVERLONG_POLICIES", "Pieces", "apply_overlong"]

OVERLONG_POLICIES = ("drop", "error", "single", "split", "truncate")
"""What may become of a sequence that fits in no bin; see `apply_overlong`."""

_MOST_PIECES = 2**28  # some gigabytes; more is a mistake in a length or a capacity


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Pieces:
    """The pieces of sequences that are to be packed, and what was left out.

    Piece p is the tokens ``starts[p] : starts[p] + lengths[p]`` of sequence ``sequence_ids[p]``. Pieces stand in the
    order of their sequences, those of one sequence one after another. All arrays are read-only.

    Attributes:
        sequence_ids: int64[p], the sequence of each piece.
        starts: int64[p], the first token of each piece in its sequence.
        lengths: int64[p], real tokens of each piece, at least 1.
        oversized: bool[p], pieces that are longer than the limit and must be alone in their bin.
        dropped: int64[n], tokens of each sequence that are in no piece.

    Example:
        >>> pieces = apply_overlong([5, 2], 4, "split")
        >>> pieces.sequence_ids, pieces.lengths, pieces.num_cut
        (array([0, 0, 1]), array([4, 1, 2]), 1)
    """

    sequence_ids: Int64Array
    starts: Int64Array
    lengths: Int64Array
    oversized: BoolArray
    dropped: Int64Array

    @property
    def num_cut(self) -> int:
        """Number of sequences that lie in several pieces or lost their tail.

        Example:
            >>> apply_overlong([5, 2, 9], 4, "truncate").num_cut
            2
        """
        num_pieces = self._num_pieces()
        return int(np.count_nonzero((num_pieces > 1) | ((num_pieces == 1) & (self.dropped > 0))))

    @property
    def num_dropped_tokens(self) -> int:
        """Number of tokens that are in no piece.

        Example:
            >>> apply_overlong([5, 2, 9], 4, "truncate").num_dropped_tokens
            6
        """
        return exact_sum(self.dropped)

    @property
    def num_dropped_sequences(self) -> int:
        """Number of sequences that were dropped whole; those of length 0 are not among them.

        Example:
            >>> apply_overlong([5, 0, 9], 4, "drop").num_dropped_sequences
            2
        """
        return int(np.count_nonzero((self._num_pieces() == 0) & (self.dropped > 0)))

    def _num_pieces(self) -> Int64Array:
        return np.bincount(self.sequence_ids, minlength=self.dropped.size)


def apply_overlong(lengths: npt.ArrayLike, fits_at_most: int, policy: str, *, where: str = "") -> Pieces:
    """Turn sequences into pieces that fit, as the policy says.

    A policy decides only about sequences that are longer than the limit; all others are one piece each. Sequences of
    length 0 give no piece, whatever the policy, and do not count as dropped.

    * ``"error"``: an error that names every overlong sequence.
    * ``"truncate"``: the head is kept, the tail counts as dropped.
    * ``"split"``: pieces of exactly `fits_at_most` tokens and a remainder, in order.
    * ``"drop"``: the whole sequence counts as dropped.
    * ``"single"``: kept whole and marked oversized, to be alone in its bin.

    Args:
        lengths: int64[n], real tokens of each sequence.
        fits_at_most: the longest real length that fits, in tokens. The caller derives it from capacity, padding and the
            number of ranks that may share a sequence; at 0 every sequence that is not empty is overlong.
        policy: one of `OVERLONG_POLICIES`.
        where: what the limit comes from, put behind it in an error.

    Returns:
        The pieces, in the order of the sequences.

    Raises:
        ArgumentError: an argument of the wrong type or range, or an unknown policy.
        InfeasibleError: overlong sequences under ``"error"``; no token fits under ``"truncate"`` or ``"split"``.

    Example:
        >>> apply_overlong([5, 2, 3, 1], 4, "truncate").dropped
        array([1, 0, 0, 0])
        >>> apply_overlong([5, 2, 3, 1], 4, "error")
        Traceback (most recent call last):
        ...
        dcpack.errors.InfeasibleError: 1 sequence is longer than the limit of 4 tokens: sequence 0 has 5
    """
    check_kinds(where=(where, str))
    checked = as_lengths("lengths", lengths)
    # A limit beyond the longest sequence is the same as none, and stays within int64 so.
    limit = min(check_int("fits_at_most", fits_at_most, minimum=0), int(checked.max(initial=1)))
    check_choice("overlong policy", policy, OVERLONG_POLICIES)
    overlong = checked > limit
    if overlong.any() and (policy == "error" or (limit == 0 and policy in ("truncate", "split"))):
        raise InfeasibleError(_name_overlong(checked, overlong, limit, policy, where))

    kept = checked
    if policy == "truncate":
        kept = np.minimum(checked, limit)
    elif policy == "drop":
        kept = np.where(overlong, 0, checked)
    num_pieces = (kept > 0).astype(np.int64)
    if policy == "split" and limit > 0:
        num_pieces = -(-kept // limit)
        if exact_sum(num_pieces) > _MOST_PIECES:
            listed = list_offenders([f"sequence {s} has {checked[s]}" for s in np.flatnonzero(overlong).tolist()])
            raise InfeasibleError(
                f"splitting at {limit} tokens{where} would give {exact_sum(num_pieces)} pieces, more than "
                f"{_MOST_PIECES}: {listed}"
            )

    sequence_ids = np.repeat(np.arange(checked.size), num_pieces)
    first_piece = np.cumsum(num_pieces) - num_pieces
    starts = (np.arange(sequence_ids.size) - first_piece[sequence_ids]) * limit  # 0 for the first piece
    piece_lengths = kept[sequence_ids] - starts
    if policy == "split":
        piece_lengths = np.minimum(piece_lengths, limit)
    return Pieces(
        sequence_ids=frozen(sequence_ids),
        starts=frozen(starts),
        lengths=frozen(piece_lengths),
        oversized=frozen(overlong[sequence_ids] & (policy == "single")),
        dropped=frozen(checked - kept),
    )


def _name_overlong(lengths: Int64Array, overlong: BoolArray, limit: int, policy: str, where: str) -> str:
    """Say which sequences are too long, how long they are, and what would fit."""
    ids = np.flatnonzero(overlong).tolist()
    listed = list_offenders([f"sequence {i} has {lengths[i]}" for i in ids])
    text = "1 sequence is" if len(ids) == 1 else f"{len(ids)} sequences are"
    hint = "" if policy == "error" else f"no token fits, so there is nothing to {policy}: "
    return f"{hint}{text} longer than the limit of {limit} token{'' if limit == 1 else 's'}{where}: {listed}"
