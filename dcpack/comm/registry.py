"""Back ends by name: the built-in ones, and those that installed packages announce.

A back end is imported only when it is chosen. Other packages add theirs through the entry-point group
``dcpack.backends``.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from dcpack.comm.backend import Backend
from dcpack.errors import ArgumentError, BackendError

__all__ = ["ENTRY_POINT_GROUP", "BackendStatus", "backend_statuses", "get_backend", "list_backends"]

ENTRY_POINT_GROUP = "dcpack.backends"
"""The entry-point group in which packages announce back ends."""
_BUILT_IN = {
    "fake": ("dcpack.comm.fake:FakeBackend", ""),
    "jax": ("dcpack_jax.backend:JaxBackend", "jax"),
    "torch-gloo": ("dcpack_torch.backend:TorchGlooBackend", "torch"),
    "torch-hccl": ("dcpack_torch.backend:TorchHcclBackend", "npu"),
    "torch-nccl": ("dcpack_torch.backend:TorchNcclBackend", "torch"),
    "torch-xla": ("dcpack_xla.backend:XlaBackend", "xla"),
}
"""By name, where the class is, and the extra of dcpack that brings what it needs (empty: nothing)."""


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a back end comes from."""

    load: Callable[[], Any]
    needs: str


def list_backends() -> list[str]:
    """Return the names that `get_backend` knows, sorted; some may need what is not installed.

    Example:
        >>> "fake" in list_backends()
        True
    """
    return sorted(_sources())


@dataclass(frozen=True, kw_only=True, slots=True)
class BackendStatus:
    """What can be said of a back end on this machine.

    Attributes:
        name: its name.
        is_usable: whether it can be used here.
        detail: its version, or what is missing.
        needs: what brings it, in words.

    Example:
        >>> from dcpack.comm import backend_statuses
        >>> [status.is_usable for status in backend_statuses() if status.name == "fake"]
        [True]
    """

    name: str
    is_usable: bool
    detail: str
    needs: str


def backend_statuses() -> list[BackendStatus]:
    """Return what can be said of every back end that `get_backend` knows; loads their frameworks.

    Example:
        >>> [status.is_usable for status in backend_statuses() if status.name == "fake"]
        [True]
    """
    return [_status(name, source) for name, source in sorted(_sources().items())]


def _status(name: str, source: _Source) -> BackendStatus:
    try:
        is_usable, detail = _load(name, source).available()
    except BackendError as error:
        is_usable, detail = False, str(error).removesuffix(f"; it {source.needs}")
    except Exception as error:  # one broken package must not hide the others
        is_usable, detail = False, f"{type(error).__name__}: {error}"
    return BackendStatus(name=name, is_usable=is_usable, detail=detail, needs=source.needs)


def get_backend(name: str | Mapping[str, Any], **options: Any) -> Backend:
    """Return the back end of that name.

    Args:
        name: the name; or a mapping, as from a configuration file, with the key ``"name"`` and options.
        options: options of the back end; they win over those of the mapping.

    Raises:
        ArgumentError: no such name, or an option that the back end does not have. The names, or options, that there are
            are listed.
        BackendError: the back end is known but cannot be used here.

    Example:
        >>> get_backend("fake", num_ranks=4).num_ranks
        4
        >>> get_backend({"name": "fake", "deadline_s": 5}).deadline_s
        5
        >>> get_backend("fake", ranks=4)
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: back end 'fake' has no option 'ranks'; its options: deadline_s, faults, \
max_message_bytes, num_ranks
    """
    if isinstance(name, Mapping):
        options = {**{key: value for key, value in name.items() if key != "name"}, **options}
        name = name.get("name", "")
    sources = _sources()
    if not isinstance(name, str) or name not in sources:
        known = ", ".join(f"{key!r} ({sources[key].needs})" for key in sorted(sources))
        raise ArgumentError(f"unknown back end {name!r}; there are: {known}")
    backend = _load(name, sources[name])
    _check_options(name, backend, options)
    usable, detail = backend.available()
    if not usable:
        raise BackendError(f"back end {name!r} cannot be used here: {detail}; it {sources[name].needs}")
    return backend(**options)


def _sources() -> dict[str, _Source]:
    sources = {point.name: _Source(point.load, f"comes from {_package(point)}") for point in _entry_points()}
    for name, (path, extra) in _BUILT_IN.items():
        needs = f"needs dcpack[{extra}]" if extra else "needs nothing more"
        sources[name] = _Source(lambda path=path: _import(path), needs)
    return sources


def _entry_points() -> list[EntryPoint]:
    return list(entry_points(group=ENTRY_POINT_GROUP))


def _package(point: EntryPoint) -> str:
    return f"the package {point.dist.name}" if point.dist else f"the module {point.module}"


def _import(path: str) -> Any:
    module, attribute = path.split(":")
    return getattr(importlib.import_module(module), attribute)


def _load(name: str, source: _Source) -> type[Backend]:
    try:
        loaded = source.load()
    except (ImportError, AttributeError, OSError, RuntimeError) as error:  # what broken installations raise on import
        raise BackendError(f"back end {name!r} could not be loaded: {error}; it {source.needs}") from error
    if not (isinstance(loaded, type) and issubclass(loaded, Backend)):
        raise BackendError(f"back end {name!r} must be a subclass of Backend, got {loaded!r}")
    return loaded


def _check_options(name: str, backend: type[Backend], options: Mapping[str, Any]) -> None:
    allowed = sorted(inspect.signature(backend).parameters)
    if unknown := sorted(set(options) - set(allowed), key=str):
        listed = ", ".join(map(repr, unknown))
        plural = "option" if len(unknown) == 1 else "options"
        names = ", ".join(allowed) or "none"
        raise ArgumentError(f"back end {name!r} has no {plural} {listed}; its options: {names}")
