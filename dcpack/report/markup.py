"""HTML and SVG elements out of texts that are always escaped."""

from __future__ import annotations

import html

__all__ = ["Markup", "tag"]

_VOID = ("meta", "br", "rect", "line")


class Markup(str):
    """A text that is markup already, and is not escaped again.

    Example:
        >>> tag("p", Markup("<br>"), "<br>")
        '<p><br>&lt;br&gt;</p>'
    """

    __slots__ = ()

    def __add__(self, other: str) -> Markup:
        """Return both, one after the other; a text that is no markup is escaped."""
        return Markup(str.__add__(self, other if isinstance(other, Markup) else html.escape(other, quote=False)))


def tag(name: str, *children: str, **attributes: str | float) -> Markup:
    """Return one element; a ``_`` in the name of an attribute stands for ``-``, one at its end for nothing.

    Args:
        name: of the element.
        children: `Markup`, or texts, which are escaped.
        attributes: values, escaped too; floats are written with two decimals.

    Example:
        >>> tag("text", "a < b", x=1.0, class_="tick", text_anchor="end")
        '<text x="1.00" class="tick" text-anchor="end">a &lt; b</text>'
        >>> tag("rect", width=3)
        '<rect width="3"/>'
    """
    pairs = "".join(f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"' for key, value in attributes.items())
    if not children and name in _VOID:
        return Markup(f"<{name}{pairs}/>")
    inner = "".join(child if isinstance(child, Markup) else html.escape(child, quote=False) for child in children)
    return Markup(f"<{name}{pairs}>{inner}</{name}>")


def _value(value: str | float) -> str:
    return f"{value:.2f}" if isinstance(value, float) else html.escape(str(value))
