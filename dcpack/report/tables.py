"""Tables in plain text, for terminals and logs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dcpack._checks import as_lengths, check_items, check_names, list_offenders
from dcpack.errors import ArgumentError

__all__ = ["format_bytes", "format_table"]


def format_table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[int] | None = None) -> str:
    r"""Return a table; a header may have several lines.

    Args:
        headers: one text a column.
        rows: one text a column, in each row.
        right: columns set to the right; all but the first by default.

    Raises:
        ArgumentError: no headers, or rows with another number of texts; all such rows are named.

    Example:
        >>> print(format_table(["what", "how\nmany"], [["apples", "3"], ["nuts", "12"]]))
                how
        what   many
        ------ ----
        apples    3
        nuts     12
    """
    headers = check_names("headers", headers)
    given = [check_names(f"rows[{i}]", row) for i, row in enumerate(check_items("rows", rows))]
    if wrong := [f"row {i} has {len(row)}" for i, row in enumerate(given) if len(row) != len(headers)]:
        raise ArgumentError(f"rows must have one text for each of {len(headers)} headers: {list_offenders(wrong)}")
    if not headers:
        raise ArgumentError("headers must name at least one column")
    places = range(1, len(headers)) if right is None else as_lengths("right", tuple(check_items("right", right)))
    to_right = set(map(int, places))
    split = [header.split("\n") for header in headers]
    depth = max(len(lines) for lines in split)
    tops = [[""] * (depth - len(lines)) + lines for lines in split]
    body = [[tops[c][line] for c in range(len(headers))] for line in range(depth)]
    widths = [max(len(row[c]) for row in [*body, *given]) for c in range(len(headers))]
    rule = ["-" * width for width in widths]
    lines = [*body, rule, *map(list, given)]
    return "\n".join(_line(cells, widths, to_right) for cells in lines)


def _line(cells: Sequence[str], widths: Sequence[int], to_right: Collection[int]) -> str:
    pairs = enumerate(zip(cells, widths, strict=True))
    return " ".join(cell.rjust(w) if c in to_right else cell.ljust(w) for c, (cell, w) in pairs).rstrip()


def format_bytes(count: float) -> str:
    """Return a number of bytes in a unit that leaves three digits.

    Args:
        count: bytes.

    Raises:
        ArgumentError: no number, or not a finite one.

    Example:
        >>> format_bytes(0), format_bytes(1536), format_bytes(5 * 2**30)
        ('0 B', '1.50 KiB', '5.00 GiB')
    """
    if not isinstance(count, int | float) or isinstance(count, bool) or not abs(count) < float("inf"):
        raise ArgumentError(f"count must be a finite number of bytes, got {count!r}")
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = 0
    while power < len(units) - 1 and round(count) >= 1024:  # 1023.9 is written as one of the next unit
        count /= 1024
        power += 1
    digits = 0 if power == 0 else 2 if round(count, 2) < 10 else 1 if round(count, 1) < 100 else 0
    return f"{count:.{digits}f} {units[power]}"
