"""The exactness example on real processes, and that its check can fail."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

Launch = Callable[..., list[Any]]

attention: Any = importlib.import_module("attention")
broken: Any = importlib.import_module("broken")
checking: Any = importlib.import_module("checking")
decoder: Any = importlib.import_module("decoder")
evidence: Any = importlib.import_module("evidence")
proof: Any = importlib.import_module("proof")
texts: Any = importlib.import_module("texts")
training: Any = importlib.import_module("training")
unpacked: Any = importlib.import_module("unpacked")

FOUR_WAYS = ("padded", "packed, DP", "packed, dynamic CP")
MISTAKES = tuple(name for name in broken.BROKEN if name != "average_kept")  # which needs a wrapper that averages
WRAPPED = ("packed, dynamic CP, DDP", "packed, dynamic CP, FSDP2")


def _rows(reports: list[Any], *, ways: tuple[str, ...], mistakes: tuple[str, ...]) -> dict[str, Any]:
    """Return the rows by name, after making sure that every rank found the same, no faults, and all that was asked."""
    assert [report.faults for report in reports] == [[]] * len(reports)
    assert all(report.rows == reports[0].rows for report in reports)
    rows = {row.name: row for row in reports[0].rows}
    assert list(rows) == [proof.REFERENCE, *ways, *mistakes]
    return rows


@pytest.fixture(scope="module")
def on_four_ranks(launch: Launch) -> dict[str, list[Any]]:
    """The reports of all ranks, of one launch: to start four processes takes longer than to train in them."""
    ways = {"num_steps": 20, "ways": FOUR_WAYS, "broken": ()}
    options = {
        "float64": {"dtype": "float64", **ways},
        "float32": {"dtype": "float32", **ways},
        "mistakes": {"num_steps": 5, "ways": (), "broken": MISTAKES},
    }
    found = launch(4, "prove", list(options.values()))
    return {name: [reports[place] for reports in found] for place, name in enumerate(options)}


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-10), ("float32", 1e-5)])
def test_four_ways_agree_on_four_ranks_over_twenty_steps(
    on_four_ranks: dict[str, list[Any]], dtype: str, tolerance: float
) -> None:
    rows = _rows(on_four_ranks[dtype], ways=FOUR_WAYS, mistakes=())
    for name in FOUR_WAYS:
        assert rows[name].difference.loss <= tolerance
        assert rows[name].difference.gradients <= tolerance
        assert rows[name].first_loss == pytest.approx(math.log(257), abs=0.5)
        assert rows[name].last_loss > 0
    # The runs went different ways through the numbers, so they were not one run compared with itself.
    assert rows["packed, dynamic CP"].difference.gradients > 0
    assert rows["packed, dynamic CP"].difference != rows["packed, DP"].difference
    parallel = rows["packed, dynamic CP"].cases
    assert parallel.cp_sizes == (1, 2, 4)
    assert parallel.steps_without_valid == 4
    assert min(parallel.ranks_without_valid, parallel.uneven_bins, parallel.packed_cp_bins) > 0
    assert min(parallel.ragged_cp_sequences, parallel.single_tokens) > 0
    assert rows["packed, DP"].cases.cp_sizes == (1,)
    assert rows["packed, DP"].cases.dummies > 0
    assert rows["packed, DP"].cases.num_microbatches > 1


def test_every_mistake_is_seen(on_four_ranks: dict[str, list[Any]]) -> None:
    rows = _rows(on_four_ranks["mistakes"], ways=(), mistakes=MISTAKES)
    for name in MISTAKES:
        # Far beyond what float32 may differ by, and without infinities or NaN: a mistake, not a crash.
        assert 1e-3 < rows[name].difference.gradients < math.inf
        assert rows[name].first_loss == pytest.approx(math.log(257), abs=0.5)


def test_ddp_and_fsdp2_agree_on_two_ranks_once_their_averaging_is_undone(launch: Launch) -> None:
    found = launch(2, "prove", [{"num_steps": 10, "ways": WRAPPED, "broken": ("average_kept",)}])
    rows = _rows([report for reports in found for report in reports], ways=WRAPPED, mistakes=("average_kept",))
    for name in WRAPPED:
        assert max(rows[name].difference.loss, rows[name].difference.gradients) <= 1e-10
        assert rows[name].cases.cp_sizes == (1, 2)
        assert rows[name].cases.ranks_without_valid > 0
    assert rows["average_kept"].difference.gradients >= 0.5  # half of what it should be, in the first step


def test_main_says_proven_and_fails_where_a_way_differs(launch: Launch) -> None:
    arguments = ["--dtype", "float64", "--steps", "1", "--way", "packed, dynamic CP", "--broken", "mean_of_means"]
    proven, failed, passed = zip(*launch(2, "run_main", arguments, [1e-10, 1e-18, 10.0]), strict=True)
    assert [status for status, _ in proven] == [0, 0]
    assert "\nPROVEN" in proven[0][1]
    assert proven[1][1] == ""
    assert [status for status, _ in failed] == [1, 1]
    assert "NOT PROVEN\npacked, dynamic CP: differs from one at a time at 1e-18" in failed[0][1]
    assert [status for status, _ in passed] == [1, 1]
    assert "mean_of_means: is broken, but passes at 10" in passed[0][1]


def test_gathering_sums_the_gradients_of_all_ranks(launch: Launch) -> None:
    found = launch(2, "gather_with_gradient")
    assert [whole for whole, _ in found] == [[1.0, 2.0]] * 2
    assert [gradient for _, gradient in found] == [[1.0 + 100.0], [10.0 + 1000.0]]


def _results(loss: float, *gradient: float) -> list[Any]:
    return [training.StepResult(loss=loss, gradients={"weight": torch.tensor(gradient)})]


def test_compare_measures_relative_to_the_reference() -> None:
    found = checking.compare(_results(2.0, 4.0, -8.0), _results(2.5, 4.0, -8.5))
    assert (found.loss, found.gradients) == (0.25, 0.0625)
    assert found.passes(0.25)
    assert not found.passes(0.2)


def test_compare_takes_exact_zeros_literally() -> None:
    assert checking.compare(_results(0.0, 0.0), _results(0.0, 0.0)).passes(0.0)
    assert not checking.compare(_results(0.0, 0.0), _results(0.0, 1e-30)).passes(1e9)
    assert checking.compare(_results(0.0, 0.0), _results(1e-30, 1e-30)) == checking.Difference(
        loss=math.inf, gradients=math.inf
    )


@pytest.mark.parametrize(("loss", "gradient"), [(math.nan, 1.0), (1.0, math.nan)])
def test_compare_lets_no_nan_pass(loss: float, gradient: float) -> None:
    assert not checking.compare(_results(1.0, 1.0), _results(loss, gradient)).passes(1e9)
    both = checking.compare(_results(1.0, 1.0) * 2, _results(loss, gradient) + _results(1.0, 1.0))
    assert not both.passes(1e9)


def test_masked_attention_is_causal_attention() -> None:
    torch.manual_seed(0)
    query = torch.randn(2, 7, 4, 8, dtype=torch.float64)
    key, value = (torch.randn(2, 7, 2, 8, dtype=torch.float64) for _ in range(2))
    causal = torch.ones(7, 7, dtype=torch.bool).tril()[None]
    masked = attention.attend_where(query, key, value, causal)
    torch.testing.assert_close(masked, attention.attend_one_sequence(query, key, value))
    # Heads 0 and 1 share the first head of keys and values, heads 2 and 3 the second.
    other = attention.attend_where(query, key, value * torch.tensor([1.0, 2.0])[:, None], causal)
    torch.testing.assert_close(other, masked * torch.tensor([1.0, 1.0, 2.0, 2.0])[:, None])


def test_packed_attention_sees_its_own_segment_up_to_its_own_slot() -> None:
    slots, segments = torch.tensor([4, 0, 1, 2, 3]), torch.tensor([0, 1, 1, 2, 2])
    visible = attention.PackedAttention.over(slots, segments, None).visible
    assert visible[0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [0, 1, 0, 0, 0],
        [0, 1, 1, 0, 0],
        [0, 0, 0, 1, 0],
        [0, 0, 0, 1, 1],
    ]


def test_rotary_positions_alone_cannot_tell_whether_positions_restart() -> None:
    """Why the decoder has a temperature: without it one of the mistakes would be none."""
    tokens = torch.from_numpy(texts.make_steps(1, seed=5)[0][0]["input_ids"].astype(np.int64))[None]
    positions = torch.arange(tokens.shape[1])[None]
    for temperature, is_blind in ((0.0, True), (0.25, False)):
        torch.manual_seed(0)
        model = decoder.Decoder(decoder.DecoderOptions(temperature=temperature)).double()
        here, there = (model(tokens, positions + shift, attention.attend_one_sequence) for shift in (0, 100))
        assert torch.allclose(here, there, rtol=1e-9, atol=1e-9) == is_blind


def test_steps_are_the_same_each_time_and_hold_every_case() -> None:
    steps, again = texts.make_steps(10, seed=3), texts.make_steps(10, seed=3)
    for samples, copies in zip(steps, again, strict=True):
        for sample, copy in zip(samples, copies, strict=True):
            assert sample.keys() == copy.keys()
            assert all(np.array_equal(sample[name], copy[name]) for name in sample)
    valid = [[int((unpacked._targets(sample) != -100).sum()) for sample in samples] for samples in steps]
    assert [sum(counts) > 0 for counts in valid] == [True, True, True, True, False] * 2
    assert {"labels", "loss_mask"} <= {name for sample in steps[1] for name in sample}
    assert sorted(valid[2]) == [0, 0, 0, 0, 0, 30]
    assert all(1 in [sample["input_ids"].size for sample in samples] for samples in steps)
    assert not np.array_equal(steps[0][0]["input_ids"], texts.make_steps(1, seed=4)[0][0]["input_ids"])


def _batch_row(**values: int) -> list[int]:
    return [values.get(name, 0) for name in evidence._COLUMNS]


def test_cases_are_counted_per_step_rank_and_bin() -> None:
    table = np.array(
        [
            _batch_row(rank=0, cp_size=2, here=9, valid=10, sequences=2, single=1, ragged=2),
            _batch_row(rank=1, cp_size=2, here=1, valid=10, sequences=2, single=1, ragged=2),
            _batch_row(rank=2, first=2, cp_size=1, here=0, valid=10, sequences=1),
            _batch_row(rank=2, first=2, cp_size=1, step=1, microbatch=1, dummy=1, sequences=1),
        ]
    )
    assert evidence._count_cases(table) == evidence.Cases(
        cp_sizes=(1, 2),
        num_microbatches=2,
        steps_without_valid=1,
        ranks_without_valid=1,
        uneven_bins=1,
        dummies=1,
        packed_cp_bins=1,
        ragged_cp_sequences=2,
        single_tokens=1,
    )


def test_a_case_that_was_never_met_is_a_fault() -> None:
    cases = evidence.Cases(
        cp_sizes=(1, 2),
        num_microbatches=2,
        steps_without_valid=1,
        ranks_without_valid=1,
        uneven_bins=1,
        dummies=0,
        packed_cp_bins=0,
        ragged_cp_sequences=2,
        single_tokens=1,
    )
    row = proof.Row(
        name="packed, dynamic CP",
        is_broken=False,
        first_loss=1.0,
        last_loss=1.0,
        difference=checking.Difference(loss=0.0, gradients=0.0),
        cases=cases,
    )
    report = proof.Report(options=proof.ProofOptions(num_steps=5), num_ranks=4, rows=[row])
    assert proof._faults(report) == [
        "packed, dynamic CP: never met: CP size 1 and 4",
        "packed, dynamic CP: never met: several sequences under CP",
    ]


def test_the_page_shows_the_command() -> None:
    root = Path(__file__).parents[2]
    script = "docs/examples/torch_exactness/main.py"
    assert f"torchrun --standalone --nproc-per-node 4 {script}" in (root / "docs" / "exactness.md").read_text()
    assert (root / script).is_file()
