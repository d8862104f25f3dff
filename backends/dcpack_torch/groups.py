"""The process groups behind communicators: made for their members, used again, and bounded in number.

A process group holds sockets, and device memory where a device library is used, so that one for each `split` of a
training step would soon exhaust both. The groups of closed communicators are kept and used again for the same ranks.
Which one, the members must agree on: a rank may have closed its end while another has not.
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from dcpack.errors import BackendError
from dcpack_torch.c10d import AllToAllOptions, PrefixStore
from dcpack_torch.libraries import GlooLibrary, Library
from dcpack_torch.roll_call import RollCall

__all__ = ["OFFER_BYTES", "Group", "GroupPool"]

_DIGEST_BYTES = 16
_MAX_OFFERS = 4
OFFER_BYTES = _DIGEST_BYTES * _MAX_OFFERS
"""Size of an offer, see `GroupPool.reserve`."""

# Groups whose last call has not come back. To free one would block until it does.
_stuck: list[Any] = []


class Group:
    """What two or more processes share to move bytes.

    Attributes:
        uid: name, the same on all members.
        ranks: global numbers of the members.
        control: a Gloo group, for control messages, and for payload where Gloo is the library.
        roll_call: how to find out who is missing.
    """

    def __init__(
        self, library: Library, store: Any, uid: str, member: int, ranks: tuple[int, ...], timeout_s: float
    ) -> None:
        self.uid = uid
        self.ranks = ranks
        self.digest = hashlib.blake2b(uid.encode(), digest_size=_DIGEST_BYTES).digest()
        self._library = library
        self._member = member
        self._timeout_s = timeout_s
        self._store = _own_connection(store)
        self.roll_call = RollCall(PrefixStore(f"{uid}/roll call", self._store), member, ranks)
        self.control: Any = GlooLibrary().make_group(
            PrefixStore(f"{uid}/gloo", self._store), uid, member, ranks, timeout_s
        )
        self._greet()
        self._payload: Any = self.control if isinstance(library, GlooLibrary) else None

    def _greet(self) -> None:
        """Exchange a byte with each member: who leaves right after this then leaves nobody half connected."""
        size = len(self.ranks)
        sent = torch.zeros(size, dtype=torch.uint8)
        self.control.alltoall_base(torch.empty_like(sent), sent, [1] * size, [1] * size, AllToAllOptions()).wait()

    @property
    def payload(self) -> Any:
        """The group that moves payload; a device library's is made when it is first needed."""
        if self._payload is None:
            name = self._library.name
            store = PrefixStore(f"{self.uid}/{name}", self._store)
            self._payload = self._library.make_group(store, self.uid, self._member, self.ranks, self._timeout_s)
        return self._payload

    def discard(self, *, stuck: bool) -> None:
        """Let go of the group after a failure, so that members that still wait in it are told.

        Args:
            stuck: a call has not come back.
        """
        if stuck:
            _stuck.extend(group for group in (self.control, self._payload) if group is not None)
        self.control = self._payload = None


class GroupPool:
    """The groups of one process in one world.

    Args:
        library: moves the payload.
        store: the store of the world (a prefix of the job's).
        timeout_s: seconds that a call may wait for the others.
        max_groups: how many groups there may be, in use and kept.
    """

    def __init__(self, library: Library, store: Any, *, timeout_s: float, max_groups: int) -> None:
        self.library = library
        self._store = store
        self._timeout_s = timeout_s
        self._max_groups = max_groups
        self._lock = threading.Lock()
        self._in_use: weakref.WeakSet[Group] = weakref.WeakSet()
        self._kept: list[Group] = []  # the longest kept first

    @property
    def num_in_use(self) -> int:
        """Groups of communicators that are not closed."""
        return len(self._in_use)

    @property
    def num_kept(self) -> int:
        """Groups that wait to be used again."""
        return len(self._kept)

    def require_room(self) -> None:
        """Raise unless one more group may be in use.

        Raises:
            BackendError: too many communicators are open.
        """
        if self.num_in_use >= self._max_groups:
            raise BackendError(
                f"{self.num_in_use} communicators of two or more ranks are open, and max_groups is {self._max_groups}: "
                "close those that are not needed any more, make each once and keep it, or raise max_groups"
            )

    def create(self, uid: str, member: int, ranks: tuple[int, ...]) -> Group:
        """Return a new group; all its members call this together."""
        with self._lock:
            while self._kept and len(self._kept) + len(self._in_use) >= self._max_groups:
                self._kept.pop(0)
        group = Group(self.library, self._store, uid, member, ranks, self._timeout_s)
        with self._lock:
            self._in_use.add(group)
        return group

    def reserve(self, ranks: tuple[int, ...]) -> list[Group]:
        """Take kept groups of exactly these ranks out of the pool, for an offer to the other members."""
        with self._lock:
            offered = [group for group in self._kept if group.ranks == ranks][:_MAX_OFFERS]
            self._kept = [group for group in self._kept if group not in offered]
            return offered

    def settle(self, reserved: Sequence[Group], offers: Sequence[bytes]) -> Group | None:
        """Return the group that all members offer, None if there is none; put the others back.

        Args:
            reserved: what `reserve` gave this process.
            offers: what `encode_offer` gave each member.
        """
        common = set.intersection(*(_decode_offer(offer) for offer in offers))
        chosen = min((group for group in reserved if group.digest in common), key=lambda g: g.digest, default=None)
        with self._lock:
            self._kept += [group for group in reserved if group is not chosen]
            if chosen is not None:
                self._in_use.add(chosen)
        return chosen

    def give_back(self, group: Group) -> None:
        """Keep the group of a communicator that was closed in good order."""
        with self._lock:
            self._in_use.discard(group)
            self._kept.append(group)


def encode_offer(groups: Sequence[Group]) -> bytes:
    """Return the names of `groups` as `OFFER_BYTES` bytes."""
    return b"".join(group.digest for group in groups).ljust(OFFER_BYTES, b"\0")


def _decode_offer(offer: bytes) -> set[bytes]:
    digests = {offer[start : start + _DIGEST_BYTES] for start in range(0, OFFER_BYTES, _DIGEST_BYTES)}
    return digests - {bytes(_DIGEST_BYTES)}


def _own_connection(store: Any) -> Any:
    """Return a connection to `store` that no other thread uses, where this torch can make one.

    A store serves one call at a time, waits included: two threads that make groups at once over one connection could
    each wait for what the other rank's thread cannot send.
    """
    return store.clone() if hasattr(store, "clone") else store
