"""The three compiled programs that move bytes between the processes of a group, one device of each.

They move uint32 words: 64-bit integers would be cut without x64, and words are bits. The programs of a group are kept,
one a verb and bucket.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, NamedSharding, PartitionSpec

__all__ = ["MEMBERS", "Programs"]

MEMBERS = "members"
"""The axis of a group's mesh."""

_Words = npt.NDArray[np.uint32]


class Programs:
    """The programs of one group of processes.

    Args:
        devices: a device of each member, in the order of the group.
        member: group-local number of this process.

    Example:
        >>> programs = Programs(jax.devices()[:1], 0)
        >>> programs.all_gather(np.array([7, 8], np.uint32)).tolist()
        [[7, 8]]
    """

    def __init__(self, devices: Sequence[Any], member: int) -> None:
        self._devices = tuple(devices)
        self._device = self._devices[member]

    def all_gather(self, words: _Words) -> _Words:
        """Return [members, w] from each member's [w]."""
        return self._run(_all_gather, words)

    def all_to_all(self, rows: _Words) -> _Words:
        """Return [members, w]: row i is the row for this member of member i's [members, w]."""
        return self._run(_all_to_all, rows)[0]

    def sum(self, words: _Words) -> _Words:
        """Return [w], the sum of each member's [w] (modulo 2**32)."""
        return self._run(_sum, words)

    def _run(self, body: Callable[[Any], Any], words: _Words) -> _Words:
        mesh = Mesh(np.array(self._devices), (MEMBERS,))
        sharding = NamedSharding(mesh, PartitionSpec(MEMBERS))
        local = jax.device_put(words[None], self._device)
        shape = (len(self._devices), *words.shape)
        whole = jax.make_array_from_single_device_arrays(shape, sharding, [local])
        result = _compiled(body, mesh)(whole)
        return np.asarray(result.addressable_shards[0].data)


@functools.lru_cache(maxsize=256)
def _compiled(body: Callable[[Any], Any], mesh: Mesh) -> Any:
    specs = PartitionSpec(MEMBERS)
    out = specs if body is _all_to_all else PartitionSpec()
    # Without the check of replication, which knows nothing of all_gather.
    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=out, check_vma=False))


def _all_gather(local: Any) -> Any:
    return jax.lax.all_gather(local[0], MEMBERS)


def _all_to_all(local: Any) -> Any:
    return jax.lax.all_to_all(local[0], MEMBERS, 0, 0)[None]


def _sum(local: Any) -> Any:
    return jax.lax.psum(local[0], MEMBERS)
