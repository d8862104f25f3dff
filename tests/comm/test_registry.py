from __future__ import annotations

import types
from typing import Any

import pytest

from dcpack.comm import (
    Backend,
    BackendStatus,
    FakeBackend,
    Fault,
    backend_statuses,
    get_backend,
    list_backends,
    registry,
)
from dcpack.errors import ArgumentError, BackendError


class OtherBackend(FakeBackend):
    name = "other"

    def __init__(self, *, device: Any = "tpu"):
        super().__init__()
        self.device = device


class AbsentBackend(OtherBackend):
    @classmethod
    def available(cls):
        return False, "no module named 'warp'"


def _announce(monkeypatch: pytest.MonkeyPatch, name: Any, load: Any, package: Any = "dcpack-other"):
    dist = types.SimpleNamespace(name=package) if package else None
    point = types.SimpleNamespace(name=name, load=load, dist=dist, module="other_module")
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == "dcpack.backends" else [])


def test_built_in():
    backend = get_backend("fake", num_ranks=3, deadline_s=2.5)
    assert isinstance(backend, FakeBackend)
    assert (backend.name, backend.num_ranks, backend.deadline_s) == ("fake", 3, 2.5)
    assert list_backends() == sorted(list_backends())


def test_mapping():
    config = {"name": "fake", "num_ranks": 3, "max_message_bytes": 9}
    backend = get_backend(config, num_ranks=2)
    assert isinstance(backend, FakeBackend)
    assert (backend.num_ranks, backend.max_message_bytes) == (2, 9)
    assert config == {"name": "fake", "num_ranks": 3, "max_message_bytes": 9}
    with pytest.raises(ArgumentError, match="unknown back end ''"):
        get_backend({"num_ranks": 3})


@pytest.mark.parametrize("name", ["nccl", "", None, 3])
def test_unknown_name_lists_the_others_and_what_they_need(monkeypatch: pytest.MonkeyPatch, name: Any):
    _announce(monkeypatch, "other", lambda: OtherBackend)
    monkeypatch.setitem(registry._BUILT_IN, "warp", ("no_such_module:Warp", "warp"))
    with pytest.raises(ArgumentError) as caught:
        get_backend(name)
    assert str(caught.value) == (
        f"unknown back end {name!r}; there are: 'fake' (needs nothing more), 'jax' (needs dcpack[jax]), "
        "'other' (comes from the package dcpack-other), 'torch-gloo' (needs dcpack[torch]), "
        "'torch-hccl' (needs dcpack[npu]), 'torch-nccl' (needs dcpack[torch]), "
        "'torch-xla' (needs dcpack[xla]), 'warp' (needs dcpack[warp])"
    )


def test_entry_point(monkeypatch: pytest.MonkeyPatch):
    _announce(monkeypatch, "other", lambda: OtherBackend)
    assert "other" in list_backends()
    backend = get_backend("other", device="gpu")
    assert isinstance(backend, OtherBackend)
    assert backend.device == "gpu"
    with pytest.raises(
        ArgumentError, match=r"back end 'other' has no options 'depth', 'num_ranks'; its options: device$"
    ):
        get_backend("other", num_ranks=2, depth=1)


def test_entry_point_is_loaded_only_when_chosen(monkeypatch: pytest.MonkeyPatch):
    def load():
        raise AssertionError("loaded")

    _announce(monkeypatch, "other", load, package=None)
    get_backend("fake")
    assert "other" in list_backends()
    with pytest.raises(ArgumentError, match=r"'other' \(comes from the module other_module\)"):
        get_backend("nothing")


def test_a_built_in_name_cannot_be_taken(monkeypatch: pytest.MonkeyPatch):
    _announce(monkeypatch, "fake", lambda: OtherBackend)
    assert type(get_backend("fake")) is FakeBackend


def test_known_but_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(registry._BUILT_IN, "warp", ("no_such_module:Warp", "warp"))
    with pytest.raises(
        BackendError, match=r"'warp' could not be loaded: No module named 'no_such_module'; it needs dcpack\[warp\]"
    ):
        get_backend("warp")
    monkeypatch.setitem(registry._BUILT_IN, "warp", ("dcpack.comm:Warp", "warp"))
    with pytest.raises(BackendError, match=r"'warp' could not be loaded: .*has no attribute 'Warp'"):
        get_backend("warp")


@pytest.mark.parametrize("error", [RuntimeError("libhccl.so"), OSError("libhccl.so")])
def test_a_broken_installation(monkeypatch: pytest.MonkeyPatch, error: Any):
    def load():
        raise error

    _announce(monkeypatch, "other", load)
    with pytest.raises(BackendError, match=r"could not be loaded: libhccl.so; it comes from the package") as caught:
        get_backend("other")
    assert caught.value.__cause__ is error


