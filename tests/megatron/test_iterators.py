"""Which stage needs what, and iterators of their own for each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dcpack.errors import ArgumentError
from dcpack.megatron import (
    make_data_iterators,
    needs_of_stage,
    needs_of_virtual_stages,
    pack_sequences,
    pick_data_iterator,
)

NOTHING, FIRST, LAST, ALL = (False, False), (True, False), (False, True), (True, True)


@pytest.mark.parametrize(
    ("is_first", "is_last", "vpp_size", "mtp_stages", "expected"),
    [
        (True, True, 1, (), [ALL]),
        (True, False, 1, (), [FIRST]),
        (False, True, 1, (), [LAST]),
        (False, False, 1, (), [NOTHING]),
        (False, False, 1, (0,), [ALL]),
        (True, False, 3, (), [FIRST, NOTHING, NOTHING]),
        (False, True, 3, (), [NOTHING, NOTHING, LAST]),
        (True, True, 3, (), [FIRST, NOTHING, LAST]),
        (True, True, 2, (), [FIRST, LAST]),
        (False, True, 3, (1,), [NOTHING, ALL, LAST]),
    ],
)
def test_needs(is_first: bool, is_last: bool, vpp_size: int, mtp_stages: tuple[int, ...], expected: list[Any]) -> None:
    place = {"is_first": is_first, "is_last": is_last, "vpp_size": vpp_size}
    assert list(needs_of_virtual_stages(**place, mtp_stages=mtp_stages)) == expected
    for stage in range(vpp_size):
        found = needs_of_stage(**place, vpp_stage=stage, has_mtp=stage in mtp_stages)
        assert found == expected[stage]


@pytest.mark.parametrize("mtp_stages", [[np.int64(1)], np.array([1]), range(1, 2)])
def test_stages_may_be_numbers_of_any_kind(mtp_stages: Any) -> None:
    assert needs_of_virtual_stages(is_first=True, is_last=False, vpp_size=2, mtp_stages=mtp_stages) == (FIRST, ALL)


@pytest.mark.parametrize("mtp_stages", [1, "1", [None], [True], [1.0], {1}])
def test_stages_must_be_numbers(mtp_stages: Any) -> None:
    with pytest.raises(ArgumentError, match="mtp_stages must"):
        needs_of_virtual_stages(is_first=True, is_last=False, vpp_size=2, mtp_stages=mtp_stages)


def test_stages_that_do_not_exist() -> None:
    with pytest.raises(ArgumentError, match="mtp_stages must be from 0 to 1, got 2"):
        needs_of_virtual_stages(is_first=True, is_last=True, vpp_size=2, mtp_stages=(2,))
    with pytest.raises(ArgumentError, match="vpp_stage must be given where vpp_size is 2"):
        needs_of_stage(is_first=True, is_last=True, vpp_size=2, vpp_stage=None, has_mtp=False)
    with pytest.raises(ArgumentError, match="vpp_stage must be from 0 to 1, got 2"):
        needs_of_stage(is_first=True, is_last=True, vpp_size=2, vpp_stage=2, has_mtp=False)


def rows() -> list[dict[str, Any]]:
    names = ("tokens", "labels", "loss_mask", "position_ids")
    fields = {name: np.arange(4) for name in names}
    lengths = {"original_seq_len": np.array([3]), "padded_seq_len": np.array([4])}
    return [pack_sequences([{**fields, **lengths}]) for _ in range(2)]


def arrays_of(iterator: Any) -> list[np.ndarray]:
    return [value for row in iterator for value in row.values() if isinstance(value, np.ndarray)]


def test_no_two_stages_share_an_array() -> None:
    made: Any = make_data_iterators(rows(), [FIRST, NOTHING, ALL, LAST], is_tp_first=True)
    assert len(made) == 4
    found = [arrays_of(iterator) for iterator in made]
    assert [len(arrays) for arrays in found] == [2 * (2 + 2 + 1), 2 * 2, 2 * (4 + 2 + 1), 2 * (2 + 2 + 1)]
    for stage, arrays in enumerate(found):
        for other in found[stage + 1 :]:
            assert not any(np.shares_memory(one, another) for one in arrays for another in other)


def test_the_only_stage_with_data_gets_the_arrays_without_a_copy() -> None:
    given = rows()
    made: Any = make_data_iterators(given, [NOTHING, LAST], is_tp_first=True)
    metadata, last = list(made[0]), list(made[1])
    assert last[0]["labels"] is given[0]["labels"]
    assert "tokens" not in last[0]
    assert not np.shares_memory(metadata[0]["cu_seqlens"], given[0]["cu_seqlens"])
    last[0]["labels"] = None  # what one does to a row of its own is not seen in the caller's
    assert given[0]["labels"] is not None


def test_one_stage_gets_an_iterator_and_no_list() -> None:
    made: Any = make_data_iterators(rows(), [ALL], is_tp_first=True)
    assert len(list(made)) == 2


@pytest.mark.parametrize(("needs", "expected"), [([ALL], None), ([FIRST, LAST], [None, None])])
def test_peers_get_none(needs: list[Any], expected: Any) -> None:
    assert make_data_iterators(None, needs, is_tp_first=False) == expected
    assert make_data_iterators(rows(), needs, is_tp_first=False) == expected


def test_rows_must_be_there_and_hold_what_is_needed() -> None:
    with pytest.raises(ArgumentError, match="rows must be given on the first rank"):
        make_data_iterators(None, [ALL], is_tp_first=True)
    bare = [{"max_seqlen": 3}]
    with pytest.raises(ArgumentError, match="micro-batch 0 lacks tokens, labels, which this stage computes on"):
        make_data_iterators(bare, [NOTHING, ALL], is_tp_first=True)


def test_one_iterator_or_a_list_is_accepted() -> None:
    source = iter([1])
    assert pick_data_iterator(source, 4) is source
    assert pick_data_iterator(None) is None
    assert pick_data_iterator([None, source, iter([2])], 3) is source
    assert pick_data_iterator([None, None], 2) is None
    assert pick_data_iterator([source], 1) is source


@pytest.mark.parametrize(("length", "vpp_size"), [(1, 2), (3, 2), (0, 1)])
def test_a_list_of_another_length_is_an_error(length: int, vpp_size: int) -> None:
    with pytest.raises(ArgumentError, match=f"one iterator for each of {vpp_size} virtual stages, got {length}"):
        pick_data_iterator([iter([1])] * length, vpp_size)
