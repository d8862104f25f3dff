"""What all constructors know of a step before it is planned: one line of numbers a sample, gathered from all.

A *record* is what the dataset returned; a *sample* is what is planned: the record itself, or one sequence of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from dcpack._checks import Float64Array, Int64Array, list_offenders
from dcpack.comm import Communicator
from dcpack.comm.guard import tell_failure
from dcpack.comm.trees import all_gather_trees
from dcpack.errors import ArgumentError, InfeasibleError
from dcpack.loader.costs import CostRule, RowCosts
from dcpack.loader.types import PackingConstraints, SampleKey, SampleMetadata, WorkloadCost
from dcpack.loader.windows import Window

__all__ = [
    "LocalSample",
    "StepTable",
    "describe",
    "gather_parts",
    "gather_table",
    "merge_table",
    "require_same_place",
    "require_same_step",
]

_COLUMNS: tuple[str, ...] = ("position", "part", "dataset_index", "tokens", "num_valid", "num_bytes", "round", "row")


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalSample:
    """One sample as its reader describes it.

    Attributes:
        metadata: as the user described it.
        key: which one it is.
        cost: what it costs, None where its length decides.
        num_valid: tokens that count in the loss; -1 before it was read.
        num_bytes: of its message; 0 where it will not travel.
        round: which micro-batch of the step it was read for.
        row: which row of that micro-batch its record was.
    """

    metadata: SampleMetadata
    key: SampleKey
    cost: WorkloadCost | None
    num_valid: int
    num_bytes: int
    round: int
    row: int


@dataclass(frozen=True, kw_only=True, eq=False)
class StepTable:
    """The samples of a step in global order, the same on all constructors.

    Attributes:
        columns: int64[n] by name: position, part, dataset_index, tokens, num_valid, num_bytes, round, row.
        holder: int64[n], the member that described the sample.
        place: int64[n], its number among that member's samples.
        costs: float64[n, 6], parts of the cost of each sample; None where lengths decide.
        amounts: float64[n] by budget.
        metadata: of all samples, or empty where no policy asks for it.
        num_rounds: micro-batches of the step.
        num_members: constructors.
    """

    columns: Mapping[str, Int64Array]
    holder: Int64Array
    place: Int64Array
    costs: Float64Array | None
    amounts: Mapping[str, Float64Array]
    metadata: tuple[SampleMetadata, ...]
    num_rounds: int
    num_members: int

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return self.holder.size

    @cached_property
    def tokens(self) -> Int64Array:
        """int64[n]: tokens of each sample."""
        return self.columns["tokens"]

    def items_of(self, rounds: range) -> Int64Array:
        """Return int64[k]: the samples that were read for some rounds, in global order."""
        return np.flatnonzero((self.columns["round"] >= rounds.start) & (self.columns["round"] < rounds.stop))

    def window(
        self,
        rounds: range,
        *,
        rows_per_round: int,
        constraints: PackingConstraints,
        rule: CostRule,
        one_a_row: bool,
        may_be_empty: bool,
        sync: str = "microbatch",
    ) -> Window:
        """Return the window of some rounds; its samples are those of `items_of`, in that order."""
        items = self.items_of(rounds)
        num_rows = len(rounds) * rows_per_round
        row = (self.columns["round"][items] - rounds.start) * rows_per_round + self.columns["row"][items]
        tokens = self.tokens[items]
        costs = None if self.costs is None else self.costs[items, _LLM]
        row_costs = rule.of_window(tokens, costs, constraints.seq_len)
        return Window(
            tokens=tokens,
            costs=row_costs,
            amounts={name: amounts[items] for name, amounts in self.amounts.items()},
            limits=constraints.packing_budgets,
            reference=self.holder[items] * num_rows + row,
            num_ranks=self.num_members,
            num_rows=num_rows,
            rows_per_rank=rows_per_round,
            seq_len=constraints.seq_len,
            one_a_row=one_a_row,
            may_be_empty=may_be_empty,
            keeps_oversized=constraints.oversized_policy == "single",
            sync=sync,
            metadata=_priced([self.metadata[i] for i in items], row_costs) if self.metadata else (),
        )


_LLM = WorkloadCost(llm=1.0).parts().index(1.0)
_NUM_PARTS = len(WorkloadCost().parts())


def _priced(metadata: list[SampleMetadata], costs: RowCosts) -> tuple[SampleMetadata, ...]:
    """Return the metadata with a cost in each: by its length where it has none."""
    llm = costs.items.tolist()
    return tuple(
        replace(sample, cost=WorkloadCost(llm=cost)) if sample.cost is None else sample
        for sample, cost in zip(metadata, llm, strict=True)
    )


def gather_table(
    communicator: Communicator,
    samples: Sequence[LocalSample],
    *,
    at: tuple[int, int],
    num_rounds: int,
    constraints: PackingConstraints,
    with_metadata: bool,
) -> StepTable | None:
    """Describe this member's samples to all constructors and learn of theirs. Collective; see `gather_parts`.

    Args:
        communicator: of the constructors.
        samples: this member's.
        at: epoch and step that this member is at.
        num_rounds: micro-batches that this member read; 0 at the end.
        constraints: which budgets there are.
        with_metadata: whether the whole metadata travels.

    Returns:
        The table, or None where all members are at the end.

    Raises:
        ArgumentError: members are at different steps, read another number of rounds, or only some samples have costs;
            on all members.
        InfeasibleError: samples that fit in no row; on all members.
    """
    with tell_failure(communicator):
        described = describe(
            samples, at=at, num_rounds=num_rounds, constraints=constraints, with_metadata=with_metadata
        )
    return merge_table(gather_parts(communicator, described), communicator.ranks, constraints)


def gather_parts(communicator: Communicator, described: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what all members described (`describe`), by member. Collective.

    One all-gather of numbers: 6 of the member, then a line a sample. Texts follow where some member has any.
    """
    texts = {name: described[name] for name in ("metadata", "faults")}
    columns, costs, amounts = (described[name] for name in ("columns", "costs", "amounts"))
    head = [*described["at"], described["num_rounds"], len(columns), costs is not None, any(texts.values())]
    lines = np.hstack([columns, *(table.view(np.int64) for table in (costs, amounts) if table is not None)])
    heard = communicator.all_gather(np.concatenate([np.array(head, np.int64), lines.ravel()]))
    has_texts = any(part[5] for part in heard)
    told = all_gather_trees(communicator, texts) if has_texts else [{"metadata": [], "faults": []}] * len(heard)
    num_budgets = 0 if amounts is None else amounts.shape[1]
    return [{**_numbers_of(part, num_budgets), **more} for part, more in zip(heard, told, strict=True)]


