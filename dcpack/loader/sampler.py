"""The loader's own batch sampler: a global order that depends on seed and epoch alone, whatever the number of ranks.

Global batch s of an epoch is positions ``s * global_batch_size`` up to ``(s + 1) * global_batch_size`` of that order.
It is dealt in rounds of one micro-batch: rank d of a round takes the d-th run of `micro_batch_size` positions. Example,
8 positions, 2 ranks, micro-batches of 2: round 0 is 0 1 | 2 3, round 1 is 4 5 | 6 7. On 4 ranks the one round is
0 1 | 2 3 | 4 5 | 6 7: the same global batch.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dcpack._checks import Int64Array, check_flags, check_int, check_kinds, list_offenders
from dcpack.errors import ArgumentError

__all__ = ["GlobalBatchSampler", "random_words"]

_VERSION = 1
_DRAWS = 4096  # worked out at once


def random_words(seed: int, epoch: int, start: int, count: int) -> npt.NDArray[np.uint64]:
    """Return uint64[count]: pseudo-random words number `start` and on of a stream that seed and epoch name.

    SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014) in counter form, so that any
    word is had without those before it, and no version of NumPy changes it.

    Example:
        >>> (random_words(1, 0, 5, 2) == random_words(1, 0, 0, 7)[5:]).all()
        np.True_
    """
    golden = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        stream = _mix(_mix(np.array([seed % 2**64], np.uint64) + golden) + np.uint64(epoch) * golden)
        return _mix(stream + (np.arange(start + 1, start + count + 1, dtype=np.uint64)) * golden)


def _mix(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


@dataclass(slots=True)
class _Place:
    """How far one rank is in its micro-batches."""

    dp_rank: int
    dp_world_size: int
    micro_batch_size: int

    @property
    def sizes(self) -> tuple[int, int]:
        """What is the same on all ranks."""
        return self.dp_world_size, self.micro_batch_size


_MOST = 2**48
"""Samples at most, so that no sum of positions leaves int64."""


class GlobalBatchSampler:
    """Batches of dataset indices for one rank, in an order that does not depend on the number of ranks.

    Made alike on every rank: `build_distributed_dataloader` tells it rank, number of ranks and micro-batch size, unless
    they are given here. Its state is small and JSON-able, the same on every rank, and fits any number of ranks that
    divides the global batch.

    Args:
        num_samples: samples of the dataset.
        global_batch_size: samples of one optimizer step, over all ranks.
        seed: of the order; None takes the seed of the loader's configuration.
        shuffle: a new order each epoch; False is the order of the dataset.
        shuffle_buffer: None shuffles the whole epoch at once; a number reads in order into a buffer of so many indices
            and draws from that, which keeps reads near each other. The buffer is part of the state.
        drop_last: leave out the samples behind the last whole global batch; they are counted in `num_dropped`.
        micro_batch_size: samples of a micro-batch of this rank.
        dp_rank: this rank.
        dp_world_size: number of ranks.

    Raises:
        ArgumentError: an argument of the wrong type or range.

    Example:
        >>> def make(rank, num_ranks):
        ...     place = {"dp_rank": rank, "dp_world_size": num_ranks, "micro_batch_size": 4 // num_ranks}
        ...     return GlobalBatchSampler(10, global_batch_size=4, seed=3, **place)
        >>> whole, halves = make(0, 1), [make(rank, 2) for rank in range(2)]
        >>> list(whole) == [a + b for a, b in zip(*halves)], whole.num_dropped
        (True, 2)
    """

    def __init__(
        self,
        num_samples: int,
        *,
        global_batch_size: int,
        seed: int | None = None,
        shuffle: bool = True,
        shuffle_buffer: int | None = None,
        drop_last: bool = True,
        micro_batch_size: int | None = None,
        dp_rank: int | None = None,
        dp_world_size: int | None = None,
    ) -> None:
        self.num_samples = check_int("num_samples", num_samples, minimum=0, maximum=_MOST)
        self.global_batch_size = check_int("global_batch_size", global_batch_size, minimum=1, maximum=_MOST)
        self.seed = None if seed is None else check_int("seed", seed, minimum=0, maximum=2**63 - 1)
        self.shuffle, self.drop_last = check_flags(shuffle=shuffle, drop_last=drop_last).values()
        self.shuffle_buffer = shuffle_buffer
        if shuffle_buffer is not None:
            self.shuffle_buffer = check_int("shuffle_buffer", shuffle_buffer, minimum=1)
            if not shuffle:
                raise ArgumentError("shuffle_buffer has no effect with shuffle=False")
        self._place: _Place | None = None
        given = [micro_batch_size, dp_rank, dp_world_size]
        if any(value is not None for value in given):
            if any(value is None for value in given):
                raise ArgumentError("micro_batch_size, dp_rank and dp_world_size go together: give all or none")
            self.bind(dp_rank, dp_world_size, micro_batch_size)
        self._order: tuple[int, Int64Array] | None = None  # of an epoch
        self.set_epoch(0)

    # ---- its place among the ranks -------------------------------------------------------------------------------

    @property
    def is_bound(self) -> bool:
        """Whether it knows its rank."""
        return self._place is not None

    def bind(self, dp_rank: Any, dp_world_size: Any, micro_batch_size: Any, seed: int | None = None) -> None:
        """Tell it its rank, the number of ranks and its micro-batch size; `seed` where it has none of its own.

        Raises:
            ArgumentError: numbers that do not divide the global batch, or others than it was told before.
        """
        ranks = check_int("dp_world_size", dp_world_size, minimum=1)
        size = check_int("micro_batch_size", micro_batch_size, minimum=1)
        place = _Place(check_int("dp_rank", dp_rank, minimum=0, maximum=ranks - 1), ranks, size)
        if self.global_batch_size % (ranks * size):
            raise ArgumentError(
                f"global_batch_size must be a multiple of {ranks} ranks x micro-batches of {size} samples, "
                f"got {self.global_batch_size}"
            )
        if self._place not in (None, place):
            raise ArgumentError(f"this sampler is bound as {self._place}, the loader needs {place}")
        if seed is not None:
            seed = check_int("seed", seed, minimum=0, maximum=2**63 - 1)
        self._place = place
        self.seed = seed if self.seed is None else self.seed

    def for_rank(self, dp_rank: int) -> GlobalBatchSampler:
        """Return a sampler that is where this one is, for another rank."""
        place = self._bound()
        if self.shuffle_buffer is None:
            self.positions(0, 0)  # so that all share one order of the epoch
        other = copy.copy(self)
        other._buffer = list(self._buffer)
        other._place = _Place(check_int("dp_rank", dp_rank, minimum=0, maximum=place.dp_world_size - 1), *place.sizes)
        return other

    def _bound(self) -> _Place:
        if self._place is None:
            raise ArgumentError("this sampler does not know its rank yet: pass it to build_distributed_dataloader")
        return self._place

    @property
    def dp_rank(self) -> int:
        """This rank."""
        return self._bound().dp_rank

    @property
    def dp_world_size(self) -> int:
        """Number of ranks."""
        return self._bound().dp_world_size

    @property
    def micro_batch_size(self) -> int:
        """Samples of a micro-batch of one rank."""
        return self._bound().micro_batch_size

    @property
    def global_micro_batch_size(self) -> int:
        """Samples of a micro-batch, over all ranks."""
        return self.micro_batch_size * self.dp_world_size

    # ---- the order -----------------------------------------------------------------------------------------------

    @property
    def num_steps(self) -> int:
        """Optimizer steps of an epoch."""
        whole, rest = divmod(self.num_samples, self.global_batch_size)
        return whole + (rest > 0 and not self.drop_last)

    @property
    def num_used(self) -> int:
        """Samples of an epoch that are handed out."""
        return min(self.num_steps * self.global_batch_size, self.num_samples)

    @property
    def num_dropped(self) -> int:
        """Samples behind the last whole global batch that no epoch hands out; which ones, shuffling decides."""
        return self.num_samples - self.num_used

    def __len__(self) -> int:
        """Return the number of micro-batches of an epoch."""
        return -(-self.num_used // self.global_micro_batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch."""
        self.epoch = check_int("epoch", epoch, minimum=0)
        self.consumed_samples = 0
        self._buffer: list[int] = []
        self._next_index = 0

    def positions(self, start: int, count: int) -> Int64Array:
        """Return int64[count]: the dataset indices at global positions `start` and on; whole shuffles only."""
        start = check_int("start", start, minimum=0, maximum=self.num_samples)
        count = check_int("count", count, minimum=0, maximum=self.num_samples - start)
        if not self.shuffle:
            return np.arange(start, start + count)
        if self._order is None or self._order[0] != self.epoch:
            words = random_words(self._seed(), self.epoch, 0, self.num_samples)
            self._order = (self.epoch, np.argsort(words, kind="stable"))
        return self._order[1][start : start + count]

    def _seed(self) -> int:
        return 0 if self.seed is None else self.seed

    def __iter__(self) -> Iterator[list[int]]:
        while self.consumed_samples < self.num_used:
            place, first = self._bound(), self.consumed_samples
            # Global batches need not be a multiple of what is left: a round never reaches into the next one.
            within = first % self.global_batch_size
            count = min(self.global_micro_batch_size, self.global_batch_size - within, self.num_used - first)
            at = place.dp_rank * place.micro_batch_size
            mine = self._part(count, min(at, count), min(at + place.micro_batch_size, count))
            self.consumed_samples = first + count
            yield mine

    def _part(self, count: int, start: int, stop: int) -> list[int]:
        """Return some of the next `count` indices; those of a shuffle buffer are all drawn, others only looked up."""
        if self.shuffle_buffer is not None:
            return self._draw_next(count)[start:stop]
        return self.positions(self.consumed_samples + start, stop - start).tolist()

    def skip_step(self) -> None:
        """Go to the end of the current global batch; for ranks that read nothing."""
        left = self.global_batch_size - self.consumed_samples % self.global_batch_size
        count = min(left, self.num_used - self.consumed_samples)
        if self.shuffle_buffer is not None:
            self._draw_next(count)
        self.consumed_samples += count

    def _draw_next(self, count: int) -> list[int]:
        taken = []
        while len(taken) < count:
            block = min(count - len(taken), _DRAWS)
            for word in random_words(self._seed(), self.epoch, self.consumed_samples + len(taken), block).tolist():
                taken.append(self._draw(word))
        return taken

    def _draw(self, word: int) -> int:
        assert self.shuffle_buffer is not None
        room = min(self.shuffle_buffer - len(self._buffer), self.num_samples - self._next_index)
        self._buffer.extend(range(self._next_index, self._next_index + room))
        self._next_index += room
        at = word % len(self._buffer)
        self._buffer[at], self._buffer[-1] = self._buffer[-1], self._buffer[at]
        return self._buffer.pop()

    # ---- state ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return where it is: small, JSON-able, the same on every rank."""
        return {
            "version": _VERSION,
            "num_samples": self.num_samples,
            "global_batch_size": self.global_batch_size,
            "seed": self._seed(),
            "shuffle": self.shuffle,
            "shuffle_buffer": self.shuffle_buffer,
            "drop_last": self.drop_last,
            "epoch": self.epoch,
            "consumed_samples": self.consumed_samples,
            "next_index": self._next_index,
            "buffer": list(self._buffer),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go where a state says, of this or any other number of ranks.

        Raises:
            ArgumentError: a state of another dataset size, global batch, seed or order; names all that differ.
        """
        mine = self.state_dict()
        if not isinstance(state, Mapping) or set(state) != set(mine):
            raise ArgumentError(f"state must be one of GlobalBatchSampler with {sorted(mine)}, got {state!r}")
        fixed = ("version", "num_samples", "global_batch_size", "seed", "shuffle", "shuffle_buffer", "drop_last")
        differs = [name for name in fixed if type(state[name]) is not type(mine[name]) or state[name] != mine[name]]
        if changed := [f"{name} was {state[name]!r}, is {mine[name]!r}" for name in differs]:
            raise ArgumentError(f"state does not fit this sampler: {list_offenders(changed)}")
        epoch = check_int("epoch of the state", state["epoch"], minimum=0)
        consumed = check_int(
            "consumed_samples of the state", state["consumed_samples"], minimum=0, maximum=self.num_used
        )
        if consumed % self.global_batch_size and consumed != self.num_used and self._place is not None:
            if consumed % self.global_batch_size % self.global_micro_batch_size:
                raise ArgumentError(
                    f"consumed_samples of the state, {consumed}, is inside a micro-batch of "
                    f"{self.global_micro_batch_size} samples"
                )
        next_index, buffer = self._checked_buffer(consumed, state["next_index"], state["buffer"])
        self.set_epoch(epoch)
        self.consumed_samples, self._next_index, self._buffer = consumed, next_index, buffer

    def _checked_buffer(self, consumed: int, next_index: Any, buffer: Any) -> tuple[int, list[int]]:
        """Return the shuffle buffer of a state: all that was read and not drawn yet, each index once."""
        next_index = check_int("next_index of the state", next_index, minimum=0, maximum=self.num_samples)
        check_kinds(**{"buffer of the state": (buffer, list | tuple)})
        last = max(next_index - 1, 0)
        held = [check_int("buffer of the state", index, minimum=0, maximum=last) for index in buffer]
        expected = next_index - consumed if self.shuffle_buffer is not None else 0
        is_full = self.shuffle_buffer is None or len(held) <= self.shuffle_buffer
        if len(held) != expected or len(set(held)) != len(held) or not is_full:
            raise ArgumentError(
                f"buffer of the state must hold what lies between {consumed} drawn and {next_index} read samples, "
                f"{expected} different ones, got {len(set(held))} of {len(held)}"
            )
        if self.shuffle_buffer is None and next_index:
            raise ArgumentError(f"next_index of the state must be 0 without a shuffle_buffer, got {next_index}")
        return next_index, held
