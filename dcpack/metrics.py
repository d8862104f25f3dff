"""Numbers to log: plans, batches and exchanges as flat dictionaries of floats, with units in the names."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dcpack._checks import check_cost, check_items, check_kinds, exact_sum
from dcpack.cost import CostModel
from dcpack.exchange import PackedBatch, Routes
from dcpack.plans import Plan

__all__ = ["batch_metrics", "mean_cp_size", "num_cut_sequences", "plan_metrics", "route_metrics"]


def mean_cp_size(plan: Plan) -> float:
    """Return the mean CP size that a token meets: ``1 + sum(L * (cp - 1)) / sum(L)`` over all entries.

    Args:
        plan: any plan.

    Example:
        >>> import dcpack
        >>> mean_cp_size(dcpack.plan([150, 50], num_ranks=3, capacity=100))
        1.75
    """
    check_kinds(plan=(plan, Plan))
    tokens = plan.entry_lengths
    total = int(tokens.sum())
    return 1.0 + float((tokens * (plan.cp_size[plan.entry_bin] - 1)).sum()) / total if total else 1.0


def num_cut_sequences(plan: Plan) -> int:
    """Return how many sequences lie in several bins or lost a part; those that were dropped whole are not among them.

    Args:
        plan: any plan.

    Example:
        >>> import dcpack
        >>> num_cut_sequences(dcpack.pack([9, 4], capacity=8, overlong="split"))
        1
    """
    check_kinds(plan=(plan, Plan))
    pieces = np.bincount(plan.sequence_ids, minlength=plan.num_sequences)
    return int(np.count_nonzero((pieces > 1) | ((pieces == 1) & (plan.dropped > 0))))


def plan_metrics(plan: Plan, cost: CostModel, *, sync: str = "microbatch") -> dict[str, float]:
    """Return what a plan does with the ranks.

    Args:
        plan: a plan with ranks.
        cost: the cost model that times it; times are in its unit, which is part of the key.
        sync: as in `Plan.simulate`.

    Returns:
        ``plan/num_microbatches``, ``plan/num_sequences``, ``plan/num_tokens``, ``plan/num_dropped_tokens``,
        ``plan/num_cut_sequences``, ``plan/num_dummy_bins``; ``plan/padding_share`` (padding over padded tokens),
        ``plan/utilization`` (real tokens over all slots of all rows), ``plan/imbalance`` (slowest over mean rank, by
        work of the whole step), ``plan/mean_cp_size``, ``plan/step_time(unit)``, ``plan/bound(unit)`` and
        ``plan/above_bound`` (step time over bound, less 1).

    Example:
        >>> import dcpack
        >>> metrics = plan_metrics(dcpack.plan([60, 30, 90], num_ranks=2, capacity=100), dcpack.RingCost())
        >>> metrics["plan/utilization"], metrics["plan/mean_cp_size"]
        (0.9, 1.0)
    """
    check_kinds(plan=(plan, Plan))
    check_cost(cost)
    tokens, padded = int(plan.entry_lengths.sum()), int(plan.bin_padded_tokens.sum())
    slots = plan.num_microbatches * plan.num_ranks * plan.rows_per_rank * plan.capacity
    work = plan.rank_times(cost).sum(axis=0)
    step, bound = plan.simulate(cost, sync=sync), plan.bounds.get("step_time", 0.0)
    return {
        "plan/num_microbatches": float(plan.num_microbatches),
        "plan/num_sequences": float(plan.num_sequences),
        "plan/num_tokens": float(tokens),
        "plan/num_dropped_tokens": float(exact_sum(plan.dropped)),
        "plan/num_cut_sequences": float(num_cut_sequences(plan)),
        "plan/num_dummy_bins": float(plan.dummy.sum()),
        "plan/padding_share": 1.0 - tokens / padded if padded else 0.0,
        "plan/utilization": tokens / slots if slots else 0.0,
        "plan/imbalance": float(work.max() / work.mean()) if work.any() else 1.0,
        "plan/mean_cp_size": mean_cp_size(plan),
        f"plan/step_time({cost.unit})": step,
        f"plan/bound({cost.unit})": bound,
        "plan/above_bound": step / bound - 1.0 if bound else 0.0,
    }


def route_metrics(routes: Routes) -> dict[str, float]:
    """Return what an exchange moves.

    Args:
        routes: of one exchange.

    Returns:
        ``exchange/bytes_moved(B)``: bytes between processes; ``exchange/num_segments``; and
        ``exchange/max_bytes_sent(B)``: the busiest sender's share.

    Example:
        >>> import dcpack
        >>> from dcpack.exchange import build_routes, gather_samples
        >>> def step(communicator):
        ...     samples = [{"input_ids": [1, 2, 3]}] if communicator.rank == 0 else []
        ...     table = gather_samples(communicator, samples).table
        ...     plan = dcpack.plan(table.lengths, num_ranks=2, capacity=2, padding=dcpack.PaddingRule())
        ...     return route_metrics(build_routes(plan, table, num_processes=2))
        >>> found = dcpack.run_ranks(2, step)[0]               # half of the sequence goes to rank 1
        >>> found["exchange/bytes_moved(B)"] == found["exchange/max_bytes_sent(B)"] > 0
        True
    """
    check_kinds(routes=(routes, Routes))
    sent = [int(routes.send_counts(process).sum()) for process in range(routes.num_processes)]
    return {
        "exchange/bytes_moved(B)": float(routes.bytes_moved),
        "exchange/num_segments": float(routes.delivery.size),
        "exchange/max_bytes_sent(B)": float(max(sent, default=0)),
    }


def batch_metrics(batches: Iterable[PackedBatch]) -> dict[str, float]:
    """Return what the batches of one rank hold.

    Args:
        batches: of one rank, as `dcpack.exchange.exchange_samples` returns them.

    Returns:
        ``batch/num_batches``, ``batch/num_tokens`` (slots), ``batch/num_real_tokens``, ``batch/num_valid_tokens`` and
        ``batch/padding_share``.

    Example:
        >>> import dcpack
        >>> from dcpack.exchange import exchange_samples, gather_samples
        >>> def step(communicator):
        ...     gathered = gather_samples(communicator, [{"input_ids": [1, 2, 3]}])
        ...     plan = dcpack.plan(gathered.table.lengths, num_ranks=1, capacity=4, padding=dcpack.PaddingRule(block=4))
        ...     return batch_metrics(exchange_samples(communicator, gathered, plan)[0])
        >>> found = dcpack.run_ranks(1, step)[0]
        >>> found["batch/num_tokens"], found["batch/num_real_tokens"], found["batch/padding_share"]
        (4.0, 3.0, 0.25)
    """
    found = list(check_items("batches", batches))
    check_kinds(**{f"batches[{i}]": (batch, PackedBatch) for i, batch in enumerate(found)})
    slots = sum(batch.num_tokens for batch in found)
    real = sum(int(np.count_nonzero(batch.tokens["segment_ids"])) for batch in found if not batch.is_dummy)
    return {
        "batch/num_batches": float(len(found)),
        "batch/num_tokens": float(slots),
        "batch/num_real_tokens": float(real),
        "batch/num_valid_tokens": float(sum(batch.num_valid_tokens for batch in found)),
        "batch/padding_share": 1.0 - real / slots if slots else 0.0,
    }
