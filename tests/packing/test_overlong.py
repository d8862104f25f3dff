from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcpack.errors import ArgumentError, InfeasibleError
from dcpack.packing import OVERLONG_POLICIES, Pieces, apply_overlong

LENGTHS = [5, 2, 3, 1]


def as_lists(pieces: Pieces) -> list[tuple[int, int, int]]:
    """(sequence, start, length) of each piece."""
    return list(zip(pieces.sequence_ids.tolist(), pieces.starts.tolist(), pieces.lengths.tolist(), strict=True))


def counts(pieces: Pieces) -> tuple[int, int, int]:
    return pieces.num_cut, pieces.num_dropped_tokens, pieces.num_dropped_sequences


def test_error_names_every_overlong_sequence() -> None:
    with pytest.raises(InfeasibleError, match=r"^1 sequence is longer than the limit of 4 tokens: sequence 0 has 5$"):
        apply_overlong(LENGTHS, 4, "error")
    with pytest.raises(
        InfeasibleError, match=r"^1 sequence is longer than the limit of 100 tokens: sequence 0 has 900$"
    ):
        apply_overlong([900], 100, "error")
    with pytest.raises(
        InfeasibleError,
        match=r"^2 sequences are longer than the limit of 4 tokens: sequence 0 has 5, sequence 3 has 9$",
    ):
        apply_overlong([5, 4, 1, 9], 4, "error")
    with pytest.raises(InfeasibleError, match=r"^1 sequence is longer than the limit of 1 token: sequence 1 has 2$"):
        apply_overlong([1, 2], 1, "error")


def test_error_lets_pass_what_fits() -> None:
    pieces = apply_overlong([4, 2, 3, 1], 4, "error")
    assert as_lists(pieces) == [(0, 0, 4), (1, 0, 2), (2, 0, 3), (3, 0, 1)]
    assert counts(pieces) == (0, 0, 0)


def test_truncate_keeps_the_head() -> None:
    pieces = apply_overlong(LENGTHS, 4, "truncate")
    assert as_lists(pieces) == [(0, 0, 4), (1, 0, 2), (2, 0, 3), (3, 0, 1)]
    assert pieces.dropped.tolist() == [1, 0, 0, 0]
    assert counts(pieces) == (1, 1, 0)
    assert not pieces.oversized.any()


def test_split_keeps_all() -> None:
    pieces = apply_overlong(LENGTHS, 4, "split")
    assert as_lists(pieces) == [(0, 0, 4), (0, 4, 1), (1, 0, 2), (2, 0, 3), (3, 0, 1)]
    assert pieces.dropped.tolist() == [0, 0, 0, 0]
    assert counts(pieces) == (1, 0, 0)
    assert as_lists(apply_overlong([8, 1], 4, "split")) == [(0, 0, 4), (0, 4, 4), (1, 0, 1)]


def test_drop_leaves_out_the_whole_sequence() -> None:
    pieces = apply_overlong(LENGTHS, 4, "drop")
    assert as_lists(pieces) == [(1, 0, 2), (2, 0, 3), (3, 0, 1)]
    assert pieces.dropped.tolist() == [5, 0, 0, 0]
    assert counts(pieces) == (0, 5, 1)


def test_single_keeps_it_whole_and_marks_it() -> None:
    pieces = apply_overlong(LENGTHS, 4, "single")
    assert as_lists(pieces) == [(0, 0, 5), (1, 0, 2), (2, 0, 3), (3, 0, 1)]
    assert pieces.oversized.tolist() == [True, False, False, False]
    assert counts(pieces) == (0, 0, 0)


@pytest.mark.parametrize("policy", OVERLONG_POLICIES)
def test_zero_lengths_give_no_piece_and_are_not_dropped(policy: str) -> None:
    pieces = apply_overlong([0, 1, 0, 1], 4, policy)
    assert as_lists(pieces) == [(1, 0, 1), (3, 0, 1)]
    assert counts(pieces) == (0, 0, 0)
    for nothing in ([], [0, 0]):
        pieces = apply_overlong(nothing, 0, policy)
        assert as_lists(pieces) == []
        assert counts(pieces) == (0, 0, 0)


