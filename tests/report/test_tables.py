from __future__ import annotations

import pytest

from dcpack.report import format_bytes, format_table


def test_a_table() -> None:
    table = format_table(["what", "how\nmany", "share"], [["apples", "3", "12.5%"], ["nuts", "12000", "-"]])
    assert table.splitlines() == [
        "         how",
        "what    many share",
        "------ ----- -----",
        "apples     3 12.5%",
        "nuts   12000     -",
    ]


def test_headers_of_different_depth_end_on_one_line() -> None:
    assert format_table(["a\nb\nc", "x", "y\nz"], []).splitlines() == ["a", "b   y", "c x z", "- - -"]


def test_a_table_of_one_column() -> None:
    assert format_table(["name"], [["a"], ["longer"]]).splitlines() == ["name", "------", "a", "longer"]


def test_no_line_ends_in_blanks() -> None:
    table = format_table(["a", "b"], [["long text", ""], ["", ""]])
    assert table.split("\n") == ["a         b", "--------- -", "long text", ""]


@pytest.mark.parametrize("row", [["only one"], ["one", "two", "three"]])
def test_a_row_of_the_wrong_width_is_refused(row: list[str]) -> None:
    with pytest.raises((ValueError, IndexError)):
        format_table(["a", "b"], [row])


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (999, "999 B"),
        (1000, "1000 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (10 * 1024, "10.0 KiB"),
        (100 * 1024, "100 KiB"),
        (1000 * 1024, "1000 KiB"),
        (1023 * 1024, "1023 KiB"),
        (1024**2, "1.00 MiB"),
        (3 * 1024**3, "3.00 GiB"),
        (1024**4, "1.00 TiB"),
        (2048 * 1024**4, "2048 TiB"),
    ],
)
def test_bytes(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (10 * 1024 - 1, "10.0 KiB"),  # not 10.00
        (100 * 1024 - 1, "100 KiB"),  # not 100.0
        (1024**2 - 1, "1.00 MiB"),  # not 1024 KiB
        (1024**3 - 1, "1.00 GiB"),
    ],
)
def test_bytes_just_below_a_step_are_rounded_up_over_it(count: int, text: str) -> None:
    assert format_bytes(count) == text
