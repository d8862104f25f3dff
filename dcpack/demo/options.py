"""What the demo runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dcpack._checks import check_choice, check_int, check_items, check_path
from dcpack.comm.membership import check_deadline
from dcpack.cost import RingCost
from dcpack.exchange import ROUTINGS
from dcpack.packing import OVERLONG_POLICIES
from dcpack.padding import PaddingRule
from dcpack.report import Cluster
from dcpack.scheduling import SCHEDULERS
from dcpack.sharding import SHARDINGS

__all__ = ["DemoOptions"]

_MOST = 2**24  # documents of a step, and steps


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoOptions:
    """What the demo runs.

    Attributes:
        data: text files or folders; empty for the texts found on this machine.
        num_ranks: ranks of the fake back end.
        num_steps: steps, at most 2**24.
        global_batch_size: documents of a step, at most 2**24.
        capacity: padded tokens of one row on one rank.
        scheduler: which scheduler the proof runs under.
        max_cp_size: largest CP size; 1 turns CP off, None leaves it to the ranks.
        overlong: the policy for documents that fit on no CP size.
        sharding: the CP slicing.
        routing: ``"sliced"`` or ``"whole"``.
        seed: which documents, in which order.
        deadline_s: seconds that a rank may wait for the others.

    Raises:
        ArgumentError: an option of the wrong type or range.

    Example:
        >>> DemoOptions(num_ranks=4, capacity=2048).cluster.num_ranks
        4
    """

    data: Sequence[str | Path] = ()
    num_ranks: int = 8
    num_steps: int = 10
    global_batch_size: int = 128
    capacity: int = 32768
    scheduler: str = "packing_aware"
    max_cp_size: int | None = None
    overlong: str = "split"
    sharding: str = "zigzag"
    routing: str = "sliced"
    seed: int = 1234
    deadline_s: float = 60.0

    def __post_init__(self) -> None:
        for name in ("num_ranks", "capacity"):
            check_int(name, getattr(self, name), minimum=1)
        for name in ("num_steps", "global_batch_size"):
            check_int(name, getattr(self, name), minimum=1, maximum=_MOST)
        check_int("seed", self.seed, minimum=0)
        if self.max_cp_size is not None:
            check_int("max_cp_size", self.max_cp_size, minimum=1)
        check_choice("scheduler", self.scheduler, SCHEDULERS)
        check_choice("overlong", self.overlong, OVERLONG_POLICIES)
        check_choice("sharding", self.sharding, SHARDINGS)
        check_choice("routing", self.routing, ROUTINGS)
        paths = tuple(check_path("data", path) for path in check_items("data", self.data))
        object.__setattr__(self, "data", paths)
        object.__setattr__(self, "deadline_s", check_deadline(self.deadline_s))

    @property
    def cluster(self) -> Cluster:
        """The ranks, the padding rule and the cost model that plans are made for."""
        return Cluster(
            num_ranks=self.num_ranks,
            capacity=self.capacity,
            padding=PaddingRule(),
            cost=RingCost(),
            overlong=self.overlong,
            max_cp_size=self.max_cp_size,
        )
