"""`dcpack backends`."""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from typing import Any

import pytest

from dcpack.comm import FakeBackend, list_backends, registry

Run = Callable[..., Any]


class OtherBackend(FakeBackend):
    @classmethod
    def available(cls) -> tuple[bool, str]:
        return True, "warp 9.1"


class AbsentBackend(FakeBackend):
    @classmethod
    def available(cls) -> tuple[bool, str]:
        return False, "no warp core"


class BrokenBackend(FakeBackend):
    @classmethod
    def available(cls) -> tuple[bool, str]:
        raise RuntimeError("the driver does not answer")


@pytest.fixture
def announce(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Announce back ends as installed packages do, beside the fake one and one whose package is missing."""
    monkeypatch.setattr(
        registry,
        "_BUILT_IN",
        {"fake": registry._BUILT_IN["fake"], "warp": ("no_such_module:Warp", "warp")},
    )
    points: list[Any] = []
    monkeypatch.setattr(registry, "entry_points", lambda group: points if group == "dcpack.backends" else [])

    def add(name: str, loaded: Any) -> None:
        def load() -> Any:
            if isinstance(loaded, Exception):
                raise loaded
            return loaded

        dist = types.SimpleNamespace(name=f"dcpack-{name}")
        points.append(types.SimpleNamespace(name=name, load=load, dist=dist, module=name))

    return add


def test_what_can_be_used_and_what_is_missing(announce: Callable[..., None], cli: Run) -> None:
    announce("other", OtherBackend)
    announce("absent", AbsentBackend)
    done = cli("backends")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[:3] == [
        "absent       not usable  no warp core; it comes from the package dcpack-absent",
        "fake         usable      threads of this process",
        "other        usable      warp 9.1",
    ]
    assert lines[3].startswith("warp         not usable  ")
    assert "No module named 'no_such_module'" in " ".join(lines[3:])
    assert "needs dcpack[warp]" in " ".join(" ".join(lines[3:]).split())
    assert all(line.startswith(" " * 25) for line in lines[4:])


def test_long_reasons_are_wrapped_under_their_column(announce: Callable[..., None], cli: Run) -> None:
    words = " ".join(f"word{number}" for number in range(40))
    announce("absent", type("Long", (AbsentBackend,), {"available": classmethod(lambda cls: (False, f"a\n{words}"))}))
    lines = cli("backends").out.split("\nfake ")[0].splitlines()
    assert len(lines) > 2
    assert max(map(len, lines)) <= 100
    assert lines[0].startswith("absent       not usable  a word0 word1")
    assert all(line[:25] == " " * 25 and line[25] != " " for line in lines[1:])
    assert " ".join(line[25:] for line in lines) == f"a {words}; it comes from the package dcpack-absent"


def test_json(announce: Callable[..., None], cli: Run) -> None:
    announce("other", OtherBackend)
    announce("absent", AbsentBackend)
    done = cli("backends", "--json")
    assert (done.code, done.err) == (0, "")
    absent, fake, other, warp = json.loads(done.out)
    from_other = "comes from the package dcpack-other"
    from_absent = "comes from the package dcpack-absent"
    assert absent == {"name": "absent", "is_usable": False, "detail": "no warp core", "needs": from_absent}
    assert fake == {
        "name": "fake",
        "is_usable": True,
        "detail": "threads of this process",
        "needs": "needs nothing more",
    }
    assert other == {"name": "other", "is_usable": True, "detail": "warp 9.1", "needs": from_other}
    assert (warp["name"], warp["is_usable"], warp["needs"]) == ("warp", False, "needs dcpack[warp]")
    assert "No module named 'no_such_module'" in warp["detail"]


@pytest.mark.parametrize(
    ("loaded", "reason"),
    [
        (ImportError("libwarp.so"), "libwarp.so"),
        (OSError("libwarp.so"), "libwarp.so"),
        (AttributeError("no Warp"), "no Warp"),
        (SyntaxError("invalid syntax"), "invalid syntax"),
        (ValueError("a bad setting"), "a bad setting"),
        (KeyError("WARP_HOME"), "WARP_HOME"),
        (dict, "must be a subclass of Backend"),
        (BrokenBackend, "the driver does not answer"),
    ],
)
def test_a_broken_one_does_not_hide_the_others(
    loaded: Any, reason: str, announce: Callable[..., None], cli: Run
) -> None:
    announce("broken", loaded)
    announce("other", OtherBackend)
    done = cli("backends")
    assert (done.code, done.err) == (0, "")
    text = " ".join(done.out.split())
    assert reason in text
    assert text.startswith("broken not usable ")
    assert " other usable warp 9.1" in text
    assert " fake usable " in text
    found = {status["name"]: status["is_usable"] for status in json.loads(cli("backends", "--json").out)}
    assert found == {"broken": False, "fake": True, "other": True, "warp": False}


def test_what_brings_a_back_end_is_said_once(announce: Callable[..., None], cli: Run) -> None:
    announce("broken", ImportError("libwarp.so"))
    text = " ".join(cli("backends").out.split())
    assert text.count("comes from the package dcpack-broken") == 1
    assert text.count("needs dcpack[warp]") == 1


def test_the_back_ends_of_this_machine(process: Run) -> None:
    done = process("backends", "--json")
    assert (done.code, done.err) == (0, "")
    statuses = json.loads(done.out)
    assert [status["name"] for status in statuses] == list_backends()
    assert all(status["detail"] for status in statuses)
    assert {status["name"]: status for status in statuses}["fake"]["is_usable"] is True


def test_it_takes_no_arguments(cli: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli("backends", "fake")
    assert caught.value.code == 2
    assert "unrecognized arguments: fake" in capsys.readouterr().err
