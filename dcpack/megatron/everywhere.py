"""Errors of one rank of the mesh on all of them, and arguments that all of them must be given alike."""

from __future__ import annotations

import contextlib
import hashlib
import json
import reprlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from dcpack._checks import list_offenders
from dcpack.comm import Communicator, all_gather_trees
from dcpack.comm.guard import as_failure
from dcpack.errors import ArgumentError, PeerError
from dcpack.megatron.groups import ParallelGroups

__all__ = ["everywhere"]

_OF_ONE_STAGE = frozenset({"mtp_stages"})


@contextlib.contextmanager
def everywhere(groups: ParallelGroups, alike: dict[str, Any] | None = None) -> Iterator[None]:
    """Raise what the body raises on any rank of the mesh on all of them: told along one axis after the other.

    Ranks must be compared before the first call that only some of them make, else the rest wait for those in vain.

    Args:
        groups: this rank's groups; the body may call on them what all ranks call.
        alike: filled by the body with plain values that must be the same on all ranks (``mtp_stages``: on all ranks of
            a stage), at the cost of no further call. None on all ranks where there is none.

    Raises:
        PeerError: the body raised on some rank, or `alike` differs; names the values and the ranks.

    Example:
        >>> import dcpack
        >>> from dcpack.megatron import build_groups
        >>> def fn(world):
        ...     groups = build_groups(world, dcpack.Topology(axes=("pp", "dp"), sizes=(2, 2)))
        ...     alike = {}
        ...     with everywhere(groups, alike):
        ...         alike["capacity"] = 8 if world.rank < 3 else 9
        >>> try:
        ...     dcpack.run_ranks(4, fn)
        ... except PeerError as error:
        ...     print(error.cause, "against rank 2: rank 3 capacity 9, not 8" in str(error))
        ArgumentError True
    """
    failure: BaseException | None = None
    interruption: BaseException | None = None
    try:
        yield
    except Exception as error:
        failure = as_failure(error)
    except BaseException as error:  # Ctrl-C and exits are told to the others, but stay what they are
        failure = interruption = error
    for communicator in (groups.dp_cp, groups.tp, groups.pp):
        try:
            if failure is not None or alike is None:
                communicator.agree(failure)  # which those raise who compare
            else:
                across = communicator is groups.pp
                _compare(communicator, {k: v for k, v in alike.items() if not (across and k in _OF_ONE_STAGE)})
        except PeerError as error:
            failure = error
    if interruption is not None:
        raise interruption
    if failure is not None:
        raise failure


def _compare(communicator: Communicator, own: dict[str, Any]) -> None:
    """Raise a PeerError on all members where one has other values: one small message where all are alike."""
    digest = hashlib.sha256(json.dumps(own, sort_keys=True).encode()).digest()[:8]
    digests = communicator.all_gather(np.frombuffer(digest, np.int64))
    if len({int(each[0]) for each in digests}) == 1:
        return
    first, *others = all_gather_trees(communicator, own)
    ranks = communicator.ranks
    differ = [
        f"rank {rank} {name} {reprlib.repr(each[name])}, not {reprlib.repr(first[name])}"
        for rank, each in zip(ranks[1:], others, strict=True)
        for name in first
        if each[name] != first[name]
    ]
    listed = list_offenders(differ)
    text = f"all ranks must be given the same arguments; against rank {ranks[0]}: {listed}"
    communicator.agree(ArgumentError(text))
