"""Whatever comes in: an error of ours, or the answer for what was meant. Never another error, never a wrong answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import pytest

import dcpack
from dcpack import bounds, cost, layout, loss, packing, padding, sharding, topology
from dcpack.balancing import get_balancer, integer_costs, refine
from dcpack.errors import DcpackError
from dcpack.scheduling import SCHEDULERS

# ---- what comes in ---------------------------------------------------------------------------------------------------

BASE = [3, 1, 4, 1, 5, 2]


def _non_contiguous(base: list[int]) -> Any:
    return np.repeat(np.array(base, np.int64), 2)[::2]


def _read_only(base: list[int]) -> Any:
    array = np.array(base, np.int64)
    array.setflags(write=False)
    return array


# The same whole numbers in another dress: the answer must be that of a plain int64 array.
MEANT: dict[str, Callable[[list[int]], Any]] = {
    "list": list,
    "tuple": tuple,
    "list of NumPy integers": lambda base: [np.int16(value) for value in base],
    "int8": lambda base: np.array(base, np.int8),
    "uint16": lambda base: np.array(base, np.uint16),
    "int32": lambda base: np.array(base, np.int32),
    "uint64": lambda base: np.array(base, np.uint64),
    "big-endian": lambda base: np.array(base, ">i8"),
    "non-contiguous": _non_contiguous,
    "reversed view": lambda base: np.array(base[::-1], np.int64)[::-1],
    "read-only": _read_only,
    "unaligned": lambda base: np.array([(0, value) for value in base], np.dtype([("a", "i1"), ("b", "<i8")]))["b"],
}

# No whole numbers, or not one-dimensional: an error of ours.
NONSENSE: dict[str, Any] = {
    "None": None,
    "a number": 3,
    "0-d": np.array(3),
    "2-d": np.ones((2, 3), np.int64),
    "ragged": [[1, 2], [3]],
    "a text": "3 1 4",
    "texts": ["3", "1", "4"],
    "bytes": b"314",
    "bools": np.array([True, False, True]),
    "objects": np.array([3, 1, None, 2, 5, 4], object),
    "objects that are numbers": np.array([3, 1, 4, 1, 5, 2], object),
    "NaN": [3.0, float("nan"), 4.0, 1.0, 5.0, 2.0],
    "infinity": [3.0, float("inf"), 4.0, 1.0, 5.0, 2.0],
    "complex": np.array([3, 1, 4], np.complex128),
    "dates": np.array(["2026-01-01"], "datetime64[D]"),
    "records": np.zeros(3, np.dtype([("a", "i8")])),
    "a mapping": {"lengths": [3]},
    "a set": {3, 1, 4},
    "negative": [3, -1, 4, 1, 5, 2],
    "over int64": [3, 2**63, 4, 1, 5, 2],
    "over uint64": [3, 2**64, 4, 1, 5, 2],
    "far over": [3, 10**30, 4, 1, 5, 2],
    "whole floats": [3.0, 1.0, 4.0, 1.0, 5.0, 2.0],
    "float16": np.array(BASE, np.float16),
}


# ---- to what ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Case:
    """One public function, called with a hostile value in one place.

    `base` is the sane value there; `welcome` names what of `NONSENSE` has a meaning there, where it then must be taken.
    `values` compares the values of the answer alone, where its dtype is that of the input.
    """

    call: Callable[[Any], Any]
    base: tuple[int, ...] = tuple(BASE)
    welcome: tuple[str, ...] = ()
    values: bool = False


COSTS = ("whole floats", "float16", "over int64")  # numbers that need not be lengths
OPTIONAL = ("None",)
ANY_SHAPE = ("a number", "0-d", "2-d")


LLAMA = cost.get_cost("llama3-8b@h100")
RULE = padding.PaddingRule()
PLAN = dcpack.plan(BASE, num_ranks=2, capacity=8)
OFFSETS = (0, 4, 8, 16)

CASES: dict[str, Case] = {
    "pack": Case(call=lambda x: dcpack.pack(x, capacity=8)),
    "pack groups": Case(call=lambda x: dcpack.pack(BASE, capacity=16, groups=x), welcome=OPTIONAL),
    **{
        f"plan {name}": Case(
            call=lambda x, name=name: dcpack.plan(x, num_ranks=2, capacity=8, scheduler=name, on_empty="dummy")
        )
        for name in sorted(SCHEDULERS)
    },
    "Plan.validate": Case(call=lambda x: PLAN.validate(x), welcome=OPTIONAL),
    "balance": Case(call=lambda x: dcpack.balance(x, num_parts=2), welcome=COSTS),
    **{
        f"packing.{name}": Case(call=lambda x, name=name: packing.get_packer(name)(x, 8))
        for name in sorted(packing.PACKERS)
    },
    "packing.coarse_lengths": Case(call=lambda x: packing.coarse_lengths(x, 8)),
    "packing.concat_then_split": Case(call=lambda x: packing.concat_then_split(x, 8)),
    "packing.apply_overlong": Case(call=lambda x: packing.apply_overlong(x, 4, "split")),
    "packing.merge_groups": Case(call=lambda x: packing.merge_groups(x, [0, 0, 1, 1, 2, 2], 8)),
    "packing.merge_groups groups": Case(call=lambda x: packing.merge_groups(BASE, x, 16)),
    "packing.refill": Case(call=lambda x: packing.refill(packing.get_packer("first_fit")(BASE, 8), x, 8)),
    "packing sizes": Case(
        call=lambda x: packing.get_packer("first_fit")(BASE, 8, sizes=x, max_sequences=9), welcome=OPTIONAL
    ),
    "balancing.integer_costs": Case(call=integer_costs, welcome=COSTS),
    "balancing.karmarkar_karp": Case(call=lambda x: get_balancer("karmarkar_karp")(x, 2), welcome=COSTS),
    "balancing.lpt": Case(call=lambda x: get_balancer("lpt")(x, 2), welcome=COSTS),
    "balancing.refine": Case(
        call=lambda x: refine(x, np.array([0, 1, 0, 1, 0, 1]), 2, equal_size=False), base=(5, 4, 3, 2, 1, 1)
    ),
    "balancing.refine parts": Case(
        call=lambda x: refine(np.array([9, 5, 4, 3, 2, 1]), x, 3, equal_size=False), base=(0, 1, 2, 0, 0, 0)
    ),
    "bounds.packing_lower_bound": Case(call=lambda x: bounds.packing_lower_bound(x, 8)),
    "bounds.balance_lower_bound": Case(call=lambda x: bounds.balance_lower_bound(x, 2), welcome=COSTS),
    "bounds.step_bounds": Case(
        call=lambda x: bounds.step_bounds(x, num_ranks=2, capacity=8, cp_sizes=(1, 2), padding=None, cost=LLAMA)
    ),
    "layout.cu_seqlens_from_lengths": Case(call=layout.cu_seqlens_from_lengths),
    "layout.check_cu_seqlens": Case(call=lambda x: layout.check_cu_seqlens("x", x), base=OFFSETS),
    "layout.lengths_from_cu_seqlens": Case(call=layout.lengths_from_cu_seqlens, base=OFFSETS),
    "layout.packed_offsets": Case(call=layout.packed_offsets),
    "layout.packed_offsets padded": Case(call=lambda x: layout.packed_offsets([1] * 6, x), welcome=OPTIONAL),
    "layout.slots_of_real_tokens": Case(call=layout.slots_of_real_tokens),
    "layout.position_ids": Case(call=layout.position_ids),
    "layout.segment_ids": Case(call=layout.segment_ids),
    "layout.padding_mask": Case(call=lambda x: layout.padding_mask([0, 1, 2, 3], x), base=OFFSETS),
    "layout.shift_labels offsets": Case(call=lambda x: layout.shift_labels(np.arange(16), x), base=OFFSETS),
    "layout.shift_labels tokens": Case(
        call=lambda x: layout.shift_labels(x, [0, 2, 6]), welcome=("negative",), values=True
    ),
    "layout.scatter_real slots": Case(call=lambda x: layout.scatter_real([1, 2, 3, 4], x, 17, 0), base=OFFSETS),
    "layout.fixed_shape_cu_seqlens": Case(call=lambda x: layout.fixed_shape_cu_seqlens(x, 5), base=OFFSETS),
    "padding.padded_lengths": Case(call=lambda x: padding.padded_lengths(x, 2, RULE), welcome=ANY_SHAPE),
    "padding.padded_lengths sizes": Case(call=lambda x: padding.padded_lengths(7, x, RULE), welcome=ANY_SHAPE),
    "padding.padding_multiple": Case(call=lambda x: padding.padding_multiple(None, x), welcome=ANY_SHAPE),
    "padding.longest_fitting_length": Case(
        call=lambda x: padding.longest_fitting_length(8, x, RULE), welcome=ANY_SHAPE
    ),
    "PaddingRule.multiple": Case(call=RULE.multiple, welcome=ANY_SHAPE),
    "PaddingRule.padded_total": Case(call=RULE.padded_total, welcome=ANY_SHAPE),
    "PaddingRule.padded_total sizes": Case(call=lambda x: RULE.padded_total(9, x), welcome=ANY_SHAPE),
    "topology.place_blocks": Case(call=lambda x: topology.place_blocks(x, 4), base=(4, 2, 1, 1)),
    "topology.legal_cp_sizes": Case(call=lambda x: topology.legal_cp_sizes(8, x), base=(1, 2, 4)),
    **{
        f"sharding.local_token_indices {name}": Case(
            call=lambda x, name=name: sharding.local_token_indices(x, 2, 0, name), base=OFFSETS
        )
        for name in sorted(sharding.SHARDINGS)
    },
    "sharding.restore_indices": Case(call=lambda x: sharding.restore_indices(x, 2), base=OFFSETS),
    "sharding.local_cu_seqlens": Case(call=lambda x: sharding.local_cu_seqlens(x, 2, 0), base=OFFSETS),
    "topology.crosses_node": Case(call=lambda x: topology.crosses_node(x, np.ones(6, np.int64), 8)),
    "topology.crosses_node sizes": Case(call=lambda x: topology.crosses_node(np.zeros(6, np.int64), x, 2)),
    "loss.valid_token_mask": Case(call=loss.valid_token_mask, welcome=(*ANY_SHAPE, "negative")),
    "loss.valid_token_mask mask": Case(
        call=lambda x: loss.valid_token_mask(BASE, x),
        welcome=("None", *COSTS, "negative"),
    ),
    "loss.count_valid_tokens": Case(call=loss.count_valid_tokens, welcome=(*ANY_SHAPE, "negative")),
    "loss.token_weights segments": Case(
        call=lambda x: loss.token_weights(
            [1] * 6, normaliser="sequence", segment_ids=x, sequence_valid_tokens=[9] * 6, num_units=6
        )
    ),
    "loss.token_weights tokens": Case(
        call=lambda x: loss.token_weights(
            [1] * 6, normaliser="sequence", segment_ids=[1, 2, 3, 4, 5, 6], sequence_valid_tokens=x, num_units=6
        )
    ),
}


def plain(value: Any) -> Any:
    """What an answer holds, for comparing: arrays with their dtype, dataclasses field by field."""
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.tolist()
    if isinstance(value, dcpack.Plan):
        return value.digest()
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


@pytest.mark.parametrize("name", CASES)
def test_other_dresses_of_the_same_numbers_give_the_same(name: str) -> None:
    case = CASES[name]
    wanted = plain(case.call(np.array(case.base, np.int64)))
    for dress, make in MEANT.items():
        given = make(list(case.base))
        kept = plain(np.array(given))
        found = plain(case.call(given))
        assert found[1:] == wanted[1:] if case.values else found == wanted, dress
        assert plain(np.array(given)) == kept, f"{dress}: the caller's array was written to"


@pytest.mark.parametrize("name", CASES)
def test_what_is_no_array_of_whole_numbers_is_refused(name: str) -> None:
    case = CASES[name]
    wrong = []
    for what, value in NONSENSE.items():
        try:
            result = case.call(value)
        except DcpackError as error:
            if what in case.welcome or not str(error):
                wrong.append(f"{what}: {error!r}")
        except Exception as error:
            wrong.append(f"{what}: {type(error).__name__}: {error}")
        else:
            if what not in case.welcome:
                wrong.append(f"{what}: taken, gave {plain(result)!r}"[:150])
    assert wrong == []
