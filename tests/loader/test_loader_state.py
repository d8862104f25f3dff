"""Saving anywhere and going on, on the same or another number of ranks: nothing lost, nothing repeated."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dcpack
from dcpack import DistributedDataLoader, build_distributed_dataloader
from dcpack.comm import Communicator
from dcpack.errors import ArgumentError
from dcpack.loader import CPPlanning

from loader_helpers import (  # isort: skip
    LENGTHS,
    Numbered,
    by_index,
    by_step,
    config,
    describe,
    domain,
    mesh,
    on_ranks,
    plain_steps,
    plans_cp,
    sampler,
)

MODES: dict[str, dict[str, Any]] = {
    "online": {"metadata_fn": describe},
    "metadata": {"metadata": LENGTHS},
    "planned_cp": {"scheduler": "dynamic_cp"},
    "planned_cp_metadata": {"scheduler": "dynamic_cp", "metadata": LENGTHS},
}
SAMPLERS: list[dict[str, Any]] = [{}, {"shuffle_buffer": 9}]


def make(
    communicator: Communicator, mode: str, *, local: int = 1, window: int = 1, **options: Any
) -> DistributedDataLoader:
    settings = config(
        seq_len=64,
        local_batch_size=local,
        metadata_mode=by_index(mode),
        balance_window_size=1 if plans_cp(mode) else window,
    )
    topology = options.pop("topology", domain(communicator.size))
    return build_distributed_dataloader(Numbered(), topology, settings, batch_sampler=sampler(**options), **MODES[mode])


def seen(batch: Any) -> tuple[Any, ...]:
    """Everything in a batch, comparable byte for byte."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [plain(inner) for inner in value]
        return (str(value.dtype), value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value

    numbers = [getattr(batch, name) for name in type(batch).__dataclass_fields__ if name not in ("data", "sample_ids")]
    return *numbers, batch.sample_ids.tolist(), plain(batch.data)


@pytest.mark.parametrize("mode", MODES)
def test_from_every_step_the_same_batches_byte_for_byte(mode: str) -> None:
    def body(communicator: Communicator) -> tuple[list[Any], list[list[Any]]]:
        loader = make(communicator, mode, window=2)
        states, batches = [loader.state_dict()], []
        for batch in loader:
            batches.append(batch)
            if batch.is_last:
                states.append(json.loads(json.dumps(loader.state_dict())))
        resumed = []
        for state in states:
            second = make(communicator, mode, window=2)
            second.load_state_dict(state)
            assert second.state_dict() == state  # right after a restore
            resumed.append([seen(batch) for batch in second])
        done = [sum(batch.step < step for batch in batches) for step in range(len(states))]
        whole = [seen(batch) for batch in batches]
        return [whole[start:] for start in done], resumed

    for wanted, resumed in on_ranks(2, body):
        assert len(wanted) == 5
        assert wanted[0]
        assert not wanted[-1]
        assert resumed == wanted


@pytest.mark.parametrize("mode", MODES)
def test_a_save_inside_a_step_replays_that_step(mode: str) -> None:
    def body(communicator: Communicator) -> tuple[list[list[int]], list[list[int]]]:
        loader = make(communicator, mode, local=1)
        iterator = iter(loader)
        first = [next(iterator)]
        while not first[-1].is_last:
            first.append(next(iterator))
        second = [next(iterator)]  # step 1 has begun
        assert second[0].step == 1
        assert not second[0].is_last
        state = loader.state_dict()
        assert state["step"] == 1
        again = make(communicator, mode, local=1)
        again.load_state_dict(state)
        return [b.sample_ids.tolist() for b in [*second, *iterator]], [b.sample_ids.tolist() for b in again]

    for rest, replayed in on_ranks(2, body):
        assert replayed == rest


def test_a_pending_sample_comes_after_the_resume() -> None:
    # Capacity 10, two samples of 6: two bins. Saved after the first, the second comes after the resume.
    def make_one() -> DistributedDataLoader:
        return build_distributed_dataloader(
            Numbered([6, 6]),
            domain(1),
            config(seq_len=10, local_batch_size=1),
            batch_sampler=sampler(2, 2, shuffle=False),
            scheduler="dynamic_cp",
        )

    first = make_one()
    batch = next(first)
    assert (batch.microbatch, batch.num_microbatches) == (0, 2)
    second = make_one()
    second.load_state_dict(first.state_dict())
    replayed = list(second)
    assert replayed[0].sample_ids.tolist() == batch.sample_ids.tolist()
    assert Counter(i for b in replayed for i in b.sample_ids.tolist()) == {0: 1, 1: 1}
    # The same where each sample is a step of its own: what is pending behind it is not lost.
    one = build_distributed_dataloader(
        Numbered([6, 6]),
        domain(1),
        config(seq_len=10),
        batch_sampler=sampler(1, 2, shuffle=False),
        metadata_fn=describe,
    )
    assert next(one).sample_ids.tolist() == [0]
    other = build_distributed_dataloader(
        Numbered([6, 6]),
        domain(1),
        config(seq_len=10),
        batch_sampler=sampler(1, 2, shuffle=False),
        metadata_fn=describe,
    )
    other.load_state_dict(one.state_dict())
    assert [b.sample_ids.tolist() for b in other] == [[1]]


def run_steps(
    num_ranks: int, num_steps: int, state: Any, build: Callable[..., Any]
) -> tuple[dict[int, Counter[int]], Any]:
    """Take so many optimizer steps of a loader that goes on from `state`; what was seen, and the next state."""

    def body(communicator: Communicator) -> tuple[list[Any], Any]:
        loader = build(communicator)
        if state is not None:
            loader.load_state_dict(state)
        batches: list[Any] = []
        while num_steps and sum(batch.is_last for batch in batches) < num_steps:
            batches.append(next(loader))
        return batches, json.loads(json.dumps(loader.state_dict()))

    results = on_ranks(num_ranks, body)
    assert all(found == results[0][1] for _, found in results)
    outputs = [[b for b in batches if b.cp_rank == 0] for batches, _ in results]
    return by_step(outputs), results[0][1]


@pytest.mark.parametrize("options", SAMPLERS)
@pytest.mark.parametrize("mode", MODES)
def test_other_numbers_of_ranks_see_the_same_global_batches(mode: str, options: dict[str, Any]) -> None:
    wanted = dict(enumerate(plain_steps(53, global_batch_size=12, seed=5, **options)))
    found: dict[int, Counter[int]] = {}
    state = None
    for num_ranks, num_steps in ((4, 1), (2, 1), (3, 1), (4, 1)):
        steps, state = run_steps(num_ranks, num_steps, state, lambda c: make(c, mode, **options))
        assert not set(steps) & set(found)
        found |= steps
    assert found == wanted


def test_two_resumes_go_on_at_forty() -> None:
    def build(communicator: Communicator) -> DistributedDataLoader:
        return build_distributed_dataloader(
            Numbered([5] * 200),
            domain(2),
            config(local_batch_size=2),
            batch_sampler=sampler(4, 200),
            metadata_fn=describe,
        )

    found: dict[int, Counter[int]] = {}
    state = None
    for num_steps in (30, 10, 10):
        steps, state = run_steps(2, num_steps, state, build)
        found |= steps
        assert state["step"] == len(found)
    assert found == dict(enumerate(plain_steps(200, global_batch_size=4, seed=5)))


def test_ranks_that_receive_have_the_same_state() -> None:
    def body(communicator: Communicator) -> list[Any]:
        loader = make(communicator, "online", local=2, topology=mesh(dp=2, tp=2), shuffle_buffer=9)
        states = [loader.state_dict()]
        for batch in loader:
            states += [loader.state_dict()] if batch.is_last else []
        return states

    results = on_ranks(4, body)
    assert len(results[0]) == 5
    assert all(states == results[0] for states in results)


def test_epochs_follow_each_other() -> None:
    def orders(loader: DistributedDataLoader, epochs: int) -> list[list[int]]:
        found = []
        for _ in range(epochs):
            found.append([i for batch in loader for i in batch.sample_ids.tolist()])
            with pytest.raises(StopIteration):
                next(loader)
        return found

    def build() -> DistributedDataLoader:
        return build_distributed_dataloader(
            Numbered(), domain(1), config(), batch_sampler=sampler(), metadata_fn=describe
        )

    loader = build()
    first, second = orders(loader, 2)
    assert (loader.epoch, loader.step) == (1, 4)
    assert first != second
    assert [Counter(order) for order in (first, second)] == [
        sum(plain_steps(53, epoch=e, global_batch_size=12, seed=5), start=Counter()) for e in (0, 1)
    ]
    # A state at the end of an epoch: an empty rest, and then the next epoch.
    ended = build()
    list(ended)
    resumed = build()
    resumed.load_state_dict(ended.state_dict())
    assert orders(resumed, 2) == [[], second]
    # The usual loop, with set_epoch at its head, resumed in epoch 1.
    middle = build()
    middle.set_epoch(1)
    head = [next(middle).sample_ids.tolist() for _ in range(12)]
    again = build()
    again.load_state_dict(middle.state_dict())
    assert again.epoch == 1
    again.set_epoch(again.epoch)
    assert [i for ids in head for i in ids] + orders(again, 1)[0] == second
    with pytest.raises(ArgumentError, match=r"set_epoch\(3\) in the middle of epoch 1, after 1 steps"):
        middle.set_epoch(3)


def test_an_iteration_that_was_left_goes_on() -> None:
    loader = build_distributed_dataloader(
        Numbered(), domain(1), config(), batch_sampler=sampler(), metadata_fn=describe
    )
    first = [batch.sample_ids.tolist() for batch, _ in zip(loader, range(5), strict=False)]
    rest = [batch.sample_ids.tolist() for batch in loader]
    # zip took one more batch than it gave on: its iterator is the loader itself.
    assert len(first) + 1 + len(rest) == 48


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"seed": 6}, "seed was 5, is 6"),
        ({"size": 6}, "global_batch_size was 12, is 6"),
        ({"num_samples": 52}, "dataset_size was 53, is 52"),
    ],
)
def test_a_state_that_cannot_fit_is_refused_by_name(change: dict[str, Any], text: str) -> None:
    def build(**options: Any) -> DistributedDataLoader:
        count = options.get("num_samples", 53)
        return build_distributed_dataloader(
            Numbered(LENGTHS[:count]), domain(1), config(), batch_sampler=sampler(**options), metadata_fn=describe
        )

    state = build().state_dict()
    with pytest.raises(ArgumentError) as caught:
        build(**change).load_state_dict(state)
    assert text in str(caught.value)


