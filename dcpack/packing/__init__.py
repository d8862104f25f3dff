"""Packing: which items share a bin, from their lengths alone."""

from __future__ import annotations

from dcpack.packing.base import Bins, Packer
from dcpack.packing.best_fit_decreasing import best_fit_decreasing
from dcpack.packing.coarse import coarse_lengths
from dcpack.packing.concat_then_split import SplitBins, concat_then_split
from dcpack.packing.first_fit import first_fit
from dcpack.packing.first_fit_decreasing import first_fit_decreasing
from dcpack.packing.groups import ItemGroups, merge_groups
from dcpack.packing.next_fit import next_fit
from dcpack.packing.overlong import OVERLONG_POLICIES, Pieces, apply_overlong
from dcpack.packing.refill import refill
from dcpack.packing.registry import EFFORTS, PACKERS, get_packer
from dcpack.packing.streaming import StreamingPacker

__all__ = [
    "EFFORTS",
    "OVERLONG_POLICIES",
    "PACKERS",
    "Bins",
    "ItemGroups",
    "Packer",
    "Pieces",
    "SplitBins",
    "StreamingPacker",
    "apply_overlong",
    "best_fit_decreasing",
    "coarse_lengths",
    "concat_then_split",
    "first_fit",
    "first_fit_decreasing",
    "get_packer",
    "merge_groups",
    "next_fit",
    "refill",
]
