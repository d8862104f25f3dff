"""`dcpack.exchange`: each public callable, and arguments that it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
from hostile_calls import Call

import dcpack
from dcpack import exchange

SAMPLES = [{"input_ids": [1, 2, 3], "image": np.ones((2, 4), np.float32)}, {"input_ids": [4, 5]}]
PLAN = dcpack.plan([3, 2], num_ranks=1, capacity=8)
SHAPES = exchange.StaticShapes(max_sequences=4)


def _on_one_rank(communicator: dcpack.Communicator) -> dict[str, Any]:
    gathered = exchange.gather_samples(communicator, SAMPLES)
    routes = exchange.routes_for(communicator, gathered, PLAN, None, "zigzag", "sliced")
    _, parcels = exchange.encode(PLAN, gathered, routes, 0)
    batches = exchange.exchange_samples(communicator, gathered, PLAN)
    return {"gathered": gathered, "routes": routes, "parcels": parcels, "batches": batches}


MADE = dcpack.run_ranks(1, _on_one_rank)[0]
GATHERED = MADE["gathered"]
TABLE = GATHERED.table
ROUTES = MADE["routes"]
BATCHES = MADE["batches"]
OUTPUTS = {0: [batch.tokens["input_ids"] for batch in BATCHES[0]]}
DOMAIN = dcpack.Topology.of_domain(1)

CALLS = {
    "prepare_samples": Call(exchange.prepare_samples, lambda: {"samples": SAMPLES, "per_token": ["image2"]}),
    "gather_samples": Call(
        exchange.gather_samples,
        lambda own: {"communicator": own, "samples": SAMPLES, "ids": [3, 4], "per_token": ["other"]},
    ),
    "gather_prepared": Call(
        exchange.gather_prepared,
        lambda communicator: {
            "communicator": communicator,
            "local": GATHERED.local,
            "ids": [3, 4],
            "per_token": ["other"],
        },
    ),
    "SampleTable.has_field": Call(TABLE.has_field, lambda: {"name": "x"}),
    "align_fields": Call(exchange.align_fields, lambda: {"plan": PLAN, "table": TABLE, "fields": ["image"]}),
    "build_routes": Call(
        exchange.build_routes,
        lambda: {
            "plan": PLAN,
            "table": TABLE,
            "num_processes": 1,
            "process_of_rank": [0],
            "node_of_process": [0],
            "sharding": "zigzag",
            "routing": "sliced",
        },
    ),
    "Routes.send_counts": Call(ROUTES.send_counts, lambda: {"process": 0}),
    "Routes.receive_counts": Call(ROUTES.receive_counts, lambda: {"process": 0}),
    "encode": Call(exchange.encode, lambda: {"plan": PLAN, "gathered": GATHERED, "routes": ROUTES, "process": 0}),
    "decode": Call(
        exchange.decode,
        lambda: {"plan": PLAN, "table": TABLE, "routes": ROUTES, "process": 0, "buffer": np.zeros(0, np.uint8)},
    ),
    "build_batches": Call(
        exchange.build_batches,
        lambda: {
            "plan": PLAN,
            "table": TABLE,
            "routes": ROUTES,
            "parcels": MADE["parcels"],
            "rank": 0,
            "static_shapes": SHAPES,
            "dummy_fields": {"image": np.zeros(PLAN.num_bins, np.bool_)},
        },
    ),
    "check_same_plan": Call(exchange.check_same_plan, lambda own: {"communicator": own, "plan": PLAN}),
    "process_of_rank": Call(exchange.process_of_rank, lambda: {"plan": PLAN, "topology": DOMAIN}),
    "ranks_of_process": Call(
        exchange.ranks_of_process, lambda own: {"communicator": own, "plan": PLAN, "topology": DOMAIN}
    ),
    "routes_for": Call(
        exchange.routes_for,
        lambda communicator: {
            "communicator": communicator,
            "gathered": GATHERED,
            "plan": PLAN,
            "topology": DOMAIN,
            "sharding": "zigzag",
            "routing": "sliced",
        },
    ),
    "move_samples": Call(
        exchange.move_samples,
        lambda own: {"communicator": own, "gathered": GATHERED, "plan": PLAN, "routes": ROUTES},
    ),
    "kept_valid_tokens": Call(
        exchange.kept_valid_tokens,
        lambda own: {"communicator": own, "gathered": GATHERED, "plan": PLAN},
    ),
    "exchange_samples": Call(
        exchange.exchange_samples,
        lambda communicator: {
            "communicator": communicator,
            "gathered": GATHERED,
            "plan": PLAN,
            "topology": DOMAIN,
            "sharding": "zigzag",
            "routing": "sliced",
            "static_shapes": SHAPES,
            "dummy_fields": {"image": np.zeros(PLAN.num_bins, np.bool_)},
        },
    ),
    "restore": Call(
        exchange.restore,
        lambda communicator: {
            "communicator": communicator,
            "gathered": GATHERED,
            "plan": PLAN,
            "batches": BATCHES,
            "outputs": OUTPUTS,
            "topology": DOMAIN,
            "sharding": "zigzag",
            "fill_value": 0,
        },
    ),
    "StaticShapes": Call(
        exchange.StaticShapes, lambda: {"max_sequences": 4, "row_lengths": (8, 16), "max_seqlens": (8,)}
    ),
    "StaticShapes.num_shapes": Call(SHAPES.num_shapes, lambda: {"cp_sizes": [1, 2]}),
    "shapes_of_bins": Call(exchange.shapes_of_bins, lambda: {"plan": PLAN, "static_shapes": SHAPES}),
}

LEFT_OUT = {
    "BatchShape": "a result of shapes_of_bins",
    "FieldKind": "a result, in the table of gather_samples",
    "GatheredSamples": "a result of gather_samples",
    "PackedBatch": "a result of exchange_samples",
    "PreparedSample": "checked where it is used, by gather_prepared",
    "Routes": "a result of build_routes",
    "SampleTable": "a result, in that of gather_samples",
}

# What of the values has a meaning there.
TAKES = {
    "prepare_samples.samples": "list",
    "prepare_samples.per_token": "list, map, texts",
    "gather_samples.ids": "none, unsigned",
    "gather_samples.per_token": "list, map, texts",
    "gather_prepared.ids": "none, unsigned",
    "gather_prepared.per_token": "list, map, texts",
    "SampleTable.has_field.name": "text, surrogate",
    "align_fields.fields": "list, map, texts",
    "build_routes.process_of_rank": "none",
    "build_routes.node_of_process": "none",
    "Routes.send_counts.process": "zero",
    "Routes.receive_counts.process": "zero",
    "encode.process": "zero",
    "decode.process": "zero",
    "build_batches.rank": "zero",
    "build_batches.static_shapes": "none",
    "build_batches.dummy_fields": "none, map",
    "process_of_rank.topology": "none",
    "ranks_of_process.topology": "none",
    "routes_for.topology": "none",
    "exchange_samples.topology": "none",
    "exchange_samples.static_shapes": "none",
    "exchange_samples.dummy_fields": "none, map",
    "restore.topology": "none",
    "restore.fill_value": "true, numpy true, zero, minus, minus zero, number of an enum, 0-d",
    "StaticShapes.row_lengths": "none",
    "StaticShapes.max_seqlens": "none",
    "StaticShapes.num_shapes.cp_sizes": "list, unsigned, hugest",
    "StaticShapes.max_sequences": "number of an enum",
}
