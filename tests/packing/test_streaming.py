from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcpack.errors import ArgumentError, InfeasibleError
from dcpack.packing import Bins, StreamingPacker, best_fit_decreasing, first_fit, next_fit


def packer_of(lengths: Any, capacity: int = 10, **options: Any) -> StreamingPacker:
    return StreamingPacker(lambda at: lengths[at:], capacity, **{"packer": best_fit_decreasing, **options})


def drained(packer: StreamingPacker) -> list[list[int]]:
    return [members.tolist() for members in packer]


def test_bins_come_by_their_first_sequence_window_by_window() -> None:
    # windows 4 7 6 1 and 10 2 0 5: best fit opens 7, 6, then 10, 5, and the order of arrival is restored
    assert drained(packer_of([4, 7, 6, 1, 10, 2, 0, 5], window=4)) == [[0, 2], [1, 3], [4], [5, 7]]


def test_pending_sample_comes_after_the_resume() -> None:
    """Fault: a sequence that was read but not delivered, lost by the save."""
    packer = packer_of([6, 6])
    assert next(packer).tolist() == [0]
    resumed = packer_of([6, 6])
    resumed.load_state_dict(json.loads(json.dumps(packer.state_dict())))
    assert drained(resumed) == [[1]]


@pytest.mark.parametrize("window", [1, 3, 7, 64])
def test_resume_after_every_bin(window: int) -> None:
    lengths = np.random.default_rng(2).integers(0, 11, 64)
    whole = drained(packer_of(lengths, window=window))
    assert sorted(chain.from_iterable(whole)) == np.flatnonzero(lengths).tolist()
    packer = packer_of(lengths, window=window)
    keys = {key: type(value) for key, value in packer.state_dict().items()}
    for done in range(len(whole) + 1):
        state = json.loads(json.dumps(packer.state_dict()))
        assert {key: type(value) for key, value in state.items()} == keys
        packer = packer_of(lengths, window=window)
        packer.load_state_dict(state)
        assert packer.state_dict() == state  # saved again right after the restore
        if done < len(whole):
            assert next(packer).tolist() == whole[done]
    assert drained(packer) == []
    after_the_end = packer_of(lengths, window=window)
    after_the_end.load_state_dict(packer.state_dict())
    assert drained(after_the_end) == []


