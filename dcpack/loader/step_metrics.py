"""What a step was and what it took, as one record on each rank, and as a flat dictionary to log."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dcpack._checks import check_kinds
from dcpack.cost import StepRecorder
from dcpack.loader.batches import LoaderBatch, Step, call_user
from dcpack.loader.sharing import Planned
from dcpack.loader.stages import STAGES, Span
from dcpack.plans import Plan

__all__ = ["StepMeter", "StepRecord", "imbalance", "mean_cp_size_of", "time_recorder"]


def imbalance(loads: Sequence[float]) -> float:
    """Return the busiest rank over the mean; 1 where nobody has work.

    Example:
        >>> imbalance([18.0, 2.0]), imbalance([0.0, 0.0])
        (1.8, 1.0)
    """
    total = sum(loads)
    return max(loads) * len(loads) / total if total else 1.0


def mean_cp_size_of(plans: Sequence[Plan]) -> float:
    """Return the mean CP size that a token of some plans meets: ``1 + sum(L * (cp - 1)) / sum(L)``.

    Example:
        >>> import dcpack
        >>> mean_cp_size_of([dcpack.plan([150, 50], num_ranks=3, capacity=100)] * 2)
        1.75
    """
    total = sum(int(plan.entry_lengths.sum()) for plan in plans)
    shared = sum(int((plan.entry_lengths * (plan.cp_size[plan.entry_bin] - 1)).sum()) for plan in plans)
    return 1.0 + shared / total if total else 1.0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StepRecord:
    """One optimizer step on this rank.

    Times are those of the host: where the device works beside it, they are those of the device only if the loop waits
    for it once a step, for example by reading the loss.

    Attributes:
        number: steps that this loader delivered before, over all epochs.
        epoch: epoch.
        step: step in the epoch.
        start: when its first micro-batch was asked for, in seconds of `time.perf_counter`.
        end: when the next step was asked for, or the epoch or the loader ended; until then, when the record was made.
        waits: when the caller waited for a micro-batch.
        spans: stages of its making, which may lie before `start`; empty on ranks that only receive.
        planned: its plans; None on ranks that only receive.
        num_valid_tokens: tokens that count in the loss, on this rank.
        global_valid_tokens: the same on all ranks.
        bytes_sent: bytes of samples that left this rank; what ranks tell of samples and plans does not count.
        fills_rows: whether rows are filled up to their capacity.

    Example:
        >>> record = StepRecord(number=0, epoch=0, step=0, start=2.0, end=2.5, waits=(Span(name="wait", start=2.0,
        ...     end=2.25),), spans=(), planned=None, num_valid_tokens=90, global_valid_tokens=180, bytes_sent=0,
        ...     fills_rows=False)
        >>> record.metrics()["loader/step(ms)"], record.metrics()["loader/wait(ms)"]
        (500.0, 250.0)
    """

    number: int
    epoch: int
    step: int
    start: float
    end: float
    waits: tuple[Span, ...]
    spans: tuple[Span, ...]
    planned: Planned | None
    num_valid_tokens: int
    global_valid_tokens: int
    bytes_sent: int
    fills_rows: bool

    @property
    def seconds(self) -> float:
        """Time of the step, waiting for the loader included."""
        return self.end - self.start

    @property
    def waited(self) -> float:
        """Seconds that the caller waited for the loader."""
        return sum(span.seconds for span in self.waits)

    def metrics(self) -> dict[str, float]:
        """Return it as numbers with units.

        Returns:
            On all ranks ``loader/step(ms)``, ``loader/wait(ms)``, ``loader/num_valid_tokens`` (this rank's) and
            ``loader/global_valid_tokens``. On ranks that build batches also two kinds. Over all ranks:
            ``loader/num_tokens``, ``loader/num_padded_tokens``, both ``(1/s)`` as ``loader/useful_tokens(1/s)`` and
            ``loader/padded_tokens(1/s)``, ``loader/padding_share``, ``loader/utilization`` (tokens over all slots of
            all rows), ``loader/imbalance_before`` and ``loader/imbalance_after`` (the busiest rank over the mean, as
            read and as planned), ``loader/mean_cp_size``, ``loader/samples_moved``. Of this rank:
            ``loader/bytes_sent(B)``, ``loader/read(ms)``, ``loader/plan(ms)``, ``loader/exchange(ms)``,
            ``loader/pack(ms)``, and ``loader/hidden_share``: the part of these four that nobody waited for.
        """
        found = {
            "loader/step(ms)": 1e3 * self.seconds,
            "loader/wait(ms)": 1e3 * self.waited,
            "loader/num_valid_tokens": float(self.num_valid_tokens),
            "loader/global_valid_tokens": float(self.global_valid_tokens),
        }
        if self.planned is None:
            return found
        made = {name: sum(span.seconds for span in self.spans if span.name == name) for name in STAGES}
        work = sum(made.values())
        return {
            **found,
            **self._amounts(self.planned),
            "loader/bytes_sent(B)": float(self.bytes_sent),
            **{f"loader/{name}(ms)": 1e3 * seconds for name, seconds in made.items()},
            "loader/hidden_share": max(0.0, 1.0 - self.waited / work) if work else 1.0,
        }

    def _amounts(self, planned: Planned) -> dict[str, float]:
        plans = planned.plans
        tokens = sum(int(plan.entry_lengths.sum()) for plan in plans)
        slots = sum(plan.num_microbatches * plan.num_ranks * plan.rows_per_rank * plan.capacity for plan in plans)
        padded = slots if self.fills_rows else sum(int(plan.bin_padded_tokens.sum()) for plan in plans)
        per_second = 1.0 / self.seconds if self.seconds > 0 else 0.0
        return {
            "loader/num_tokens": float(tokens),
            "loader/num_padded_tokens": float(padded),
            "loader/useful_tokens(1/s)": tokens * per_second,
            "loader/padded_tokens(1/s)": padded * per_second,
            "loader/padding_share": 1.0 - tokens / padded if padded else 0.0,
            "loader/utilization": tokens / slots if slots else 0.0,
            "loader/imbalance_before": imbalance(planned.loads_before),
            "loader/imbalance_after": imbalance(planned.loads_after),
            "loader/mean_cp_size": mean_cp_size_of(plans),
            "loader/samples_moved": float(planned.num_moved),
        }


class StepMeter:
    """Watches a loader deliver, and makes a record of each whole step.

    Args:
        fills_rows: whether rows are filled up to their capacity.
    """

    def __init__(self, *, fills_rows: bool = False) -> None:
        self._fills_rows = fills_rows
        self._callbacks: list[Callable[[StepRecord], None]] = []
        self._number = 0
        self._start = 0.0
        self._waits: list[Span] = []
        self._num_valid_tokens = 0
        self._made: Step | None = None
        self._last: StepRecord | None = None
        self._is_open = False

    def on_step(self, callback: Callable[[StepRecord], None]) -> None:
        """Have `callback` called with each record, once its step has ended."""
        check_kinds(callback=(callback, Callable))
        self._callbacks.append(callback)

    def made(self, step: Step) -> None:
        """Note what the next micro-batches come from."""
        self._made = step

    def delivered(self, batch: LoaderBatch, asked_at: float) -> None:
        """Note a micro-batch that was asked for at `asked_at` and is handed out now."""
        if batch.microbatch == 0:
            self._start, self._waits, self._num_valid_tokens = asked_at, [], 0
        self._waits.append(Span(name="wait", start=asked_at, end=time.perf_counter()))
        self._num_valid_tokens += batch.num_valid_tokens
        if not batch.is_last:
            return
        made = self._made
        self._last = StepRecord(
            number=self._number,
            epoch=batch.epoch,
            step=batch.step,
            start=self._start,
            end=time.perf_counter(),
            waits=tuple(self._waits),
            spans=() if made is None else made.spans,
            planned=None if made is None else made.planned,
            num_valid_tokens=self._num_valid_tokens,
            global_valid_tokens=batch.global_valid_tokens,
            bytes_sent=0 if made is None else made.bytes_sent,
            fills_rows=self._fills_rows,
        )
        self._number += 1
        self._made = None
        self._is_open = True

    def close_step(self, now: float) -> None:
        """End the step whose last micro-batch was handed out, if there is one, and tell of it."""
        if not self._is_open or self._last is None:
            return
        self._is_open = False
        self._last = replace(self._last, end=now)
        for callback in self._callbacks:
            call_user("a callback of on_step", callback, self._last)

    @property
    def last(self) -> StepRecord | None:
        """The newest step that was handed out whole; while it is trained on, up to now."""
        if self._is_open and self._last is not None:
            return replace(self._last, end=time.perf_counter())
        return self._last


def time_recorder(recorder: StepRecorder) -> Callable[[StepRecord], None]:
    """Return a callback for `DistributedDataLoader.on_step` that records times of steps for `MeasuredCost.fit`.

    A time belongs to a plan, so that only steps of one plan count: those with planned CP, and those whose window is the
    whole step. Waiting for the loader is left out.

    Args:
        recorder: what the times go to.

    Example:
        >>> recorder = StepRecorder(warmup=0)
        >>> callback = time_recorder(recorder)
    """
    check_kinds(recorder=(recorder, StepRecorder))

    def record(step: StepRecord) -> None:
        seconds = step.seconds - step.waited
        if step.planned is not None and len(step.planned.plans) == 1 and seconds > 0:
            recorder.record(step.planned.plans[0], seconds)

    return record