def _numbers_of(part: Int64Array, num_budgets: int) -> dict[str, Any]:
    epoch, step, num_rounds, count, has_costs = part[:5].tolist()
    end = len(_COLUMNS) + has_costs * _NUM_PARTS
    lines = part[6:].reshape(count, end + num_budgets)
    return {
        "at": [epoch, step],
        "num_rounds": num_rounds,
        "columns": lines[:, : len(_COLUMNS)],
        "costs": lines[:, len(_COLUMNS) : end].view(np.float64) if has_costs else None,
        "amounts": lines[:, end:].view(np.float64) if num_budgets else None,
    }


def merge_table(
    parts: Sequence[Mapping[str, Any]], ranks: Sequence[int], constraints: PackingConstraints
) -> StepTable | None:
    """Return the table of what all members described (`describe`), by member; errors as in `gather_table`. Pure."""
    if require_same_step(parts, ranks) == 0:
        return None
    if faults := [fault for part in parts for fault in part["faults"]]:
        raise InfeasibleError(f"samples that fit in no row: {list_offenders(faults)}")
    return _merge(parts, constraints)


def require_same_step(parts: Sequence[Mapping[str, Any]], ranks: Sequence[int]) -> int:
    """Return how many rounds all members have of a step, by ``at`` and ``num_rounds`` in what they told.

    Raises:
        ArgumentError: members are at different steps, or have other numbers of rounds; names who has what.
    """
    require_same_place([tuple(part["at"]) for part in parts], ranks)
    rounds = [part["num_rounds"] for part in parts]
    if len(set(rounds)) > 1:
        listed = [f"rank {rank} read {n}" for rank, n in zip(ranks, rounds, strict=True)]
        raise ArgumentError(
            f"the samplers of all ranks must give as many micro-batches of a step: {list_offenders(listed)}"
        )
    return rounds[0]


def require_same_place(places: Sequence[tuple[int, int]], ranks: Sequence[int]) -> None:
    """Refuse ranks that are at different steps, as where they were given states of different steps.

    Raises:
        ArgumentError: names where each rank is.
    """
    if len(set(places)) > 1:
        listed = [f"rank {rank} at epoch {e}, step {s}" for rank, (e, s) in zip(ranks, places, strict=True)]
        raise ArgumentError(f"all ranks must go on from the same step: {list_offenders(listed)}")


