"""Meshes for `loader_fuzz.py`, some on processes that host several ranks, and who gets what on them, by plain loops."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from dcpack import Topology

__all__ = ["Place", "draw_place"]

DATA_AXES = ("dp", "dp_replicate", "dp_shard")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a loader runs."""

    mesh: dict[str, int]
    homes: tuple[int, ...] | None = None  # process of each rank; None: each is one
    plans_cp: bool = False

    def __str__(self) -> str:
        mesh = " x ".join(f"{axis} {size}" for axis, size in self.mesh.items())
        return mesh if self.homes is None else f"{mesh} on processes {' '.join(map(str, self.homes))}"

    @property
    def topology(self) -> Topology:
        """As the loader gets it."""
        return Topology(axes=tuple(self.mesh), sizes=tuple(self.mesh.values()), process_of_rank=self.homes)

    @property
    def num_processes(self) -> int:
        """How many there are."""
        return len(set(self.process_of_rank))

    @property
    def process_of_rank(self) -> tuple[int, ...]:
        """By rank."""
        return tuple(range(int(np.prod(list(self.mesh.values()))))) if self.homes is None else self.homes

    @property
    def is_hosted(self) -> bool:
        """Whether some process hosts several ranks."""
        return self.num_processes < len(self.process_of_rank)

    def rows(self) -> list[list[int]]:
        """Return the ranks at each place on the data axes, in their order."""
        is_data = [axis in DATA_AXES or (axis == "cp" and self.plans_cp) for axis in self.mesh]
        found: dict[tuple[int, ...], list[int]] = {}
        for rank, at in enumerate(product(*map(range, self.mesh.values()))):
            found.setdefault(tuple(n for n, data in zip(at, is_data, strict=True) if data), []).append(rank)
        return [found[place] for place in sorted(found)]

    def lanes(self) -> list[list[int]]:
        """Return the processes that get the same batches, the one that builds them first."""
        rows = [[self.process_of_rank[rank] for rank in row] for row in self.rows()]
        if not self.is_hosted:
            return rows
        hosted = {process: [n for n, row in enumerate(rows) if process in row] for row in rows for process in row}
        if self.plans_cp:
            return [[process] for process in hosted]
        lanes: dict[str, list[int]] = {}
        for process, numbers in hosted.items():
            lanes.setdefault(str(numbers), []).append(process)
        return list(lanes.values())

    def plan_ranks(self, process: int) -> list[int]:
        """Return the ranks of a plan of CP that a process hosts."""
        return [number for number, row in enumerate(self.rows()) if self.process_of_rank[row[0]] == process]


def draw_place(rng: random.Random, *, plans_cp: bool) -> Place:
    """Return a mesh of up to 6 ranks, or of up to 8 on fewer processes."""
    axes = rng.choice(
        [("dp",), ("dp", "tp"), ("pp", "dp"), ("dp", "cp"), ("dp", "cp", "tp"), ("dp_replicate", "dp_shard")]
    )
    is_hosted = rng.random() < 0.4
    while True:
        mesh = {axis: rng.choice([1, 2, 3]) for axis in axes}
        count = int(np.prod(list(mesh.values())))
        if count <= (8 if is_hosted else 6):
            break
    place = Place(mesh=mesh, plans_cp=plans_cp)
    return Place(mesh=mesh, plans_cp=plans_cp, homes=_draw_homes(rng, place, count)) if is_hosted else place


def _draw_homes(rng: random.Random, place: Place, count: int) -> tuple[int, ...]:
    """Return a process for each rank: one that hosts some places on the data axes whole, or with others all of them."""
    rows = place.rows()
    groups = [rng.randrange(len(rows)) for _ in rows]
    homes: list[Any] = [None] * count
    widths: dict[int, int] = {}
    for group, row in zip(groups, rows, strict=True):
        width = widths.setdefault(group, 1 if place.plans_cp else rng.randint(1, len(row)))
        members = [*range(width), *(rng.randrange(width) for _ in row[width:])]
        rng.shuffle(members)
        for rank, member in zip(row, members, strict=True):
            homes[rank] = (group, member)
    names = sorted(set(homes))
    rng.shuffle(names)
    return tuple(names.index(home) for home in homes)
