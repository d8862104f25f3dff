"""`dcpack.metrics`: each public callable, and arguments that it takes."""

from __future__ import annotations

from hostile_calls import Call
from hostile_exchange import BATCHES, PLAN, ROUTES

import dcpack
from dcpack import metrics

CALLS = {
    "batch_metrics": Call(metrics.batch_metrics, lambda: {"batches": BATCHES[0]}),
    "mean_cp_size": Call(metrics.mean_cp_size, lambda: {"plan": PLAN}),
    "num_cut_sequences": Call(metrics.num_cut_sequences, lambda: {"plan": PLAN}),
    "plan_metrics": Call(metrics.plan_metrics, lambda: {"plan": PLAN, "cost": dcpack.QuadraticCost(), "sync": "step"}),
    "route_metrics": Call(metrics.route_metrics, lambda: {"routes": ROUTES}),
}

LEFT_OUT: dict[str, str] = {}

# What of the values has a meaning there.
TAKES = {"batch_metrics.batches": "list"}
