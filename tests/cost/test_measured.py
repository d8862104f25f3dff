from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dcpack
from dcpack.cost import COEFFICIENTS, BinTiming, FitReport, MeasuredCost, RingCost, StepRecorder, get_cost
from dcpack.errors import ArgumentError

TRUTH: dict[str, Any] = {"fixed": 0.02, "linear": 8e-5, "quadratic": 3e-9, "ring_intra": 2e-5, "ring_inter": 1e-4}


def report_of(cost: MeasuredCost) -> FitReport:
    assert cost.report is not None
    return cost.report


def time_of(cost: MeasuredCost | RingCost, lengths: Any, cp: int, crosses: bool = False) -> float:
    sums = cost.columns(np.asarray(lengths)).sum(axis=0, keepdims=True)
    return float(cost.bin_time(sums, np.array([cp]), np.array([crosses]))[0])


def timings(seed: int, overlap: bool, noise: str | None, outliers: float = 0.05) -> list[BinTiming]:
    """200 bins, a fifth of them for each coefficient, with 5% noise (uniform within, or the standard deviation)."""
    rng = np.random.default_rng(seed)
    truth = MeasuredCost(**TRUTH, overlap=overlap)
    is_outlier = rng.permutation(200) < 200 * outliers
    samples = []
    for k in range(200):
        cp, crosses = 1, False
        if k % 5 == 0:
            lengths = rng.integers(1, 60, 1)
        elif k % 5 == 1:
            lengths = rng.integers(500, 1500, 8)
        elif k % 5 == 2:
            lengths, cp = rng.integers(200_000, 400_000, 1), int(rng.integers(1, 3))
        else:
            crosses = k % 5 == 4
            lengths, cp = rng.integers(500, 3000, 16), int(rng.choice([16, 32, 64]))
        time = time_of(truth, lengths, cp, crosses)
        if noise is not None:
            time *= 1 + 0.05 * (rng.uniform(-1, 1) if noise == "uniform" else rng.standard_normal())
        if is_outlier[k]:
            time *= rng.choice([0.2, 3.0, 10.0])
        samples.append(BinTiming(lengths=lengths, cp_size=cp, crosses_node=crosses, time=time))
    return samples


def errors_of(cost: MeasuredCost) -> np.ndarray:
    return np.array([getattr(cost, name) / value - 1 for name, value in TRUTH.items()])


# ---- the model -------------------------------------------------------------------------------------------------------


def test_both_forms_by_hand() -> None:
    plain = MeasuredCost(fixed=1, linear=2, quadratic=0.5, ring_intra=3, ring_inter=50, overlap=False, attention="full")
    # 12 tokens, 80 pairs; cp 2: 6 and 40, one round passes 6 tokens on
    assert time_of(plain, [8, 4], 1, crosses=True) == 1 + 2 * 12 + 0.5 * 80
    assert time_of(plain, [8, 4], 2) == 1 + 2 * 6 + 0.5 * 40 + 3 * 6
    assert time_of(plain, [8, 4], 2, crosses=True) == 1 + 2 * 6 + 0.5 * 40 + 50 * 6
    hidden = replace(plain, overlap=True)
    # a round of 10 against a transfer of 18
    assert time_of(hidden, [8, 4], 2) == 1 + 2 * 6 + 10 + 18
    assert time_of(hidden, [32], 4) == 1 + 2 * 8 + 4 * 32  # a round of 32 hides a transfer of 24
    assert (plain.unit, plain.node_size) == ("s", 8)


def test_with_overlap_it_is_ring_cost() -> None:
    rng = np.random.default_rng(0)
    lengths, cp = rng.integers(1, 200_000, 200), 2 ** rng.integers(0, 7, 200)
    crosses = rng.random(200) < 0.5
    ring = RingCost(linear=3e4, quadratic=0.7, ring_intra=900.0, ring_inter=5e3)
    same = MeasuredCost(linear=3e4, quadratic=0.7, ring_intra=900.0, ring_inter=5e3, attention="full")
    expected = ring.bin_time(ring.columns(lengths), cp, crosses)
    np.testing.assert_allclose(same.bin_time(same.columns(lengths), cp, crosses), expected, rtol=1e-12)


# ---- fits of bins ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_coefficients_come_back_within_two_percent(seed: int, overlap: bool) -> None:
    cost = MeasuredCost.fit(timings(seed, overlap, "uniform"), overlap=overlap)
    assert np.abs(errors_of(cost)).max() < 0.02
    report = report_of(cost)
    assert (report.num_samples, report.num_outliers, report.warnings) == (200, 10, ())
    assert report.r2 > 0.99
    assert 0.01 < report.median_relative_error < 0.04
    assert report.p95_relative_error < 0.07


