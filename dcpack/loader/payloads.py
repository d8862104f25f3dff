"""Moving samples among constructors: one all-to-all of bytes, of those samples alone that change their rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dcpack._checks import Int64Array
from dcpack.comm import Communicator
from dcpack.comm.guard import tell_failure
from dcpack.comm.trees import decode_tree, encode_tree

__all__ = ["exchange_payloads"]


def exchange_payloads(
    communicator: Communicator,
    mine: Sequence[Any],
    *,
    holder: Int64Array,
    place: Int64Array,
    num_bytes: Int64Array,
    destination: Int64Array,
) -> dict[int, Any]:
    """Return the samples that this member is to have, by number. Collective, unless no sample moves at all.

    All members know every size already, so none is negotiated. What stays is handed on as it is.

    Args:
        communicator: of the constructors.
        mine: the samples that this member holds, by place.
        holder: int64[n], member that holds each sample.
        place: int64[n], its place there.
        num_bytes: int64[n], bytes of its message.
        destination: int64[n], member that shall have it.

    Raises:
        PeerError: some member failed; on all members.

    Example:
        >>> from dcpack.comm import encoded_size, run_ranks
        >>> def fn(communicator):
        ...     payload = {"rank": communicator.rank}
        ...     sizes = np.full(2, encoded_size(communicator, payload))
        ...     return exchange_payloads(communicator, [payload], holder=np.array([0, 1]), place=np.array([0, 0]),
        ...                              num_bytes=sizes, destination=np.array([1, 1]))
        >>> run_ranks(2, fn)
        [{}, {1: {'rank': 1}, 0: {'rank': 0}}]
    """
    me = communicator.rank
    moves = holder != destination
    stays = np.flatnonzero((holder == me) & (destination == me)).tolist()
    found = {i: mine[int(place[i])] for i in stays}
    if not moves.any():
        return found
    sent = np.flatnonzero(moves & (holder == me))
    sent = sent[np.argsort(destination[sent], kind="stable")]
    received = np.flatnonzero(moves & (destination == me))
    received = received[np.argsort(holder[received], kind="stable")]
    with tell_failure(communicator):
        messages = [encode_tree(communicator, mine[int(place[i])]) for i in sent.tolist()]
        buffer = np.concatenate([np.zeros(0, np.uint8), *messages])
    data = communicator.all_to_all(
        buffer,
        _sizes(destination[sent], num_bytes[sent], communicator.size),
        _sizes(holder[received], num_bytes[received], communicator.size),
    )
    ends = np.cumsum(num_bytes[received])
    with tell_failure(communicator):
        for i, end in zip(received.tolist(), ends.tolist(), strict=True):
            found[i] = decode_tree(communicator, data[end - num_bytes[i] : end])
    return found


def _sizes(peers: Int64Array, num_bytes: Int64Array, size: int) -> Int64Array:
    counts = np.zeros(size, np.int64)
    np.add.at(counts, peers, num_bytes)
    return counts
