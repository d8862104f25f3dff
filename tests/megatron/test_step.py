"""The one call: its ends, faults and sums, wherever they come from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dcpack
from dcpack.errors import PeerError
from dcpack.megatron import EndOfData, ParallelGroups, StepOptions, build_groups, plan_step, wrap_data_iterator
from dcpack.scheduling import InOrder

MESH = dcpack.Topology(axes=("pp", "dp", "cp", "tp"), sizes=(3, 1, 2, 2))
OPTIONS = StepOptions(capacity=32, tp_size=2, pp_size=3, cp_size=2)


def sample(length: int, **changes: Any) -> dict[str, Any]:
    return {"tokens": np.arange(length), "padded_seq_len": length, **changes}


def has_data(groups: ParallelGroups) -> bool:
    return groups.tp.rank == 0 and (groups.is_first_stage or groups.is_last_stage)


def outcomes(
    source: Any, *, mesh: dcpack.Topology = MESH, options: StepOptions = OPTIONS, num_microbatches: int = 2
) -> list[Any]:
    """What becomes of the call on every rank; `source(rank, groups)` makes the iterator of ranks that need one."""
    found: list[Any] = [None] * mesh.num_ranks

    def fn(world: dcpack.Communicator) -> None:
        groups = build_groups(world, mesh)
        items = source(world.rank, groups) if has_data(groups) else None
        try:
            found[world.rank] = wrap_data_iterator(items, groups, options, num_microbatches=num_microbatches)
        except (EndOfData, dcpack.DcpackError) as error:
            found[world.rank] = error

    dcpack.run_ranks(mesh.num_ranks, fn)
    return found


def test_sums_are_exact_integers_on_every_rank() -> None:
    found = outcomes(lambda rank, groups: iter([[sample(5, original_seq_len=3), sample(9)], sample(16)]))
    for step in found:
        assert (step.totals.num_tokens, step.totals.num_sequences) == (28, 3)
        assert type(step.totals.squared_length_sum) is int
    plan = found[0].plan
    padded = plan.entry_padded_lengths
    assert found[0].totals.num_padded_tokens == padded.sum()
    assert found[0].totals.squared_length_sum == (padded**2).sum()
    assert found[0].totals.global_valid_tokens == 2 + 8 + 15
    assert all(step.totals == found[0].totals for step in found)
    assert [step.plan is not None for step in found] == [True, False] * 2 + [False] * 4 + [True, False] * 2


def test_squares_beyond_what_a_float_holds_stay_exact() -> None:
    length = 3_000_001
    mesh = dcpack.Topology(axes=("tp",), sizes=(2,))
    options = StepOptions(capacity=2**22, tp_size=2, padding=dcpack.PaddingRule(), scheduler="in_order")
    tokens = np.zeros(length, np.int8)
    labels = {"labels": tokens, "loss_mask": tokens, "position_ids": tokens}
    for step in outcomes(
        lambda r, g: iter([{"tokens": tokens, "padded_seq_len": length, **labels}] * 2), mesh=mesh, options=options
    ):
        assert step.totals.squared_length_sum == 2 * length**2 > 2**44
        assert step.totals.num_padded_tokens == 2 * length


@pytest.mark.parametrize("short", [0, 2, 8, 10])
def test_an_end_that_cp_siblings_or_stages_do_not_share_is_an_error(short: int) -> None:
    # CP siblings and stages read the same: an end that they do not share is a fault of the data.
    ends = outcomes(lambda rank, groups: iter([sample(4)] * (1 if rank == short else 2)))
    assert all(isinstance(end, dcpack.PeerError) for end in ends), ends
    assert all("must read the same data" in str(end) for end in ends), ends


def test_a_shared_end_is_an_end_and_no_error() -> None:
    ends = outcomes(lambda rank, groups: iter([sample(4)]))
    for end in ends:
        assert isinstance(end, EndOfData)
        assert (end.num_items, end.num_sequences, end.num_tokens) == ((1,), 1, 4)


def test_an_uneven_end_over_data_parallel_ranks() -> None:
    mesh = dcpack.Topology(axes=("dp", "pp", "tp"), sizes=(2, 2, 2))
    options = StepOptions(capacity=32, tp_size=2, pp_size=2)
    ends = outcomes(lambda rank, groups: iter([sample(4)] * (1 + groups.dp.rank)), mesh=mesh, options=options)
    for end in ends:
        assert isinstance(end, EndOfData)
        assert (end.num_items, end.num_sequences, end.num_tokens) == ((1, 2), 3, 12)


def failing() -> Iterator[Any]:
    yield sample(4)
    raise KeyError("x")


@pytest.mark.parametrize("bad", [0, 2, 8, 10])
def test_a_fault_on_any_rank_is_an_error_on_all(bad: int) -> None:
    found = outcomes(lambda rank, groups: failing() if rank == bad else iter([sample(4)] * 2))
    for error in found:
        assert isinstance(error, PeerError)
        assert (error.rank, error.cause) == (bad, "KeyError")


@pytest.mark.parametrize("bad", range(12))
def test_a_wrong_argument_on_any_rank_is_an_error_on_all(bad: int) -> None:
    def fn(world: dcpack.Communicator) -> Any:
        groups = build_groups(world, MESH)
        items = iter([sample(4)] * 2) if has_data(groups) else None
        options = StepOptions(capacity=32, tp_size=2, pp_size=4, cp_size=2) if world.rank == bad else OPTIONS
        try:
            wrap_data_iterator(items, groups, options, num_microbatches=2)
        except PeerError as error:
            return error.rank, error.cause, "pp_size 4, not 3" in str(error)

    assert dcpack.run_ranks(12, fn) == [(bad, "ArgumentError", True)] * 12


@pytest.mark.parametrize("other", [2, 8, 10])
def test_ranks_that_read_other_data_are_named(other: int) -> None:
    found = outcomes(lambda rank, groups: iter([sample(4), sample(6 if rank == other else 5)]))
    for error in found:
        assert isinstance(error, PeerError)
        assert "must read the same data" in str(error)


def test_other_labels_of_a_cp_sibling_are_seen() -> None:
    masked = np.array([1, 2, 3, -100])
    found = outcomes(
        lambda rank, groups: iter([sample(4), sample(4, **({"labels": masked * 0 - 100} if rank == 2 else {}))])
    )
    assert all("other than the first: rank 2" in str(error) for error in found), found


def test_all_stages_of_one_rank_may_read_other_data_than_the_first() -> None:
    # The last stage agrees with itself, but not with the first one.
    found = outcomes(lambda rank, groups: iter([sample(4), sample(5 if groups.is_first_stage else 6)]))
    for error in found:
        assert isinstance(error, PeerError)
        assert "all stages must read the same data; against the first: num_tokens 10, not 9" in str(error)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"labels": np.arange(4), "loss_mask": np.ones(3)}, "sample 1 has 4 tokens with padding, but loss_mask [3]"),
        ({"labels": 3}, "sample 1 has 4 tokens with padding, but labels []"),
        ({"labels": np.full(4, 0.5)}, "labels"),
        ({"name": "a.txt"}, "sample 1: name must hold numbers, got <U5"),
        ({"attention_mask": None}, "sample 1: attention_mask must hold numbers, got object"),
    ],
)
@pytest.mark.parametrize("bad", [0, 10])
def test_a_wrong_field_on_one_rank_is_an_error_on_all(bad: int, changes: dict[str, Any], text: str) -> None:
    found = outcomes(lambda rank, groups: iter([sample(4), sample(4, **(changes if rank == bad else {}))]))
    for error in found:
        assert isinstance(error, PeerError)
        assert text in str(error)
        assert "does not arrive" not in str(error)


def test_a_field_that_looks_per_token_in_one_row_is_none_there() -> None:
    # Four numbers a sequence: like one a token in rows of sequences of 4 tokens, where no other is.
    mesh = dcpack.Topology(axes=("dp",), sizes=(2,))
    options = StepOptions(capacity=8, scheduler="in_order")

    def fn(world: dcpack.Communicator) -> list[Any]:
        items = [[sample(4, image=np.arange(4.0))] * 2, [sample(8, image=np.arange(4.0))]][world.rank]
        step = wrap_data_iterator(iter([items]), build_groups(world, mesh), options, num_microbatches=1)
        return [(row.get("image"), [s["image"].tolist() for s in row["sample_fields"]]) for row in step.data_iterator]

    image = [0.0, 1.0, 2.0, 3.0]
    assert dcpack.run_ranks(2, fn) == [[(None, [image] * 2)], [(None, [image])]]


def test_a_field_of_some_samples_is_in_every_row_of_every_rank() -> None:
    # Rank 0 reads the only sample with a score, of 4 tokens; each rank packs one sequence.
    mesh = dcpack.Topology(axes=("dp",), sizes=(3,))
    options = StepOptions(capacity=8, scheduler="in_order", on_empty="dummy")

    def fn(world: dcpack.Communicator) -> list[Any]:
        given = ({"score": np.arange(4, dtype=np.float16) + 1}, {"score": np.ones(8, np.float32)}, {})
        items = [[sample(4, **given[0]), sample(8)], [sample(8, **given[1])], [sample(8)]][world.rank]
        step = wrap_data_iterator(iter([items]), build_groups(world, mesh), options, num_microbatches=1)
        rows = list(step.data_iterator)
        return [(sorted(row), str(row["score"].dtype), float(row["score"].sum())) for row in rows]

    found = dcpack.run_ranks(3, fn)
    rows = [row for mine in found for row in mine]
    assert len({tuple(keys) for keys, _, _ in rows}) == 1
    assert {dtype for _, dtype, _ in rows} == {"float32"}
    assert sorted(total for _, _, total in rows) == [0.0, 0.0, 0.0, 0.0, 8.0, 10.0]


def test_fields_that_differ_between_ranks_are_an_error_on_all() -> None:
    mesh = dcpack.Topology(axes=("dp",), sizes=(2,))

    def fn(world: dcpack.Communicator) -> None:
        items = [sample(4, score=np.zeros((4, 2 + world.rank)))]
        wrap_data_iterator(iter([items]), build_groups(world, mesh), StepOptions(capacity=8), num_microbatches=1)

    with pytest.raises(PeerError, match=r"per-token field 'score' must have the same dimensions everywhere"):
        dcpack.run_ranks(2, fn)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (lambda rank, groups: None, "data_iterator must not be None on a stage that computes on data"),
        (lambda rank, groups: [iter([])] * 2, "one iterator for each of 1 virtual stages, got 2"),
        (lambda rank, groups: iter([sample(4), sample(400)]), "1 sequence is longer than the limit of 64 tokens"),
        (lambda rank, groups: iter([sample(4), {"tokens": np.arange(3)}]), "not both or neither: sample 1"),
    ],
)
def test_what_cannot_be_is_an_error_on_all(source: Any, text: str) -> None:
    found = outcomes(source)
    assert all(text in str(error) for error in found), found


def test_peers_must_not_bring_data() -> None:
    mesh = dcpack.Topology(axes=("tp",), sizes=(2,))
    options = StepOptions(capacity=32, tp_size=2)

    def fn(world: dcpack.Communicator) -> None:
        wrap_data_iterator(iter([sample(4)]), build_groups(world, mesh), options, num_microbatches=1)

    with pytest.raises(PeerError, match="data_iterator must be None on all but the first rank"):
        dcpack.run_ranks(2, fn)


def test_options_must_be_those_of_the_groups() -> None:
    found = outcomes(lambda rank, groups: iter([]), options=StepOptions(capacity=32, tp_size=2, pp_size=2))
    assert all("options must be those of the groups: pp_size 2, not 3, cp_size 1, not 2" in str(e) for e in found)


def test_too_few_sequences_get_dummies_where_asked_for() -> None:
    mesh = dcpack.Topology(axes=("dp",), sizes=(2,))
    for on_empty in ("error", "dummy"):
        options = StepOptions(capacity=32, scheduler="in_order", on_empty=on_empty)
        found = outcomes(
            lambda r, g: iter([[sample(4)] if r == 0 else []]), mesh=mesh, options=options, num_microbatches=1
        )
        if on_empty == "error":
            assert all("cannot give each of 2 ranks work" in str(error) for error in found)
        else:
            rows = [next(step.data_iterator) for step in found]
            assert sorted(float(row["loss_mask"].sum()) for row in rows) == [0.0, 3.0]
            assert found[0].totals.num_microbatches == 1


class OnDevice:
    """An array where only its device can reach it: no message takes it."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array


