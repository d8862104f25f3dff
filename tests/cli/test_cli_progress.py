"""The bar by itself; what a terminal shows of it is in test_cli_processes.py."""

from __future__ import annotations

import io
import sys

import pytest

from dcpack.cli.progress import progress_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _shown(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, *, silent: bool = False) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_bar("counting", unit="number", silent=silent) as progress:
        done = progress(3)
        for _ in range(3):
            done()
    return stream.getvalue()


def test_a_terminal_shows_what_is_counted_up_to_the_number_of_units(monkeypatch: pytest.MonkeyPatch) -> None:
    last = _shown(monkeypatch, Terminal()).rstrip().split("\r")[-1]
    assert last.startswith("counting: 100%")
    assert " 3/3 " in last
    assert "number" in last


def test_what_is_no_terminal_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _shown(monkeypatch, io.StringIO()) == ""


def test_a_silent_bar_shows_nothing_on_a_terminal_either(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _shown(monkeypatch, Terminal(), silent=True) == ""


def test_the_bar_ends_where_the_work_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        with progress_bar("counting", unit="number") as progress:
            progress(3)
            raise RuntimeError("no more")

    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with pytest.raises(RuntimeError, match="no more") as caught:
        fail()
    assert stream.getvalue().endswith("\n")
    assert caught.tb  # it holds the bar, which would else end as it is collected
