"""Who is there: found out through the store of the job, which works when the group itself does not (yet, or any more).

A library that fails says that some connection broke, not which rank is gone. So after a failure every rank that is
still there leaves a note in the store; who leaves none is missing. The first to conclude writes the verdict down, and
all others repeat it: one failure, one error.
"""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from dcpack.comm.failures import name_ranks
from dcpack.errors import PeerError

__all__ = ["RollCall", "Verdict", "assemble"]

_POLL_S = 0.02
_NUM_WAITS = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What the group concludes from a failure.

    Attributes:
        text: the error.
        rank: global number of the rank at fault, None if no single one is known to be.
    """

    text: str
    rank: int | None


def assemble(store: Any, member: int, ranks: Sequence[int], seconds: float) -> None:
    """Return when all members have called this.

    Args:
        store: of this assembly alone (a prefix of the job's store).
        member: group-local number of this process.
        ranks: global numbers of the members.
        seconds: how long to wait for them.

    Raises:
        PeerError: some did not come; all of them are named.

    Example:
        >>> from torch.distributed import HashStore
        >>> assemble(HashStore(), 0, [0], 1.0)
        >>> assemble(HashStore(), 0, [0, 1, 2], 0.1)
        Traceback (most recent call last):
        ...
        dcpack.errors.PeerError: ranks 1, 2 did not start within 0.1 s
    """
    store.set(f"here/{member}", "")
    if store.add("number here", 1) == len(ranks):
        store.set("all here", "")
    try:
        store.wait(["all here"], timedelta(seconds=seconds))
    except RuntimeError as error:
        missing = [rank for other, rank in enumerate(ranks) if not store.check([f"here/{other}"])]
        text = f"{name_ranks(missing)} did not start within {seconds:g} s" if missing else f"the start failed: {error}"
        raise PeerError(text, rank=missing[0] if missing else None) from error


class RollCall:
    """The notes that the members of one group leave after a failure.

    Args:
        store: of this group alone (a prefix of the job's store).
        member: group-local number of this process.
        ranks: global numbers of the members.

    Example:
        >>> from torch.distributed import HashStore
        >>> RollCall(HashStore(), 0, [4, 5]).conclude(True, lambda missing, late: f"{missing} is gone", 0.1)
        Verdict(text='[5] is gone', rank=5)
    """

    def __init__(self, store: Any, member: int, ranks: Sequence[int]) -> None:
        self._store = store
        self._member = member
        self._ranks = tuple(ranks)

    def conclude(self, late: bool, describe: Callable[[list[int], bool], str], seconds: float) -> Verdict | None:
        """Leave a note and return what the group concludes.

        Args:
            late: this rank waited until its deadline; False where the connection broke before.
            describe: makes the error from the global ranks that left no note, and whether some rank waited that long.
            seconds: how long the others may take to leave theirs.

        Returns:
            The verdict, or None if the store cannot be reached either.
        """
        # In a thread of its own: a store whose host lost its power blocks.
        answer: queue.SimpleQueue[Verdict | None] = queue.SimpleQueue()
        arguments = (answer, late, describe, seconds)
        threading.Thread(target=self._ask, args=arguments, name="dcpack-roll-call", daemon=True).start()
        for _ in range(_NUM_WAITS):  # a process that is stopped for a while loses one of them, and not its answer
            with contextlib.suppress(queue.Empty):
                return answer.get(timeout=(seconds + 1.0) / _NUM_WAITS)
        return None

    def _ask(
        self,
        answer: queue.SimpleQueue[Verdict | None],
        late: bool,
        describe: Callable[[list[int], bool], str],
        seconds: float,
    ) -> None:
        try:
            answer.put(self._find_verdict(late, describe, seconds))
        except RuntimeError:  # what the store raises when its host is gone
            answer.put(None)

    def _find_verdict(self, late: bool, describe: Callable[[list[int], bool], str], seconds: float) -> Verdict:
        until = time.monotonic() + seconds
        if late:
            self._store.set("late", "")
        self._store.set(f"note/{self._member}", "")
        number = self._store.add("number of notes", 1)
        while number < len(self._ranks) and time.monotonic() < until and not self._store.check(["verdict"]):
            time.sleep(_POLL_S)
            number = self._store.add("number of notes", 0)
        if not self._store.check(["verdict"]):
            missing = [rank for member, rank in enumerate(self._ranks) if not self._store.check([f"note/{member}"])]
            text = describe(missing, self._store.check(["late"]))
            own = Verdict(text=text, rank=missing[0] if missing else None)
            # Stays what it was if another rank was faster.
            self._store.compare_set("verdict", "", json.dumps(asdict(own)))
        return Verdict(**json.loads(self._store.get("verdict")))