def arrays_in(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [array for each in value.values() for array in arrays_in(each)]
    if isinstance(value, list):
        return [array for each in value for array in arrays_in(each)]
    return [value] if isinstance(value, np.ndarray | OnDevice) else []


@pytest.mark.parametrize("vpp_size", [1, 2])
def test_micro_batches_are_moved_on_every_stage_and_told_before(vpp_size: int) -> None:
    mesh = dcpack.Topology(axes=("pp", "tp"), sizes=(3, 2))
    options = StepOptions(capacity=32, tp_size=2, pp_size=3, vpp_size=vpp_size)

    def fn(world: dcpack.Communicator) -> Any:
        groups = build_groups(world, mesh)
        items = iter([[sample(n, image=np.zeros(3)) for n in (9, 5, 8, 4)]]) if has_data(groups) else None
        source = items if vpp_size == 1 else [items] + [None] * (vpp_size - 1)
        step = wrap_data_iterator(source, groups, options, num_microbatches=1, to_device=OnDevice)
        stages = step.data_iterator if vpp_size > 1 else [step.data_iterator]
        return [[] if rows is None else list(rows) for rows in stages]

    found = dcpack.run_ranks(6, fn)
    for rank, stages in enumerate(found):
        for rows in stages:
            assert (len(rows) > 0) == (rank % 2 == 0)
            for row in rows:
                arrays = arrays_in(row)
                assert {type(array) for array in arrays} == {OnDevice}
                assert len(arrays) == len({id(array.array) for array in arrays}) >= 2
                assert (row["cu_seqlens"].array.dtype, type(row["max_seqlen"])) == (np.int32, int)
    # The middle stage has the offsets of the first.
    offsets = [[row["cu_seqlens"].array.tolist() for row in found[rank][0]] for rank in (0, 2, 4)]
    assert offsets[0] == offsets[1] == offsets[2]


def test_a_rank_that_cannot_move_its_micro_batches_is_told_to_all() -> None:
    mesh = dcpack.Topology(axes=("pp", "dp"), sizes=(3, 2))
    options = StepOptions(capacity=32, pp_size=3)

    def fn(world: dcpack.Communicator) -> Any:
        groups = build_groups(world, mesh)

        def to_device(array: Any) -> Any:
            if world.rank == 3:  # of the middle stage
                raise MemoryError("no room")
            return array

        items = iter([[sample(9), sample(5)]]) if has_data(groups) else None
        try:
            wrap_data_iterator(items, groups, options, num_microbatches=1, to_device=to_device)
        except PeerError as error:
            return error.rank, error.cause

    assert dcpack.run_ranks(6, fn) == [(3, "MemoryError")] * 6


def given_otherwise(mesh: dcpack.Topology, bad: int, *, mtp_stages: Any = (), changes: Any = None) -> list[str]:
    """What every rank is told where rank `bad` alone has `mtp_stages`, and `changes` to its other arguments."""
    sizes = {axis: mesh.sizes[mesh.axes.index(axis)] if axis in mesh.axes else 1 for axis in ("pp", "tp", "cp")}
    base = {"capacity": 32, "vpp_size": 2, **{f"{axis}_size": size for axis, size in sizes.items()}}

    def fn(world: dcpack.Communicator) -> str:
        groups = build_groups(world, mesh)
        given = {"num_microbatches": 1, **(changes if changes and world.rank == bad else {})}
        count = given.pop("num_microbatches")
        mtp = mtp_stages if world.rank == bad else ()
        options = StepOptions(**{**base, **given})
        reads = groups.tp.rank == 0 and (has_data(groups) or mtp)
        items = iter([[sample(9), sample(5)]] * 2) if reads else None
        with pytest.raises(PeerError) as caught:
            wrap_data_iterator(items, groups, options, num_microbatches=count, mtp_stages=mtp)
        assert caught.value.cause == "ArgumentError"
        return str(caught.value)

    return dcpack.run_ranks(mesh.num_ranks, fn, deadline_s=60.0)


THREE_STAGES = dcpack.Topology(axes=("pp", "dp", "tp"), sizes=(3, 2, 2))


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (2, "against rank 0: rank 2 mtp_stages [1], not []"),  # the first stage
        (4, "against rank 4: rank 6 mtp_stages [], not [1]"),  # the middle one, which else reads no data
        (6, "against rank 4: rank 6 mtp_stages [1], not []"),
        (5, "against rank 5: rank 7 mtp_stages [], not [1]"),  # not the first of its tensor-parallel group
        (10, "against rank 8: rank 10 mtp_stages [1], not []"),  # the last stage
    ],
)
def test_mtp_layers_on_some_ranks_of_a_stage_are_an_error_on_all(bad: int, text: str) -> None:
    # The sequences that come from a rank without MTP layers would have no labels, and count in no loss.
    for told in given_otherwise(THREE_STAGES, bad, mtp_stages=(1,)):
        assert f"all ranks must be given the same arguments; {text}" in told