def test_where_no_token_fits() -> None:
    with pytest.raises(
        InfeasibleError,
        match=r"^2 sequences are longer than the limit of 0 tokens: sequence 0 has 5, sequence 2 has 1$",
    ):
        apply_overlong([5, 0, 1], 0, "error")
    for policy in ("truncate", "split"):
        with pytest.raises(
            InfeasibleError,
            match=rf"^no token fits, so there is nothing to {policy}: 2 sequences are longer than the limit of 0 ",
        ):
            apply_overlong([5, 0, 1], 0, policy)
    assert apply_overlong([5, 0, 1], 0, "drop").dropped.tolist() == [5, 0, 1]
    assert apply_overlong([5, 0, 1], 0, "drop").num_dropped_sequences == 2
    assert apply_overlong([5, 0, 1], 0, "single").oversized.tolist() == [True, True]


def test_arrays_are_read_only_and_typed() -> None:
    pieces = apply_overlong(np.array(LENGTHS, np.uint8), 4, "split")
    for array in (pieces.sequence_ids, pieces.starts, pieces.lengths, pieces.dropped):
        assert array.dtype == np.int64
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 7
    assert pieces.oversized.dtype == np.bool_
    with pytest.raises(ValueError, match="read-only"):
        pieces.oversized[0] = True


@pytest.mark.parametrize("policy", OVERLONG_POLICIES)
def test_huge_limits_and_lengths(policy: str) -> None:
    assert as_lists(apply_overlong([2**62, 3], 2**70, policy)) == [(0, 0, 2**62), (1, 0, 3)]


def test_huge_pieces() -> None:
    top = 2**63 - 1
    assert as_lists(apply_overlong([top], 2**62, "split")) == [(0, 0, 2**62), (0, 2**62, top - 2**62)]


def test_bad_arguments_are_named() -> None:
    with pytest.raises(
        ArgumentError,
        match="overlong policy must be one of 'drop', 'error', 'single', 'split', 'truncate', got 'trunc'",
    ):
        apply_overlong(LENGTHS, 4, "trunc")
    with pytest.raises(ArgumentError, match="fits_at_most must be at least 0, got -1"):
        apply_overlong(LENGTHS, -1, "drop")
    with pytest.raises(ArgumentError, match=r"lengths must be at least 0: lengths\[1\] = -2"):
        apply_overlong([5, -2], 4, "drop")


@given(
    st.lists(st.integers(0, 50), max_size=30),
    st.integers(1, 60),
    st.sampled_from(["drop", "single", "split", "truncate"]),
)
def test_every_token_is_in_one_piece_or_dropped(lengths: list[int], limit: int, policy: str) -> None:
    pieces = apply_overlong(lengths, limit, policy)
    covered = [0] * len(lengths)
    for sequence, start, length in as_lists(pieces):
        assert start == covered[sequence]  # consecutive and in order, from token 0
        assert length >= 1
        covered[sequence] += length
    assert [covered[i] + int(pieces.dropped[i]) for i in range(len(lengths))] == lengths
    assert pieces.sequence_ids.tolist() == sorted(pieces.sequence_ids.tolist())
    assert pieces.oversized.tolist() == (pieces.lengths > limit).tolist()
    if policy != "single":
        assert not pieces.oversized.any()
    if policy in ("single", "split"):
        assert pieces.num_dropped_tokens == 0


def test_more_pieces_than_memory_are_refused() -> None:
    with pytest.raises(
        InfeasibleError, match=r"would give 225179981368526 pieces, .*: sequence 1 has 1125899906842624"
    ):
        apply_overlong([3, 2**50], 5, "split")


def test_dropped_tokens_are_counted_however_many() -> None:
    assert apply_overlong([2**62] * 3, 10, "drop").num_dropped_tokens == 3 * 2**62