def test_reads_no_more_than_a_window_ahead() -> None:
    read = 0

    def open_at(position: int) -> Iterator[int]:
        nonlocal read
        while True:  # a stream without end
            read += 1
            yield 3

    packer = StreamingPacker(open_at, 10, packer=first_fit, window=100)
    for done in range(1, 1000):
        assert next(packer).size == (3 if done % 34 else 1)
        assert read == -(-done // 34) * 100


def test_max_sequences_and_any_packer() -> None:
    assert drained(packer_of([1] * 5, packer=next_fit, max_sequences=2)) == [[0, 1], [2, 3], [4]]


def test_windows_of_empty_sequences_and_an_empty_stream() -> None:
    assert drained(packer_of([0, 0, 0, 4, 0], window=2)) == [[3]]
    assert drained(packer_of([])) == []


def test_a_failed_window_is_not_skipped() -> None:
    lengths = [5, 11, 5, 12, 3]
    packer = packer_of(lengths, window=4)
    message = r"2 sequences are longer than the capacity of 10 tokens: sequence 1 has 11, sequence 3 has 12"
    for _ in range(2):
        with pytest.raises(InfeasibleError, match=message):
            next(packer)
    lengths[1] = lengths[3] = 10
    assert drained(packer) == [[0, 2], [1], [3], [4]]
    later = packer_of([1, 2, 3, 12], window=2)
    assert next(later).tolist() == [0, 1]
    for _ in range(2):
        with pytest.raises(InfeasibleError, match=r"1 sequence is longer than .* 10 tokens: sequence 3 has 12"):
            next(later)


def test_lengths_are_checked_and_named_by_their_window() -> None:
    packer = packer_of([1, 2, 3, -4], window=2)
    next(packer)
    with pytest.raises(ArgumentError, match=r"lengths from position 2 on must be at least 0: .*\[1\] = -4"):
        next(packer)


def test_a_state_of_something_else_is_refused() -> None:
    packer = packer_of([6, 6, 6], window=2)
    next(packer)
    state = packer.state_dict()
    with pytest.raises(ArgumentError, match=r"state has window = 2, but here it is 3$"):
        packer_of([6, 6, 6], window=3).load_state_dict(state)
    with pytest.raises(
        ArgumentError, match=r"state has capacity = 10, .* 12, packer = 'best_fit_decreasing', .* 'next_fit'"
    ):
        packer_of([6, 6, 6], 12, window=2, packer=next_fit).load_state_dict(state)
    with pytest.raises(ArgumentError, match=r"state has version = 9, but here it is 1$"):
        packer.load_state_dict({**state, "version": 9})
    with pytest.raises(ArgumentError, match=r"state must have the keys \['bins_delivered', .*, got \['version'\]"):
        packer.load_state_dict({"version": 1})
    with pytest.raises(ArgumentError, match="window_start must be from 0 to 4611686018427387904, got -1"):
        packer.load_state_dict({**state, "window_start": -1})


@pytest.mark.parametrize("changed", [[6, 5, 6], [], [6]])
def test_a_stream_that_changed_is_noticed(changed: list[int]) -> None:
    packer = packer_of([6, 6, 6], window=2)
    next(packer)
    with pytest.raises(ArgumentError, match="the stream has changed: from position 0 on the window had 12 tokens"):
        packer_of(changed, window=2).load_state_dict(packer.state_dict())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capacity": 0}, "capacity must be at least 1, got 0"),
        ({"window": 0}, "window must be from 1 to 4611686018427387904, got 0"),
        ({"max_sequences": 0}, "max_sequences must be at least 1, got 0"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        packer_of([1], **options)


def test_a_state_that_is_refused_changes_nothing() -> None:
    for changes in ({"window_start": 100}, {"window_tokens": 5}):
        packer = packer_of([6] * 4, window=4)
        next(packer)
        with pytest.raises(ArgumentError, match="the stream has changed"):
            packer.load_state_dict({**packer.state_dict(), **changes})
        assert drained(packer) == [[1], [2], [3]]


@pytest.mark.parametrize("changes", [{"version": True}, {"capacity": 10.0}, {"capacity": np.array([10, 10])}])
def test_a_state_of_other_types_is_refused(changes: dict[str, Any]) -> None:
    packer = packer_of([6, 6])
    with pytest.raises(ArgumentError, match=r"state has (version|capacity) = "):
        packer.load_state_dict({**packer.state_dict(), **changes})


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(ArgumentError, match="must be functions, got packer = 'next_fit'"):
        packer_of([6], packer="next_fit")
    not_a_function: Any = [3, 4]
    with pytest.raises(ArgumentError, match=r"must be functions, got open_at = \[3, 4\]"):
        StreamingPacker(not_a_function, 10, packer=next_fit)


@pytest.mark.parametrize(
    ("bin_of", "message"),
    [
        ([0], "must give each of 2 items once, got 1 items"),
        ([0, 0], "must keep the capacity of 10 tokens: bin 0 holds 12"),
        (None, "must return Bins, got NoneType"),
    ],
)
def test_a_packer_that_is_wrong_is_found_out(bin_of: list[int] | None, message: str) -> None:
    """Fault: sequences lost, or bins over the capacity, without a word."""

    def wrong(*_: Any, **__: Any) -> Any:
        return None if bin_of is None else Bins.from_bin_of(np.array(bin_of))

    with pytest.raises(ArgumentError, match=message):
        next(packer_of([6, 6], packer=wrong))


@pytest.mark.parametrize("groups", [{}, {"groups_at": lambda at: [0, 0, 1][at:]}])
def test_a_packer_that_takes_too_many_sequences_is_found_out(groups: dict[str, Any]) -> None:
    def wrong(lengths: Any, *_: Any, **__: Any) -> Bins:
        return Bins.from_bin_of(np.zeros(len(lengths), np.int64))

    with pytest.raises(ArgumentError, match="packer must keep max_sequences = 2: bin 0 holds 3"):
        next(packer_of([1, 1, 1], packer=wrong, max_sequences=2, **groups))


# Groups.


def grouped(lengths: list[int], groups: list[Any], capacity: int = 10, **options: Any) -> StreamingPacker:
    return packer_of(lengths, capacity, groups_at=lambda at: groups[at:], **options)


def test_groups_share_a_bin_and_no_window_cuts_them() -> None:
    # A window of 3 would cut group 8 behind its first sequence: it ends at 2, and the next starts with the 4.
    lengths, groups = [6, 3, 4, 2, 2, 9], [7, 7, 8, 8, 8, 9]
    assert drained(grouped(lengths, groups, window=3)) == [[0, 1], [2, 3, 4], [5]]
    assert drained(grouped(lengths, groups)) == [[0, 1], [2, 3, 4], [5]]
    assert drained(packer_of(lengths)) == [[0, 2], [1, 3, 4], [5]]  # without groups
    assert drained(grouped([1, 1, 1, 1], [0, 0, 1, 1], max_sequences=3)) == [[0, 1], [2, 3]]
    assert drained(grouped([0, 2, 0, 3], [0, 0, 1, 1])) == [[1, 3]]  # empty sequences are in no bin


@settings(deadline=None)
@given(data=st.data())
def test_groups_stay_whole_over_windows_and_resumes(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 4), max_size=12))
    groups = [group for group, size in enumerate(sizes) for _ in range(size)]
    lengths = data.draw(st.lists(st.integers(0, 5), min_size=len(groups), max_size=len(groups)))
    window = data.draw(st.integers(4, 9))

    def new() -> StreamingPacker:
        return grouped(lengths, groups, 20, window=window)

    bins = drained(new())
    assert sorted(chain.from_iterable(bins)) == np.flatnonzero(lengths).tolist()
    bin_of = {position: b for b, members in enumerate(bins) for position in members}
    assert len({(groups[position], b) for position, b in bin_of.items()}) == len({groups[p] for p in bin_of})
    assert all(sum(lengths[position] for position in members) <= 20 for members in bins)
    stopped = new()
    done = data.draw(st.integers(0, len(bins)))
    for _ in range(done):
        next(stopped)
    resumed = new()
    resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
    assert drained(resumed) == bins[done:]
    assert drained(stopped) == bins[done:]


@pytest.mark.parametrize(
    ("lengths", "groups", "message"),
    [
        ([1] * 3, [5] * 3, "window must hold every group whole, got 2: from position 0 on group 5 has more sequences"),
        ([1, 1, 1], [5, 6], "groups_at must give as many as open_at, but ends at position 2"),
        ([1], [5, 6], "open_at must give as many as groups_at, but ends at position 1"),
        ([1, 1], [5, -6], r"groups must be at least 0: groups\[1\] = -6"),
    ],
)
def test_bad_groups_are_named(lengths: list[int], groups: list[int], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        drained(grouped(lengths, groups, window=2))


def test_a_group_over_the_capacity_is_named() -> None:
    message = "1 group does not fit in a bin of 10 tokens: group 3 has 11 tokens in 2 entries"
    with pytest.raises(InfeasibleError, match=message):
        next(grouped([5, 6, 1], [3, 3, 4]))


def test_a_state_with_groups_is_not_one_without() -> None:
    with pytest.raises(ArgumentError, match="state has groups = True, but here it is False"):
        packer_of([6]).load_state_dict(grouped([6], [0]).state_dict())
