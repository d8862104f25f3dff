from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcpack.errors import ArgumentError, InfeasibleError
from dcpack.topology import AXES, Topology, crosses_node, legal_cp_sizes, place_blocks


@st.composite
def meshes(draw: st.DrawFn) -> Topology:
    """Up to four axes in any order, global ranks in any order."""
    axes = draw(st.lists(st.sampled_from(AXES), min_size=1, max_size=4, unique=True))
    sizes = [draw(st.integers(1, 4)) for _ in axes]
    count = int(np.prod(sizes))
    ranks = np.array(draw(st.permutations(range(count)))).reshape(sizes)
    return Topology(axes=tuple(axes), sizes=tuple(sizes), ranks=ranks)


# ---- meshes ----------------------------------------------------------------------------------------------------------


def test_a_mesh_by_hand() -> None:
    # rank = 4 * dp + 2 * cp + tp
    mesh = Topology(axes=("dp", "cp", "tp"), sizes=(2, 2, 2))
    assert (mesh.num_ranks, mesh.num_plan_ranks) == (8, 4)
    assert mesh.coordinates(6) == {"dp": 1, "cp": 1, "tp": 0}
    assert mesh.groups(("tp",)) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert mesh.groups(("cp",)) == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert mesh.groups(("dp",)) == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert mesh.groups(("tp", "dp")) == [(0, 1, 4, 5), (2, 3, 6, 7)]  # mesh order, whatever the order asked in
    assert mesh.groups(()) == [(rank,) for rank in range(8)]
    assert mesh.group_of(5, ("cp",)) == (5, 7)
    assert mesh.plan_ranks(3) == mesh.plan_ranks(7) == (1, 3, 5, 7)
    assert mesh.plan_ranks(0) == (0, 2, 4, 6)
    assert [mesh.axis_size(axis) for axis in AXES] == [1, 1, 1, 2, 2, 2]


def test_a_hybrid_sharded_mesh_has_one_domain_a_pipeline_stage() -> None:
    mesh = Topology(axes=("pp", "dp_replicate", "dp_shard", "cp"), sizes=(2, 2, 2, 2))
    assert mesh.num_plan_ranks == 8
    assert mesh.plan_ranks(3) == tuple(range(8))
    assert mesh.plan_ranks(12) == tuple(range(8, 16))


def test_ranks_may_be_laid_out_in_any_order() -> None:
    # pipeline innermost, as some launchers number their ranks
    mesh = Topology(axes=("pp", "dp"), sizes=(2, 3), ranks=[[0, 2, 4], [1, 3, 5]])
    assert mesh.coordinates(3) == {"pp": 1, "dp": 1}
    assert mesh.plan_ranks(3) == (1, 3, 5)


@settings(deadline=None)
@given(mesh=meshes(), axes=st.lists(st.sampled_from(AXES), max_size=4))
def test_groups_partition_any_mesh_and_differ_only_on_their_axes(mesh: Topology, axes: list[str]) -> None:
    groups = mesh.groups(axes)
    assert sorted(itertools.chain.from_iterable(groups)) == list(range(mesh.num_ranks))
    for group in groups:
        fixed = [{a: c for a, c in mesh.coordinates(rank).items() if a not in axes} for rank in group]
        assert all(place == fixed[0] for place in fixed)
        places = [tuple(mesh.coordinates(rank).values()) for rank in group]
        assert places == sorted(places)
    assert len({len(group) for group in groups}) == 1
    assert all(mesh.group_of(rank, axes) == group for group in groups for rank in group)


@settings(deadline=None)
@given(mesh=meshes())
def test_coordinates_lead_back_to_the_rank(mesh: Topology) -> None:
    for rank in range(mesh.num_ranks):
        assert mesh.ranks[tuple(mesh.coordinates(rank).values())] == rank
    assert len(mesh.plan_ranks(0)) == mesh.num_plan_ranks


def test_processes_and_nodes() -> None:
    assert Topology.of_domain(3).process_of_rank.tolist() == [0, 1, 2]
    hosted = Topology.of_domain(4, process_of_rank=np.array([0, 0, 1, 1], np.int32), node_size=2)
    assert (hosted.process_of_rank.tolist(), hosted.node_size) == ([0, 0, 1, 1], 2)
    assert hosted.plan_ranks(2) == (0, 1, 2, 3)


