from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcpack import GlobalBatchSampler
from dcpack.errors import ArgumentError
from dcpack.loader.sampler import random_words


def make(num_samples: int, ranks: int, rank: int, micro: int, **options: Any) -> GlobalBatchSampler:
    place = {"dp_rank": rank, "dp_world_size": ranks, "micro_batch_size": micro}
    return GlobalBatchSampler(num_samples, **place, **options)


def steps_on(num_samples: int, ranks: int, micro: int, **options: Any) -> list[list[int]]:
    """The global batches, put together again from what each rank gets."""
    members = [make(num_samples, ranks, rank, micro, **options) for rank in range(ranks)]
    size, found = options["global_batch_size"], []
    for rounds in zip(*members, strict=True):
        if not found or len(found[-1]) == size:
            found.append([])
        found[-1] += [index for part in rounds for index in part]
    return found


def test_the_words_are_those_of_splitmix64() -> None:
    # Its published first outputs for the seed 1234567 (Vigna, splitmix64.c), of which ours is the counter form.
    golden = 0x9E3779B97F4A7C15
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]

    def mix(word: int) -> int:
        word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
        return word ^ (word >> 31)

    assert [mix((1234567 + (i + 1) * golden) % 2**64) for i in range(3)] == published
    stream = mix((mix((42 + golden) % 2**64) + 3 * golden) % 2**64)
    wanted = [mix((stream + (i + 1) * golden) % 2**64) for i in range(5)]
    assert random_words(42, 3, 0, 5).tolist() == wanted
    assert random_words(42, 3, 2, 3).tolist() == wanted[2:]


@settings(max_examples=40, deadline=None)
@given(
    num_samples=st.integers(0, 60),
    ranks=st.sampled_from([1, 2, 3, 4]),
    micro=st.sampled_from([1, 2]),
    shuffle=st.sampled_from(["whole", "buffer", "none"]),
    drop_last=st.booleans(),
)
def test_global_batches_do_not_depend_on_ranks(
    num_samples: int, ranks: int, micro: int, shuffle: str, drop_last: bool
) -> None:
    options: dict[str, Any] = {"global_batch_size": 24, "seed": 9, "drop_last": drop_last, "shuffle": shuffle != "none"}
    options |= {"shuffle_buffer": 7} if shuffle == "buffer" else {}
    wanted = steps_on(num_samples, 1, 24, **options)
    assert steps_on(num_samples, ranks, micro, **options) == wanted
    used = Counter(index for step in wanted for index in step)
    assert all(count == 1 for count in used.values())
    count = num_samples // 24 * 24 if drop_last else num_samples
    assert sum(used.values()) == count
    assert make(num_samples, 1, 0, 24, **options).num_dropped == num_samples - count
    if not drop_last:
        assert set(used) == set(range(num_samples))


def test_epochs_and_seeds_differ_and_repeat() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        sampler = make(100, 1, 0, 10, global_batch_size=10, seed=seed)
        sampler.set_epoch(epoch)
        return [index for batch in sampler for index in batch]

    assert order(1, 0) == order(1, 0)
    assert len({tuple(order(seed, epoch)) for seed in (1, 2) for epoch in (0, 1)}) == 4
    assert np.abs(np.array(order(1, 0)) - np.arange(100)).mean() > 10  # far from the order of the dataset


def test_a_buffer_keeps_reads_near_and_still_shuffles() -> None:
    order = [i for b in make(1000, 1, 0, 10, global_batch_size=10, seed=1, shuffle_buffer=32) for i in b]
    assert order != sorted(order)
    # Position p is drawn from the first p + 32 indices.
    assert all(index < position + 32 for position, index in enumerate(order))


@pytest.mark.parametrize("options", [{}, {"shuffle_buffer": 5}, {"shuffle": False}, {"drop_last": False}])
def test_a_state_goes_on_from_every_step_on_any_ranks(options: dict[str, Any]) -> None:
    common = {"global_batch_size": 12, "seed": 3, **options}
    wanted = steps_on(50, 1, 12, **common)
    for step in range(len(wanted) + 1):
        first = make(50, 4, 3, 3, **common)
        iterator = iter(first)
        for _ in range(step):
            next(iterator)
        state = json.loads(json.dumps(first.state_dict()))
        members = [make(50, 2, rank, 2, **common) for rank in range(2)]
        for member in members:
            member.load_state_dict(state)
        rest = [[i for part in rounds for i in part] for rounds in zip(*members, strict=True)]
        assert [i for part in rest for i in part] == [i for part in wanted[step:] for i in part]


