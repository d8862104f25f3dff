"""What all packers share: the bins they give, the contract they keep, the checks, and classes of equal lengths.

A packer sees lengths and a capacity and nothing else. Its lengths are *padded* lengths of items (whole sequences,
pieces that an overlong policy made of them, or whole groups); which sequences an item stands for is the caller's
business.
"""

from __future__ import annotations

from dcpack.packing.base.bins import Bins, Packer, bins_from_numbers
from dcpack.packing.base.checks import Checked, check_packing, check_total
from dcpack.packing.base.classes import LengthClasses, Moves, Run

__all__ = [
    "Bins",
    "Checked",
    "LengthClasses",
    "Moves",
    "Packer",
    "Run",
    "bins_from_numbers",
    "check_packing",
    "check_total",
]
