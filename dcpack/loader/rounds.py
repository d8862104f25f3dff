"""Reading a batch sampler step by step, and holding it to its protocol."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dcpack._checks import check_int, list_offenders
from dcpack.comm import Communicator
from dcpack.errors import ArgumentError
from dcpack.loader.reading import SampleReader
from dcpack.loader.sampler import GlobalBatchSampler
from dcpack.loader.stages import Stages

__all__ = ["Round", "SamplerRounds", "SamplerSource", "SamplerSteps", "check_sampler", "indices_of", "length_of"]

_NEEDED = ("__iter__", "set_epoch", "state_dict", "load_state_dict")
_SAMPLER, _INTO_STEP = "sampler", "rounds_into_step"  # the state of a sampler that was inside a step
_NUMBERS = ("epoch", "consumed_samples", "global_batch_size", "global_micro_batch_size")


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """One yield of the sampler: this rank's samples of one micro-batch.

    Attributes:
        position: global position of the first.
        indices: of the dataset.
    """

    position: int
    indices: tuple[int, ...]


def indices_of(rounds: Sequence[Round]) -> list[int]:
    """Return the dataset indices of some rounds, in order."""
    return [index for found in rounds for index in found.indices]


def check_sampler(sampler: Any, *, dp_rank: int, dp_size: int, local_batch_size: int, drop_last: bool) -> None:
    """Refuse a sampler that does not keep the protocol, or was made for another place.

    Raises:
        ArgumentError: names all that is missing or different.
    """
    missing = [name for name in _NEEDED if not callable(getattr(sampler, name, None))]
    missing += [name for name in _NUMBERS if not hasattr(sampler, name)]
    if missing:
        raise ArgumentError(f"batch_sampler, a {type(sampler).__name__}, lacks {', '.join(missing)}")
    for name, minimum in zip(_NUMBERS, (0, 0, 1, 1), strict=True):
        check_int(f"batch_sampler.{name}", getattr(sampler, name), minimum=minimum)
    wanted = {
        "global_micro_batch_size": local_batch_size * dp_size,
        "dp_rank": dp_rank,
        "dp_world_size": dp_size,
        "micro_batch_size": local_batch_size,
        "drop_last": drop_last,
    }
    wrong = [
        f"{name} is {getattr(sampler, name)!r}, the loader needs {value!r}"
        for name, value in wanted.items()
        if hasattr(sampler, name) and getattr(sampler, name) != value
    ]
    size, micro = sampler.global_batch_size, sampler.global_micro_batch_size
    if size % micro:
        wrong.append(f"global_batch_size {size} is no multiple of global_micro_batch_size {micro}")
    elif sampler.consumed_samples % micro and not isinstance(sampler, GlobalBatchSampler):
        wrong.append(f"consumed_samples {sampler.consumed_samples} is inside a micro-batch of {micro} samples")
    if wrong:
        raise ArgumentError(f"batch_sampler does not fit: {list_offenders(wrong)}")


def length_of(source: Any) -> int | None:
    """Return what ``len()`` says, None where it cannot, as of a DataLoader of torch over an endless dataset.

    Example:
        >>> length_of([1, 2]), length_of(iter([]))
        (2, None)
    """
    try:
        return len(source)
    except (TypeError, NotImplementedError):
        return None


class SamplerRounds:
    """The rounds of a sampler, grouped by optimizer step.

    Args:
        sampler: checked by `check_sampler`.
        dp_rank: this rank.
        local_batch_size: samples of a round.
        may_be_short: whether the last rounds of an epoch may hold fewer.
    """

    def __init__(self, sampler: Any, *, dp_rank: int, local_batch_size: int, may_be_short: bool) -> None:
        self.sampler = sampler
        self._dp_rank = dp_rank
        self._local_batch_size = local_batch_size
        self._may_be_short = may_be_short
        self._iterator: Iterator[Sequence[int]] | None = None
        self._round = 0
        self._start: int | None = None  # rounds of a step that come before what is read first; None: sampler says

    def begin_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch."""
        self.sampler.set_epoch(epoch)
        self._iterator = None
        self._start = 0

    def state(self) -> Mapping[str, Any]:
        """Return where the sampler is, as values that its going on does not change."""
        state = self.sampler.state_dict()
        if isinstance(self.sampler, GlobalBatchSampler):
            return state  # a new one each time
        state = copy.deepcopy(state)
        into_step = self._first_round() % self.rounds_of_step if self._iterator is None else 0  # steps are read whole
        return {_SAMPLER: state, _INTO_STEP: into_step} if into_step else state

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Put the sampler where `state` says."""
        start = None
        if not isinstance(self.sampler, GlobalBatchSampler):
            start = 0  # what a sampler of the user's counts may go on over epochs that are no whole number of steps
            if isinstance(state, Mapping) and set(state) == {_SAMPLER, _INTO_STEP}:
                most = self.rounds_of_step - 1
                start = check_int(f"{_INTO_STEP} of the state", state[_INTO_STEP], minimum=0, maximum=most)
                state = state[_SAMPLER]
        self.sampler.load_state_dict(state)
        self._iterator, self._start = None, start

    @property
    def rounds_of_step(self) -> int:
        """Micro-batches of an optimizer step."""
        return int(self.sampler.global_batch_size) // int(self.sampler.global_micro_batch_size)

    def next_step(self) -> list[Round]:
        """Return the rounds of the next optimizer step: fewer at the end of an epoch, none behind it.

        Raises:
            ArgumentError: the sampler yields something else than its protocol says.
        """
        if self._iterator is None:
            self._round = self._first_round()
            self._iterator = iter(self.sampler)
        left = self.rounds_of_step - self._round % self.rounds_of_step
        rounds: list[Round] = []
        while len(rounds) < left and (found := self._next_round(self._iterator)) is not None:
            rounds.append(found)
        self._round += len(rounds)
        return rounds

    def _first_round(self) -> int:
        if self._start is not None:
            return self._start
        return int(self.sampler.consumed_samples) // int(self.sampler.global_micro_batch_size)

    def of_all_members(self, size: int) -> list[SamplerRounds]:
        """Return the rounds of each of `size` members, from where these are.

        Raises:
            ArgumentError: the sampler is no `GlobalBatchSampler`, so what other ranks get is not known here.
        """
        sampler = self.sampler
        if not isinstance(sampler, GlobalBatchSampler):
            raise ArgumentError(f"only GlobalBatchSampler can be planned ahead, got {type(sampler).__name__}")
        return [
            SamplerRounds(
                sampler.for_rank(r),
                dp_rank=r,
                local_batch_size=self._local_batch_size,
                may_be_short=self._may_be_short,
            )
            for r in range(size)
        ]

    def _next_round(self, iterator: Iterator[Sequence[int]]) -> Round | None:
        before = int(self.sampler.consumed_samples)
        try:
            yielded = next(iterator)
        except StopIteration:
            return None
        indices = _as_indices(yielded)
        step = int(self.sampler.global_micro_batch_size)
        advanced = int(self.sampler.consumed_samples) - before
        short = len(indices) < self._local_batch_size
        if len(indices) > self._local_batch_size or (short and not self._may_be_short):
            raise ArgumentError(
                f"batch_sampler must yield local_batch_size {self._local_batch_size} indices, got {len(indices)}"
            )
        if not (0 < advanced <= step if self._may_be_short else advanced == step):
            raise ArgumentError(
                f"consumed_samples of batch_sampler must grow by global_micro_batch_size {step} with each yield, "
                f"it went from {before} to {before + advanced}"
            )
        return Round(position=before + self._dp_rank * self._local_batch_size, indices=indices)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SamplerSource:
    """Which samples come when, and where they are read.

    Attributes:
        rounds: what the sampler gives this member.
        reader: of the dataset.
        num_dropped: samples that the sampler leaves out of every epoch.
    """

    rounds: SamplerRounds
    reader: SampleReader
    num_dropped: int


class SamplerSteps:
    """What all modes with a batch sampler share: where they are is where the sampler is.

    Args:
        communicator: of the constructors.
        source: of samples.
    """

    def __init__(self, communicator: Communicator, source: SamplerSource) -> None:
        self._communicator = communicator
        self._rounds = source.rounds
        self._reader = source.reader
        self.num_dropped = source.num_dropped
        self.stages = Stages()

    def tell(self, error: BaseException) -> None:
        """Raise an error on all constructors."""
        self._communicator.agree(error)

    def begin_epoch(self, epoch: int) -> None:
        """Put the sampler at the start of an epoch."""
        self._rounds.begin_epoch(epoch)

    def source_state(self) -> Mapping[str, Any]:
        """Return where the sampler is."""
        return self._rounds.state()

    def load_source_state(self, state: Mapping[str, Any]) -> None:
        """Put the sampler where `state` says."""
        self._rounds.load_state(state)


def _as_indices(yielded: Any) -> tuple[int, ...]:
    try:
        values = list(yielded)
    except TypeError as error:
        raise ArgumentError(f"batch_sampler must yield lists of indices, got {yielded!r}") from error
    is_index = [isinstance(value, int | np.integer) and not isinstance(value, bool | np.bool_) for value in values]
    if wrong := [repr(value) for value, good in zip(values, is_index, strict=True) if not good]:
        raise ArgumentError(f"batch_sampler must yield whole numbers, got {list_offenders(wrong)}")
    return tuple(int(value) for value in values)