def test_skipping_a_step_is_reading_it() -> None:
    for options in ({}, {"shuffle_buffer": 5}, {"drop_last": False}):
        reading = make(50, 1, 0, 6, global_batch_size=12, seed=3, **options)
        skipping = make(50, 2, 1, 3, global_batch_size=12, seed=3, **options)
        iterator = iter(reading)
        for _ in range(reading.num_steps):
            for _ in range(2):
                next(iterator, None)
            skipping.skip_step()
            assert skipping.state_dict() == reading.state_dict()


def test_restoring_refuses_what_cannot_fit_and_says_which() -> None:
    state = make(50, 1, 0, 4, global_batch_size=4, seed=3).state_dict()
    other = make(51, 1, 0, 8, global_batch_size=8, seed=4)
    with pytest.raises(ArgumentError) as caught:
        other.load_state_dict(state)
    for text in ("num_samples was 50, is 51", "global_batch_size was 4, is 8", "seed was 3, is 4"):
        assert text in str(caught.value)
    with pytest.raises(ArgumentError, match="state must be one of GlobalBatchSampler"):
        other.load_state_dict({"epoch": 0})


def test_a_place_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ArgumentError, match="global_batch_size must be a multiple of 3 ranks x micro-batches of 2"):
        make(50, 3, 0, 2, global_batch_size=4)
    sampler = GlobalBatchSampler(50, global_batch_size=4)
    with pytest.raises(ArgumentError, match="does not know its rank yet"):
        next(iter(sampler))
    sampler.bind(0, 2, 1)
    sampler.bind(0, 2, 1)
    with pytest.raises(ArgumentError, match="this sampler is bound as"):
        sampler.bind(1, 2, 1)
    with pytest.raises(ArgumentError, match="go together"):
        GlobalBatchSampler(50, global_batch_size=4, dp_rank=0)
    with pytest.raises(ArgumentError, match="shuffle_buffer has no effect"):
        GlobalBatchSampler(50, global_batch_size=4, shuffle=False, shuffle_buffer=3)
    with pytest.raises(ArgumentError, match="shuffle must be True or False, got 1"):
        GlobalBatchSampler(50, global_batch_size=4, shuffle=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"next_index": 3},
        {"next_index": 11},
        {"next_index": 10**30},
        {"buffer": []},
        {"buffer": [0, 0]},
        {"buffer": [0, 99]},
        {"buffer": [5]},
        {"buffer": "ab"},
        {"buffer": None},
        {"consumed_samples": 6},
        {"version": True},
        {"drop_last": 1},
    ],
)
def test_a_damaged_state_is_refused_and_nothing_changes(change: dict[str, Any]) -> None:
    options: dict[str, Any] = {"global_batch_size": 2, "seed": 3, "shuffle_buffer": 4}
    place: dict[str, Any] = {"micro_batch_size": 2, "dp_rank": 0, "dp_world_size": 1}
    sampler = GlobalBatchSampler(10, **options, **place)
    iterator = iter(sampler)
    next(iterator)
    state = sampler.state_dict()
    assert (state["consumed_samples"], len(state["buffer"])) == (2, state["next_index"] - 2)
    with pytest.raises(ArgumentError, match=r"of the state|state does not fit"):
        sampler.load_state_dict({**state, **change})
    assert sampler.state_dict() == state
    rest = list(iterator)
    sampler.load_state_dict(state)
    assert list(sampler) == rest
    for key in state:  # cut off anywhere
        with pytest.raises(ArgumentError, match="state must be one of GlobalBatchSampler"):
            sampler.load_state_dict({name: value for name, value in state.items() if name != key})


def test_a_rank_looks_up_its_own_indices_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """With many ranks a round is long."""
    asked = []
    positions = GlobalBatchSampler.positions

    def noted(self: GlobalBatchSampler, start: int, count: int) -> Any:
        asked.append((start, count))
        return positions(self, start, count)

    monkeypatch.setattr(GlobalBatchSampler, "positions", noted)
    place = {"dp_rank": 2, "dp_world_size": 4, "micro_batch_size": 2}
    sampler = GlobalBatchSampler(13, global_batch_size=8, drop_last=False, shuffle=False, **place)
    assert list(sampler) == [[4, 5], [12]]
    assert asked == [(4, 2), (12, 1)]
    place["dp_rank"] = 3
    assert list(GlobalBatchSampler(13, global_batch_size=8, drop_last=False, shuffle=False, **place)) == [[6, 7], []]


def test_samplers_of_other_ranks_share_one_order_of_the_epoch() -> None:
    sampler = GlobalBatchSampler(24, global_batch_size=8, seed=1, dp_rank=0, dp_world_size=4, micro_batch_size=2)
    others = [sampler.for_rank(rank) for rank in range(4)]
    assert all(np.shares_memory(other.positions(0, 24), sampler.positions(0, 24)) for other in others)
    firsts = [next(iter(other)) for other in others]
    assert firsts == [part.tolist() for part in np.split(sampler.positions(0, 8), 4)]
