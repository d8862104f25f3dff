"""The proof: train every way, compare each with one sequence at a time, and see that mistakes are seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist
from broken import BROKEN
from checking import TOLERANCES, Difference, compare
from evidence import Cases, Evidence
from packed import Packed
from texts import STEP_KINDS, Sample, make_steps
from training import StepResult, make_decoder, train, wrap_ddp, wrap_fsdp
from unpacked import one_at_a_time, padded

from dcpack.comm import Communicator

__all__ = ["REFERENCE", "WAYS", "ProofOptions", "Report", "Row", "missing_cases", "prove"]

REFERENCE = "one at a time"
WAYS = ("padded", "packed, DP", "packed, dynamic CP", "packed, dynamic CP, DDP", "packed, dynamic CP, FSDP2")
"""What is compared with the reference."""

_WRAPPERS = {"packed, dynamic CP, DDP": wrap_ddp, "packed, dynamic CP, FSDP2": wrap_fsdp}
_ROW = 256  # holds the longest sequence; a whole number of slices for up to 32 ranks


@dataclass(frozen=True, kw_only=True, slots=True)
class ProofOptions:
    """What is proven.

    Attributes:
        dtype: a name in `TOLERANCES`.
        num_steps: training steps of the ways that must agree.
        ways: names in `WAYS`.
        broken: names in `BROKEN`.
        seed: of parameters and texts.
    """

    dtype: str = "float64"
    num_steps: int = 20
    ways: Sequence[str] = WAYS
    broken: Sequence[str] = tuple(BROKEN)
    seed: int = 1234


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        name: the way, or the mistake.
        is_broken: it must differ from the reference.
        first_loss: of the first step.
        last_loss: of the last step in which some token counts.
        difference: from the reference.
        cases: the hard cases that the run has met; None for ways that do not pack.
    """

    name: str
    is_broken: bool
    first_loss: float
    last_loss: float
    difference: Difference
    cases: Cases | None = None


@dataclass(slots=True)
class Report:
    """What was found; the same on every rank.

    Attributes:
        options: what was proven.
        num_ranks: ranks.
        rows: the table, the reference first.
        faults: what is wrong, in words; empty where all is proven.
    """

    options: ProofOptions
    num_ranks: int
    rows: list[Row] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def prove(world: Communicator, options: ProofOptions) -> Report:
    """Run the whole proof. Collective: all ranks of the default group of torch.distributed call it together.

    Every rank holds its own results against the reference, and all ranks get the worst.
    """
    steps = make_steps(options.num_steps, seed=options.seed)
    plain = _train_plain(world, options, steps)
    reference = plain[REFERENCE]
    report = Report(options=options, num_ranks=world.size)
    report.rows.append(_row(world, REFERENCE, reference, reference))
    for name in options.ways:
        results, cases = (plain[name], None) if name in plain else _run(world, options, name, steps)
        report.rows.append(_row(world, name, results, reference, cases=cases))
    few = steps[: len(STEP_KINDS)]
    for name in options.broken:
        way = "packed, dynamic CP, DDP" if name == "average_kept" else "packed, dynamic CP"
        results, cases = _run(world, options, way, few, broken=name)
        report.rows.append(_row(world, name, results, reference[: len(few)], is_broken=True, cases=cases))
    report.faults += _faults(report)
    return report


def _train_plain(world: Communicator, options: ProofOptions, steps: list[list[Sample]]) -> dict[str, list[StepResult]]:
    """Train the ways that need one process, at the same time on two ranks; return their results on all ranks."""
    found = {}
    ways = {REFERENCE: one_at_a_time, "padded": padded}
    for rank, (name, way) in enumerate(ways.items()):
        if rank % world.size == world.rank:
            found[name] = train(make_decoder(getattr(torch, options.dtype), seed=options.seed), steps, way)
    names = make_decoder(torch.float64, seed=options.seed).state_dict()
    empty = StepResult(loss=0.0, gradients={name: torch.empty_like(tensor) for name, tensor in names.items()})
    for rank, name in enumerate(ways):
        results = found.get(name, [empty] * len(steps))
        found[name] = [_share(result, rank % world.size) for result in results]
    return found


