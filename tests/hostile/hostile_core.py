"""The rooms that plan, `dcpack.pack`, `plan`, `balance` and their classes: each callable, and arguments it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
from hostile_calls import VALUES, Call

import dcpack
from dcpack import balancing, bounds, layout, loss, packing, padding, topology

LENGTHS = [3, 1, 4, 1, 5, 2]
PLAN = dcpack.plan(LENGTHS, num_ranks=2, capacity=8)
COST = dcpack.QuadraticCost()
RULE = dcpack.PaddingRule(tp=2)
MESH = dcpack.Topology(axes=("dp", "cp"), sizes=(2, 2))
BINS = packing.first_fit(LENGTHS, 8)
PACK = {"max_sequences": 4, "alone": None, "sizes": None}


def stream() -> packing.StreamingPacker:
    return packing.StreamingPacker(lambda start: LENGTHS[start:], 8, packer=packing.first_fit, window=3)


def plan_arguments() -> dict[str, Any]:
    """All arguments of `dcpack.plan`, also of what it calls."""
    return {
        "lengths": LENGTHS,
        "num_ranks": 2,
        "capacity": 8,
        "scheduler": "dynamic_cp",
        "cost": COST,
        "cp_sizes": (1, 2),
        "min_cp_size": 1,
        "max_cp_size": 2,
        "padding": RULE,
        "sync": "step",
        "microbatch_multiple": 1,
        "max_sequences": 6,
        "on_empty": "dummy",
        "overlong": "split",
        "num_heads": 4,
        "max_groups": 3,
        "budgets": (),
        "groups": None,
        "max_displacement": None,
        "effort": "fast",
    }


ROOT: dict[str, Call] = {
    "pack": Call(
        dcpack.pack,
        lambda: {
            "lengths": LENGTHS,
            "capacity": 8,
            "method": "first_fit",
            "padding": RULE,
            "max_sequences": 4,
            "overlong": "split",
            "groups": None,
            "effort": "exact",
        },
    ),
    "plan": Call(
        dcpack.plan,
        plan_arguments,
        few=True,
    ),
    "balance": Call(
        dcpack.balance,
        lambda: {"costs": LENGTHS, "num_parts": 2, "method": "lpt", "equal_size": True, "effort": "fast"},
    ),
    "PaddingRule": Call(dcpack.PaddingRule, lambda: {"tp": 2, "block": 2, "sequence_parallel": True}),
    "PaddingRule.multiple": Call(RULE.multiple, lambda: {"cp_size": 2}),
    "PaddingRule.padded_total": Call(RULE.padded_total, lambda: {"total": 9, "cp_size": 2}),
    "Plan.validate": Call(PLAN.validate, lambda: {"lengths": LENGTHS}),
    "Plan.first_difference": Call(PLAN.first_difference, lambda: {"other": PLAN}),
    "Plan.describe_bin": Call(PLAN.describe_bin, lambda: {"index": 0}),
    "Plan.bins_of_rank": Call(PLAN.bins_of_rank, lambda: {"rank": 0}),
    "Plan.bin_times": Call(PLAN.bin_times, lambda: {"cost": COST}),
    "Plan.rank_times": Call(PLAN.rank_times, lambda: {"cost": COST}),
    "Plan.simulate": Call(PLAN.simulate, lambda: {"cost": COST, "sync": "step", "pipeline_stages": 2}),
    "Plan.from_json": Call(dcpack.Plan.from_json, lambda: {"text": PLAN.to_json()}),
    "Plan.save": Call(PLAN.save, lambda: {"path": "a plan.npz"}),
    "Plan.load": Call(
        lambda **given: (PLAN.save("a plan.npz"), dcpack.Plan.load(**given)),
        lambda: {"path": "a plan.npz", "capacity": 8, "padding": None, "cp_sizes": PLAN.cp_sizes},
    ),
    "Topology": Call(
        dcpack.Topology,
        lambda: {
            "axes": ("dp", "cp"),
            "sizes": (2, 1),
            "ranks": [[0], [1]],
            "process_of_rank": [0, 1],
            "node_size": 2,
        },
    ),
    "Topology.of_domain": Call(
        dcpack.Topology.of_domain, lambda: {"num_ranks": 2, "process_of_rank": [0, 1], "node_size": 2}
    ),
    "Topology.axis_size": Call(MESH.axis_size, lambda: {"axis": "dp"}),
    "Topology.coordinates": Call(MESH.coordinates, lambda: {"rank": 0}),
    "Topology.groups": Call(MESH.groups, lambda: {"axes": ("dp",)}),
    "Topology.group_of": Call(MESH.group_of, lambda: {"rank": 0, "axes": ("dp",)}),
    "Topology.plan_ranks": Call(MESH.plan_ranks, lambda: {"rank": 0}),
}

TABLES: dict[str, dict[str, Call]] = {
    "balancing": {
        "get_balancer": Call(balancing.get_balancer, lambda: {"name": "lpt"}),
        "integer_costs": Call(balancing.integer_costs, lambda: {"costs": LENGTHS}),
        "karmarkar_karp": Call(
            balancing.karmarkar_karp,
            lambda: {"costs": LENGTHS, "num_parts": 2, "equal_size": True, "effort": "fast"},
        ),
        "lpt": Call(balancing.lpt, lambda: {"costs": LENGTHS, "num_parts": 2, "equal_size": True, "effort": "fast"}),
        "refine": Call(
            balancing.refine,
            lambda: {
                "costs": np.array([9, 5, 4, 3]),
                "part_of": np.array([0, 1, 1, 0]),
                "num_parts": 2,
                "equal_size": True,
            },
        ),
    },
    "bounds": {
        "balance_lower_bound": Call(bounds.balance_lower_bound, lambda: {"costs": LENGTHS, "num_parts": 2}),
        "packing_lower_bound": Call(
            bounds.packing_lower_bound, lambda: {"lengths": LENGTHS, "capacity": 8, "max_sequences": 4}
        ),
        "step_bounds": Call(
            bounds.step_bounds,
            lambda: {
                "lengths": LENGTHS,
                "num_ranks": 2,
                "capacity": 8,
                "cp_sizes": (1, 2),
                "padding": RULE,
                "cost": COST,
            },
        ),
    },
    "layout": {
        "check_cu_seqlens": Call(layout.check_cu_seqlens, lambda: {"name": "x", "cu_seqlens": [0, 3]}),
        "cu_seqlens_from_lengths": Call(layout.cu_seqlens_from_lengths, lambda: {"lengths": LENGTHS}),
        "fixed_shape_cu_seqlens": Call(
            layout.fixed_shape_cu_seqlens, lambda: {"cu_seqlens": [0, 3], "max_sequences": 4}
        ),
        "lengths_from_cu_seqlens": Call(layout.lengths_from_cu_seqlens, lambda: {"cu_seqlens": [0, 3]}),
        **{
            name: Call(getattr(layout, name), lambda: {"lengths": [3, 2], "padded_lengths": [4, 2]})
            for name in ("packed_offsets", "position_ids", "segment_ids", "slots_of_real_tokens")
        },
        "padding_mask": Call(layout.padding_mask, lambda: {"cu_seqlens": [0, 3], "cu_seqlens_padded": [0, 4]}),
        "scatter_real": Call(
            layout.scatter_real, lambda: {"values": [7, 8], "slots": np.array([0, 2]), "size": 4, "fill": 0}
        ),
        "shift_labels": Call(layout.shift_labels, lambda: {"tokens": [1, 2, 3], "cu_seqlens": [0, 3]}),
    },
    "loss": {
        "averaging_factor": Call(loss.averaging_factor, lambda: {"num_averaged_ranks": 2}),
        "count_valid_tokens": Call(loss.count_valid_tokens, lambda: {"labels": [1, 2], "loss_mask": [1, 0]}),
        "valid_token_mask": Call(loss.valid_token_mask, lambda: {"labels": [1, 2], "loss_mask": [1, 0]}),
        "token_weights": Call(
            loss.token_weights,
            lambda: {
                "labels": [1, 2],
                "loss_mask": [1, 1],
                "normaliser": "sequence",
                "global_valid_tokens": None,
                "segment_ids": [1, 1],
                "sequence_valid_tokens": [2],
                "num_units": 1,
            },
        ),
    },
    "packing": {
        **{
            name: Call(getattr(packing, name), lambda: {"lengths": LENGTHS, "capacity": 8, **PACK})
            for name in ("best_fit_decreasing", "first_fit", "first_fit_decreasing", "next_fit")
        },
        "Bins.from_bin_of": Call(packing.Bins.from_bin_of, lambda: {"bin_of": [0, 1, 0]}),
        "Bins.bin_of": Call(BINS.bin_of, lambda: {"num_items": 6}),
        "apply_overlong": Call(
            packing.apply_overlong, lambda: {"lengths": LENGTHS, "fits_at_most": 4, "policy": "split", "where": ""}
        ),
        "coarse_lengths": Call(packing.coarse_lengths, lambda: {"lengths": LENGTHS, "capacity": 8}),
        "concat_then_split": Call(
            packing.concat_then_split, lambda: {"lengths": LENGTHS, "capacity": 8, "multiple": 2, "max_sequences": 4}
        ),
        "get_packer": Call(packing.get_packer, lambda: {"name": "first_fit"}),
        "merge_groups": Call(
            packing.merge_groups,
            lambda: {
                "lengths": LENGTHS,
                "groups": [0, 0, 1, 1, 2, 2],
                "capacity": 8,
                "max_sequences": 4,
                "alone": None,
            },
        ),
        "refill": Call(packing.refill, lambda: {"bins": BINS, "lengths": LENGTHS, "capacity": 8, "enough": 1, **PACK}),
        "StreamingPacker": Call(
            packing.StreamingPacker,
            lambda: {
                "open_at": lambda start: LENGTHS[start:],
                "capacity": 8,
                "packer": packing.first_fit,
                "window": 4,
                "max_sequences": 4,
                "groups_at": None,
            },
        ),
        "StreamingPacker.load_state_dict": Call(
            lambda state: stream().load_state_dict(state), lambda: {"state": stream().state_dict()}
        ),
        **{
            f"StreamingPacker.load_state_dict {key}": Call(
                lambda value, key=key: stream().load_state_dict({**stream().state_dict(), key: value}),
                lambda value=value: {"value": value},
            )
            for key, value in stream().state_dict().items()
        },
    },
    "padding": {
        "check_capacity": Call(padding.check_capacity, lambda: {"capacity": 8, "padding": RULE}),
        "longest_fitting_length": Call(
            padding.longest_fitting_length, lambda: {"capacity": 8, "cp_size": 2, "padding": RULE}
        ),
        "padded_lengths": Call(padding.padded_lengths, lambda: {"lengths": LENGTHS, "cp_size": 2, "padding": RULE}),
        "padding_multiple": Call(padding.padding_multiple, lambda: {"padding": RULE, "cp_size": 2}),
        "row_capacity": Call(padding.row_capacity, lambda: {"capacity": 8, "padding": RULE}),
    },
    "topology": {
        "count_cp_groups": Call(topology.count_cp_groups, lambda: {"num_ranks": 4, "cp_sizes": (1, 2), "node_size": 2}),
        "crosses_node": Call(topology.crosses_node, lambda: {"first_rank": [0, 2], "cp_size": [2, 2], "node_size": 2}),
        "legal_cp_sizes": Call(
            topology.legal_cp_sizes,
            lambda: {"num_ranks": 4, "cp_sizes": "any", "min_cp_size": 1, "max_cp_size": 2, "num_heads": 4},
        ),
        "limit_cp_groups": Call(
            topology.limit_cp_groups,
            lambda: {"num_ranks": 4, "cp_sizes": (1, 2), "max_groups": 4, "node_size": 2},
        ),
        "place_blocks": Call(topology.place_blocks, lambda: {"cp_sizes": [2, 1], "node_size": 2}),
    },
}
CALLS = {**ROOT, **{f"{room}.{name}": call for room, table in TABLES.items() for name, call in table.items()}}

LEFT_OUT = {
    "balancing.Balancer": "a protocol",
    "layout.PackedOffsets": "a result of packed_offsets",
    "packing.Bins": "a result of a packer",
    "packing.ItemGroups": "a result of merge_groups",
    "packing.ItemGroups.apart": "called by packers",
    "packing.Packer": "a protocol",
    "packing.Pieces": "a result of apply_overlong",
    "packing.SplitBins": "a result of concat_then_split",
    "Plan": "a result of dcpack.plan; validate says what is wrong with one",
}

# What of the values has a meaning there.
TAKES = {
    "pack.lengths": "list, unsigned",
    "pack.padding": "none",
    "pack.max_sequences": "none, huge, number of an enum",
    "pack.groups": "none",
    "pack.capacity": "number of an enum",
    "plan.lengths": "list",
    "plan.cost": "none",
    "plan.max_cp_size": "none, huge",
    "plan.padding": "none",
    "plan.max_sequences": "none, huge",
    "plan.num_heads": "none, list",
    "plan.max_groups": "none, huge",
    "plan.budgets": "list",
    "plan.groups": "none",
    "plan.max_displacement": "none, huge",
    "plan.effort": "none",
    "balance.costs": "list, whole floats, unsigned, hugest",
    "balance.num_parts": "huge, number of an enum",
    "balance.equal_size": "true, numpy true",
    "PaddingRule.sequence_parallel": "true, numpy true",
    "PaddingRule.multiple.cp_size": "number of an enum, list, 0-d, 2-d, unsigned",
    "PaddingRule.padded_total.total": "zero, number of an enum, list, 0-d, 2-d, unsigned",
    "PaddingRule.padded_total.cp_size": "number of an enum, list, 0-d, 2-d, unsigned",
    "PaddingRule.tp": "number of an enum",
    "PaddingRule.block": "number of an enum",
    "Plan.validate.lengths": "none",
    "Plan.describe_bin.index": "zero",
    "Plan.bins_of_rank.rank": "zero",
    "Plan.simulate.pipeline_stages": "huge, number of an enum",
    "Plan.save.path": "text",
    "Plan.load.capacity": "none",
    "Plan.load.padding": "none",
    "Plan.load.cp_sizes": "none",
    "Topology.ranks": "none",
    "Topology.process_of_rank": "none, unsigned, hugest",
    "Topology.node_size": "none, huge, number of an enum",
    "Topology.of_domain.process_of_rank": "none, unsigned, hugest",
    "Topology.of_domain.node_size": "none, huge, number of an enum",
    "Topology.of_domain.num_ranks": "number of an enum",
    "Topology.coordinates.rank": "zero, number of an enum",
    "Topology.groups.axes": "list, map",
    "Topology.group_of.rank": "zero, number of an enum",
    "Topology.group_of.axes": "list, map",
    "Topology.plan_ranks.rank": "zero, number of an enum",
    "balancing.integer_costs.costs": "list, whole floats, unsigned, hugest",
    "balancing.karmarkar_karp.costs": "list, whole floats, unsigned, hugest",
    "balancing.karmarkar_karp.num_parts": "huge, number of an enum",
    "balancing.karmarkar_karp.equal_size": "true, numpy true",
    "balancing.lpt.costs": "list, whole floats, unsigned, hugest",
    "balancing.lpt.num_parts": "huge, number of an enum",
    "balancing.lpt.equal_size": "true, numpy true",
    "balancing.refine.equal_size": "true, numpy true",
    "balancing.refine.num_parts": "number of an enum",
    "bounds.balance_lower_bound.costs": "list, whole floats, unsigned, hugest",
    "bounds.balance_lower_bound.num_parts": "huge, number of an enum",
    "bounds.packing_lower_bound.lengths": "list, unsigned",
    "bounds.packing_lower_bound.capacity": "huge, number of an enum",
    "bounds.packing_lower_bound.max_sequences": "none, huge, number of an enum",
    "bounds.step_bounds.lengths": "list, unsigned",
    "bounds.step_bounds.num_ranks": "huge, number of an enum",
    "bounds.step_bounds.padding": "none",
    "bounds.step_bounds.capacity": "number of an enum",
    "bounds.step_bounds.cp_sizes": "unsigned",
    "layout.check_cu_seqlens.name": ", ".join(VALUES),
    "layout.cu_seqlens_from_lengths.lengths": "list, unsigned",
    "layout.packed_offsets.padded_lengths": "none, unsigned",
    "layout.packed_offsets.lengths": "unsigned",
    "layout.position_ids.padded_lengths": "none, unsigned",
    "layout.position_ids.lengths": "unsigned",
    "layout.segment_ids.padded_lengths": "none, unsigned",
    "layout.segment_ids.lengths": "unsigned",
    "layout.slots_of_real_tokens.padded_lengths": "none, unsigned",
    "layout.slots_of_real_tokens.lengths": "unsigned",
    "layout.scatter_real.values": "minuses, nans, texts, 2-d, whole floats, unsigned, hugest",
    "layout.scatter_real.fill": "true, numpy true, zero, minus, decimal, minus zero, number of an enum, 0-d",
    "layout.scatter_real.slots": "unsigned",
    "loss.averaging_factor.num_averaged_ranks": "huge, number of an enum",
    "loss.count_valid_tokens.labels": "minuses, unsigned, hugest",
    "loss.count_valid_tokens.loss_mask": "none, minuses, whole floats, unsigned, hugest",
    "loss.valid_token_mask.labels": "minuses, unsigned, hugest",
    "loss.valid_token_mask.loss_mask": "none, minuses, whole floats, unsigned, hugest",
    "loss.token_weights.labels": "minuses, unsigned, hugest",
    "loss.token_weights.loss_mask": "none, minuses, whole floats, unsigned, hugest",
    "loss.token_weights.global_valid_tokens": ", ".join(VALUES),
    "loss.token_weights.sequence_valid_tokens": "unsigned, hugest",
    "loss.token_weights.num_units": "huge, number of an enum",
    "packing.best_fit_decreasing.lengths": "list, unsigned",
    "packing.best_fit_decreasing.capacity": "huge",
    "packing.best_fit_decreasing.max_sequences": "none, huge, number of an enum",
    "packing.best_fit_decreasing.alone": "none",
    "packing.best_fit_decreasing.sizes": "none",
    "packing.first_fit.lengths": "list, unsigned",
    "packing.first_fit.capacity": "huge",
    "packing.first_fit.max_sequences": "none, huge, number of an enum",
    "packing.first_fit.alone": "none",
    "packing.first_fit.sizes": "none",
    "packing.first_fit_decreasing.lengths": "list, unsigned",
    "packing.first_fit_decreasing.capacity": "huge",
    "packing.first_fit_decreasing.max_sequences": "none, huge, number of an enum",
    "packing.first_fit_decreasing.alone": "none",
    "packing.first_fit_decreasing.sizes": "none",
    "packing.next_fit.lengths": "list, unsigned",
    "packing.next_fit.capacity": "huge",
    "packing.next_fit.max_sequences": "none, huge, number of an enum",
    "packing.next_fit.alone": "none",
    "packing.next_fit.sizes": "none",
    "packing.Bins.from_bin_of.bin_of": "list",
    "packing.apply_overlong.lengths": "list, unsigned",
    "packing.apply_overlong.fits_at_most": "huge, number of an enum",
    "packing.apply_overlong.where": "text, surrogate",
    "packing.coarse_lengths.lengths": "list, unsigned, hugest",
    "packing.coarse_lengths.capacity": "huge, number of an enum",
    "packing.concat_then_split.lengths": "list, unsigned",
    "packing.concat_then_split.capacity": "huge, number of an enum",
    "packing.concat_then_split.max_sequences": "none, huge, number of an enum",
    "packing.concat_then_split.multiple": "number of an enum",
    "packing.merge_groups.capacity": "huge",
    "packing.merge_groups.max_sequences": "none, huge, number of an enum",
    "packing.merge_groups.alone": "none",
    "packing.refill.capacity": "huge",
    "packing.refill.enough": "zero, huge, number of an enum",
    "packing.refill.max_sequences": "none, huge, number of an enum",
    "packing.refill.alone": "none",
    "packing.refill.sizes": "none",
    "packing.StreamingPacker.open_at": "function, type",
    "packing.StreamingPacker.capacity": "huge, number of an enum",
    "packing.StreamingPacker.packer": "function, type",
    "packing.StreamingPacker.max_sequences": "none, huge, number of an enum",
    "packing.StreamingPacker.groups_at": "none, function, type",
    "packing.StreamingPacker.load_state_dict max_sequences.value": "none",
    "packing.StreamingPacker.load_state_dict window_start.value": "zero, number of an enum",
    "packing.StreamingPacker.load_state_dict window_tokens.value": "zero, number of an enum",
    "packing.StreamingPacker.load_state_dict bins_delivered.value": "zero",
    "packing.StreamingPacker.window": "number of an enum",
    "padding.check_capacity.padding": "none",
    "padding.check_capacity.capacity": "number of an enum",
    "padding.longest_fitting_length.cp_size": "number of an enum, list, 0-d, 2-d, unsigned",
    "padding.longest_fitting_length.padding": "none",
    "padding.longest_fitting_length.capacity": "number of an enum",
    "padding.padded_lengths.lengths": "zero, number of an enum, list, 0-d, 2-d, unsigned",
    "padding.padded_lengths.cp_size": "number of an enum, 0-d",
    "padding.padded_lengths.padding": "none",
    "padding.padding_multiple.padding": "none",
    "padding.padding_multiple.cp_size": "number of an enum, list, 0-d, 2-d, unsigned",
    "padding.row_capacity.capacity": "zero, huge, number of an enum",
    "padding.row_capacity.padding": "none",
    "topology.count_cp_groups.cp_sizes": "list, unsigned, hugest",
    "topology.count_cp_groups.node_size": "none, huge, number of an enum",
    "topology.count_cp_groups.num_ranks": "number of an enum",
    "topology.crosses_node.first_rank": "unsigned, hugest",
    "topology.crosses_node.cp_size": "unsigned, hugest",
    "topology.crosses_node.node_size": "none, number of an enum",
    "topology.legal_cp_sizes.max_cp_size": "none, huge, number of an enum",
    "topology.legal_cp_sizes.num_heads": "none, number of an enum, list, unsigned, hugest",
    "topology.legal_cp_sizes.num_ranks": "number of an enum",
    "topology.legal_cp_sizes.cp_sizes": "unsigned",
    "topology.legal_cp_sizes.min_cp_size": "number of an enum",
    "topology.limit_cp_groups.cp_sizes": "unsigned, hugest",
    "topology.limit_cp_groups.max_groups": "zero, huge, number of an enum",
    "topology.limit_cp_groups.node_size": "none, huge, number of an enum",
    "topology.limit_cp_groups.num_ranks": "number of an enum",
    "topology.place_blocks.cp_sizes": "list, unsigned, hugest",
    "topology.place_blocks.node_size": "none, huge, number of an enum",
    "layout.fixed_shape_cu_seqlens.max_sequences": "number of an enum",
}
