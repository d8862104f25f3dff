"""Copies and pickles of values that never change."""

from __future__ import annotations

from dataclasses import fields
from types import MappingProxyType
from typing import Any

__all__ = ["Rebuilt"]


class Rebuilt:
    """A dataclass that is copied and unpickled through its constructor, so that what that holds, holds for copies too.

    Arrays of an unpickled object could be written to otherwise, and mappings that cannot be changed are not pickled.
    Fields are all that is copied; a subclass with a constructor of its own needs a ``__reduce__`` of its own, too.

    Example:
        >>> import copy
        >>> from dcpack.loader import SampleMetadata
        >>> copy.deepcopy(SampleMetadata(pack_tokens=3)).pack_tokens
        3
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        plain = {name: dict(v) if isinstance(v, MappingProxyType) else v for name, v in values.items()}
        return _rebuild, (type(self), plain)


def _rebuild(kind: type, values: dict[str, Any]) -> Any:
    return kind(**values)
