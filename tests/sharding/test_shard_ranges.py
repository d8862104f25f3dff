from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dcpack.sharding import ShardRanges

Runs = list[tuple[int, int, int, int, int]]  # start, extent, start, extent, step


def build(runs: Runs) -> ShardRanges:
    table = np.array(runs, np.int64).reshape(-1, 5)
    starts = np.stack([table[:, 0], table[:, 2]])
    return ShardRanges(starts=starts, stops=starts + np.stack([table[:, 1], table[:, 3]]), steps=table[:, 4])


def slowly(ranges: ShardRanges, pair: int, limit: int | None = None) -> list[list[int]]:
    runs = []
    for k in range(2):
        stop = int(ranges.stops[k, pair])
        stop = stop if limit is None else min(stop, limit)
        runs.append(list(range(int(ranges.starts[k, pair]), stop, int(ranges.steps[pair]))))
    return runs


edges = st.integers(0, 30)
many_runs = st.lists(st.tuples(edges, st.integers(-5, 30), edges, st.integers(-5, 30), st.integers(1, 7)), max_size=8)


@settings(deadline=None)
@given(runs=many_runs, limits=st.lists(st.integers(0, 40), min_size=8, max_size=8))
def test_counts_tokens_and_clips_like_python_ranges(runs: Runs, limits: list[int]) -> None:
    ranges = build(runs)
    every = [slowly(ranges, pair) for pair in range(len(runs))]
    assert ranges.counts().T.tolist() == [[len(run) for run in pair] for pair in every]
    assert ranges.tokens().tolist() == [token for pair in every for run in pair for token in run]
    clipped = ranges.clip(np.array(limits[: len(runs)], np.int64))
    kept = [slowly(ranges, pair, limits[pair]) for pair in range(len(runs))]
    assert clipped.counts().T.tolist() == [[len(run) for run in pair] for pair in kept]
    assert clipped.tokens().tolist() == [token for pair in kept for run in pair for token in run]


def test_a_stride_is_cut_at_the_real_length_by_hand() -> None:
    # tokens 1, 4, 7, 10 of a padded length of 12; 8 are real
    ranges = build([(1, 11, 0, 0, 3)])
    assert ranges.tokens().tolist() == [1, 4, 7, 10]
    assert ranges.clip(np.array([8])).tokens().tolist() == [1, 4, 7]
    assert ranges.clip(np.array([1])).counts().tolist() == [[0], [0]]