def test_what_may_change_between_a_state_and_its_restoring() -> None:
    def build(**options: Any) -> DistributedDataLoader:
        mode = options.pop("arguments", {"metadata_fn": describe})
        return build_distributed_dataloader(Numbered(), domain(1), config(**options), batch_sampler=sampler(), **mode)

    first = build()
    for _ in range(12):
        next(first)
    state = first.state_dict()
    wanted = plain_steps(53, global_batch_size=12, seed=5)[1:]
    for change in (
        {"seq_len": 100},
        {"min_balance_gain": 0.5},
        {"local_batch_size": 3},
        {"balance_window_size": 4},
        {"arguments": {"metadata_fn": describe, "dataloader_kwargs": {"num_workers": 2}}},
        {"arguments": {"scheduler": CPPlanning()}},
    ):
        second = build(**change)
        second.load_state_dict(state)
        assert list(by_step([second]).values()) == wanted


def test_states_that_are_none_are_refused() -> None:
    def build() -> DistributedDataLoader:
        return build_distributed_dataloader(
            Numbered(), domain(1), config(), batch_sampler=sampler(), metadata_fn=describe
        )

    loader = build()
    state = loader.state_dict()
    for wrong, text in (
        (3, "state must be one of state_dict"),
        ({"version": 1}, "this one lacks fingerprint, epoch, step, source"),
        ({**state, "version": 2}, "state must be of version 1, got 2"),
        ({**state, "epoch": -1}, "epoch of the state must be at least 0"),
        ({**state, "step": True}, "step of the state must be an integer"),
        ({**state, "source": None}, "this rank needs the state of a rank that builds batches"),
        ({**state, "source": 3}, "source of the state must be a mapping or None"),
        ({**state, "epoch": 1}, "the state is of epoch 1, its source of epoch 0"),
        ({**state, "fingerprint": 3}, "fingerprint of the state must be a mapping"),
    ):
        with pytest.raises(ArgumentError, match=text):
            loader.load_state_dict(wrong)  # type: ignore[arg-type]
    next(loader)
    with pytest.raises(ArgumentError, match="before the first batch is taken"):
        loader.load_state_dict(state)
    loader.close()
    loader.close()
    with pytest.raises(ArgumentError, match="this loader is closed"):
        next(loader)


