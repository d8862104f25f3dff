"""The planning cases that other projects got wrong at some time, value by value. Each test says which fault it is."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import dcpack
from dcpack.cost import CostModel, QuadraticCost, RingCost
from dcpack.errors import InfeasibleError
from dcpack.padding import PaddingRule

SCHEDULERS = ["in_order", "packing_aware", "dynamic_cp", "balanced", "local_gain", "uniform_cp"]


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_uneven_ranks(scheduler: str) -> None:
    """Fault: planned per rank it is 5 micro-batches against 1, and the ranks hang; planned globally it is 3."""
    rank0, rank1 = [95] * 5, [20] * 5
    plan = dcpack.plan([*rank0, *rank1], num_ranks=2, capacity=100, scheduler=scheduler, cp_sizes=(1,))
    assert plan.num_microbatches == 3
    assert all(len(plan.bins_of_rank(rank)) == 3 for rank in range(2))


def test_fewer_sequences_than_ranks() -> None:
    """Fault: a rank without work, which hangs or trains on nothing."""
    plan = dcpack.plan([40, 30, 20], num_ranks=4, capacity=100)
    assert plan.num_microbatches == 1
    assert not plan.dummy.any()
    (groups,) = plan.to_sample_id_groups()
    assert all(groups)
    assert {i for rank in groups for i in rank} == {0, 1, 2}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_fewer_sequences_than_ranks_no_cp(scheduler: str) -> None:
    """Fault: an empty rank given out silently, or a dummy that nobody asked for."""
    options: dict[str, Any] = {"num_ranks": 4, "capacity": 100, "cp_sizes": (1,), "scheduler": scheduler}
    with pytest.raises(InfeasibleError, match=r"\b3 sequences .*\b4 ranks") as caught:
        dcpack.plan([40, 30, 20], **options)
    for text in ("sequence 0 of 40 tokens", "sequence 1 of 30 tokens", "sequence 2 of 20 tokens", "on_empty='dummy'"):
        assert text in str(caught.value)
    plan = dcpack.plan([40, 30, 20], on_empty="dummy", **options)
    assert plan.num_microbatches == 1
    assert plan.dummy.sum() == 4 - (~plan.dummy).sum() >= 1
    assert sorted(plan.sequence_ids.tolist()) == [0, 1, 2]
    assert plan.bin_times(QuadraticCost())[plan.dummy].tolist() == [0.0] * int(plan.dummy.sum())


@pytest.mark.parametrize("num_ranks", range(1, 65))
def test_fourteen_ranks(num_ranks: int) -> None:
    """Fault: blocks of powers of two that cannot fill a number of ranks that is none, leaving ranks empty."""
    plan = dcpack.plan([50, 50], num_ranks=num_ranks, capacity=100)
    groups = plan.to_sample_id_groups()
    assert all(rank for microbatch in groups for rank in microbatch)
    assert sorted(plan.sequence_ids.tolist()) == [0, 1]
    assert num_ranks in plan.cp_sizes
    if num_ranks == 14:
        assert groups == [[[0, 1]] * 14]


def test_needs_too_much() -> None:
    """Fault: a sequence that fits nowhere planned anyway, or an error that names neither it nor the limit."""
    with pytest.raises(InfeasibleError, match=r"800 tokens \(100 x 8 ranks\): sequence 0 has 900"):
        dcpack.plan([900], num_ranks=8, capacity=100)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("num_sequences", [64, 65, 71, 100, 127])
def test_vpp_multiple(scheduler: str, num_sequences: int) -> None:
    """Fault: a number of micro-batches that virtual pipeline stages cannot run."""
    lengths = np.random.default_rng(num_sequences).integers(1, 51, num_sequences)
    plan = dcpack.plan(lengths, num_ranks=8, capacity=100, scheduler=scheduler, microbatch_multiple=4)
    assert plan.num_microbatches % 4 == 0
    assert plan.num_microbatches > 0
    assert all(rank for microbatch in plan.to_sample_id_groups() for rank in microbatch)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_vpp_multiple_without_enough_sequences(scheduler: str) -> None:
    """Fault: the same, found only when the ranks already talk; here planning itself refuses."""
    with pytest.raises(InfeasibleError, match="3 sequences"):
        dcpack.plan([50, 40, 30], num_ranks=8, capacity=100, scheduler=scheduler, microbatch_multiple=4)


OVERLONG = [5, 2, 3, 1]  # [1, 2, 3, 4, 5], [6, 7], [8, 9, 10], [11] at capacity 4


def test_overlong_error() -> None:
    """Fault: a sequence cut without being asked."""
    with pytest.raises(InfeasibleError, match=r"limit of 4 tokens: sequence 0 has 5$"):
        dcpack.pack(OVERLONG, capacity=4)
    with pytest.raises(InfeasibleError, match=r"sequence 0 has 5$"):
        dcpack.pack(OVERLONG, capacity=4, overlong="error")


@pytest.mark.parametrize(
    ("policy", "entries", "dropped"),
    [
        ("truncate", {(0, 0, 4), (1, 0, 2), (2, 0, 3), (3, 0, 1)}, [1, 0, 0, 0]),
        ("split", {(0, 0, 4), (0, 4, 1), (1, 0, 2), (2, 0, 3), (3, 0, 1)}, [0, 0, 0, 0]),
        ("drop", {(1, 0, 2), (2, 0, 3), (3, 0, 1)}, [5, 0, 0, 0]),
        ("single", {(0, 0, 5), (1, 0, 2), (2, 0, 3), (3, 0, 1)}, [0, 0, 0, 0]),
    ],
)
@pytest.mark.parametrize("method", ["best_fit_decreasing", "first_fit_decreasing", "first_fit", "next_fit"])
def test_overlong_policies(method: str, policy: str, entries: set[tuple[int, int, int]], dropped: list[int]) -> None:
    """Fault: tokens that vanish uncounted, or an oversized sequence that shares its bin."""
    plan = dcpack.pack(OVERLONG, capacity=4, overlong=policy, method=method)
    plan.validate(OVERLONG)
    found = list(zip(plan.sequence_ids.tolist(), plan.starts.tolist(), plan.entry_lengths.tolist(), strict=True))
    assert sorted(found) == sorted(entries)
    assert plan.dropped.tolist() == dropped
    (oversized,) = np.nonzero(plan.oversized)
    assert oversized.size == (1 if policy == "single" else 0)
    for b in oversized:
        assert found[plan.offsets[b] : plan.offsets[b + 1]] == [(0, 0, 5)]


def test_padded_budget() -> None:
    """Fault: capacity that counts real tokens, so that the padded row is too long for the kernel."""
    for rule in (PaddingRule(tp=8), PaddingRule(block=8)):
        with pytest.raises(InfeasibleError, match=r"limit of 96 tokens.*: sequence 0 has 100"):
            dcpack.pack([100], capacity=100, padding=rule)
        with pytest.raises(InfeasibleError, match=r"limit of 96 tokens.*: sequence 0 has 100"):
            dcpack.plan([100], num_ranks=1, capacity=100, padding=rule)
        plan = dcpack.pack([100], capacity=104, padding=rule)
        assert plan.bin_padded_tokens.tolist() == [104]


@pytest.mark.parametrize("method", ["karmarkar_karp", "lpt"])
@pytest.mark.parametrize("equal_size", [False, True])
def test_balance_n_parts(method: str, equal_size: bool) -> None:
    """Fault: n items in k parts with a part left empty, or sizes that differ by more than one."""
    costs = np.random.default_rng(0).integers(1, 10_000, 124)
    parts = dcpack.balance(costs, num_parts=15, method=method, equal_size=equal_size)
    sizes = np.bincount(parts, minlength=15)
    assert sizes.size == 15
    assert sizes.sum() == 124
    assert sizes.min() >= 1
    if equal_size:
        assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize("cost", [QuadraticCost(), RingCost(), RingCost(linear=0.0)])
def test_token_balance_is_not_work_balance(cost: CostModel) -> None:
    """Fault: bins of equal tokens taken for bins of equal work."""
    plan = dcpack.plan([1024, 512, 512], num_ranks=2, capacity=1024)
    assert plan.to_sample_id_groups() == [[[0], [1, 2]]]
    assert plan.bin_padded_tokens.tolist() == [1024, 1024]
    one, two = plan.bin_times(cost).tolist()
    # the quadratic parts are 1024 ** 2 and 2 * 512 ** 2
    assert one - two == 1024**2 - 2 * 512**2


SCRIPT = """
import dcpack
lengths = [(7919 * i) % 1500 + 1 for i in range(300)]
for scheduler in ("in_order", "packing_aware", "dynamic_cp", "balanced", "local_gain", "uniform_cp"):
    rule = dcpack.PaddingRule(tp=2, block=16)
    plan = dcpack.plan(lengths, num_ranks=12, capacity=2048, scheduler=scheduler, padding=rule, on_empty="dummy")
    print(plan.digest())
