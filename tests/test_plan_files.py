"""Reading what claims to be a plan: what comes back, and what each kind of damage is called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dcpack
from dcpack._plan_files import FORMAT, check_wanted, read_json, read_npz, restore, write_npz
from dcpack.errors import ArgumentError, DcpackError, PlanError
from dcpack.padding import PaddingRule
from dcpack.plans import _ARRAYS, _SCALARS, Plan


def content_of(plan: Plan) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    return json.loads(json.dumps(plan._file_header())), {name: getattr(plan, name) for name in _ARRAYS}


@pytest.fixture
def plan() -> Plan:
    return dcpack.plan([9, 5, 3], num_ranks=2, capacity=8, padding=PaddingRule(tp=2))


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "as it is called"
    header, arrays = {"a": [1, None, "ü"], "b": {"c": 0.5}}, {"x": np.arange(3), "y": np.zeros(0, np.bool_)}
    write_npz(path, header, arrays)
    assert [entry.name for entry in tmp_path.iterdir()] == ["as it is called"]  # no .npz behind it
    found, read = read_npz(str(path), ["x"])
    assert found == header
    assert {name: (array.dtype.name, array.tolist()) for name, array in read.items()} == {"x": ("int64", [0, 1, 2])}
    with pytest.raises(PlanError, match=r"as it is called: not a readable plan: KeyError: .*'?z"):
        read_npz(path, ["x", "z"])


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", "3", "null", b"\xff", '{"x": [1], "y": [[1], [2, 3]]}', "[" * 100_000, '{"x": [1]}']
)
def test_text_that_holds_no_arrays_is_no_plan(text: Any) -> None:
    with pytest.raises(PlanError, match=r"^not a plan in JSON: [A-Za-z]+Error: "):
        read_json(text, ["x", "y"])


def test_json_gives_the_object_and_the_arrays() -> None:
    values, arrays = read_json(b'{"x": [3, 4], "other": 5}', ["x"])
    assert values == {"x": [3, 4], "other": 5}
    assert {name: array.tolist() for name, array in arrays.items()} == {"x": [3, 4]}


def test_what_a_plan_must_have_been_made_for() -> None:
    assert check_wanted(None, None, None) == {"capacity": None, "padding": None, "cp_sizes": None}
    rule = PaddingRule(tp=2)
    found = check_wanted(np.int64(8), rule, np.array([1, 2]))
    assert found == {"capacity": 8, "padding": rule, "cp_sizes": (1, 2)}
    assert (type(found["capacity"]), type(found["cp_sizes"][0])) == (int, int)
    assert check_wanted(1, None, (1,)) == {"capacity": 1, "padding": None, "cp_sizes": (1,)}
    for wrong in ((0, None, None), (None, {"tp": 2}, None), (None, None, (0, 1)), (1.5, None, None)):
        with pytest.raises(ArgumentError, match=r"capacity must be|padding must be|cp_sizes must be"):
            check_wanted(*wrong)


def test_a_whole_plan_comes_back(plan: Plan) -> None:
    back = restore("here", Plan, content_of(plan), _SCALARS)
    assert plan.first_difference(back) is None
    assert (back.padding, dict(back.bounds)) == (plan.padding, dict(plan.bounds))
    bare = dcpack.pack([3], capacity=4)
    assert restore("here", Plan, content_of(bare), _SCALARS).padding is None


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"format": FORMAT + 1}, f"here: not a readable plan: PlanError: format 2, this dcpack reads {FORMAT}"),
        ({"format": FORMAT - 1}, f"here: not a readable plan: PlanError: format 0, this dcpack reads {FORMAT}"),
        ({"padding": {"pt": 2}}, "here: not a readable plan: TypeError: .*'pt'"),
        ({"padding": 3}, "here: not a readable plan: TypeError: "),
        ({"cp_sizes": None}, "here: not a readable plan: TypeError: "),
        ({"capacity": -1}, "here: not a readable plan: PlanError: capacity must be at least 0"),
        ({"digest": "0" * 64}, "here: corrupt plan: its digest is [0-9a-f]{64}, the header says 0{64}$"),
        ({"capacity": 9}, "here: corrupt plan: its digest is "),
        ({"padding": None}, "here: corrupt plan: its digest is "),
        ({"cp_sizes": [1]}, "here: corrupt plan: its digest is "),
    ],
)
def test_a_header_of_something_else_is_refused(plan: Plan, changes: dict[str, Any], text: str) -> None:
    header, arrays = content_of(plan)
    with pytest.raises(DcpackError, match=f"^{text}") as caught:
        restore("here", Plan, ({**header, **changes}, arrays), _SCALARS)
    assert type(caught.value) is PlanError


@pytest.mark.parametrize("name", ["format", "padding", "capacity", "cp_sizes", "bounds", "digest"])
def test_a_header_that_lacks_something_says_what(plan: Plan, name: str) -> None:
    header, arrays = content_of(plan)
    del header[name]
    with pytest.raises(PlanError, match=f"^here: not a readable plan: KeyError: '{name}'$"):
        restore("here", Plan, (header, arrays), _SCALARS)


@pytest.mark.parametrize("header", [None, 3, [1], "text"])
def test_a_header_that_is_no_object_is_refused(plan: Plan, header: Any) -> None:
    with pytest.raises(PlanError, match=r"^here: not a readable plan: TypeError: "):
        restore("here", Plan, (header, content_of(plan)[1]), _SCALARS)


@pytest.mark.parametrize("name", _ARRAYS)
def test_every_array_is_under_the_digest(plan: Plan, name: str) -> None:
    header, arrays = content_of(plan)
    changed = arrays[name].copy()
    changed[-1] = not changed[-1] if changed.dtype == np.bool_ else changed[-1] + 1
    if name == "offsets":  # the last one could not hold
        changed[-1] -= 1
        changed[1] += 1 if changed[1] < changed[-1] else -1
    with pytest.raises(PlanError, match=r"^here: corrupt plan: "):
        restore("here", Plan, (header, {**arrays, name: changed}), _SCALARS)