def test_a_topology_is_apart_from_the_arrays_it_was_made_of() -> None:
    ranks, processes = np.arange(4), np.zeros(4, np.int64)
    mesh = Topology(axes=("dp",), sizes=(4,), ranks=ranks, process_of_rank=processes)
    ranks[:], processes[:] = 9, 9
    assert (mesh.ranks.tolist(), mesh.process_of_rank.tolist()) == ([0, 1, 2, 3], [0, 0, 0, 0])
    for array in (mesh.ranks, mesh.process_of_rank):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"axes": ("dp", "xp"), "sizes": (2, 2)}, r"axes must be different names out of .*, got \('dp', 'xp'\)"),
        ({"axes": ("dp", "dp"), "sizes": (2, 2)}, r"axes must be different names out of .*, got \('dp', 'dp'\)"),
        ({"axes": ("dp",), "sizes": (2, 2)}, r"sizes must have one number an axis: 1 axes .*, 2 sizes"),
        ({"axes": ("dp",), "sizes": (0,)}, "size of axis 'dp' must be at least 1, got 0"),
        ({"axes": ("dp",), "sizes": (2.0,)}, "size of axis 'dp' must be an integer, got 2.0"),
        ({"axes": ("dp",), "sizes": (2,), "ranks": [0, 2]}, r"ranks must be a permutation of 0\.\.1"),
        ({"axes": ("dp",), "sizes": (2,), "ranks": [[0, 1]]}, r"ranks must be .* shape \(2,\), got shape \(1, 2\)"),
        ({"axes": ("dp",), "sizes": (2,), "process_of_rank": [0]}, "process_of_rank must name .* 2 ranks, got 1"),
        ({"axes": ("dp",), "sizes": (2,), "process_of_rank": [0, -1]}, r"process_of_rank\[1\] = -1"),
        ({"axes": ("dp",), "sizes": (2,), "node_size": 0}, "node_size must be at least 1, got 0"),
    ],
)
def test_a_mesh_that_cannot_be_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        Topology(**options)


@pytest.mark.parametrize("ranks", [[0.5, 1.2], ["a", "b"], [[0], [1, 2]]])
def test_ranks_that_are_no_integers_are_refused(ranks: Any) -> None:
    with pytest.raises(ArgumentError, match="ranks"):
        Topology(axes=("dp",), sizes=(2,), ranks=ranks)


def test_a_mesh_without_axes_is_refused_or_works() -> None:
    try:
        mesh = Topology(axes=(), sizes=())
    except ArgumentError:
        return
    assert (mesh.num_ranks, mesh.coordinates(0), mesh.plan_ranks(0)) == (1, {}, (0,))


def test_questions_about_what_a_mesh_lacks() -> None:
    mesh = Topology(axes=("dp",), sizes=(2,))
    assert mesh.groups(("tp",)) == [(0,), (1,)]
    with pytest.raises(ArgumentError, match=r"axis must be one of .pp., .*, got 'ep'"):
        mesh.axis_size("ep")
    with pytest.raises(ArgumentError, match=r"axis must be one of .pp., .*, got 'ep'"):
        mesh.groups(("ep",))
    for ask in (mesh.coordinates, mesh.plan_ranks):
        with pytest.raises(ArgumentError, match="rank must be from 0 to 1, got 2"):
            ask(2)


# ---- legal CP sizes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_ranks", range(1, 65))
def test_the_families_for_any_number_of_ranks(num_ranks: int) -> None:
    everything = range(1, num_ranks + 1)
    powers = [1, 2, 4, 8, 16, 32, 64]
    assert legal_cp_sizes(num_ranks) == tuple(s for s in everything if s in powers or s == num_ranks)
    assert legal_cp_sizes(num_ranks, "divisors") == tuple(s for s in everything if num_ranks % s == 0)
    assert legal_cp_sizes(num_ranks, "any") == tuple(everything)


def test_limits_and_explicit_sets() -> None:
    assert legal_cp_sizes(12, min_cp_size=2, max_cp_size=8) == (2, 4, 8)
    assert legal_cp_sizes(12, max_cp_size=100) == (1, 2, 4, 8, 12)
    assert legal_cp_sizes(12, (6, 1, 3, 6)) == (1, 3, 6)  # sorted, once each; the whole domain only when asked for
    assert legal_cp_sizes(12, np.array([2, 24], np.int16).tolist()) == (2,)  # nothing is larger than the domain
    sizes_of_an_array: Any = np.array([2, 3], np.int16)
    assert all(type(size) is int for size in legal_cp_sizes(12, sizes_of_an_array))


