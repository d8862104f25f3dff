from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import dcpack
from dcpack.errors import ArgumentError
from dcpack.exchange import SampleTable, align_fields, exchange_samples, gather_samples

PlanOf = Callable[..., dcpack.Plan]
TableOf = Callable[..., SampleTable]


def make_samples(fields: Sequence[str], length: int = 4) -> list[dict[str, Any]]:
    """One sample for each text: ``"ia"`` has an image and audio, ``"s"`` a score, ``""`` tokens alone."""
    made = {"i": ("image", np.ones((2, 3), np.float16)), "a": ("audio", np.ones(5)), "s": ("score", np.int8(1))}
    return [{"tokens": np.arange(length), **dict(made[letter] for letter in letters)} for letters in fields]


def one_rank_bins(num_ranks: int, num_microbatches: int, length: int = 4) -> list[Any]:
    """Sequence after sequence, each alone in its bin."""
    cells = [(m, r) for m in range(num_microbatches) for r in range(num_ranks)]
    return [(m, r, 1, [(k, 0, length)]) for k, (m, r) in enumerate(cells)]


def bins_of(plan: dcpack.Plan) -> list[list[int]]:
    return [plan.sequence_ids[a:b].tolist() for a, b in zip(plan.offsets[:-1], plan.offsets[1:], strict=True)]


def test_grouping_by_hand(plan_of: PlanOf, table_of: TableOf) -> None:
    # Two ranks, three micro-batches. Images in samples 0, 3 and 4: the first micro-batch gets two of them, the second
    # one and a stand-in, the third none.
    samples = make_samples(["i", "", "", "i", "i", ""])
    plan = plan_of([4] * 6, one_rank_bins(2, 3), num_ranks=2)
    aligned, needed = align_fields(plan, table_of(samples), ["image"])
    assert bins_of(aligned) == [[0], [3], [4], [1], [2], [5]]
    assert aligned.microbatch.tolist() == [0, 0, 1, 1, 2, 2]
    assert list(needed) == ["image"]
    assert needed["image"].tolist() == [False, False, False, True, False, False]


def test_only_bins_of_one_cp_size_change_places(plan_of: PlanOf, table_of: TableOf) -> None:
    samples = make_samples(["", "i", "", "i", "", "i"])
    bins = [
        (0, 0, 2, [(0, 0, 4)]),
        (0, 2, 1, [(1, 0, 4)]),
        (0, 3, 1, [(2, 0, 4)]),
        (1, 0, 2, [(3, 0, 4)]),
        (1, 2, 1, [(4, 0, 4)]),
        (1, 3, 1, [(5, 0, 4)]),
    ]
    plan = plan_of([4] * 6, bins, num_ranks=4)
    aligned, needed = align_fields(plan, table_of(samples), ["image"])
    assert bins_of(aligned) == [[3], [1], [5], [0], [2], [4]]
    assert aligned.cp_size.tolist() == [2, 1, 1, 2, 1, 1]
    assert aligned.first_rank.tolist() == [0, 2, 3, 0, 2, 3]
    assert needed["image"].tolist() == [False] * 6


def test_the_first_of_several_fields_sorts_first(plan_of: PlanOf, table_of: TableOf) -> None:
    samples = make_samples(["a", "i", "ia", ""])
    plan = plan_of([4] * 4, one_rank_bins(2, 2), num_ranks=2)
    aligned, needed = align_fields(plan, table_of(samples), ["image", "audio"])
    assert bins_of(aligned) == [[2], [1], [0], [3]]
    assert {name: bins.tolist() for name, bins in needed.items()} == {
        "image": [False, False, False, False],
        "audio": [False, True, False, True],
    }
    other, _ = align_fields(plan, table_of(samples), ["audio", "image"])
    assert bins_of(other) == [[2], [0], [1], [3]]


def test_uniform_micro_batches_stay_as_they_are(plan_of: PlanOf, table_of: TableOf) -> None:
    samples = make_samples(["i", "i", "", ""])
    plan = plan_of([4] * 4, one_rank_bins(2, 2), num_ranks=2)
    aligned, needed = align_fields(plan, table_of(samples), ["image"])
    assert aligned.digest() == plan.digest()
    assert not needed["image"].any()


@pytest.mark.parametrize("fields", [["image"], ["unheard of"], []])
def test_nothing_to_align_changes_nothing(fields: list[str], plan_of: PlanOf, table_of: TableOf) -> None:
    plan = plan_of([4] * 4, one_rank_bins(2, 2), num_ranks=2)
    aligned, needed = align_fields(plan, table_of(make_samples([""] * 4)), fields)
    assert aligned.digest() == plan.digest()
    assert {name: bins.tolist() for name, bins in needed.items()} == {name: [False] * 4 for name in fields}


def test_dummy_bins_get_stand_ins_too(plan_of: PlanOf, table_of: TableOf) -> None:
    plan = plan_of([4], [(0, 0, 1, [(0, 0, 4)]), (0, 1, 1, [])], num_ranks=2)
    aligned, needed = align_fields(plan, table_of(make_samples(["i"])), ["image"])
    assert aligned.dummy.tolist() == [False, True]
    assert needed["image"].tolist() == [False, True]


