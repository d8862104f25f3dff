from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from dcpack._checks import (
    as_array,
    as_costs,
    as_integers,
    as_lengths,
    as_real,
    check_choice,
    check_flag,
    check_flags,
    check_int,
    check_kinds,
    frozen,
)
from dcpack.errors import ArgumentError


@pytest.mark.parametrize("value", [3, np.int8(3), np.uint64(3), np.int64(3)])
def test_any_integer_becomes_a_python_int(value: Any) -> None:
    result = check_int("capacity", value, minimum=3, maximum=3)
    assert result == 3
    assert type(result) is int


@pytest.mark.parametrize("value", [True, np.True_, 3.0, np.float32(3), "3", None, [3], np.array([3])])
def test_what_only_looks_like_an_integer_is_refused(value: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^capacity must be an integer, got "):
        check_int("capacity", value, minimum=0)


def test_an_integer_out_of_range_names_the_range() -> None:
    with pytest.raises(ArgumentError, match=r"^rank must be from 0 to 7, got 8$"):
        check_int("rank", 8, minimum=0, maximum=7)
    with pytest.raises(ArgumentError, match=r"^rank must be from 0 to 7, got -1$"):
        check_int("rank", -1, minimum=0, maximum=7)
    with pytest.raises(ArgumentError, match=r"^capacity must be at least 1, got 0$"):
        check_int("capacity", 0, minimum=1)


def test_a_choice_is_one_of_the_names() -> None:
    assert check_choice("sync", "step", ["microbatch", "step"]) == "step"
    for wrong in ("STEP", "", None, 3, ["step"]):
        with pytest.raises(ArgumentError, match=r"^sync must be one of 'microbatch', 'step', got "):
            check_choice("sync", wrong, ["microbatch", "step"])


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i4", ">i8"])
def test_lengths_of_any_integer_width_become_int64(dtype: str) -> None:
    result = as_lengths("lengths", np.array([3, 0, 100], dtype))
    assert result.dtype == np.int64
    assert result.tolist() == [3, 0, 100]


@pytest.mark.parametrize("empty", [[], (), np.zeros(0, np.float32), np.zeros(0, np.int16)])
def test_no_lengths_are_int64_too(empty: Any) -> None:
    result = as_lengths("lengths", empty)
    assert (result.shape, result.dtype) == ((0,), np.int64)


def test_lengths_are_a_read_only_copy() -> None:
    mine = np.array([3, 4])
    checked = as_lengths("lengths", mine)
    mine[0] = 99
    assert checked.tolist() == [3, 4]
    with pytest.raises(ValueError, match="read-only"):
        checked[0] = 99


def test_every_low_value_is_named() -> None:
    with pytest.raises(ArgumentError, match=r"^lengths must be at least 0: lengths\[0\] = -5, lengths\[2\] = -1$"):
        as_lengths("lengths", [-5, 0, -1])
    with pytest.raises(ArgumentError, match=r"^cp_sizes must be at least 1: cp_sizes\[1\] = 0$"):
        as_lengths("cp_sizes", [1, 0], minimum=1)
    with pytest.raises(ArgumentError, match=r"lengths\[7\] = -1 and 2 more$"):
        as_lengths("lengths", [-1] * 10)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([1.0, 2.0], "must hold integers, got dtype float64"),
        (np.array([True]), "must hold integers, got dtype bool"),
        ([True], r"must hold numbers, got bools: lengths\[0\] = True"),
        ([5, True, np.False_, 4], r"must hold numbers, got bools: lengths\[1\] = True, lengths\[2\] = False"),
        (["a"], "must hold integers, got dtype <U1"),
        ([2**64], "must hold integers, got dtype object"),
        ([[1, 2]], r"must be one-dimensional, got shape \(1, 2\)"),
        (5, r"must be one-dimensional, got shape \(\)"),
        (None, r"must be one-dimensional, got shape \(\)"),
        ([[1], [2, 3]], "must be a one-dimensional array of integers: "),
        (np.array([2**63], np.uint64), "must fit in int64, got a value of 9223372036854775808"),
    ],
)
def test_what_is_no_array_of_lengths_is_refused(values: Any, text: str) -> None:
    with pytest.raises(ArgumentError, match=f"^lengths {text}"):
        as_lengths("lengths", values)


def test_frozen_arrays_are_read_only_and_contiguous_and_leave_the_original_writable() -> None:
    mine = np.arange(6)[::2]
    ice = frozen(mine)
    assert ice.tolist() == [0, 2, 4]
    assert ice.flags.c_contiguous
    with pytest.raises(ValueError, match="read-only"):
        ice[0] = 1
    mine[0] = 7
    assert mine[0] == 7


def test_a_flag_is_true_or_false() -> None:
    assert check_flags(shuffle=np.True_, drop_last=False) == {"shuffle": True, "drop_last": False}
    assert type(check_flag("shuffle", np.True_)) is bool
    for wrong in (0, 1, 1.0, None, "True", [True], np.array(True), object()):
        with pytest.raises(ArgumentError, match=r"^drop_last must be True or False, got "):
            check_flags(shuffle=True, drop_last=wrong)
    with pytest.raises(
        ArgumentError, match=r"^a must be True or False, got 0 \(int\); b must be True or False, got None"
    ):
        check_flags(a=0, b=None)


def test_masked_arrays_are_refused_where_values_are_masked() -> None:
    plain = np.ma.array([3, 5])
    assert as_lengths("lengths", plain).tolist() == [3, 5]
    masked = np.ma.array([3, 5], mask=[False, True])
    for check in (as_lengths, as_costs, as_integers, as_array):
        with pytest.raises(ArgumentError, match=r"^lengths must be an? .*array.*, got a masked one"):
            check("lengths", masked)


