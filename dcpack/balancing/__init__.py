"""Balancing: which items make up which part, from their costs alone."""

from __future__ import annotations

from dcpack.balancing.base import Balancer, integer_costs
from dcpack.balancing.karmarkar_karp import karmarkar_karp
from dcpack.balancing.lpt import lpt
from dcpack.balancing.registry import BALANCERS, get_balancer

__all__ = [
    "BALANCERS",
    "Balancer",
    "get_balancer",
    "integer_costs",
    "karmarkar_karp",
    "lpt",
]
