"""`dcpack.tuning`: each public callable, and arguments that it takes."""

from __future__ import annotations

from typing import Any

from hostile_calls import Call

import dcpack
from dcpack import cost, tuning

MODEL = cost.get_model("llama3-8b")
DEVICE = cost.get_device("h100")
OPTIONS = tuning.MemoryOptions()
JOB: dict[str, Any] = {
    "model": MODEL,
    "device": DEVICE,
    "num_ranks": 2,
    "tp_size": 8,
    "block": 1,
    "attention": "causal",
    "sync": "step",
    "overlong": "split",
    "memory": OPTIONS,
}
SPACE: dict[str, Any] = {
    "capacities": [64],
    "max_cp_sizes": [1],
    "global_batch_sizes": [2],
    "strategies": ["in_order"],
    "recompute": ["full"],
}
TRIALS = tuning.search(tuning.Job(**JOB), tuning.SearchSpace(**SPACE), [30, 20, 10, 5])

CALLS = {
    "MemoryOptions": Call(tuning.MemoryOptions, lambda: {"sharding": "full", "fused_loss": True, "usable": 0.5}),
    "estimate_memory": Call(
        tuning.estimate_memory,
        lambda: {
            "model": MODEL,
            "num_ranks": 2,
            "capacity": 64,
            "tp_size": 1,
            "recompute": "full",
            "options": OPTIONS,
        },
    ),
    "Job": Call(tuning.Job, lambda: dict(JOB)),
    "Job.cost": Call(tuning.Job(**JOB).cost, lambda: {"recompute": "full"}),
    "SearchSpace": Call(tuning.SearchSpace, lambda: dict(SPACE)),
    "search": Call(
        tuning.search,
        lambda: {
            "job": tuning.Job(**JOB),
            "space": tuning.SearchSpace(**SPACE),
            "lengths": [30, 20, 10, 5],
            "start": lambda count: lambda: None,
        },
    ),
    "sample_lengths": Call(tuning.sample_lengths, lambda: {"lengths": [3, 2], "count": 1}),
    "time_shares": Call(
        tuning.time_shares,
        lambda: {
            "plan": dcpack.plan([3, 2], num_ranks=1, capacity=8),
            "cost": cost.get_cost("llama3-8b@h100"),
            "sync": "step",
        },
    ),
    "TimeShares.share": Call(tuning.TimeShares(work=1.0).share, lambda: {"name": "work"}),
    "recommend": Call(tuning.recommend, lambda: {"trials": TRIALS}),
    "alternatives": Call(tuning.alternatives, lambda: {"best": TRIALS[0], "trials": TRIALS}),
    "format_alternatives": Call(tuning.format_alternatives, lambda: {"best": TRIALS[0], "others": TRIALS}),
    "trial_to_dict": Call(tuning.trial_to_dict, lambda: {"trial": TRIALS[0]}),
}

LEFT_OUT = {
    "MemoryEstimate": "a result of estimate_memory",
    "TimeShares": "a result of time_shares",
    "Trial": "a result of search",
}

# What of the values has a meaning there.
TAKES = {
    "MemoryOptions.fused_loss": "true, numpy true",
    "MemoryOptions.usable": "half, fraction",
    "estimate_memory.num_ranks": "huge, number of an enum",
    "estimate_memory.capacity": "huge, number of an enum",
    "estimate_memory.tp_size": "huge, number of an enum",
    "estimate_memory.options": "none",
    "Job.num_ranks": "huge, number of an enum",
    "Job.attention": "function, type",
    "Job.tp_size": "number of an enum",
    "Job.block": "number of an enum",
    "SearchSpace.capacities": "set, unsigned, hugest",
    "SearchSpace.max_cp_sizes": "set, unsigned, hugest",
    "SearchSpace.global_batch_sizes": "set, unsigned, hugest",
    "search.lengths": "unsigned, hugest",
    "sample_lengths.lengths": "list, unsigned, hugest",
    "sample_lengths.count": "huge, number of an enum",
    "recommend.trials": "list",
    "alternatives.trials": "list",
    "format_alternatives.others": "list",
}