@pytest.mark.parametrize("overlap", [False, True])
def test_fits_scatter_no_more_than_the_noise_makes_them(overlap: bool) -> None:
    """40 timings of 5% normal noise tell a coefficient to 0.8% at best; 2% is two and a half such errors."""
    fits = [MeasuredCost.fit(timings(seed, overlap, "normal"), overlap=overlap) for seed in range(12)]
    errors = np.array([errors_of(cost) for cost in fits])
    assert np.sqrt(np.square(errors).mean(axis=0)).max() < 0.02
    assert np.abs(errors.mean(axis=0)).max() < 0.01
    claimed = np.array([list(report_of(cost).standard_errors.values()) for cost in fits]) / list(TRUTH.values())
    assert (np.abs(errors) < 5 * claimed).all()


@pytest.mark.parametrize("overlap", [False, True])
def test_without_noise_it_is_exact(overlap: bool) -> None:
    cost = MeasuredCost.fit(timings(0, overlap, None))
    assert cost.overlap is overlap  # nobody told
    np.testing.assert_allclose(errors_of(cost), 0, atol=1e-6)
    assert report_of(cost).num_outliers == 10


def test_outliers_do_not_count() -> None:
    clean = MeasuredCost.fit(timings(3, False, "uniform", outliers=0.0), overlap=False)
    spoiled = MeasuredCost.fit(timings(3, False, "uniform", outliers=0.1), overlap=False)
    assert report_of(clean).num_outliers == 0
    assert report_of(spoiled).num_outliers == 20
    assert np.abs(errors_of(clean) - errors_of(spoiled)).max() < 0.02


def test_what_is_known_is_not_fitted() -> None:
    cost = MeasuredCost.fit(timings(1, False, "uniform"), overlap=False, known={"fixed": 0.02, "ring_inter": 1.0})
    assert (cost.fixed, cost.ring_inter) == (0.02, 1.0)
    assert report_of(cost).standard_errors["fixed"] == 0


# ---- warnings --------------------------------------------------------------------------------------------------------


def bins_at(cp_sizes: list[int], crosses: bool = False) -> list[BinTiming]:
    truth = MeasuredCost(**TRUTH, overlap=False)
    shapes = [[100], [900] * 8, [30_000], [2000] * 4, [120_000], [512], [60_000, 64]]
    cells = [(lengths, cp) for lengths in shapes for cp in cp_sizes]
    return [
        BinTiming(lengths=n, cp_size=cp, crosses_node=crosses and cp > 1, time=time_of(truth, n, cp, crosses))
        for n, cp in cells
    ]


def test_all_at_cp_one() -> None:
    cost = MeasuredCost.fit(bins_at([1]))
    assert (cost.ring_intra, cost.ring_inter) == (0, 0)
    (warning,) = report_of(cost).warnings
    assert warning.startswith("all timings are at CP size 1, so ring_intra and ring_inter are not identifiable")
    given = MeasuredCost.fit(bins_at([1]), known={"ring_intra": 1e-6, "ring_inter": 1e-5})
    assert report_of(given).warnings == ()


def test_one_kind_of_ring_stands_for_the_other() -> None:
    inside = MeasuredCost.fit(bins_at([1, 4]), overlap=False)
    assert inside.ring_inter == inside.ring_intra == pytest.approx(TRUTH["ring_intra"])
    assert report_of(inside).warnings == (
        "no timing shows ring_inter: it is not identifiable and is taken to be ring_intra",
    )
    between = MeasuredCost.fit(bins_at([1, 4], crosses=True), overlap=False)
    assert between.ring_intra == between.ring_inter == pytest.approx(TRUTH["ring_inter"])


def test_timings_that_look_alike() -> None:
    truth = MeasuredCost(**TRUTH)
    samples = [BinTiming(lengths=[n], time=time_of(truth, [n], 1)) for n in range(1000, 1010)]
    report = report_of(MeasuredCost.fit(samples))
    assert report.condition_number > 100
    assert any(text.startswith("the timings look alike (condition number ") for text in report.warnings)


def test_times_that_follow_no_model() -> None:
    rng = np.random.default_rng(0)
    samples = [
        BinTiming(lengths=[n], time=float(t)) for n, t in zip(range(100, 5100, 100), rng.random(50) + 0.1, strict=True)
    ]
    warnings = report_of(MeasuredCost.fit(samples)).warnings
    assert any(text.startswith("the model describes the timings poorly") for text in warnings)


def test_a_coefficient_below_zero_is_held() -> None:
    samples = [BinTiming(lengths=[n], time=2.0 - n / 10_000) for n in range(1000, 10_000, 500)]
    cost = MeasuredCost.fit(samples)
    assert min(getattr(cost, name) for name in COEFFICIENTS) >= 0
    assert "linear came out below 0 and is held at 0" in report_of(cost).warnings


# ---- fits of steps ---------------------------------------------------------------------------------------------------


