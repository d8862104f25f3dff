"""Planning the same sequences under many settings."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dcpack._checks import (
    Int64Array,
    as_array,
    as_lengths,
    check_choice,
    check_int,
    check_items,
    check_kinds,
    check_names,
)
from dcpack.cost import Device, TransformerCost, TransformerModel
from dcpack.errors import ArgumentError
from dcpack.packing import OVERLONG_POLICIES
from dcpack.padding import PaddingRule
from dcpack.plans import SYNC_MODES
from dcpack.report import STRATEGIES, Cluster, Planned, StrategyResult, compare_strategies, format_bytes
from dcpack.tuning.memory import RECOMPUTE, MemoryEstimate, MemoryOptions, estimate_memory
from dcpack.tuning.shares import TimeShares, time_shares

__all__ = ["Job", "SearchSpace", "Trial", "recommend", "sample_lengths", "search"]

_PASSES = {"none": 3.0, "full": 4.0}  # of the forward pass: the backward pass is two, recomputing is one
_TIE = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What is given: the model, the devices, and what holds under every setting.

    Args:
        model: dimensions of the model.
        device: figures of the device.
        num_ranks: ranks of the DPxCP domain.
        tp_size: devices of each of them.
        block: kernel block, for the padding rule.
        attention: pattern, as `dcpack.cost.get_attention` takes it.
        sync: when ranks wait for each other.
        overlong: policy for sequences that fit on no CP size.
        memory: how the job holds its memory.

    Example:
        >>> from dcpack.cost import get_device, get_model
        >>> Job(model=get_model("llama3-8b"), device=get_device("h100"), num_ranks=64).usable_bytes
        72000000000.0
    """

    model: TransformerModel
    device: Device
    num_ranks: int
    tp_size: int = 1
    block: int = 1
    attention: str = "causal"
    sync: str = "microbatch"
    overlong: str = "error"
    memory: MemoryOptions = field(default_factory=MemoryOptions)

    def __post_init__(self) -> None:
        check_int("num_ranks", self.num_ranks, minimum=1)
        check_choice("sync", self.sync, SYNC_MODES)
        check_choice("overlong", self.overlong, OVERLONG_POLICIES)
        check_kinds(memory=(self.memory, MemoryOptions))
        self.cost("none")  # raises what is wrong with the model, the device, attention or tp_size
        _ = self.padding

    @property
    def usable_bytes(self) -> float:
        """Bytes of a device that may be planned for."""
        return self.device.memory_bytes * self.memory.usable

    @property
    def padding(self) -> PaddingRule:
        """The padding rule."""
        return PaddingRule(tp=self.tp_size, block=self.block)

    @property
    def node_ranks(self) -> int:
        """Plan ranks of a node, at most all."""
        node = self.cost("none").node_size
        return self.num_ranks if node is None else min(node, self.num_ranks)

    def cost(self, recompute: str) -> TransformerCost:
        """Return the cost model; recomputing is a fourth forward pass."""
        check_choice("recompute", recompute, RECOMPUTE)
        return TransformerCost(
            model=self.model,
            device=self.device,
            attention=self.attention,
            tp_size=self.tp_size,
            passes=_PASSES[recompute],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchSpace:
    """What is tried; every combination that fits in memory.

    Args:
        capacities: padded tokens of a row on one rank.
        strategies: names out of `dcpack.report.STRATEGIES`.
        max_cp_sizes: largest CP size that the strategy may use.
        global_batch_sizes: sequences of a step.
        recompute: out of `RECOMPUTE`; ``"full"`` is only tried where ``"none"`` does not fit, as it is always slower.

    Raises:
        ArgumentError: nothing to try, or a value out of range.

    Example:
        >>> SearchSpace(capacities=(8192,), max_cp_sizes=(8, 64), global_batch_sizes=(512,)).strategies[0]
        'static CP'
    """

    capacities: Sequence[int]
    max_cp_sizes: Sequence[int]
    global_batch_sizes: Sequence[int]
    strategies: Sequence[str] = tuple(name for name in STRATEGIES if name != "pad to longest")
    recompute: Sequence[str] = RECOMPUTE

    def __post_init__(self) -> None:
        for name in ("capacities", "max_cp_sizes", "global_batch_sizes"):
            given = check_items(name, getattr(self, name))
            numbers = {check_int(name, value, minimum=1) for value in given}
            object.__setattr__(self, name, tuple(sorted(numbers)))
        for name, known in (("strategies", STRATEGIES), ("recompute", RECOMPUTE)):
            chosen = check_names(name, getattr(self, name))
            values = tuple(dict.fromkeys(check_choice(name, value, known) for value in chosen))
            object.__setattr__(self, name, values)
        if empty := [name for name in self.__dataclass_fields__ if not getattr(self, name)]:
            raise ArgumentError(f"nothing to try: {', '.join(empty)} must not be empty")


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One setting, and what came of it.

    Attributes:
        capacity: padded tokens of a row on one rank.
        strategy: out of `dcpack.report.STRATEGIES`.
        max_cp_size: largest CP size.
        global_batch_size: sequences of a step.
        recompute: out of `RECOMPUTE`.
        memory: what a rank needs, estimated.
        failure: why it cannot be, or None.
        cause: the field that alone makes it impossible, whatever the others are, or None.
        num_steps: steps that were planned.
        step_time: mean seconds of a step, simulated.
        token_time: seconds of a step for each of its tokens: settings of different global batches compare by it.
        utilization: real tokens over the slots of all rows.
        mean_cp_size: CP size that a token meets on average.
        shares: where the time of all ranks goes, over all steps.

    Example:
        >>> memory = MemoryEstimate(states=2e9, gathered=3e9, activations=36e9, logits=6e9)
        >>> Trial(capacity=8192, strategy="dynamic_cp", max_cp_size=8, global_batch_size=512, recompute="none",
        ...     memory=memory, failure="too large").failure
        'too large'
    """

    capacity: int
    strategy: str
    max_cp_size: int
    global_batch_size: int
    recompute: str
    memory: MemoryEstimate
    failure: str | None = None
    cause: str | None = None
    num_steps: int = 0
    step_time: float = 0.0
    token_time: float = 0.0
    utilization: float = 0.0
    mean_cp_size: float = 1.0
    shares: TimeShares = field(default_factory=TimeShares)


def sample_lengths(lengths: Any, count: int) -> Int64Array:
    """Return at most `count` lengths, spread evenly over all, in their order.

    Args:
        lengths: int64[n], tokens of each sequence.
        count: how many to keep, at least 1.

    Raises:
        ArgumentError: lengths that are none, or a count below 1.

    Example:
        >>> sample_lengths([1, 2, 3, 4, 5, 6], 3).tolist()
        [1, 3, 5]
    """
    check_int("count", count, minimum=1)
    array = as_array("lengths", lengths)  # no copy of a file that is mapped into memory
    if array.ndim == 1 and array.size > count:
        array = array[np.arange(count) * array.size // count]
    return as_lengths("lengths", array)


def search(
    job: Job,
    space: SearchSpace,
    lengths: Any,
    *,
    start: Callable[[int], Callable[[], object]] = lambda total: lambda: None,
) -> list[Trial]:
    """Plan the same sequences under every setting.

    Every global batch size cuts the same lengths into whole steps; what is left over at the end is not planned.

    Args:
        job: what is given.
        space: what is tried.
        lengths: int64[n], tokens of each sequence, in the order in which they are trained on.
        start: called with the number of plans; what it returns is called after each, for progress.

    Returns:
        One trial a setting, by capacity; those that do not fit in memory or cannot plan the lengths have a `failure`.

    Raises:
        ArgumentError: fewer sequences than the smallest global batch size.

    Example:
        >>> from dcpack.cost import get_device, get_model
        >>> job = Job(model=get_model("llama3-8b"), device=get_device("h100"), num_ranks=8)
        >>> space = SearchSpace(capacities=(4096, 2**20), max_cp_sizes=(8,), global_batch_sizes=(16,))
        >>> trials = search(job, space, [900, 300, 2000, 6000] * 8)
        >>> best = recommend(trials)
        >>> best.capacity, best.recompute, best.num_steps
        (4096, 'none', 2)
    """
    check_kinds(job=(job, Job), space=(space, SearchSpace), start=(start, Callable))
    lengths = as_lengths("lengths", lengths)
    batches = [size for size in space.global_batch_sizes if size <= lengths.size]
    if not batches:
        raise ArgumentError(
            f"global_batch_sizes must include one of at most the {lengths.size} sequences, got "
            f"{list(space.global_batch_sizes)}"
        )
    trials, wanted = _sort_by_memory(job, space)
    trials += _too_large(space, wanted, lengths.size)
    places = list(itertools.product(wanted, space.max_cp_sizes, batches))
    done = start(len(space.strategies) * sum(lengths.size // size for _, _, size in places))
    for (capacity, recompute, estimate), limit, size in places:
        trials += _try(job, space, _Place(capacity, recompute, estimate, limit, size), lengths, done)
    return sorted(trials, key=lambda trial: trial.capacity)


@dataclass(frozen=True, slots=True)
class _Place:
    """All of a setting but the strategy."""

    capacity: int
    recompute: str
    memory: MemoryEstimate
    max_cp_size: int
    global_batch_size: int


def _sort_by_memory(job: Job, space: SearchSpace) -> tuple[list[Trial], list[tuple[int, str, MemoryEstimate]]]:
    """Return a failed trial for each capacity that does not fit, and those to plan, each with its estimate."""
    failed, wanted = [], []
    for capacity in space.capacities:
        for recompute in space.recompute:
            estimate = estimate_memory(
                job.model,
                num_ranks=job.num_ranks,
                capacity=capacity,
                tp_size=job.tp_size,
                recompute=recompute,
                options=job.memory,
            )
            if estimate.total <= job.usable_bytes:
                wanted.append((capacity, recompute, estimate))
                break
            failed.append(
                Trial(
                    capacity=capacity,
                    strategy=space.strategies[0],
                    max_cp_size=space.max_cp_sizes[0],
                    global_batch_size=space.global_batch_sizes[0],
                    recompute=recompute,
                    memory=estimate,
                    failure=f"memory: needs {format_bytes(estimate.total)}, has {format_bytes(job.usable_bytes)}",
                    cause="capacity",
                )
            )
    return failed, wanted


def _too_large(space: SearchSpace, wanted: Sequence[tuple[int, str, MemoryEstimate]], count: int) -> list[Trial]:
    """Return a failed trial for each global batch that the sequences do not fill once."""
    return [
        Trial(
            capacity=capacity,
            strategy=space.strategies[0],
            max_cp_size=space.max_cp_sizes[0],
            global_batch_size=size,
            recompute=recompute,
            memory=estimate,
            failure=f"only {count:,} sequences to plan",
            cause="global_batch_size",
        )
        for capacity, recompute, estimate in wanted[:1]
        for size in space.global_batch_sizes
        if size > count
    ]


def _try(
    job: Job, space: SearchSpace, place: _Place, lengths: Int64Array, done: Callable[[], object]
) -> Iterator[Trial]:
    cost = job.cost(place.recompute)
    cluster = Cluster(
        num_ranks=job.num_ranks,
        capacity=place.capacity,
        padding=job.padding,
        cost=cost,
        overlong=job.overlong,
        max_cp_size=min(place.max_cp_size, job.num_ranks),
        sync=job.sync,
    )
    shares = dict.fromkeys(space.strategies, TimeShares())

    def add(name: str, number: int, planned: Planned) -> None:
        shares[name] += time_shares(planned.plan, cost, sync=job.sync)

    size = place.global_batch_size
    steps = lengths[: lengths.size // size * size].reshape(-1, size)
    for result in compare_strategies(cluster, steps, done=done, names=space.strategies, inspect=add):
        yield _trial_of(place, result, shares[result.name])


def _trial_of(place: _Place, result: StrategyResult, shares: TimeShares) -> Trial:
    given: dict[str, Any] = {name: getattr(place, name) for name in place.__dataclass_fields__}
    given["strategy"] = result.name
    if result.failure is not None:
        return Trial(**given, failure=result.failure)
    tokens = sum(step.num_tokens for step in result.steps)
    seconds = sum(step.step_time for step in result.steps)
    return Trial(
        **given,
        num_steps=len(result.steps),
        step_time=seconds / len(result.steps),
        token_time=seconds / tokens if tokens else 0.0,
        utilization=result.totals["utilization"],
        mean_cp_size=result.totals["mean_cp_size"],
        shares=shares,
    )


def check_trials(name: str, trials: Any) -> None:
    """Raise unless `trials` is a list of `Trial`.

    Example:
        >>> check_trials("trials", [])
    """
    check_kinds(**{name: (trials, list | tuple)})
    check_kinds(**{f"{name}[{i}]": (trial, Trial) for i, trial in enumerate(trials)})


def recommend(trials: Sequence[Trial]) -> Trial | None:
    """Return the trial with the least time a token, or None where none is possible.

    Among those within 1% of it, it is the one that needs the least memory, then the smallest global batch, CP limit.

    Args:
        trials: of `search`.

    Example:
        >>> memory = MemoryEstimate(states=2e9, gathered=3e9, activations=36e9, logits=6e9)
        >>> def trial(global_batch_size, token_time):
        ...     return Trial(capacity=8192, strategy="dynamic_cp", max_cp_size=8, recompute="none", memory=memory,
        ...         global_batch_size=global_batch_size, token_time=token_time)
        >>> recommend([trial(64, 1.2), trial(512, 1.0), trial(256, 1.001)]).global_batch_size    # 0.1% slower, smaller
        256
    """
    check_trials("trials", trials)
    possible = [trial for trial in trials if trial.failure is None]
    if not possible:
        return None
    least = min(trial.token_time for trial in possible)
    close = [trial for trial in possible if trial.token_time <= least * (1 + _TIE)]
    return min(close, key=lambda t: (t.memory.total, t.global_batch_size, t.max_cp_size, t.token_time))