def test_rows_are_where_the_first_piece_is_and_scalars_with_every_piece(plan_of: PlanOf, table_of: TableOf) -> None:
    # Sample 0 lies in both micro-batches; its image came with the piece in the second one.
    bins = [(0, 0, 1, [(0, 4, 4)]), (0, 1, 1, [(1, 0, 4)]), (1, 0, 1, [(0, 0, 4)]), (1, 1, 1, [(2, 0, 4)])]
    samples = [*make_samples(["is"], length=8), *make_samples(["", ""])]
    plan, table = plan_of([8, 4, 4], bins, num_ranks=2), table_of(samples)
    images, needs_image = align_fields(plan, table, ["image"])
    assert bins_of(images) == [[0], [0], [1], [2]]
    assert images.starts.tolist() == [0, 4, 0, 0]
    assert needs_image["image"].tolist() == [False, True, False, False]
    scores, needs_score = align_fields(plan, table, ["score"])
    assert bins_of(scores) == [[0], [0], [1], [2]]
    assert scores.starts.tolist() == [4, 0, 0, 0]
    assert not needs_score["score"].any()


@pytest.mark.parametrize("field", ["input_ids", "labels", "emb"])
def test_per_token_fields_are_refused(field: str, plan_of: PlanOf, table_of: TableOf) -> None:
    table = table_of([{"tokens": [1, 2], "emb": np.ones((2, 2)), "image": np.ones(1)}], per_token=["emb"])
    plan = plan_of([2], [(0, 0, 1, [(0, 0, 2)])], num_ranks=1)
    with pytest.raises(ArgumentError, match=rf"fields must not be per-token fields, got \['{field}'\]"):
        align_fields(plan, table, ["image", field])


def test_fields_is_a_sequence_of_names(plan_of: PlanOf, table_of: TableOf) -> None:
    plan = plan_of([4], [(0, 0, 1, [(0, 0, 4)])], num_ranks=1)
    with pytest.raises(ArgumentError, match="fields"):
        align_fields(plan, table_of(make_samples(["i"])), "image")


def random_step(seed: int) -> tuple[dcpack.Plan, list[dict[str, Any]]]:
    rng = np.random.default_rng(seed)
    fields = ["".join(letter for letter in "ias" if rng.random() < 0.4) for _ in range(24)]
    samples = [make_samples([letters], int(rng.integers(1, 60)))[0] for letters in fields]
    lengths = [sample["tokens"].size for sample in samples]
    return dcpack.plan(lengths, num_ranks=4, capacity=32, padding=dcpack.PaddingRule(), overlong="split"), samples


@pytest.mark.parametrize("seed", range(10))
def test_the_work_of_the_step_stays_the_same(seed: int, table_of: TableOf) -> None:
    plan, samples = random_step(seed)
    aligned, needed = align_fields(plan, table_of(samples), ["image", "audio", "score"])
    aligned.validate([sample["tokens"].size for sample in samples])

    def bins(of: dcpack.Plan) -> list[tuple[Any, ...]]:
        keys = zip(of.cp_size.tolist(), np.split(np.arange(of.sequence_ids.size), of.offsets[1:-1]), strict=True)
        return sorted((cp, *zip(of.sequence_ids[e], of.starts[e], of.entry_lengths[e], strict=True)) for cp, e in keys)

    assert bins(aligned) == bins(plan)
    for name in ("microbatch", "first_rank", "cp_size", "row"):
        assert np.array_equal(getattr(aligned, name), getattr(plan, name)), name
    assert plan.num_microbatches > 1
    assert any(bins.any() for bins in needed.values())


@pytest.mark.parametrize("seed", range(4))
def test_after_the_exchange_a_micro_batch_has_a_field_everywhere_or_nowhere(seed: int) -> None:
    _, samples = random_step(seed)
    names = ["image", "audio", "score"]

    def fn(communicator: dcpack.Communicator) -> list[tuple[int, str, bool, bool]]:
        gathered = gather_samples(communicator, samples[communicator.rank :: 4])
        plan = dcpack.plan(
            gathered.table.lengths, num_ranks=4, capacity=32, padding=dcpack.PaddingRule(), overlong="split"
        )
        aligned, needed = align_fields(plan, gathered.table, names)
        batches = exchange_samples(communicator, gathered, aligned, dummy_fields=needed)
        return [
            (batch.microbatch, name, any(name in own for own in batch.sample_fields), name in batch.dummy_fields)
            for batch in batches[communicator.rank]
            for name in names
        ]

    found = [cell for mine in dcpack.run_ranks(4, fn) for cell in mine]
    num_mixed = 0
    for key in {cell[:2] for cell in found}:
        real = [cell[2] for cell in found if cell[:2] == key]
        dummy = [cell[3] for cell in found if cell[:2] == key]
        # A stand-in exactly where others of the micro-batch have the field and this rank has not.
        assert dummy == [any(real) and not mine for mine in real]
        num_mixed += any(dummy)
    assert 0 < num_mixed < len({cell[:2] for cell in found})


def test_stand_ins_have_one_row_of_zeros(plan_of: PlanOf) -> None:
    samples = make_samples(["is", ""])
    plan = plan_of([4, 4], one_rank_bins(2, 1), num_ranks=2)

    def fn(communicator: dcpack.Communicator) -> Any:
        gathered = gather_samples(communicator, [samples[communicator.rank]])
        aligned, needed = align_fields(plan, gathered.table, ["image", "score"])
        (batch,) = exchange_samples(communicator, gathered, aligned, dummy_fields=needed)[communicator.rank]
        return batch.dummy_fields

    has_all, stand_ins = dcpack.run_ranks(2, fn)
    assert has_all == {}
    assert stand_ins["image"].tolist() == [[0.0, 0.0, 0.0]]
    assert stand_ins["score"].tolist() == 0
    assert (stand_ins["image"].dtype, stand_ins["score"].dtype) == (np.float16, np.int8)
