"""What more CP must gain in time, so that schedulers take it only where it pays: see docs/decisions/0010."""

from __future__ import annotations

from typing import Any

import numpy as np

from dcpack._checks import Float64Array

__all__ = ["doublings", "priced"]

_PRICE_OF_DOUBLING = 0.04  # a cost model knows little of kernels that run short


def doublings(mean_cp: Any) -> Any:
    """Return about log2 of CP sizes: exact at powers of two, linear between them, and the same on every machine.

    Args:
        mean_cp: float64[n], or one number: CP sizes, or means of them, at least 1.

    Example:
        >>> doublings(np.array([1, 4, 6])).tolist()
        [0.0, 2.0, 2.5]
    """
    fraction, exponent = np.frexp(mean_cp)
    return exponent + 2 * fraction - 2


def priced(times: Any, mean_cp: Any, excess: Float64Array | float = 0.0) -> Any:
    """Return times plus the price of the mean CP of each: 4% for each doubling, and what else it must gain.

    Args:
        times: float64[...], or one number, in whole numbers of a small unit; so is the result.
        mean_cp: float64[...], or one number for all: the CP size that a token meets on average.
        excess: float64[...], or one number for all: what is asked on top, in parts of the time.

    Example:
        >>> priced(np.array([100.0, 100.0]), np.array([1.0, 4.0])).tolist()
        [100.0, 108.0]
    """
    return np.rint(times * (1 + _PRICE_OF_DOUBLING * doublings(mean_cp) + excess))