@pytest.mark.parametrize("axis", ["dp", "cp", "tp"])
def test_mtp_layers_are_compared_along_each_axis_of_a_stage(axis: str) -> None:
    mesh = dcpack.Topology(axes=("pp", axis), sizes=(3, 2))
    for told in given_otherwise(mesh, 3, mtp_stages=(0, 0)):
        assert "against rank 2: rank 3 mtp_stages [0], not []" in told


def test_stages_may_differ_in_mtp_layers() -> None:
    mesh = dcpack.Topology(axes=("pp", "dp"), sizes=(3, 2))

    def fn(world: dcpack.Communicator) -> list[str]:
        groups = build_groups(world, mesh)
        middle = groups.pp.rank == 1
        items = iter([[sample(9), sample(5)]])
        options = StepOptions(capacity=32, pp_size=3)
        step = wrap_data_iterator(items, groups, options, num_microbatches=1, mtp_stages=(0,) if middle else ())
        return sorted(next(step.data_iterator).keys() & {"tokens", "labels"})

    assert dcpack.run_ranks(6, fn) == [["tokens"]] * 2 + [["labels", "tokens"]] * 2 + [["labels"]] * 2


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"num_microbatches": 2}, "num_microbatches 2, not 1"),
        ({"capacity": 64}, "capacity 64, not 32"),
        ({"vpp_size": 3}, "vpp_size 3, not 2"),
        ({"microbatch_group_size": 4}, "microbatch_group_size 4, not 3"),
        ({"scheduler": "in_order"}, "scheduler 'InOrder', not 'DynamicCP'"),
        ({"padding": dcpack.PaddingRule(tp=4, block=2)}, "padding {"),
        ({"cp_sizes": (1, 2)}, "cp_sizes [1, 2], not 'powers_of_two'"),
        ({"min_cp_size": 2}, "min_cp_size 2, not 1"),
        ({"max_cp_size": 2}, "max_cp_size 2, not None"),
        ({"max_sequences": 9}, "max_sequences 9, not None"),
        ({"sharding": "contiguous"}, "sharding 'contiguous', not 'zigzag'"),
        ({"on_empty": "dummy"}, "on_empty 'dummy', not 'error'"),
        ({"sync": "step"}, "sync 'step', not 'microbatch'"),
    ],
)
@pytest.mark.parametrize(
    ("axes", "sizes", "bad", "first"),
    [(("pp", "dp"), (3, 2), 3, 2), (("pp", "dp"), (3, 2), 5, 4), (("pp",), (3,), 1, 0), (("pp", "tp"), (3, 2), 3, 2)],
)
def test_other_arguments_on_one_rank_are_an_error_on_all(
    axes: tuple[str, ...], sizes: tuple[int, ...], bad: int, first: int, changes: dict[str, Any], text: str
) -> None:
    # The middle stage does not plan, nor do other ranks of a tensor-parallel group than the first.
    for told in given_otherwise(dcpack.Topology(axes=axes, sizes=sizes), bad, changes=changes):
        assert f"all ranks must be given the same arguments; against rank {first}: rank {bad} {text}" in told


