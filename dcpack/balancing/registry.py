"""The balancers by name."""

from __future__ import annotations

from dcpack._checks import check_choice
from dcpack.balancing.base import Balancer
from dcpack.balancing.karmarkar_karp import karmarkar_karp
from dcpack.balancing.lpt import lpt

__all__ = ["BALANCERS", "get_balancer"]

BALANCERS: dict[str, Balancer] = {
    "karmarkar_karp": karmarkar_karp,
    "lpt": lpt,
}
"""The balancers by name."""


def get_balancer(name: str) -> Balancer:
    """Return the balancer of that name.

    Args:
        name: a key of `BALANCERS`.

    Returns:
        The balancer.

    Raises:
        ArgumentError: no balancer has that name; the message lists those there are.

    Example:
        >>> get_balancer("lpt")([3, 2, 1], 2)
        array([0, 1, 1])
    """
    return BALANCERS[check_choice("balancing method", name, BALANCERS)]
