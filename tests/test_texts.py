from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dcpack._texts import MAX_LISTED, list_no_integers, list_offenders, short_text, shorten


def test_offenders_are_listed_in_full_up_to_eight() -> None:
    assert MAX_LISTED == 8
    assert list_offenders([]) == ""
    assert list_offenders(["a"]) == "a"
    assert list_offenders(list("abcdefgh")) == "a, b, c, d, e, f, g, h"
    assert list_offenders(list("abcdefghi")) == "a, b, c, d, e, f, g, h and 1 more"


def test_offenders_that_have_no_text_are_counted() -> None:
    assert list_offenders(["a", "b"], 2) == "a, b"
    assert list_offenders(["a", "b"], 100) == "a, b and 98 more"
    assert list_offenders(list("abcdefghi"), 12) == "a, b, c, d, e, f, g, h and 4 more"


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        ("a", "'a'"),
        (list(range(10)), "[0, 1, 2, 3, 4, 5, ...]"),
        ("x" * 10**5, "'" + "x" * 77 + "..." + "x" * 78 + "'"),
    ],
)
def test_a_text_is_short_whatever_the_value_is(value: Any, text: str) -> None:
    assert short_text(value) == text


def test_a_value_that_makes_no_text_of_itself_is_named_by_its_kind() -> None:
    assert short_text(10**5000) == "<an int of 16610 bits>"
    assert short_text([-(10**5000)]) == "[<an int of 16610 bits>]"
    assert short_text(Unprintable()).startswith("<Unprintable instance at 0x")


def test_a_description_names_the_kind_in_one_line() -> None:
    assert shorten(None) == "None (NoneType)"
    assert shorten(10**5000) == "<an int of 16610 bits> (int)"
    assert shorten([-(10**5000)]) == "[<an int of 16610 bits>] (list)"
    assert shorten(np.array([[1], [2]])) == "array([[1],        [2]]) (ndarray)"


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([1, 2.0, 3.5, 4.25], "n[2] = 3.5, n[3] = 4.25"),
        ([1, 2.0], "n[1] = 2.0"),
        ((1.0, float("nan")), "n[1] = nan"),
        (np.array([1.0, 2.0], np.float32), "n[0] = 1.0, n[1] = 2.0"),
        (np.array([4, True, "x"], object), "n[1] = True, n[2] = 'x'"),
        (np.array([3, 4], object), ""),
        (np.array([[1, 2], [0.5, 3]]), "n[1, 0] = 0.5"),
        (np.array(3.0), "n = 3.0"),
        (np.ones(100) / 2, ", ".join(f"n[{i}] = 0.5" for i in range(8)) + " and 92 more"),
    ],
)
def test_what_is_no_integer_is_listed_with_its_place(values: Any, text: str) -> None:
    assert list_no_integers("n", np.asarray(values), values) == text


def test_integers_beyond_int64_are_listed_at_its_bounds() -> None:
    fits = [2**63 - 1, -(2**63)]
    for beyond in (2**63, -(2**63) - 1):
        values = [*fits, beyond]
        assert list_no_integers("n", np.array(values, object), values) == f"n[2] = {beyond}"