def test_a_scheduler_of_ones_own_on_one_rank_only_is_an_error_on_all() -> None:
    class Own(InOrder):
        pass

    mesh = dcpack.Topology(axes=("pp", "tp"), sizes=(2, 2))
    for told in given_otherwise(mesh, 3, changes={"scheduler": Own()}):
        assert "against rank 2: rank 3 scheduler 'Own', not 'DynamicCP'" in told


def test_equal_options_in_other_words_are_the_same() -> None:
    mesh = dcpack.Topology(axes=("dp",), sizes=(2,))
    ways = ({"cp_sizes": (2, 1), "padding": None}, {"cp_sizes": np.array([1, 2]), "capacity": np.int64(32)})

    def fn(world: dcpack.Communicator) -> int:
        options = StepOptions(**{"capacity": 32, "padding": dcpack.PaddingRule(), **ways[world.rank]})
        items = iter([[sample(9), sample(5)]])
        return wrap_data_iterator(items, build_groups(world, mesh), options, num_microbatches=1).totals.num_tokens

    assert dcpack.run_ranks(2, fn) == [28] * 2


def interrupted() -> Iterator[Any]:
    yield sample(4)
    raise KeyboardInterrupt


@pytest.mark.parametrize("bad", [0, 2, 4, 8, 10])
def test_a_ctrl_c_on_one_rank_is_told_to_all_and_stays_what_it_is(bad: int) -> None:
    def to_device(array: Any) -> Any:
        raise KeyboardInterrupt  # on the middle stage, which reads no data

    def fn(world: dcpack.Communicator) -> str:
        groups = build_groups(world, MESH)
        items = (interrupted() if world.rank == bad else iter([sample(4)] * 2)) if has_data(groups) else None
        moved = to_device if world.rank == bad == 4 else None
        try:
            wrap_data_iterator(items, groups, OPTIONS, num_microbatches=2, to_device=moved)
        except PeerError as error:
            return f"told: {error.rank} {error.cause}"
        except KeyboardInterrupt:
            return "interrupted"
        return "nothing"

    told = f"told: {bad} KeyboardInterrupt"
    assert dcpack.run_ranks(12, fn) == ["interrupted" if rank == bad else told for rank in range(12)]


