"""Every argument of every public callable gets what it cannot be: an error of ours, or what the table says is taken."""

from __future__ import annotations

import importlib
from operator import attrgetter
from pathlib import Path
from typing import Any

import hostile_calls
import hostile_core
import pytest
from hostile_calls import VALUES, Call

import dcpack
from dcpack.errors import DcpackError

ROOMS = (
    "batched_data_dict",
    "comm",
    "core",
    "cost",
    "data",
    "demo",
    "exchange",
    "export",
    "loader",
    "megatron",
    "metrics",
    "report",
    "scheduling",
    "sharding",
    "testing",
    "tuning",
)
TABLES: dict[str, Any] = {room: importlib.import_module(f"hostile_{room}") for room in ROOMS}
CALLS = {(room, name): call for room, table in TABLES.items() for name, call in table.CALLS.items()}


def taken(room: str, name: str, argument: str) -> set[str]:
    text = TABLES[room].TAKES.get(f"{name}.{argument}", "")
    return set(text.split(", ")) if text else set()


@pytest.mark.parametrize(("room", "name"), CALLS)
def test_every_argument(room: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a text may name a file
    call = CALLS[room, name]
    assert hostile_calls.outcome(call) == "taken"
    found = hostile_calls.findings(call)
    assert {argument: wrong["wrong"] for argument, wrong in found.items() if wrong["wrong"]} == {}
    for argument, answers in found.items():
        assert set(answers["taken"]) == taken(room, name, argument), argument


@pytest.mark.parametrize("room", ROOMS)
def test_the_table_names_what_there_is(room: str) -> None:
    table = TABLES[room]
    known = {f"{name}.{argument}" for name, call in table.CALLS.items() for argument in call.arguments()}
    assert set(table.TAKES) <= known
    assert {value for text in table.TAKES.values() for value in text.split(", ")} <= set(VALUES)


@pytest.mark.parametrize("room", ROOMS)
def test_what_takes_a_bool_takes_one_of_numpy(room: str) -> None:
    plain = ("load_state_dict", "model_batch_spec")  # values as they come out of JSON
    takes = TABLES[room].TAKES.items()
    texts = {key: text.split(", ") for key, text in takes if not any(name in key for name in plain)}
    assert [key for key, values in texts.items() if "true" in values and "numpy true" not in values] == []


@pytest.mark.parametrize(("room", "name"), CALLS)
def test_no_argument_is_left_out(room: str, name: str) -> None:
    if " " in name:  # tries one place inside an argument
        return
    fn = attrgetter(name)(dcpack if room == "core" else importlib.import_module(f"dcpack.{room}"))
    assert set(hostile_calls.parameters(fn)) - {"self"} <= set(CALLS[room, name].arguments())


def callables_of(room: str) -> set[str]:
    if room != "core":
        return set(hostile_calls.public_callables(importlib.import_module(f"dcpack.{room}")))
    elsewhere = {name for other in ROOMS if other != "core" for name in callables_of(other)}
    root = set(hostile_calls.public_callables(dcpack)) - elsewhere
    return root | {f"{inner}.{name}" for inner in hostile_core.TABLES for name in callables_of(inner) - root}


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_callable_is_in_its_table(room: str) -> None:
    table = TABLES[room]
    tried = {name.partition(" ")[0] for name in table.CALLS}
    assert callables_of(room) - tried == set(table.LEFT_OUT)
    assert all(table.LEFT_OUT.values())


def refuses(value: Any) -> None:
    raise DcpackError(f"{value!r}")


def answers(value: Any) -> str:
    return repr(value)


def fails(value: Any) -> None:
    raise KeyError("x")


@pytest.mark.parametrize(
    ("fn", "is_taken", "wrong"), [(refuses, False, None), (answers, True, None), (fails, False, "KeyError: 'x'")]
)
def test_the_harness_tells_right_from_wrong(fn: Any, is_taken: bool, wrong: str | None) -> None:
    for make in (lambda: {"value": 1}, lambda world: {"value": world}):
        found = hostile_calls.findings(Call(fn, make))["value"]
        assert found["taken"] == (list(VALUES) if is_taken else [])
        assert found["wrong"] == ([f"{name}: {wrong}" for name in VALUES] if wrong else [])
