"""Packing: which items share a bin, from their lengths alone."""

from __future__ import annotations

from dcpack.packing.base import Bins, Packer
from dcpack.packing.best_fit_decreasing import best_fit_decreasing
from dcpack.packing.concat_then_split import SplitBins, concat_then_split
from dcpack.packing.first_fit import first_fit
from dcpack.packing.first_fit_decreasing import first_fit_decreasing
from dcpack.packing.next_fit import next_fit
from dcpack.packing.overlong import OVERLONG_POLICIES, Pieces, apply_overlong
from dcpack.packing.registry import PACKERS, get_packer

__all__ = [
    "OVERLONG_POLICIES",
    "PACKERS",
    "Bins",
    "Packer",
    "Pieces",
    "SplitBins",
    "apply_overlong",
    "best_fit_decreasing",
    "concat_then_split",
    "first_fit",
    "first_fit_decreasing",
    "get_packer",
    "next_fit",
]
