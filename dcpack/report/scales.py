"""Colours of CP sizes and units of time, alike in every picture."""

from __future__ import annotations

import numpy as np

__all__ = ["COLOURS", "shades", "time_scale"]

COLOURS = ("#56B4E9", "#F0E442", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#0072B2", "#000000")
"""From Okabe and Ito's palette, which colour-blind readers can tell apart: light for small CP sizes, dark for large."""


def shades(count: int) -> list[str]:
    """Return as many colours as CP sizes; beyond the palette they come round again.

    Example:
        >>> shades(2)
        ['#56B4E9', '#F0E442']
    """
    return [COLOURS[i % len(COLOURS)] for i in range(count)]


def time_scale(longest: float, unit: str) -> tuple[float, str]:
    """Return what times are multiplied by, and the unit that they then have.

    Example:
        >>> time_scale(0.25, "s"), time_scale(5e6, "cost")
        ((1000.0, 'ms'), (1e-06, 'x 10^6 cost units'))
    """
    if unit == "s":
        return (1.0, "s") if longest >= 10 else (1e3, "ms")
    power = 0 if longest < 1e4 else int(np.log10(longest)) // 3 * 3
    return 10.0**-power, f"{unit} units" if power == 0 else f"x 10^{power} {unit} units"