for method in ("best_fit_decreasing", "first_fit_decreasing", "first_fit", "next_fit", "concat_then_split"):
    print(dcpack.pack(lengths, capacity=2048, method=method).digest())
for method in ("karmarkar_karp", "lpt"):
    print(dcpack.balance(lengths, num_parts=7, method=method).tolist())
"""


def test_deterministic() -> None:
    """Fault: order of sets or dictionaries, hash seeds or threads in the decision: ranks that plan differently hang."""

    def printed(seed: str, threads: str) -> str:
        env = {**os.environ, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": threads}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, timeout=100, check=True
        )
        return done.stdout

    once = printed("0", "1")
    assert once.count("\n") == 13
    assert printed("1", "2") == printed("4242", "4") == once


def test_deterministic_under_permutation() -> None:
    """Fault: a plan that depends on which rank brought a sequence; the order of the batch changes ids only."""
    rng = np.random.default_rng(6)
    lengths = rng.integers(1, 40, 80) * 10  # many equal lengths

    def shape(of: np.ndarray) -> list[tuple[int, int, int, list[int]]]:
        plan = dcpack.plan(of, num_ranks=8, capacity=128)
        ids = np.split(plan.sequence_ids, plan.offsets[1:-1])
        place = zip(plan.microbatch.tolist(), plan.first_rank.tolist(), plan.cp_size.tolist(), ids, strict=True)
        return [(m, f, c, of[i].tolist()) for m, f, c, i in place]

    assert shape(lengths) == shape(rng.permutation(lengths)) == shape(lengths[::-1])