def test_what_is_iterated_only_once_is_named() -> None:
    for wrong, kind in (((n for n in (3, 1)), "generator"), (map(int, "31"), "map"), ({3: 1}.keys(), "dict_keys")):
        with pytest.raises(ArgumentError, match=rf"^lengths must be one-dimensional, got shape \(\): .* \({kind}\)$"):
            as_lengths("lengths", wrong)


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


def test_errors_are_short_whatever_the_value_is() -> None:
    for value in (list(range(10**5)), "x" * 10**5, np.zeros(10**5), 10**2000, Unprintable()):
        for check in (
            lambda x: check_int("n", [x], minimum=0),
            lambda x: check_choice("n", x, ["a"]),
            lambda x: as_real("n", [x]),
            lambda x: check_flag("n", x),
            lambda x: check_kinds(n=(x, bytes)),
        ):
            with pytest.raises(ArgumentError, match=r"^n must be") as caught:
                check(value)
            assert len(str(caught.value)) < 400


def test_a_real_number_is_finite_and_within_its_bounds() -> None:
    for value, number in ((3, 3.0), (np.float32(0.5), 0.5), (Fraction(1, 4), 0.25), (-0.0, 0.0)):
        assert as_real("n", value) == number
        assert type(as_real("n", value)) is float
    for wrong in (True, np.True_, "3", None, Decimal(3), 3j, [3.0], np.array(3.0), float("nan"), float("inf"), 10**400):
        with pytest.raises(ArgumentError, match=r"^n must be a finite number of at least 0, got "):
            as_real("n", wrong)
    assert as_real("n", 1, maximum=1) == 1
    with pytest.raises(ArgumentError, match=r"^n must be a finite number of at least 0 and below 1, got 1$"):
        as_real("n", 1, below=1)
    with pytest.raises(ArgumentError, match=r"^n must be a finite number above 0 and at most 2, got 3$"):
        as_real("n", 3, positive=True, maximum=2)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([1, 2, 3.5], r"float64: lengths\[2\] = 3\.5"),
        ([1, 2.0, 3.5, 4.25], r"float64: lengths\[2\] = 3\.5, lengths\[3\] = 4\.25"),
        ([1, 2.0], r"float64: lengths\[1\] = 2\.0"),
        (np.array([1, 2, 3.5]), r"float64: lengths\[2\] = 3\.5"),
        (np.array([1.0, 2.0], np.float32), r"float32: lengths\[0\] = 1\.0, lengths\[1\] = 2\.0"),
        ([1.0, float("nan"), float("inf")], r"float64: lengths\[1\] = nan, lengths\[2\] = inf"),
        (np.ones(10**5) / 2, r"float64: lengths\[0\] = 0\.5, .*, lengths\[7\] = 0\.5 and 99992 more"),
        ([4, None], r"object: lengths\[1\] = None"),
        (np.array([4, None, "x"], object), r"object: lengths\[1\] = None, lengths\[2\] = 'x'"),
        ([0, 2**64], r"object: lengths\[1\] = 18446744073709551616"),
        ([0, 10**5000], r"object: lengths\[1\] = <an int of 16610 bits>"),
        ([4, "4"], r"<U21: lengths\[1\] = '4'"),
        (np.array(["4"]), r"<U1: lengths\[0\] = '4'"),
        (["a" * 10**5], r"<U100000: lengths\[0\] = 'a+\.\.\.a+'"),
        (np.array(["2026"], "M8[Y]"), r"datetime64\[Y\]: lengths\[0\] = .*2026.*"),
    ],
)
def test_what_is_no_integer_is_named_with_its_place(values: Any, text: str) -> None:
    for check in (as_lengths, as_integers):
        with pytest.raises(ArgumentError, match=f"^lengths must hold integers, got dtype {text}$") as caught:
            check("lengths", values)
        assert len(str(caught.value)) < 400


def test_what_is_no_integer_is_named_with_its_place_in_any_shape() -> None:
    with pytest.raises(ArgumentError, match=r"^n must hold integers, got dtype float64: n\[1, 0\] = 0\.5$"):
        as_integers("n", [[1, 2], [0.5, 3]])
    with pytest.raises(ArgumentError, match=r"^n must hold integers, got dtype float64: n = 3\.0$"):
        as_integers("n", 3.0)
    with pytest.raises(ArgumentError, match=r"^n must hold integers, got dtype object$"):
        as_integers("n", np.array([3, 4], object))
    with pytest.raises(ArgumentError, match=r"^n must hold integers, got dtype bool: n = True$"):
        as_integers("n", True)


def test_an_integer_too_long_for_a_text_is_named_by_its_bits() -> None:
    huge = 10**5000
    with pytest.raises(ArgumentError, match=r"^n must be a finite number of at least 0, got <an int of 16610 bits>$"):
        as_real("n", huge)
    with pytest.raises(ArgumentError, match=r"^n must be from 0 to 7, got <an int of 16610 bits>$"):
        check_int("n", huge, minimum=0, maximum=7)
    with pytest.raises(ArgumentError, match=r"^n must be at least 1, got <an int of 16610 bits>$"):
        check_int("n", -huge, minimum=1)
    with pytest.raises(ArgumentError, match=r"^n must be one of 'a', got <an int of 16610 bits>$"):
        check_choice("n", huge, ["a"])
