"""The check: how far losses and gradients are apart, and whether that is rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from training import StepResult

__all__ = ["TOLERANCES", "Difference", "compare"]

TOLERANCES = {"float64": 1e-10, "float32": 1e-5}
"""The largest relative difference of a loss or a gradient that passes, by dtype."""

_FLOOR = 1e-3


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """How far a run is from the reference, at its worst step.

    Attributes:
        loss: ``|loss - reference| / |reference|``.
        gradients: for the parameter that is furthest, the largest difference of an element over the largest element of
            the reference. An element counts as at least a thousandth of the largest of all parameters: where a text
            repeats one byte, the gradient of the queries is 0 but for rounding.
    """

    loss: float
    gradients: float

    def passes(self, tolerance: float) -> bool:
        """Tell whether both are within `tolerance`; NaN is not."""
        return self.loss <= tolerance and self.gradients <= tolerance


def compare(reference: Sequence[StepResult], other: Sequence[StepResult]) -> Difference:
    """Return the largest differences over all steps and parameters.

    Where the reference is exactly 0, as in a step in which nothing counts, anything else is infinitely far.
    """
    losses, gradients = [], []
    for expected, found in zip(reference, other, strict=True):
        losses.append(_relative(abs(found.loss - expected.loss), abs(expected.loss)))
        assert expected.gradients.keys() == found.gradients.keys()
        floor = _FLOOR * max(_largest_element(gradient) for gradient in expected.gradients.values())
        for name, gradient in expected.gradients.items():
            size = max(_largest_element(gradient), floor)
            gradients.append(_relative(_largest_element(found.gradients[name] - gradient), size))
    return Difference(loss=_largest(losses), gradients=_largest(gradients))


def _largest_element(tensor: Tensor) -> float:
    return tensor.abs().max().item()


def _relative(difference: float, size: float) -> float:
    if size == 0:
        return 0.0 if difference == 0 else math.inf
    return difference / size


def _largest(values: Sequence[float]) -> float:
    return math.nan if any(map(math.isnan, values)) else max(values, default=0.0)
