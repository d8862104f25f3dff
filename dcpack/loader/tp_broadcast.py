"""One rank of a tensor-parallel group reads, and its peers receive what it read."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from dcpack._checks import check_int
from dcpack.comm import Communicator, broadcast_tree
from dcpack.comm.guard import tell_failure
from dcpack.errors import ArgumentError
from dcpack.loader.rounds import length_of

__all__ = ["TPBroadcastDataLoader"]

_LEADER = 0
_END = object()


class TPBroadcastDataLoader:
    """A data loader that iterates on the leader, rank 0 of the group, and hands each batch to all.

    All ranks of a tensor-parallel group need the same batch; with this one of them does the reading. A batch is what
    `dcpack.comm.broadcast_tree` takes: nested dicts, lists and tuples of arrays, numbers and texts. It is one message,
    and all ranks, the leader included, get it as it arrives: other mappings as dicts, tensors on the device of the back
    end. All ranks construct it together, iterate together, and stop together.

    Args:
        loader: any iterable on the leader, such as a DataLoader of torch. On peers it is never iterated; None will do.
        communicator: of the group.

    Raises:
        ArgumentError: `communicator` is none.
        PeerError: on all ranks: the loader of the leader failed.

    Example:
        >>> from dcpack import run_ranks
        >>> def fn(communicator):
        ...     source = [{"ids": [1, 2]}, {"ids": [3]}] if communicator.rank == 0 else None
        ...     loader = TPBroadcastDataLoader(source, communicator)
        ...     return len(loader), [batch["ids"] for batch in loader]
        >>> run_ranks(2, fn)
        [(2, [[1, 2], [3]]), (2, [[1, 2], [3]])]
    """

    def __init__(self, loader: Iterable[Any] | None, communicator: Communicator) -> None:
        if not isinstance(communicator, Communicator):
            raise ArgumentError(f"communicator must be a dcpack Communicator, got {type(communicator).__name__}")
        self.loader = loader
        self._communicator = communicator
        self._is_leader = communicator.rank == _LEADER
        self._warned = False
        length: int | None = None
        if self._is_leader:
            with tell_failure(self._communicator, peer_errors=True):  # of a group in which the loader reads
                if not isinstance(loader, Iterable):
                    raise ArgumentError(f"the leader needs a loader to iterate, got {type(loader).__name__}")
                length = length_of(loader)
        self._length: int | None = broadcast_tree(communicator, length, _LEADER)

    def __iter__(self) -> Iterator[Any]:
        iterator: Iterator[Any] | None = None
        while True:
            message = None
            if self._is_leader:
                with tell_failure(self._communicator, peer_errors=True):
                    if iterator is None:
                        assert self.loader is not None
                        iterator = iter(self.loader)
                    batch = next(iterator, _END)
                    message = [] if batch is _END else [batch]
            received = broadcast_tree(self._communicator, message, _LEADER)
            if not received:  # the end is a message, too, so that peers need no length
                return
            yield received[0]

    def __len__(self) -> int:
        """Return the batches of an epoch: what the leader's loader said when this was constructed, on all ranks.

        Raises:
            TypeError: it did not say.
        """
        if self._length is None:
            raise TypeError(f"the loader of the leader, rank {self._communicator.ranks[_LEADER]}, has no length")
        return self._length

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch to the loader, or to its sampler, whichever takes one; on all ranks, not a collective.

        Warns once, on the leader, if nothing takes it: the order would then be the same in every epoch.

        Args:
            epoch: at least 0.
        """
        epoch = check_int("epoch", epoch, minimum=0)
        for name in (None, "sampler", "batch_sampler"):
            target: Any = self.loader if name is None else getattr(self.loader, name, None)
            if hasattr(target, "set_epoch"):
                target.set_epoch(epoch)
                return
        if self._is_leader and not self._warned:
            self._warned = True
            text = f"set_epoch has no effect: neither {type(self.loader).__name__} nor a sampler of it has set_epoch"
            warnings.warn(text, stacklevel=2)
