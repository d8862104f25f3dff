"""A back end over a shared folder: every message is a file. Slow, and complete."""

import itertools
import os
import time
from pathlib import Path

import numpy as np

from dcpack.comm import Backend, Communicator


class FolderCommunicator(Communicator):
    """One process's view of a group that meets in `folder`."""

    def __init__(self, folder: Path, rank: int, ranks: tuple[int, ...], deadline_s: float = 60.0) -> None:
        super().__init__(rank, ranks, deadline_s=deadline_s)
        self._folder, self._round, self._splits = folder, itertools.count(), itertools.count()
        folder.mkdir(parents=True, exist_ok=True)

    def _hand_over(self, messages: list[bytes]) -> list[bytes]:
        """Give one message to each member, and return those of all for this one."""
        number = next(self._round)
        for to, message in enumerate(messages):
            place = self._folder / f"{number}-{self.rank}-{to}"
            place.with_suffix(".part").write_bytes(message)
            place.with_suffix(".part").rename(place)  # whole or not there at all
        wanted = [self._folder / f"{number}-{source}-{self.rank}" for source in range(self.size)]
        while missing := [source for source, place in enumerate(wanted) if not place.exists()]:
            if self._remaining_s() == 0:
                raise self._missing_error(missing)
            time.sleep(0.001)
        received = [place.read_bytes() for place in wanted]
        for place in wanted:
            place.unlink()
        return received

    def _exchange_control(self, record: bytes) -> list[bytes]:
        return self._hand_over([record] * self.size)

    def _all_gather_bytes(self, payload: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
        return [np.frombuffer(part, np.uint8).copy() for part in self._hand_over([payload.tobytes()] * self.size)]

    def _all_to_all_bytes(self, payload: np.ndarray, send_sizes: list[int], recv_sizes: list[int]) -> np.ndarray:
        parts = np.split(payload, np.cumsum(send_sizes)[:-1])
        return np.frombuffer(b"".join(self._hand_over([part.tobytes() for part in parts])), np.uint8).copy()

    def _broadcast_bytes(self, payload: np.ndarray | None, size: int, root: int) -> np.ndarray:
        mine = b"" if payload is None else payload.tobytes()
        return np.frombuffer(self._hand_over([mine] * self.size)[root], np.uint8).copy()

    def _split(self, partition: tuple[tuple[int, ...], ...], block: int) -> Communicator:
        members, folder = partition[block], self._folder / f"group{next(self._splits)}-{block}"
        ranks = tuple(self.ranks[member] for member in members)
        return FolderCommunicator(folder, members.index(self.rank), ranks, self.deadline_s)

    def _close(self) -> None:
        pass


class FolderBackend(Backend):
    """Processes that have RANK, WORLD_SIZE and MEETING_FOLDER in their environment."""

    name = "folder"

    @classmethod
    def available(cls) -> tuple[bool, str]:
        """Nothing but a folder is needed."""
        return True, "a shared folder"

    def world(self) -> Communicator:
        """All processes."""
        folder, size = Path(os.environ["MEETING_FOLDER"]), int(os.environ["WORLD_SIZE"])
        return FolderCommunicator(folder, int(os.environ["RANK"]), tuple(range(size)))