def test_no_size_left_is_infeasible_and_says_why() -> None:
    with pytest.raises(InfeasibleError, match=r"no CP size is left of cp_sizes \(16,\) within .* 8 ranks"):
        legal_cp_sizes(8, (16,))
    with pytest.raises(InfeasibleError, match="min_cp_size 5, max_cp_size 7, 8 ranks"):
        legal_cp_sizes(8, min_cp_size=5, max_cp_size=7)


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        ((0,), {}, "num_ranks must be at least 1, got 0"),
        ((True,), {}, "num_ranks must be an integer, got True"),
        ((8, "powers"), {}, "cp_sizes must be 'powers_of_two', 'divisors', 'any' or a sequence of integers"),
        ((8, (1, 0)), {}, r"cp_sizes must be at least 1: cp_sizes\[1\] = 0"),
        ((8, (1.0,)), {}, "cp_sizes must hold integers"),
        ((8, 4), {}, "cp_sizes must be one-dimensional"),
        ((8,), {"min_cp_size": 0}, "min_cp_size must be at least 1, got 0"),
        ((8,), {"max_cp_size": 0}, "max_cp_size must be at least 1, got 0"),
    ],
)
def test_bad_cp_options_are_named(arguments: tuple[Any, ...], options: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        legal_cp_sizes(*arguments, **options)


# ---- blocks and nodes ------------------------------------------------------------------------------------------------


def test_powers_of_two_go_in_descending_size_the_earlier_of_equals_first() -> None:
    assert place_blocks([1, 2, 1, 4]).tolist() == [6, 4, 7, 0]
    assert place_blocks([1, 2, 1, 4], node_size=3).tolist() == [6, 4, 7, 0]  # alignment comes before nodes
    assert place_blocks([]).tolist() == []


def test_other_sizes_fill_node_by_node_where_that_crosses_less() -> None:
    # Descending: 5 at 0, 5 at 5..9 and 3 at 10, 3 at 13: one crosses. Filled: 5 and 3 on each node: none.
    assert place_blocks([5, 5, 3, 3], node_size=8).tolist() == [0, 8, 5, 13]
    assert place_blocks([5, 5, 3, 3]).tolist() == [0, 5, 10, 13]
    # Descending: the second 5, at 5..9, crosses. Filled: 5, 1, then 5 at 6..10 crosses, and 4 at 11..14 too.
    assert place_blocks([5, 5, 4, 1], node_size=7).tolist() == [0, 5, 10, 14]
    # 6 and 3 over nodes of 4: 6 crosses wherever it is, 3 at 6..8 crosses too, first it does not.
    assert place_blocks([6, 3], node_size=4).tolist() == [3, 0]


@pytest.mark.parametrize(
    ("sizes", "node_size", "fewest"),
    [([5, 5, 3, 3], 8, 0), ([6, 5, 3, 2], 8, 0), ([6, 3], 4, 1), ([2, 2, 3], 4, 0)],
)
def test_other_sizes_cross_as_few_nodes_as_any_order(sizes: list[int], node_size: int, fewest: int) -> None:
    def crossings(first: Any, of: Any) -> int:
        return int(crosses_node(first, of, node_size).sum())

    orders = itertools.permutations(sizes)
    assert min(crossings(np.cumsum([0, *order])[:-1], order) for order in orders) == fewest
    assert crossings(place_blocks(sizes, node_size), sizes) == fewest


@settings(deadline=None)
@given(sizes=st.lists(st.integers(1, 9), max_size=12), node_size=st.none() | st.integers(1, 8))
def test_blocks_tile_the_ranks_and_cross_no_more_nodes_than_in_descending_order(
    sizes: list[int], node_size: int | None
) -> None:
    first = place_blocks(sizes, node_size)
    ranks = sorted(
        rank for start, size in zip(first.tolist(), sizes, strict=True) for rank in range(start, start + size)
    )
    assert ranks == list(range(sum(sizes)))
    if all(size & (size - 1) == 0 for size in sizes):
        assert all(start % size == 0 for start, size in zip(first.tolist(), sizes, strict=True))
    descending = sorted(sizes, reverse=True)
    starts = np.cumsum([0, *descending])[:-1]
    worst = int(crosses_node(starts, np.array(descending, np.int64), node_size).sum())
    assert int(crosses_node(first, np.array(sizes, np.int64), node_size).sum()) <= worst


@settings(deadline=None)
@given(blocks=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), max_size=8), node_size=st.integers(1, 9))
def test_crossing_a_node_by_looking_at_every_rank(blocks: list[tuple[int, int]], node_size: int) -> None:
    first, size = np.array(blocks, np.int64).reshape(-1, 2).T
    expected = [len({rank // node_size for rank in range(f, f + s)}) > 1 for f, s in blocks]
    assert crosses_node(first, size, node_size).tolist() == expected
    assert not crosses_node(first, size, None).any()