def describe(
    samples: Sequence[LocalSample],
    *,
    at: tuple[int, int],
    num_rounds: int,
    constraints: PackingConstraints,
    with_metadata: bool,
) -> dict[str, Any]:
    """Return one member's part of the table: numbers in arrays, and texts; arguments as in `gather_table`."""
    table = [
        (
            s.key.position,
            s.key.part,
            s.key.dataset_index,
            s.metadata.pack_tokens,
            s.num_valid,
            s.num_bytes,
            s.round,
            s.row,
        )
        for s in samples
    ]
    return {
        "at": list(at),
        "num_rounds": num_rounds,
        "columns": np.array(table, np.int64).reshape(len(samples), len(_COLUMNS)),
        "costs": _costs_of(samples) if any(s.cost is not None for s in samples) else None,
        "amounts": _amounts_of(samples, constraints.packing_budgets) if constraints.packing_budgets else None,
        "metadata": [s.metadata.to_tree() for s in samples] if with_metadata else [],
        "faults": [
            f"{_place_of(s.key)} has {'; '.join(faults)}"
            for s in samples
            if (faults := constraints.sample_faults(s.metadata))
        ],
    }


def _costs_of(samples: Sequence[LocalSample]) -> Float64Array:
    """Return float64[n, 6]: the parts of each cost, NaN where there is none."""
    none = (np.nan,) * _NUM_PARTS
    return np.array([none if s.cost is None else s.cost.parts() for s in samples])


def _amounts_of(samples: Sequence[LocalSample], budgets: Collection[str]) -> Float64Array:
    amounts = [[s.metadata.packing_costs.get(name, 0.0) for name in budgets] for s in samples]
    return np.array(amounts, np.float64).reshape(len(samples), len(budgets))


def _place_of(key: SampleKey) -> str:
    part = f", sequence {key.part}," if key.part else ""
    return f"dataset[{key.dataset_index}]{part}" if key.dataset_index >= 0 else f"sample {key.position}{part}"


def _merge(parts: Sequence[Mapping[str, Any]], constraints: PackingConstraints) -> StepTable:
    counts = [len(part["columns"]) for part in parts]
    table = np.concatenate([part["columns"] for part in parts])
    holder = np.repeat(np.arange(len(parts)), counts)
    place = np.concatenate([np.arange(count) for count in counts])
    order = np.lexsort((table[:, 1], table[:, 0]))
    table, holder = table[order], holder[order]
    columns: dict[str, Int64Array] = dict(zip(_COLUMNS, table.T, strict=True))
    return StepTable(
        columns=columns,
        holder=holder,
        place=place[order],
        costs=_merge_costs([part["costs"] for part in parts], counts, order, columns["dataset_index"]),
        amounts=_merge_amounts([part["amounts"] for part in parts], order, constraints),
        metadata=_with_keys([tree for part in parts for tree in part["metadata"]], order, columns, holder),
        num_rounds=parts[0]["num_rounds"],
        num_members=len(parts),
    )


def _merge_costs(
    parts: Sequence[Float64Array | None], counts: Sequence[int], order: Int64Array, dataset_index: Int64Array
) -> Float64Array | None:
    if all(part is None for part in parts):
        return None
    told = zip(parts, counts, strict=True)
    costs = np.concatenate([np.full((n, _NUM_PARTS), np.nan) if part is None else part for part, n in told])[order]
    if without := np.flatnonzero(np.isnan(costs[:, _LLM])).tolist():
        listed = [f"dataset[{dataset_index[i]}]" for i in without]
        raise ArgumentError(f"either all samples of a step must have a cost or none; without: {list_offenders(listed)}")
    return costs


def _merge_amounts(
    parts: Sequence[Any], order: Int64Array, constraints: PackingConstraints
) -> Mapping[str, Float64Array]:
    if not constraints.packing_budgets:
        return {}
    amounts = np.concatenate(parts)[order]
    return {name: amounts[:, b] for b, name in enumerate(constraints.packing_budgets)}


def _with_keys(
    trees: list[Mapping[str, Any]], order: Int64Array, columns: Mapping[str, Int64Array], holder: Int64Array
) -> tuple[SampleMetadata, ...]:
    if not trees:
        return ()
    keys = zip(columns["position"], columns["part"], holder, columns["dataset_index"], strict=True)
    return tuple(
        SampleMetadata.from_tree(trees[i]).with_key(
            SampleKey(position=int(p), part=int(part), reader=int(r), dataset_index=int(index))
        )
        for i, (p, part, r, index) in zip(order.tolist(), keys, strict=True)
    )