def test_a_state_whose_parts_are_of_different_moments_is_refused() -> None:
    def body(communicator: Communicator) -> None:
        with make(communicator, "online") as loader:
            fresh = loader.state_dict()
            for batch in loader:
                if batch.step == 1:
                    break
            later = loader.state_dict()
        assert (fresh["step"], later["step"]) == (0, 1)
        for state in ({**later, "step": 10**9}, {**later, "source": fresh["source"]}, {**fresh, "step": 1}):
            with make(communicator, "online") as other:
                with pytest.raises(ArgumentError, match=r"the state is of step \d+, behind \d+ samples"):
                    other.load_state_dict(state)
                other.load_state_dict(later)
                assert next(iter(other)).step == 1

    on_ranks(1, body)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("given", [12, 18])  # samples: behind a step, and in the middle of the next one
@pytest.mark.parametrize("with_peer", [False, True])
def test_a_loader_on_a_sampler_that_has_gone_on_saves_what_loads(mode: str, given: int, with_peer: bool) -> None:
    topology = mesh(dp=1, tp=2) if with_peer else domain(1)

    def body(communicator: Communicator) -> None:
        def build(start: int) -> DistributedDataLoader:
            indices = sampler(micro_batch_size=1, dp_rank=0, dp_world_size=1)
            for _, _ in zip(range(start), indices, strict=False):
                pass
            settings = config(metadata_mode=by_index(mode))
            return build_distributed_dataloader(Numbered(), topology, settings, batch_sampler=indices, **MODES[mode])

        with build(given) as loader:
            assert loader.step == 1
            states = [loader.state_dict()]
            rest = []
            for batch in loader:
                rest.append((batch.step, batch.sample_ids.tolist()))
                if batch.is_last and batch.step == 1:
                    states.append(loader.state_dict())
            assert rest[0][0] == 1
        for state, first in zip(states, (1, 2), strict=True):
            with build(0) as other:
                other.load_state_dict(state)
                found = [(batch.step, batch.sample_ids.tolist()) for batch in other]
                assert found == [at for at in rest if at[0] >= first]

    on_ranks(2 if with_peer else 1, body)


