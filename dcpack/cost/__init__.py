"""Cost models: how long a rank works on a bin."""

from dcpack.cost.base import CostModel
from dcpack.cost.quadratic import QuadraticCost
from dcpack.cost.ring import RingCost

__all__ = ["CostModel", "QuadraticCost", "RingCost"]