def _share(result: StepResult, source: int) -> StepResult:
    """Return the result of rank `source` on all ranks."""
    parts = [torch.tensor([result.loss], dtype=torch.float64), *(g.double().ravel() for g in result.gradients.values())]
    flat = torch.cat(parts)
    dist.broadcast(flat, src=source)
    loss, *gradients = flat.split([part.numel() for part in parts])
    shaped = (flat.view_as(old) for flat, old in zip(gradients, result.gradients.values(), strict=True))
    return StepResult(loss=loss.item(), gradients=dict(zip(result.gradients, shaped, strict=True)))


def _run(
    world: Communicator, options: ProofOptions, name: str, steps: list[list[Sample]], *, broken: str | None = None
) -> tuple[list[StepResult], Cases]:
    """Train a packed way."""
    model = make_decoder(getattr(torch, options.dtype), seed=options.seed)
    is_dp = name == "packed, DP"
    wrapper = _WRAPPERS.get(name)
    evidence = Evidence()
    way = Packed(
        world=world,
        capacity=_ROW if is_dp else _ROW // world.size,
        max_cp_size=1 if is_dp else None,
        averaged=wrapper is not None,
        broken=broken,
        evidence=evidence,
    )
    results = train(model if wrapper is None else wrapper(model), steps, way)
    return results, evidence.gather(world)


def _row(
    world: Communicator,
    name: str,
    results: Sequence[StepResult],
    reference: Sequence[StepResult],
    *,
    is_broken: bool = False,
    cases: Cases | None = None,
) -> Row:
    mine = compare(reference, results)
    # A NaN on any rank stays one.
    worst = np.max([np.asarray(part) for part in world.all_gather(np.array([mine.loss, mine.gradients]))], axis=0)
    losses = [result.loss for result in results]
    return Row(
        name=name,
        is_broken=is_broken,
        first_loss=losses[0],
        last_loss=next((loss for loss in reversed(losses) if loss), 0.0),
        difference=Difference(loss=float(worst[0]), gradients=float(worst[1])),
        cases=cases,
    )


def _faults(report: Report) -> list[str]:
    tolerance = TOLERANCES[report.options.dtype]
    faults = []
    for row in report.rows:
        if row.difference.passes(tolerance) == row.is_broken:
            found = "is broken, but passes" if row.is_broken else "differs from one at a time"
            faults.append(f"{row.name}: {found} at {tolerance:g}: {row.difference}")
        if row.cases is not None and not row.is_broken:
            full = report.options.num_steps >= len(STEP_KINDS)
            faults += [f"{row.name}: never met: {case}" for case in missing_cases(row, report.num_ranks)] * full
    return faults


def missing_cases(row: Row, num_ranks: int) -> list[str]:
    """Return the hard cases that a packed way should have met and has not: it would prove less than it says."""
    cases = row.cases
    assert cases is not None
    met = {
        "several micro-batches in a step": cases.num_microbatches > 1,
        "a step in which nothing counts": cases.steps_without_valid > 0,
        "a rank without valid tokens in a step that has some": cases.ranks_without_valid > 0,
        "a sequence of length 1": cases.single_tokens > 0,
    }
    if row.name == "packed, DP":
        met |= {"a dummy": cases.dummies > 0, "no CP": cases.cp_sizes == (1,)}
    else:
        met |= {
            f"CP size 1 and {num_ranks}": {1, num_ranks} <= set(cases.cp_sizes),
            "valid tokens uneven over CP ranks": cases.uneven_bins > 0,
            "several sequences under CP": cases.packed_cp_bins > 0,
            "a length that is no multiple of twice the CP size": cases.ragged_cp_sequences > 0,
        }
    return [name for name, is_met in met.items() if not is_met]
