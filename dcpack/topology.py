"""Where ranks sit: mesh axes, coordinates, groups, ranks on processes, and the legal CP blocks.

A `Topology` names the axes of a device mesh and gives every global rank a coordinate on each. Plans speak of *plan
ranks*: the members of one DPxCP domain, numbered from 0 in mesh order. `legal_cp_sizes` and `place_blocks` hold the two
rules of CP groups: which sizes may exist, and where in a micro-batch they go.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dcpack._block_order import fewest_crossings, fill_nodes
from dcpack._checks import (
    Int64Array,
    as_integers,
    as_lengths,
    check_choice,
    check_int,
    check_items,
    check_names,
    frozen,
)
from dcpack.errors import ArgumentError, InfeasibleError

__all__ = [
    "AXES",
    "DATA_AXES",
    "Topology",
    "count_cp_groups",
    "crosses_node",
    "legal_cp_sizes",
    "limit_cp_groups",
    "place_blocks",
]

AXES = ("pp", "dp_replicate", "dp_shard", "dp", "cp", "tp")
"""The axis names that dcpack knows; a mesh uses a subset, outermost first."""

DATA_AXES = ("dp_replicate", "dp_shard", "dp", "cp")
"""The axes that span a DPxCP domain."""

_MAX_RANKS = 2**24
_MAX_NODE_SIZE = 2**62


@dataclass(frozen=True, kw_only=True, eq=False)
class Topology:
    """A named mesh of ranks, and the process that each rank lives on.

    Args:
        axes: axis names, outermost first, each one of `AXES`.
        sizes: length of each axis, at least 1.
        ranks: int64[sizes], the global rank at each mesh position; default ``arange`` in mesh order.
        process_of_rank: int64[num_ranks], the process that hosts each global rank; default the identity (one rank a
            process, as torch has it). One JAX process may host many.
        node_size: consecutive plan ranks that share a node; None where nodes are not known.

    Raises:
        ArgumentError: unknown or repeated axes, sizes that do not fit, ranks that are not a permutation.

    Example:
        >>> mesh = Topology(axes=("dp", "cp", "tp"), sizes=(2, 2, 2))
        >>> mesh.coordinates(5)
        {'dp': 1, 'cp': 0, 'tp': 1}
        >>> mesh.groups(("cp",))
        [(0, 2), (1, 3), (4, 6), (5, 7)]
        >>> mesh.plan_ranks(5)
        (1, 3, 5, 7)
    """

    axes: tuple[str, ...]
    sizes: tuple[int, ...]
    ranks: Any = None
    process_of_rank: Any = None
    node_size: int | None = None

    def __post_init__(self) -> None:
        axes, sizes = check_names("axes", self.axes), tuple(check_items("sizes", self.sizes))
        unknown = [axis for axis in axes if axis not in AXES]
        if unknown or len(set(axes)) != len(axes):
            raise ArgumentError(f"axes must be different names out of {', '.join(AXES)}, got {axes}")
        if not axes:
            raise ArgumentError("axes must name at least one axis")
        if len(sizes) != len(axes):
            raise ArgumentError(
                f"sizes must have one number an axis: {len(axes)} axes {axes}, {len(sizes)} sizes {sizes}"
            )
        sizes = tuple(
            check_int(f"size of axis {axis!r}", size, minimum=1) for axis, size in zip(axes, sizes, strict=True)
        )
        count = math.prod(sizes)
        if count > _MAX_RANKS:
            raise ArgumentError(f"a mesh of {count} ranks is over the {_MAX_RANKS} that are supported: sizes {sizes}")
        ranks = np.arange(count).reshape(sizes) if self.ranks is None else _as_ranks(self.ranks)
        if ranks.shape != sizes or not np.array_equal(np.sort(ranks, axis=None), np.arange(count)):
            raise ArgumentError(
                f"ranks must be a permutation of 0..{count - 1} of shape {sizes}, got shape {ranks.shape}"
            )
        processes = np.arange(count) if self.process_of_rank is None else self.process_of_rank
        processes = as_lengths("process_of_rank", processes)
        if processes.size != count:
            raise ArgumentError(f"process_of_rank must name a process for each of {count} ranks, got {processes.size}")
        if self.node_size is not None:
            object.__setattr__(self, "node_size", check_int("node_size", self.node_size, minimum=1))
        for name, value in (("axes", axes), ("sizes", sizes), ("ranks", frozen(ranks)), ("process_of_rank", processes)):
            object.__setattr__(self, name, value)

    @classmethod
    def of_domain(cls, num_ranks: int, *, process_of_rank: Any = None, node_size: int | None = None) -> Topology:
        """Return the mesh of one DPxCP domain and nothing else: `num_ranks` ranks on the axis ``dp``.

        Example:
            >>> Topology.of_domain(4).plan_ranks(0)
            (0, 1, 2, 3)
        """
        return cls(axes=("dp",), sizes=(num_ranks,), process_of_rank=process_of_rank, node_size=node_size)

    @property
    def num_ranks(self) -> int:
        """Number of global ranks in the mesh."""
        return int(self.ranks.size)

    @property
    def num_plan_ranks(self) -> int:
        """Number of ranks in one DPxCP domain: the `num_ranks` of a plan."""
        return int(np.prod([self.axis_size(axis) for axis in DATA_AXES], dtype=np.int64))

    def axis_size(self, axis: str) -> int:
        """Return the length of `axis`, 1 for an axis that the mesh does not have.

        Example:
            >>> mesh = Topology(axes=("dp", "tp"), sizes=(4, 2))
            >>> mesh.axis_size("tp"), mesh.axis_size("cp")
            (2, 1)
        """
        check_choice("axis", axis, AXES)
        return self.sizes[self.axes.index(axis)] if axis in self.axes else 1

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the coordinate of global rank `rank` on each axis of the mesh.

        Example:
            >>> Topology(axes=("dp", "tp"), sizes=(2, 3)).coordinates(4)
            {'dp': 1, 'tp': 1}
        """
        check_int("rank", rank, minimum=0, maximum=self.num_ranks - 1)
        place = np.argwhere(self.ranks == rank)[0]
        return {axis: int(i) for axis, i in zip(self.axes, place, strict=True)}

    def groups(self, axes: Sequence[str]) -> list[tuple[int, ...]]:
        """Return the groups of global ranks that differ only on `axes`: a partition of the mesh.

        Args:
            axes: axis names; those that the mesh lacks have size 1 and change nothing.

        Returns:
            Groups in mesh order; the members of each in mesh order, the innermost axis running fastest.

        Example:
            >>> Topology(axes=("dp", "cp"), sizes=(2, 2)).groups(("dp",))
            [(0, 2), (1, 3)]
        """
        axes = check_names("axes", axes)
        for axis in axes:
            self.axis_size(axis)  # an unknown name is an error
        inner = [i for i, axis in enumerate(self.axes) if axis in axes]
        outer = [i for i in range(len(self.axes)) if i not in inner]
        width = int(np.prod([self.sizes[i] for i in inner], dtype=np.int64))
        table = np.transpose(self.ranks, outer + inner).reshape(-1, width)
        return [tuple(row) for row in table.tolist()]

    def group_of(self, rank: int, axes: Sequence[str]) -> tuple[int, ...]:
        """Return the one of `groups(axes)` that holds global rank `rank`.

        Example:
            >>> Topology(axes=("dp", "cp"), sizes=(2, 2)).group_of(3, ("cp",))
            (2, 3)
        """
        check_int("rank", rank, minimum=0, maximum=self.num_ranks - 1)
        return next(group for group in self.groups(axes) if rank in group)

    def plan_ranks(self, rank: int) -> tuple[int, ...]:
        """Return the DPxCP domain of global rank `rank`: element p is the global rank of plan rank p.

        Example:
            >>> Topology(axes=("pp", "dp"), sizes=(2, 2)).plan_ranks(3)
            (2, 3)
        """
        return self.group_of(rank, DATA_AXES)


