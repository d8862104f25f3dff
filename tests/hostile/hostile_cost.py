"""`dcpack.cost`: each public callable, and arguments that it takes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from hostile_calls import Call

import dcpack
from dcpack import cost

MODEL = cost.get_model("llama3-8b")
DEVICE = cost.get_device("h100")
PLAN = dcpack.plan([3, 2], num_ranks=1, capacity=8)
TIMINGS = [cost.BinTiming(lengths=[n], time=1e-3 * n + 1e-7 * n * n) for n in (100, 200, 400, 800, 900)]
MEASURED = cost.MeasuredCost(linear=1.0, quadratic=1.0, ring_intra=0.0, ring_inter=0.0)
MODELS: dict[str, Any] = {
    "QuadraticCost": dcpack.QuadraticCost(),
    "RingCost": dcpack.RingCost(),
    "TransformerCost": cost.get_cost("llama3-8b@h100"),
    "MeasuredCost": MEASURED,
}


def recorder() -> cost.StepRecorder:
    return cost.StepRecorder()


CALLS = {
    **{f"{name}.columns": Call(model.columns, lambda: {"padded_lengths": [3, 2]}) for name, model in MODELS.items()},
    "BinTiming": Call(cost.BinTiming, lambda: {"lengths": [3], "time": 0.5, "cp_size": 2, "crosses_node": True}),
    "StepTiming": Call(cost.StepTiming, lambda: {"plan": PLAN, "time": 0.5, "sync": "step", "rank": 0}),
    "StepRecorder": Call(cost.StepRecorder, lambda: {"sync": "step", "warmup": 1, "max_samples": 10}),
    "StepRecorder.record": Call(
        lambda **given: recorder().record(**given), lambda: {"plan": PLAN, "time": 0.5, "rank": 0}
    ),
    "SlidingWindow": Call(cost.SlidingWindow, lambda: {"window": 4}),
    "Chunked": Call(cost.Chunked, lambda: {"chunk": 4}),
    "causal_pairs": Call(cost.causal_pairs, lambda: {"lengths": [3, 2]}),
    "full_pairs": Call(cost.full_pairs, lambda: {"lengths": [3, 2]}),
    "get_attention": Call(cost.get_attention, lambda: {"pattern": "causal"}),
    "get_cost": Call(cost.get_cost, lambda: {"spec": "ring"}),
    "get_model": Call(cost.get_model, lambda: {"name": "llama3-8b"}),
    "get_device": Call(cost.get_device, lambda: {"name": "h100"}),
    "cost_to_json": Call(cost.cost_to_json, lambda: {"cost": dcpack.RingCost()}),
    "RingCost": Call(
        dcpack.RingCost,
        lambda: {"linear": 1.0, "quadratic": 1.0, "ring_intra": 1.0, "ring_inter": 1.0, "node_size": 8},
    ),
    "TransformerCost": Call(
        cost.TransformerCost,
        lambda: {
            "model": MODEL,
            "device": DEVICE,
            "attention": "full",
            "tp_size": 2,
            "passes": 3.0,
            "latent_ring": False,
            "fixed": 0.1,
        },
    ),
    "Device": Call(cost.Device, lambda: asdict(DEVICE)),
    "TransformerModel": Call(cost.TransformerModel, lambda: asdict(MODEL)),
    "TransformerModel.forward_flops": Call(MODEL.forward_flops, lambda: {"tokens": 1.0, "pairs": 1.0}),
    "TransformerModel.training_flops": Call(MODEL.training_flops, lambda: {"tokens": 1.0, "pairs": 1.0}),
    "MeasuredCost": Call(
        cost.MeasuredCost,
        lambda: {
            "linear": 1.0,
            "quadratic": 1.0,
            "ring_intra": 1.0,
            "ring_inter": 1.0,
            "fixed": 1.0,
            "overlap": True,
            "node_size": 8,
            "attention": "causal",
            "report": None,
        },
    ),
    "MeasuredCost.fit": Call(
        cost.MeasuredCost.fit,
        lambda: {
            "samples": TIMINGS,
            "attention": "causal",
            "node_size": 8,
            "overlap": True,
            "known": {"ring_intra": 0.0, "ring_inter": 0.0, "fixed": 0.0},
        },
    ),
    "MeasuredCost.from_dict": Call(cost.MeasuredCost.from_dict, lambda: {"values": MEASURED.to_dict()}),
    "MeasuredCost.save": Call(MEASURED.save, lambda: {"path": "a cost.json"}),
    "MeasuredCost.load": Call(
        lambda path: (MEASURED.save("a cost.json"), cost.MeasuredCost.load(path)), lambda: {"path": Path("a cost.json")}
    ),
}

_INNER = "called thousands of times by a planner, on arrays of its own; checks nothing"
LEFT_OUT = {
    **{f"{name}.bin_time": _INNER for name in MODELS},
    "CostModel": "a protocol",
    "CostModel.columns": "of a protocol",
    "CostModel.bin_time": "of a protocol",
    "FitReport": "a result of MeasuredCost.fit",
}

# What of the values has a meaning there.
TAKES = {
    "QuadraticCost.columns.padded_lengths": "list, unsigned, hugest",
    "RingCost.columns.padded_lengths": "list, unsigned, hugest",
    "TransformerCost.columns.padded_lengths": "list, unsigned, hugest",
    "MeasuredCost.columns.padded_lengths": "list, unsigned, hugest",
    "BinTiming.lengths": "list, unsigned, hugest",
    "BinTiming.time": "huge, half, fraction, number of an enum",
    "BinTiming.cp_size": "huge, number of an enum",
    "BinTiming.crosses_node": "true, numpy true",
    "StepTiming.time": "huge, half, fraction, number of an enum",
    "StepTiming.rank": "none, zero",
    "StepRecorder.warmup": "zero, huge, number of an enum",
    "StepRecorder.record.time": "huge, half, fraction, number of an enum",
    "StepRecorder.record.rank": "none, zero",
    "StepRecorder.max_samples": "number of an enum",
    "SlidingWindow.window": "huge, number of an enum",
    "Chunked.chunk": "huge, number of an enum",
    "causal_pairs.lengths": "zero, number of an enum, list, 0-d, 2-d, unsigned, hugest",
    "full_pairs.lengths": "zero, number of an enum, list, 0-d, 2-d, unsigned, hugest",
    "get_attention.pattern": "function, type",
    "RingCost.linear": "zero, huge, half, fraction, minus zero, number of an enum",
    "RingCost.quadratic": "zero, huge, half, fraction, minus zero, number of an enum",
    "RingCost.ring_intra": "zero, huge, half, fraction, minus zero, number of an enum",
    "RingCost.ring_inter": "zero, huge, half, fraction, minus zero, number of an enum",
    "RingCost.node_size": "none, huge, number of an enum",
    "TransformerCost.attention": "function, type",
    "TransformerCost.passes": "huge, half, fraction, number of an enum",
    "TransformerCost.fixed": "zero, huge, half, fraction, minus zero, number of an enum",
    "TransformerCost.tp_size": "number of an enum",
    "Device.peak_flops": "huge, half, fraction, number of an enum",
    "Device.matmul_fraction": "half, fraction",
    "Device.attention_fraction": "half, fraction",
    "Device.intra_node_bandwidth": "huge, half, fraction, number of an enum",
    "Device.inter_node_bandwidth": "huge, half, fraction, number of an enum",
    "Device.latency": "zero, huge, half, fraction, minus zero, number of an enum",
    "Device.node_size": "none, huge, number of an enum",
    "Device.memory_bytes": "huge, half, fraction, number of an enum",
    "TransformerModel.hidden": "huge, number of an enum",
    "TransformerModel.layers": "huge, number of an enum",
    "TransformerModel.heads": "huge",
    "TransformerModel.kv_heads": "zero, number of an enum",
    "TransformerModel.head_dim": "zero, huge, number of an enum",
    "TransformerModel.intermediate": "huge, number of an enum",
    "TransformerModel.vocab": "zero, huge, number of an enum",
    "TransformerModel.gated": "true, numpy true",
    "TransformerModel.q_lora_rank": "zero",
    "TransformerModel.kv_lora_rank": "zero",
    "TransformerModel.qk_nope": "zero",
    "TransformerModel.qk_rope": "zero",
    "TransformerModel.v_head": "zero",
    "TransformerModel.experts": "zero",
    "TransformerModel.top_k": "zero",
    "TransformerModel.shared_experts": "zero",
    "TransformerModel.moe_intermediate": "zero",
    "TransformerModel.dense_layers": "zero",
    "TransformerModel.dtype_bytes": "huge, number of an enum",
    "TransformerModel.forward_flops.tokens": "zero, huge, half, fraction, minus zero, number of an enum",
    "TransformerModel.forward_flops.pairs": "zero, huge, half, fraction, minus zero, number of an enum",
    "TransformerModel.training_flops.tokens": "zero, huge, half, fraction, minus zero, number of an enum",
    "TransformerModel.training_flops.pairs": "zero, huge, half, fraction, minus zero, number of an enum",
    "MeasuredCost.linear": "zero, huge, half, fraction, minus zero, number of an enum",
    "MeasuredCost.quadratic": "zero, huge, half, fraction, minus zero, number of an enum",
    "MeasuredCost.ring_intra": "zero, huge, half, fraction, minus zero, number of an enum",
    "MeasuredCost.ring_inter": "zero, huge, half, fraction, minus zero, number of an enum",
    "MeasuredCost.fixed": "zero, huge, half, fraction, minus zero, number of an enum",
    "MeasuredCost.overlap": "true, numpy true",
    "MeasuredCost.node_size": "none, huge, number of an enum",
    "MeasuredCost.attention": "function, type",
    "MeasuredCost.report": "none",
    "MeasuredCost.fit.node_size": "none, huge, number of an enum",
    "MeasuredCost.fit.overlap": "none, true, numpy true",
    "MeasuredCost.fit.known": "none, map",
    "MeasuredCost.save.path": "text",
}
