from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dcpack.errors import ArgumentError
from dcpack.sharding import SHARDINGS, get_sharding, local_cu_seqlens, local_token_indices, restore_indices

ROW = [0, 8, 12, 24]  # lengths 8, 4, 12


def test_the_four_methods_by_name() -> None:
    assert sorted(SHARDINGS) == ["contiguous", "striped", "zigzag", "zigzag_per_row"]
    for name, method in SHARDINGS.items():
        assert get_sharding(name) is method
        assert method.name == name
    with pytest.raises(ArgumentError, match=r"sharding must be one of 'zigzag', .*, got 'ring'"):
        get_sharding("ring")


@pytest.mark.parametrize(
    ("method", "cp_rank", "tokens", "local"),
    [
        # chunks of 2, 1, 3: rank 0 takes chunks 0 and 3, rank 1 takes 1 and 2
        ("zigzag", 0, [0, 1, 6, 7, 8, 11, 12, 13, 14, 21, 22, 23], [0, 4, 6, 12]),
        ("zigzag", 1, [2, 3, 4, 5, 9, 10, 15, 16, 17, 18, 19, 20], [0, 4, 6, 12]),
        # row chunks of 6: [0, 6) and [18, 24) against [6, 18)
        ("zigzag_per_row", 0, [0, 1, 2, 3, 4, 5, 18, 19, 20, 21, 22, 23], [0, 6, 6, 12]),
        ("zigzag_per_row", 1, [6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17], [0, 2, 6, 12]),
        ("contiguous", 0, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], [0, 8, 12, 12]),
        ("contiguous", 1, [12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23], [0, 0, 0, 12]),
        ("striped", 0, [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22], [0, 4, 6, 12]),
        ("striped", 1, [1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23], [0, 4, 6, 12]),
    ],
)
def test_one_row_by_hand(method: str, cp_rank: int, tokens: list[int], local: list[int]) -> None:
    assert local_token_indices(ROW, 2, cp_rank, method).tolist() == tokens
    offsets = local_cu_seqlens(ROW, 2, cp_rank, method)
    assert (offsets.tolist(), offsets.dtype) == (local, np.int32)


def test_stripes_run_through_the_row_whatever_the_lengths() -> None:
    # sequences of 3 and 5: slot 3, the first of the second one, is on rank 1
    assert local_token_indices([0, 3, 8], 2, 0, "striped").tolist() == [0, 2, 4, 6]
    assert local_token_indices([0, 3, 8], 2, 1, "striped").tolist() == [1, 3, 5, 7]
    assert local_cu_seqlens([0, 3, 8], 2, 1, "striped").tolist() == [0, 1, 4]


@pytest.mark.parametrize("method", sorted(SHARDINGS))
def test_one_rank_holds_the_row_as_it_is(method: str) -> None:
    odd = [0, 3, 4, 9]
    assert local_token_indices(odd, 1, 0, method).tolist() == list(range(9))
    assert local_cu_seqlens(odd, 1, 0, method).tolist() == odd
    assert restore_indices(odd, 1, method).tolist() == list(range(9))


@pytest.mark.parametrize("method", sorted(SHARDINGS))
def test_a_row_of_nothing(method: str) -> None:
    assert local_token_indices([0], 4, 3, method).tolist() == []
    assert local_cu_seqlens([0], 4, 3, method).tolist() == [0]
    assert local_cu_seqlens([0, 0, 0], 4, 3, method).tolist() == [0, 0, 0]  # the tail of a fixed shape
    assert restore_indices([0], 4, method).tolist() == []


@pytest.mark.parametrize(
    ("method", "offsets", "text"),
    [
        (
            "zigzag",
            [0, 8, 14, 22, 25],
            "sharding 'zigzag' over 2 ranks needs multiples of 4: sequence 1 has 6 padded tokens, "
            "sequence 3 has 3 padded tokens$",
        ),
        ("zigzag_per_row", [0, 4, 10], "over 2 ranks needs multiples of 4: row 0 has 10 padded tokens$"),
        ("contiguous", [0, 4, 9], "over 2 ranks needs multiples of 2: row 0 has 9 padded tokens$"),
        ("striped", [0, 4, 9], "over 2 ranks needs multiples of 2: row 0 has 9 padded tokens$"),
    ],
)
def test_lengths_that_do_not_divide_are_all_named(method: str, offsets: list[int], text: str) -> None:
    for call in (
        lambda: local_token_indices(offsets, 2, 0, method),
        lambda: local_cu_seqlens(offsets, 2, 1, method),
        lambda: restore_indices(offsets, 2, method),
    ):
        with pytest.raises(ArgumentError, match=text):
            call()


def test_only_whole_rows_must_divide_where_rows_are_cut() -> None:
    for method in ("zigzag_per_row", "contiguous", "striped"):
        row = restore_indices([0, 3, 8], 2, method)
        assert sorted(row.tolist()) == list(range(8))


@pytest.mark.parametrize(
    ("cp_size", "cp_rank", "text"),
    [
        (2, 2, "cp_rank must be from 0 to 1, got 2"),
        (2, -1, "cp_rank must be from 0 to 1, got -1"),
        (2, True, "cp_rank must be an integer, got True"),
        (0, 0, "cp_size must be at least 1, got 0"),
        (2.0, 0, "cp_size must be an integer, got 2.0"),
    ],
)
def test_a_rank_that_is_none_is_refused(cp_size: Any, cp_rank: Any, text: str) -> None:
    for function in (local_token_indices, local_cu_seqlens):
        with pytest.raises(ArgumentError, match=f"^{text}"):
            function([0, 8], cp_size, cp_rank)


def test_offsets_are_checked_under_their_name() -> None:
    with pytest.raises(
        ArgumentError, match=r"^cu_seqlens_padded must not decrease: cu_seqlens_padded\[2\] = 4 after 8"
    ):
        local_token_indices([0, 8, 4], 2, 0)


def test_local_offsets_do_not_wrap_beyond_int32() -> None:
    with pytest.raises(ArgumentError, match="int32"):
        local_cu_seqlens([0, 2**33], 2, 0)
