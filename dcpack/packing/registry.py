"""The packers by name."""

from __future__ import annotations

from dcpack._checks import check_choice
from dcpack.packing.base import Packer
from dcpack.packing.best_fit_decreasing import best_fit_decreasing
from dcpack.packing.first_fit import first_fit
from dcpack.packing.first_fit_decreasing import first_fit_decreasing
from dcpack.packing.next_fit import next_fit

__all__ = ["EFFORTS", "PACKERS", "get_packer"]

EFFORTS = ("best", "exact", "fast")
"""How hard `dcpack.pack` tries with `best_fit_decreasing`: plain, with coarser lengths, or refilled afterwards."""

PACKERS: dict[str, Packer] = {
    "best_fit_decreasing": best_fit_decreasing,
    "first_fit": first_fit,
    "first_fit_decreasing": first_fit_decreasing,
    "next_fit": next_fit,
}
"""The packers of whole sequences by name."""


def get_packer(name: str) -> Packer:
    """Return the packer of that name.

    Args:
        name: a key of `PACKERS`.

    Returns:
        The packer.

    Raises:
        ArgumentError: no packer has that name; the message lists those there are.

    Example:
        >>> get_packer("next_fit")([3, 2], 4).lists()
        [[0], [1]]
    """
    return PACKERS[check_choice("packing method", name, PACKERS)]