class NotTwice:
    """An array of a device that has no room for a copy."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise MemoryError("no room")


@pytest.mark.parametrize("bad", range(4))
def test_a_rank_that_cannot_copy_for_its_virtual_stages_is_told_to_all(bad: int) -> None:
    mesh = dcpack.Topology(axes=("pp", "dp"), sizes=(2, 2))
    options = StepOptions(capacity=32, pp_size=2, vpp_size=2)

    def fn(world: dcpack.Communicator) -> Any:
        groups = build_groups(world, mesh)
        items = [iter([[sample(9), sample(5)]]), None]
        to_device = (lambda array: NotTwice()) if world.rank == bad else None
        try:
            wrap_data_iterator(items, groups, options, num_microbatches=1, to_device=to_device)
        except PeerError as error:
            return error.rank, error.cause

    assert dcpack.run_ranks(4, fn, deadline_s=60.0) == [(bad, "MemoryError")] * 4


def test_steps_follow_one_another() -> None:
    mesh = dcpack.Topology(axes=("dp",), sizes=(2,))
    options = StepOptions(capacity=16)

    def fn(world: dcpack.Communicator) -> list[int]:
        groups = build_groups(world, mesh)
        source = iter([sample(n) for n in range(1, 8)])
        sizes = [wrap_data_iterator(source, groups, options, num_microbatches=2).totals.num_tokens for _ in range(3)]
        with pytest.raises(EndOfData) as end:
            wrap_data_iterator(source, groups, options, num_microbatches=2)
        return [*sizes, *end.value.num_items]

    assert dcpack.run_ranks(2, fn) == [[6, 14, 22, 1, 1]] * 2


def test_planning_is_over_padded_lengths() -> None:
    plan = plan_step([8, 30], StepOptions(capacity=16, tp_size=2), num_ranks=2)
    assert plan.lengths.tolist() == [8, 30]
    assert plan.padding == dcpack.PaddingRule(tp=2)
    static = plan_step([8, 8], StepOptions(capacity=8, cp_size=2, scheduler="in_order"), num_ranks=2)
    assert static.cp_size.tolist() == [2] * static.num_bins
    capped = plan_step([8, 8], StepOptions(capacity=8, max_sequences=1), num_ranks=1)
    assert capped.num_microbatches == 2
