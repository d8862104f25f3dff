"""Balancing: which items make up which part, from their costs alone."""

from __future__ import annotations

from dcpack.balancing.base import EFFORTS, Balancer, integer_costs
from dcpack.balancing.karmarkar_karp import karmarkar_karp
from dcpack.balancing.lpt import lpt
from dcpack.balancing.refine import refine
from dcpack.balancing.registry import BALANCERS, get_balancer

__all__ = [
    "BALANCERS",
    "EFFORTS",
    "Balancer",
    "get_balancer",
    "integer_costs",
    "karmarkar_karp",
    "lpt",
    "refine",
]