def test_not_available(monkeypatch: pytest.MonkeyPatch):
    _announce(monkeypatch, "other", lambda: AbsentBackend)
    with pytest.raises(BackendError, match="'other' cannot be used here: no module named 'warp'"):
        get_backend("other")


def test_not_a_back_end(monkeypatch: pytest.MonkeyPatch):
    _announce(monkeypatch, "other", lambda: dict)
    with pytest.raises(BackendError, match="'other' must be a subclass of Backend, got <class 'dict'>"):
        get_backend("other")
    assert issubclass(FakeBackend, Backend)


def test_values_of_options_are_checked():
    with pytest.raises(ArgumentError, match="num_ranks must be from 1 to 4096, got 0"):
        get_backend("fake", num_ranks=0)
    backend = get_backend("fake", faults=[Fault(0, 0, "raise")])
    assert isinstance(backend, FakeBackend)
    assert backend.faults == (Fault(0, 0, "raise"),)


# ---- what can be said of them all ------------------------------------------------------------------------------------


class BrokenBackend(OtherBackend):
    @classmethod
    def available(cls):
        raise RuntimeError("the driver does not answer")


@pytest.fixture
def without_frameworks(monkeypatch: pytest.MonkeyPatch):
    """Leave no built-in back end that would load a framework, and one whose package is missing."""
    built_in = {"fake": registry._BUILT_IN["fake"], "warp": ("no_such_module:Warp", "warp")}
    monkeypatch.setattr(registry, "_BUILT_IN", built_in)


@pytest.mark.usefixtures("without_frameworks")
def test_statuses(monkeypatch: pytest.MonkeyPatch):
    _announce(monkeypatch, "other", lambda: AbsentBackend)
    fake, other, warp = backend_statuses()
    assert fake == BackendStatus(
        name="fake", is_usable=True, detail="threads of this process", needs="needs nothing more"
    )
    assert other == BackendStatus(
        name="other",
        is_usable=False,
        detail="no module named 'warp'",
        needs="comes from the package dcpack-other",
    )
    assert (warp.name, warp.is_usable, warp.needs) == ("warp", False, "needs dcpack[warp]")
    assert "No module named 'no_such_module'" in warp.detail


@pytest.mark.usefixtures("without_frameworks")
def test_statuses_are_of_all_names_in_order(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(registry, "entry_points", lambda group: [])
    assert [status.name for status in backend_statuses()] == list_backends() == ["fake", "warp"]
    _announce(monkeypatch, "a", lambda: OtherBackend)
    assert [(status.name, status.is_usable) for status in backend_statuses()] == [
        ("a", True),
        ("fake", True),
        ("warp", False),
    ]
    # A built-in name is not taken here either.
    _announce(monkeypatch, "fake", lambda: AbsentBackend)
    assert backend_statuses()[0].is_usable


@pytest.mark.usefixtures("without_frameworks")
@pytest.mark.parametrize(
    "error",
    [
        ImportError("libhccl.so"),
        OSError("libhccl.so"),
        RuntimeError("libhccl.so"),
        AttributeError("libhccl.so"),
        SyntaxError("libhccl.so"),
        ValueError("libhccl.so"),
        TypeError("libhccl.so"),
        KeyError("libhccl.so"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_broken_installation_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch, error: Exception):
    def load():
        raise error

    _announce(monkeypatch, "broken", load)
    broken, fake, _ = backend_statuses()
    assert (broken.is_usable, fake.is_usable) == (False, True)
    assert "libhccl.so" in broken.detail


@pytest.mark.usefixtures("without_frameworks")
@pytest.mark.parametrize(
    ("loaded", "reason"), [(BrokenBackend, "the driver does not answer"), (dict, "must be a subclass")]
)
def test_a_back_end_that_fails_when_asked_does_not_hide_the_others(
    monkeypatch: pytest.MonkeyPatch, loaded: Any, reason: str
):
    _announce(monkeypatch, "broken", lambda: loaded)
    broken, fake, _ = backend_statuses()
    assert (broken.is_usable, fake.is_usable) == (False, True)
    assert reason in broken.detail


@pytest.mark.usefixtures("without_frameworks")
def test_interrupts_are_not_taken_for_a_broken_installation(monkeypatch: pytest.MonkeyPatch):
    def load():
        raise KeyboardInterrupt

    _announce(monkeypatch, "other", load)
    with pytest.raises(KeyboardInterrupt):
        backend_statuses()