def _as_ranks(values: Any) -> Int64Array:
    """Return a copy of the ranks of a mesh, of any number of dimensions."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ArgumentError(f"ranks must be an array of integers: {error}") from error
    return as_lengths("ranks", array.reshape(-1)).reshape(array.shape)


def legal_cp_sizes(
    num_ranks: int,
    cp_sizes: str | Sequence[int] = "powers_of_two",
    *,
    min_cp_size: int = 1,
    max_cp_size: int | None = None,
    num_heads: int | Sequence[int] | None = None,
) -> tuple[int, ...]:
    """Return the CP sizes that a plan for `num_ranks` ranks may use, ascending.

    Args:
        num_ranks: ranks of the DPxCP domain.
        cp_sizes: ``"powers_of_two"``, ``"divisors"``, ``"any"``, or the sizes themselves. The three families always
            hold the whole domain, a power of two or not, so that every rank can be given work.
        min_cp_size: smaller sizes are left out.
        max_cp_size: larger sizes are left out, the whole domain too.
        num_heads: head counts that every size must divide, as Ulysses deals heads to the ranks of a CP group: of
            queries and, with grouped queries, of keys and values; on one TP rank. None leaves all sizes.

    Raises:
        ArgumentError: an unknown family, sizes or head counts that are not integers of at least 1.
        InfeasibleError: no size is left.

    Example:
        >>> legal_cp_sizes(12), legal_cp_sizes(12, "divisors", min_cp_size=2)
        ((1, 2, 4, 8, 12), (2, 3, 4, 6, 12))
        >>> legal_cp_sizes(8, (1, 2, 6), max_cp_size=4)
        (1, 2)
    """
    num_ranks = check_int("num_ranks", num_ranks, minimum=1)
    if num_ranks > _MAX_RANKS:
        raise ArgumentError(f"num_ranks must be at most {_MAX_RANKS}, got {num_ranks}")
    min_cp_size = check_int("min_cp_size", min_cp_size, minimum=1)
    largest = num_ranks if max_cp_size is None else check_int("max_cp_size", max_cp_size, minimum=1)
    if isinstance(cp_sizes, str):
        family = _cp_family(cp_sizes, num_ranks)
    else:
        family = as_lengths("cp_sizes", cp_sizes, minimum=1).tolist()
    heads = [] if num_heads is None else _as_heads(num_heads)
    sizes = {size for size in family if min_cp_size <= size <= min(largest, num_ranks)}
    sizes = tuple(sorted(size for size in sizes if all(count % size == 0 for count in heads)))
    if not sizes:
        limits = f"min_cp_size {min_cp_size}, max_cp_size {max_cp_size}, {num_ranks} ranks"
        limits += f", num_heads {num_heads}" if heads else ""
        raise InfeasibleError(f"no CP size is left of cp_sizes {cp_sizes!r} within {limits}")
    return sizes


def _as_heads(num_heads: Any) -> list[int]:
    counts = [num_heads] if isinstance(num_heads, int | np.integer) else num_heads
    return as_lengths("num_heads", counts, minimum=1).tolist()


def _cp_family(name: str, num_ranks: int) -> list[int]:
    if name == "powers_of_two":
        return [2**i for i in range(num_ranks.bit_length()) if 2**i <= num_ranks] + [num_ranks]
    if name == "divisors":
        return [size for size in range(1, num_ranks + 1) if num_ranks % size == 0]
    if name == "any":
        return list(range(1, num_ranks + 1))
    raise ArgumentError(f"cp_sizes must be 'powers_of_two', 'divisors', 'any' or a sequence of integers, got {name!r}")


def count_cp_groups(num_ranks: int, cp_sizes: Sequence[int], *, node_size: int | None = None) -> int:
    """Return how many different CP groups, of two ranks or more, plans with these CP sizes can ever ask for.

    Communicators cost memory, and time to make. Powers of two lie in aligned blocks, so that each size has
    ``num_ranks // size`` places; so have other sizes that divide one another, where nodes do not matter. Any other
    set counts every place: what is counted is never less than what plans use.

    Args:
        num_ranks: ranks of the DPxCP domain.
        cp_sizes: the legal sizes.
        node_size: ranks of a node, or None.

    Example:
        >>> count_cp_groups(8, (1, 2, 4, 8)), count_cp_groups(8, (1, 3, 5))
        (7, 10)
    """
    num_ranks = check_int("num_ranks", num_ranks, minimum=1, maximum=_MAX_RANKS)
    cp_sizes = as_lengths("cp_sizes", cp_sizes, minimum=1).tolist()
    if node_size is not None:
        check_int("node_size", node_size, minimum=1)
    sizes = [size for size in sorted(cp_sizes) if 1 < size < num_ranks]
    powers = all(size & (size - 1) == 0 for size in sizes)
    chain = node_size is None and all(b % a == 0 for a, b in itertools.pairwise(sizes))
    places = [num_ranks // size if powers or chain else num_ranks - size + 1 for size in sizes]
    return sum(places) + (1 if num_ranks > 1 and num_ranks in cp_sizes else 0)


def limit_cp_groups(
    num_ranks: int, cp_sizes: Sequence[int], max_groups: int, *, node_size: int | None = None
) -> tuple[int, ...]:
    """Return the largest of the legal CP sizes, and 1 where it is one, with at most `max_groups` different CP groups.

    The result depends on no lengths, so that it holds for all steps of a job together.

    Args:
        num_ranks: ranks of the DPxCP domain.
        cp_sizes: the legal sizes, ascending.
        max_groups: CP groups of two ranks or more that a job may ever create.
        node_size: ranks of a node, or None.

    Raises:
        InfeasibleError: not even the largest size alone has so few.

    Example:
        >>> limit_cp_groups(64, (1, 2, 4, 8, 16, 32, 64), 15)
        (1, 8, 16, 32, 64)
    """
    cp_sizes = tuple(as_lengths("cp_sizes", cp_sizes, minimum=1).tolist())
    if not cp_sizes:
        raise ArgumentError("cp_sizes must hold at least one size")
    check_int("max_groups", max_groups, minimum=0)
    alone = tuple(size for size in cp_sizes if size == 1)
    shared = cp_sizes[len(alone) :]
    for first in range(len(shared) + 1):
        kept = (*alone, *shared[first:])
        if kept and count_cp_groups(num_ranks, kept, node_size=node_size) <= max_groups:
            return kept
    fewest = count_cp_groups(num_ranks, shared[-1:], node_size=node_size)
    raise InfeasibleError(
        f"max_groups {max_groups} is below {fewest}, the CP groups of size {shared[-1]} alone on {num_ranks} ranks"
    )


def crosses_node(first_rank: Any, cp_size: Any, node_size: int | None) -> np.ndarray:
    """Tell which blocks of consecutive ranks lie on more than one node.

    Args:
        first_rank: int64[b], first rank of each block.
        cp_size: int64[b], ranks of each block.
        node_size: ranks of a node; None means one node for all.

    Returns:
        bool[b].

    Raises:
        ArgumentError: arrays of different shapes, or numbers out of range.

    Example:
        >>> crosses_node(np.array([0, 6]), np.array([8, 4]), 8).tolist()
        [False, True]
    """
    first, cp = as_integers("first_rank", first_rank), as_integers("cp_size", cp_size, minimum=1)
    if first.shape != cp.shape:
        raise ArgumentError(f"first_rank and cp_size must have one shape, got {first.shape} and {cp.shape}")
    if node_size is None:
        return np.zeros(first.shape, np.bool_)
    check_int("node_size", node_size, minimum=1, maximum=_MAX_NODE_SIZE)
    check_int("node_size", node_size, minimum=1)
    return first // node_size != (first + cp - 1) // node_size


def place_blocks(cp_sizes: Any, node_size: int | None = None) -> Int64Array:
    """Lay the CP groups of one micro-batch end to end over the ranks.

    Powers of two go in descending size, which aligns every block to its own size. Other sets go in the order that
    crosses the fewest nodes; of equal orders, the one that puts larger blocks first. Where there are too many different
    orders to look at, each node is filled with the largest block that still fits in it.

    Args:
        cp_sizes: int64[b], ranks of each group.
        node_size: ranks of a node, or None.

    Returns:
        int64[b], the first rank of each group, in the order given. Of equal sizes the earlier one comes first.

    Example:
        >>> place_blocks([1, 2, 1]).tolist()
        [2, 0, 3]
        >>> place_blocks([5, 5, 3, 3], node_size=8).tolist()
        [0, 8, 5, 13]
    """
    sizes = as_lengths("cp_sizes", cp_sizes, minimum=1)
    if node_size is not None:
        check_int("node_size", node_size, minimum=1)
    descending = np.argsort(-sizes, kind="stable")
    if node_size is None or bool(np.all(sizes & (sizes - 1) == 0)):
        return _first_ranks(sizes, descending)
    order = fewest_crossings(sizes[descending], node_size)
    if order is None:
        order = fill_nodes(sizes[descending], node_size)
    return _first_ranks(sizes, descending[order])


def _first_ranks(sizes: Int64Array, order: Int64Array) -> Int64Array:
    first = np.empty_like(sizes)
    first[order] = np.cumsum(sizes[order]) - sizes[order]
    return first