def plans(seed: int, count: int) -> list[dcpack.Plan]:
    rng = np.random.default_rng(seed)
    made = []
    for k in range(count):
        lengths = np.clip(rng.lognormal(6.4 + rng.normal(), 1.3, int(rng.integers(20, 100))), 16, 60_000).astype(int)
        lengths[0] = rng.integers(30_000, 60_000) if k % 3 == 0 else lengths[0]
        least = int(rng.choice([1, 1, 2, 8, 16]))
        made.append(dcpack.plan(lengths, num_ranks=16, capacity=8192, min_cp_size=least))
    return made


@pytest.mark.parametrize("sync", ["microbatch", "step"])
@pytest.mark.parametrize("overlap", [False, True])
def test_whole_steps_teach_to_predict_other_steps(sync: str, overlap: bool) -> None:
    truth = MeasuredCost(**TRUTH, overlap=overlap)
    rng = np.random.default_rng(1)
    recorder = StepRecorder(sync=sync, warmup=0)
    for k, plan in enumerate(plans(1, 80)):
        noise = 1 + 0.05 * rng.standard_normal()
        recorder.record(plan, plan.simulate(truth, sync=sync) * noise * (5.0 if k % 20 == 7 else 1.0))
    cost = MeasuredCost.fit(recorder.samples)
    assert report_of(cost).num_outliers >= 4
    ratios = np.array([p.simulate(cost, sync=sync) / p.simulate(truth, sync=sync) for p in plans(2, 20)])
    assert np.sqrt(np.square(ratios - 1).mean()) < 0.03


def test_times_of_ranks_teach_exactly() -> None:
    truth = MeasuredCost(**TRUTH, overlap=False)
    recorder = StepRecorder(warmup=0)
    for k, plan in enumerate(plans(3, 40)):
        recorder.record(plan, float(plan.rank_times(truth).sum(axis=0)[k % 16]), rank=k % 16)
    np.testing.assert_allclose(errors_of(MeasuredCost.fit(recorder.samples, overlap=False)), 0, atol=1e-6)


# ---- files and faults ------------------------------------------------------------------------------------------------


def test_files_keep_the_model_and_its_report(tmp_path: Path) -> None:
    cost = MeasuredCost.fit(bins_at([1, 2]), attention="sliding_window:512", node_size=4)
    path = tmp_path / "measured.json"
    cost.save(path)
    for back in (MeasuredCost.load(path), get_cost(path)):
        assert isinstance(back, MeasuredCost)
        assert back == cost
        assert back.report == cost.report
    assert (cost.node_size, cost.attention) == (4, "sliding_window:512")


def test_the_report_reads_well() -> None:
    text = str(report_of(MeasuredCost.fit(bins_at([1]))))
    assert re.search(r"^linear +8e-05 \+- .* s per token$", text, re.MULTILINE)
    assert "0 outliers of 7 timings" in text
    assert "warning: all timings are at CP size 1" in text


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"ring": {}}'])
def test_a_file_that_holds_something_else_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ArgumentError, match=r"other\.json: not a measured cost: "):
        MeasuredCost.load(path)
    with pytest.raises(ArgumentError, match=r"none\.json: not a measured cost: FileNotFoundError"):
        MeasuredCost.load(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"linear": -1.0}, "linear must be a finite number of at least 0, got -1.0"),
        ({"ring_inter": float("nan")}, "ring_inter must be a finite number of at least 0, got nan"),
        ({"overlap": 1}, "overlap must be True or False, got 1"),
        ({"node_size": 0}, "node_size must be at least 1, got 0"),
        ({"attention": "some"}, "attention must be 'causal'"),
    ],
)
def test_a_model_that_cannot_be_is_named(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        MeasuredCost(**{**TRUTH, **changed})


def test_samples_that_cannot_be_are_named() -> None:
    with pytest.raises(ArgumentError, match="samples must be BinTiming or StepTiming, at least one"):
        MeasuredCost.fit([])
    wrong: Any = [BinTiming(lengths=[3], time=1.0), 3, "x"]
    with pytest.raises(ArgumentError, match="sample 1 is 3, sample 2 is 'x'"):
        MeasuredCost.fit(wrong)
    with pytest.raises(ArgumentError, match="too few: 2 timings for the coefficients fixed, linear, quadratic"):
        MeasuredCost.fit([BinTiming(lengths=[n], time=1.0) for n in (3, 4)])
    with pytest.raises(ArgumentError, match="known has unknown keys 'cubic'; known are 'fixed', "):
        MeasuredCost.fit(bins_at([1]), known={"cubic": 1.0})
    with pytest.raises(ArgumentError, match="fixed must be a finite number of at least 0, got -1"):
        MeasuredCost.fit(bins_at([1]), known={"fixed": -1})
