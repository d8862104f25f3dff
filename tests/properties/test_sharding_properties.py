"""What holds for every sharding method: no token is lost, doubled or mixed up, whatever the lengths."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcpack.errors import ArgumentError
from dcpack.layout import packed_offsets, slots_of_real_tokens
from dcpack.padding import PaddingRule, padded_lengths
from dcpack.sharding import SHARDINGS, local_cu_seqlens, local_token_indices, restore_indices

METHODS = sorted(SHARDINGS)
CP_SIZES = st.sampled_from([1, 2, 3, 4, 5, 6, 8])

relaxed = settings(deadline=None, max_examples=60)


def slots_slowly(method: str, lengths: list[int], cp: int, rank: int) -> list[int]:
    """The slots of one rank, sequence after sequence, straight from the definitions."""
    total = sum(lengths)
    owners: list[int] = []
    offset = 0
    for length in lengths:
        for i in range(length):
            slot = offset + i
            if method == "contiguous":
                owners.append(slot // (total // cp))
            elif method == "striped":
                owners.append(slot % cp)
            else:
                place, whole = (i, length) if method == "zigzag" else (slot, total)
                chunk = place // max(whole // (2 * cp), 1) if cp > 1 else 0
                owners.append(min(chunk, 2 * cp - 1 - chunk) if cp > 1 else 0)
        offset += length
    return [slot for slot, owner in enumerate(owners) if owner == rank]


@st.composite
def rows(draw: st.DrawFn, method: str) -> tuple[list[int], int]:
    """Padded lengths that the method can cut over a CP size."""
    cp = draw(CP_SIZES)
    divisor = int(np.max(SHARDINGS[method].divisor(np.array([cp]))))
    if not SHARDINGS[method].divides_rows:
        return [divisor * n for n in draw(st.lists(st.integers(0, 5), min_size=1, max_size=8))], cp
    lengths = draw(st.lists(st.integers(0, 40), min_size=1, max_size=8))
    return [*lengths, -sum(lengths) % divisor], cp


@pytest.mark.parametrize("method", METHODS)
@given(data=st.data())
@relaxed
def test_every_slot_is_on_exactly_one_rank_and_comes_back(method: str, data: st.DataObject) -> None:
    lengths, cp = data.draw(rows(method))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    slices = [local_token_indices(offsets, cp, rank, method) for rank in range(cp)]
    assert [len(piece) for piece in slices] == [sum(lengths) // cp] * cp
    assert sorted(np.concatenate(slices).tolist()) == list(range(sum(lengths)))
    row = np.random.default_rng(0).integers(0, 10**9, sum(lengths))
    laid_end_to_end = np.concatenate([row[piece] for piece in slices])
    assert laid_end_to_end[restore_indices(offsets, cp, method)].tolist() == row.tolist()


@pytest.mark.parametrize("method", METHODS)
@given(data=st.data())
@relaxed
def test_slices_and_local_offsets_are_those_of_the_definition(method: str, data: st.DataObject) -> None:
    lengths, cp = data.draw(rows(method))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    for rank in range(cp):
        slots = local_token_indices(offsets, cp, rank, method)
        assert slots.tolist() == slots_slowly(method, lengths, cp, rank)
        counts = [int(((slots >= start) & (slots < stop)).sum()) for start, stop in itertools.pairwise(offsets)]
        assert local_cu_seqlens(offsets, cp, rank, method).tolist() == np.cumsum([0, *counts]).tolist()
    if method == "zigzag":
        assert all(local_cu_seqlens(offsets, cp, rank).tolist() == (offsets // cp).tolist() for rank in range(cp))


@pytest.mark.parametrize("method", METHODS)
@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=6),
    cp=CP_SIZES,
    tp=st.integers(1, 3),
    block=st.sampled_from([1, 4, 16]),
)
@relaxed
def test_real_tokens_land_once_and_the_padding_rule_always_divides(
    method: str, lengths: list[int], cp: int, tp: int, block: int
) -> None:
    padded = padded_lengths(lengths, cp, PaddingRule(tp=tp, block=block))
    offsets = packed_offsets(lengths, padded)
    real = set(slots_of_real_tokens(lengths, padded).tolist())
    seen: list[int] = []
    num_sequences = len(lengths)
    for rank in range(cp):
        slots = local_token_indices(offsets.cu_seqlens_padded, cp, rank, method)
        mine = [slot for slot in slots.tolist() if slot in real]
        seen += mine
        # the same tokens by runs that are clipped to the real lengths, as the exchange asks for them
        full = [np.full(num_sequences, number) for number in (offsets.cu_seqlens_padded[-1], cp, rank)]
        starts = offsets.cu_seqlens_padded[:-1].astype(np.int64)
        runs = SHARDINGS[method].ranges(starts, padded, *full).clip(np.array(lengths))
        assert (runs.tokens() + np.repeat(starts, runs.counts().sum(axis=0))).tolist() == mine
    assert sorted(seen) == sorted(real)


@pytest.mark.parametrize("method", METHODS)
@given(lengths=st.lists(st.integers(0, 40), min_size=1, max_size=8), cp=st.integers(2, 8))
@relaxed
def test_lengths_that_do_not_divide_are_refused_and_all_named(method: str, lengths: list[int], cp: int) -> None:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    divisor = 2 * cp if method.startswith("zigzag") else cp
    divided = [sum(lengths)] if SHARDINGS[method].divides_rows else lengths
    bad = [i for i, length in enumerate(divided) if length % divisor]
    if not bad:
        assert local_token_indices(offsets, cp, 0, method).size == sum(lengths) // cp
        return
    with pytest.raises(ArgumentError) as caught:
        local_token_indices(offsets, cp, cp - 1, method)
    for i in bad:
        assert f" {i} has {divided[i]} padded tokens" in str(caught.value)