def test_a_state_is_not_changed_by_what_comes_later() -> None:
    loader = make_alone()
    state = loader.state_dict()
    copy = json.loads(json.dumps(state))
    list(loader)
    assert state == copy


def make_alone() -> DistributedDataLoader:
    return build_distributed_dataloader(
        Numbered(), domain(1), config(), batch_sampler=sampler(shuffle_buffer=9), metadata_fn=describe
    )


@pytest.mark.parametrize("mode", MODES)
def test_ranks_that_go_on_from_different_steps_are_refused(mode: str) -> None:
    def body(communicator: Communicator) -> None:
        loader = make(communicator, mode)
        for _ in iter(lambda: next(loader).is_last, True):
            pass
        again = make(communicator, mode)
        if communicator.rank:
            again.load_state_dict(loader.state_dict())
        next(again)

    with pytest.raises(
        ArgumentError, match="all ranks must go on from the same step: rank 0 at epoch 0, step 0, rank 1"
    ):
        raise_cause(body)


def test_a_rank_that_receives_must_be_at_the_same_step() -> None:
    def body(communicator: Communicator) -> None:
        loader = make(communicator, "online", topology=mesh(dp=1, tp=2))
        for _ in iter(lambda: next(loader).is_last, True):
            pass
        again = make(communicator, "online", topology=mesh(dp=1, tp=2))
        if communicator.rank == 0:
            again.load_state_dict(loader.state_dict())
        next(again)

    with pytest.raises(ArgumentError, match="this rank is at epoch 0, step 0, but was sent a batch of epoch 0, step 1"):
        raise_cause(body)


def raise_cause(body: Callable[[Communicator], Any]) -> None:
    with pytest.raises(dcpack.PeerError) as caught:
        on_ranks(2, body)
    assert caught.value.__cause__ is not None
    raise caught.value.__cause__


# ---- errors ----------------------------------------------------------------------------------------------------------


class Broken(Numbered):
    """Fails at its n-th read."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def __getitem__(self, index: int) -> Any:
        sample = super().__getitem__(index)
        if sum(self.reads.values()) == self.at:
            raise KeyError("x")
        return sample


@pytest.mark.parametrize("mode", MODES)
def test_a_dataset_that_fails_on_one_rank_is_an_error_on_all(mode: str) -> None:
    def body(communicator: Communicator) -> str:
        data = Broken(3 if communicator.rank == 2 else 10**9)
        loader = build_distributed_dataloader(
            data,
            mesh(dp=2, tp=2),
            config(local_batch_size=2, metadata_mode=by_index(mode)),
            batch_sampler=sampler(),
            **MODES[mode],
        )
        try:
            list(loader)
        except dcpack.PeerError as error:
            with pytest.raises(ArgumentError, match="this loader has failed: PeerError"):
                next(loader)
            return f"{error.rank} {error.cause}"
        return ""

    assert on_ranks(4, body) == ["2 KeyError"] * 4
