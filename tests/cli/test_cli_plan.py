"""`dcpack plan`: options, figures, files, exit codes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dcpack
import dcpack.cli
import dcpack.cli.plan
from dcpack.cost import QuadraticCost, cost_to_json, get_cost
from dcpack.padding import PaddingRule
from dcpack.plans import Plan
from dcpack.report import STRATEGIES, Cluster, compare_strategies, trace_events

Run = Callable[..., Any]

LENGTHS = [4, 2, 6, 3, 16, 7, 30, 9, 1, 5, 5, 12]
ARGUMENTS = ("--ranks", "4", "--capacity", "16", "--cost", "quadratic")
NAMES = ("pad-to-longest", "static-cp", "in_order", "packing_aware", "uniform_cp", "dynamic_cp")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Twelve lengths, of which 30 needs two ranks of 16."""
    path = tmp_path / "lengths.npy"
    np.save(path, np.array(LENGTHS))
    return path


def _plan(lengths: Any = LENGTHS, **options: Any) -> Plan:
    """What the library plans where the command is given `ARGUMENTS`."""
    defaults: dict[str, Any] = {
        "num_ranks": 4,
        "capacity": 16,
        "cost": QuadraticCost(),
        "padding": PaddingRule(),
        "on_empty": "dummy",
        "scheduler": "dynamic_cp",
    }
    return dcpack.plan(lengths, **{**defaults, **options})


def _strategies(out: str) -> dict[str, dict[str, Any]]:
    return {strategy["name"]: strategy for strategy in json.loads(out)["strategies"]}


# ---- options ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def asked_for(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Cluster, list[str], list[list[int]]]]:
    """The clusters, the strategies and the steps that the command compares."""
    calls: list[tuple[Cluster, list[str], list[list[int]]]] = []

    def compare(cluster: Cluster, steps: Any, *, names: list[str], **options: Any) -> Any:
        kept = list(steps)
        calls.append((cluster, names, [step.tolist() for step in kept]))
        return compare_strategies(cluster, kept, names=names, **options)

    monkeypatch.setattr(dcpack.cli.plan, "compare_strategies", compare)
    return calls


def test_the_defaults_are_those_of_the_help(
    asked_for: list[Any], file: Path, cli: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli("plan", file).code == 0
    ((cluster, names, steps),) = asked_for
    assert steps == [LENGTHS]
    assert names == list(STRATEGIES)
    assert (cluster.num_ranks, cluster.capacity, cluster.padding) == (64, 8192, PaddingRule(tp=1, block=1))
    assert (cluster.overlong, cluster.on_empty, cluster.sync) == ("error", "dummy", "microbatch")
    assert (cluster.cp_sizes, cluster.min_cp_size, cluster.max_cp_size) == ("powers_of_two", 1, None)
    assert (cluster.microbatch_multiple, cluster.max_sequences) == (1, None)
    assert cost_to_json(cluster.cost) == cost_to_json(get_cost("llama3-8b@h100"))
    with pytest.raises(SystemExit) as caught:
        cli("plan", "--help")
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for option, default in {
        "--ranks RANKS": 64,
        "--capacity CAPACITY": 8192,
        "--global-batch-size GLOBAL_BATCH_SIZE": 512,
        "--max-steps MAX_STEPS": None,
        "--overlong": "error",
        "--scheduler": list(NAMES),
        "--cost COST": "llama3-8b@h100",
        "--sync": "microbatch",
        "--cp-sizes CP_SIZES": "powers_of_two",
        "--json": False,
        "--save FILE": None,
        "--image FILE": None,
        "--trace FILE": None,
        "--html FILE": None,
        "--step STEP": 0,
    }.items():
        described = re.search(rf" {re.escape(option)} .*?\(default: (.*?)\)", text.split("options:")[1])
        assert described is not None, option
        assert described[1] == str(default), option


def test_every_option_reaches_the_plans(asked_for: list[Any], file: Path, cli: Run) -> None:
    done = cli(
        *("plan", file, "--ranks", 8, "--capacity", 32, "--global-batch-size", 5, "--max-steps", 2),
        *("--scheduler", "packing_aware", "in_order", "--cost", "mixtral-8x7b@a100", "--sync", "step"),
        *("--cp-sizes", "1,2,4", "--min-cp-size", 2, "--max-cp-size", 4, "--tp", 2, "--block", 4),
        *("--microbatch-multiple", 3, "--max-sequences", 2, "--overlong", "drop", "--on-empty", "error"),
    )
    assert (done.code, done.err) == (1, "")  # too few sequences without dummies
    ((cluster, names, steps),) = asked_for
    assert steps == [LENGTHS[:5], LENGTHS[5:10]]
    assert names == ["packing_aware", "in_order"]
    assert cost_to_json(cluster.cost) == cost_to_json(get_cost("mixtral-8x7b@a100"))
    found = {name: getattr(cluster, name) for name in Cluster.__dataclass_fields__ if name != "cost"}
    assert found == {
        "num_ranks": 8,
        "capacity": 32,
        "padding": PaddingRule(tp=2, block=4),
        "overlong": "drop",
        "max_cp_size": 4,
        "sync": "step",
        "cp_sizes": (1, 2, 4),
        "min_cp_size": 2,
        "microbatch_multiple": 3,
        "max_sequences": 2,
        "on_empty": "error",
    }


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (("--ranks", 8), {"num_ranks": 8}),
        (("--capacity", 32), {"capacity": 32}),
        (("--cp-sizes", "2,4"), {"cp_sizes": (2, 4)}),
        (("--cp-sizes", "2"), {"cp_sizes": (2,)}),
        (("--ranks", 6, "--cp-sizes", "divisors"), {"num_ranks": 6, "cp_sizes": "divisors"}),
        (("--cp-sizes", "any"), {"cp_sizes": "any"}),
        (("--min-cp-size", 2), {"min_cp_size": 2}),
        (("--max-cp-size", 2), {"max_cp_size": 2}),
        (("--max-cp-size", 1, "--overlong", "split"), {"max_cp_size": 1, "overlong": "split"}),
        (("--max-cp-size", 1, "--overlong", "truncate"), {"max_cp_size": 1, "overlong": "truncate"}),
        (("--max-cp-size", 1, "--overlong", "drop"), {"max_cp_size": 1, "overlong": "drop"}),
        (("--max-cp-size", 1, "--overlong", "single"), {"max_cp_size": 1, "overlong": "single"}),
        (("--tp", 2), {"padding": PaddingRule(tp=2)}),
        (("--block", 4), {"padding": PaddingRule(block=4)}),
        (("--microbatch-multiple", 3), {"microbatch_multiple": 3}),
        (("--max-sequences", 1), {"max_sequences": 1}),
    ],
)
def test_options_plan_as_the_library_does(
    arguments: tuple[Any, ...], options: dict[str, Any], file: Path, tmp_path: Path, cli: Run
) -> None:
    saved = tmp_path / "plan.npz"
    done = cli("plan", file, *ARGUMENTS, *arguments, "--save", saved, "--json")
    assert (done.code, done.err) == (0, "")
    expected = _plan(**options)
    assert Plan.load(saved).first_difference(expected) is None
    assert Plan.load(saved).digest() == expected.digest()
    assert expected.digest() != _plan().digest()  # the option has something to say here
    (step,) = _strategies(done.out)["dynamic_cp"]["steps"]
    assert step["num_microbatches"] == expected.num_microbatches
    assert step["step_time"] == expected.simulate(QuadraticCost())


def test_too_few_sequences_without_dummies(file: Path, cli: Run) -> None:
    arguments = ("plan", file, *ARGUMENTS, "--max-cp-size", 1, "--overlong", "drop", "--ranks", 16)
    assert cli(*arguments).code == 0
    done = cli(*arguments, "--on-empty", "error", "--json")
    assert done.code == 1
    assert all(strategy["failure"] for strategy in _strategies(done.out).values())


def test_a_cost_model_of_ones_own(file: Path, tmp_path: Path, cli: Run) -> None:
    spec = tmp_path / "a cost.json"
    spec.write_text('{"model": "llama3-8b", "device": "h200", "attention": "full"}')
    cost = get_cost(json.loads(spec.read_text()))
    done = cli("plan", file, *ARGUMENTS, "--cost", spec, "--json")
    assert json.loads(done.out)["time_unit"] == "s"
    (step,) = _strategies(done.out)["dynamic_cp"]["steps"]
    plan = _plan(cost=cost)
    assert step["step_time"] == plan.simulate(cost)
    assert step["bound"] == plan.bounds["step_time"]
    assert f"cost {spec}, sync microbatch" in cli("plan", file, *ARGUMENTS, "--cost", spec).out


# ---- figures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", ["microbatch", "step"])
def test_the_json_agrees_with_plans_made_directly(sync: str, file: Path, cli: Run) -> None:
    arguments = ("--global-batch-size", 5, "--overlong", "split", "--sync", sync, "--json")
    done = cli("plan", file, *ARGUMENTS, *arguments)
    assert (done.code, done.err) == (0, "")
    result = json.loads(done.out)
    assert result["time_unit"] == "cost"
    options = result["options"]
    assert (options["lengths"], options["ranks"], options["global_batch_size"]) == (str(file), 4, 5)
    assert (options["sync"], options["overlong"], options["scheduler"]) == (sync, "split", list(NAMES))
    found = _strategies(done.out)
    assert list(found) == list(STRATEGIES)
    batches = [LENGTHS[:5], LENGTHS[5:10], LENGTHS[10:]]
    # The longest of the steps are 16, 30 and 12: they take 1, 2 and 1 ranks.
    for name, chosen in {
        "dynamic_cp": [{"sync": sync}] * 3,
        "packing_aware": [{"scheduler": "packing_aware"}] * 3,
        "uniform_cp": [{"scheduler": "uniform_cp", "sync": sync}] * 3,
        "in_order": [{"scheduler": "in_order", "cp_sizes": (1,)}] * 3,
        "static CP": [{"scheduler": "in_order", "cp_sizes": (size,)} for size in (1, 2, 1)],
    }.items():
        strategy = found[name]
        plans = [_plan(batch, overlong="split", **more) for batch, more in zip(batches, chosen, strict=True)]
        for step, plan in zip(strategy["steps"], plans, strict=True):
            assert step["num_microbatches"] == plan.num_microbatches
            assert step["num_tokens"] == plan.entry_lengths.sum()
            assert step["num_padded_tokens"] == plan.bin_padded_tokens.sum()
            assert step["num_slots"] == plan.num_microbatches * 4 * 16
            assert step["step_time"] == plan.simulate(QuadraticCost(), sync=sync)
            assert step["bound"] == plan.bounds["step_time"]
            assert step["planning_seconds"] > 0
        totals = strategy["totals"]
        assert strategy["failure"] is None
        assert totals["num_microbatches"] == sum(plan.num_microbatches for plan in plans)
        assert totals["step_time"] == pytest.approx(np.mean([step["step_time"] for step in strategy["steps"]]))
        assert totals["bound"] == pytest.approx(np.mean([step["bound"] for step in strategy["steps"]]))
        assert strategy["planning_seconds"] == pytest.approx(sum(s["planning_seconds"] for s in strategy["steps"]))
    assert found["in_order"]["totals"]["num_cut_sequences"] == 1
    assert found["static CP"]["totals"]["num_cut_sequences"] == 0


def test_when_ranks_wait_changes_the_times(file: Path, cli: Run) -> None:
    times = {
        sync: _strategies(cli("plan", file, *ARGUMENTS, "--sync", sync, "--json").out)["static CP"]["totals"][
            "step_time"
        ]
        for sync in ("microbatch", "step")
    }
    assert times["step"] < times["microbatch"]


def test_the_table_by_hand(tmp_path: Path, cli: Run) -> None:
    # The case of the report's tests: two ranks of 10, work L * L, then a second step of one sequence over both ranks.
    file = tmp_path / "a.txt"
    file.write_text("4\n2\n6\n3\n16\n")
    done = cli("plan", file, "--ranks", 2, "--capacity", 10, "--global-batch-size", 4, "--cost", "quadratic")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == f"{file}: 2 steps of 4 sequences, 5 sequences, 31 tokens"
    assert lines[1] == "2 ranks, capacity 10 tokens a rank, cost quadratic, sync microbatch"
    assert lines[3].split() == "micro- cut utili- max/mean mean step time bound above planning".split()
    assert lines[4].split() == "strategy batches sequences padding zation work CP (cost) (cost) bound (ms/step)".split()
    rows = {name: line for name in STRATEGIES for line in lines[6:12] if line.startswith(name)}
    assert list(rows) == list(STRATEGIES)
    # 36, then 16 * 16 / 2 on both ranks: 128. Bounds 32.5 and 128.
    assert rows["packing_aware"].split()[:-1] == "packing_aware 2 0 0.0% 77.5% 1.02 1.52 82 80.25 2.2%".split()
    # Both ranks over all would pad 4, 2, 6 and 3 to multiples of 4: (3 * 16 + 64) / 2 is more than 36.
    assert rows["dynamic_cp"].split()[:-1] == "dynamic_cp 2 0 0.0% 77.5% 1.02 1.52 82 80.25 2.2%".split()
    assert rows["in_order"].startswith("in_order       - step 1: 1 sequence is longer than the limit of 10 tokens")
    assert rows["static CP"].split()[:-1] == "static CP 2 0 0.0% 77.5% 1.08 1.52 86.5 82 5.5%".split()
    # The steps, each strategy's time and its distance from its bound; the strategy that failed is not among them.
    steps = [line.split() for line in lines[lines.index("") + 1 :][-2:]]
    assert steps[0] == "0 4 15 6 52 44.4% 45 25.0% 36 10.8% 36 10.8% 36 10.8%".split()
    assert steps[1] == "1 1 16 16 128 0.0% 128 0.0% 128 0.0% 128 0.0% 128 0.0%".split()


def test_the_number_of_shapes_is_printed(tmp_path: Path, cli: Run) -> None:
    # One rank of 10: a first step of 4 and 5 in one row of 9, a second of 3; CP size 1 alone.
    file = tmp_path / "a.txt"
    file.write_text("4\n5\n3\n")
    command = ("plan", file, "--ranks", 1, "--capacity", 10, "--global-batch-size", 2, "--scheduler", "uniform_cp")
    assert "uniform_cp: at most 1 shapes of a batch (1 CP size x 1 row length), 1 seen" in cli(*command).out
    buckets = ("--row-lengths", "4,8,10", "--max-seqlens", "5,10")
    done = cli(*command, *buckets)
    assert "uniform_cp: at most 6 shapes of a batch (1 CP size x 3 row lengths x 2 max_seqlens), 2 seen" in done.out
    assert json.loads(cli(*command, *buckets, "--json").out)["uniform_cp_shapes"] == {
        "bound": 6,
        "seen": [
            {"cp_size": 1, "row_tokens": 4, "max_seqlen": 5},
            {"cp_size": 1, "row_tokens": 10, "max_seqlen": 5},
        ],
        "failure": None,
    }
    done = cli(*command, "--row-lengths", "4")
    assert "uniform_cp: no fixed shape for all batches: static shapes hold 4 tokens a rank" in done.out
    assert json.loads(cli(*command[:-1], "in_order", "--json").out)["uniform_cp_shapes"] is None
    for wrong, message in (("4,x", "--row-lengths must be numbers with commas"), ("4,4", "row_lengths must ascend")):
        done = cli(*command, "--row-lengths", wrong)
        assert done.code != 0
        assert message in done.err


def test_only_the_first_steps_are_listed_unless_all_are_asked_for(file: Path, cli: Run) -> None:
    arguments = ("plan", file, *ARGUMENTS, "--global-batch-size", 1)
    few, every, ten = (cli(*arguments, *more).out for more in ((), ("--per-step",), ("--max-steps", "10")))
    assert few.splitlines()[-1] == "... and 2 more steps (--per-step, --json)"
    assert few.splitlines()[-2].split()[:4] == ["9", "1", "5", "5"]
    assert every.splitlines()[-1].split()[:4] == ["11", "1", "12", "12"]
    assert ten.splitlines()[-1].split()[:4] == ["9", "1", "5", "5"]
    assert "10 steps of 1 sequences, 10 sequences, 83 tokens" in ten


@pytest.mark.parametrize(
    ("batch", "most", "sizes"),
    [(5, None, [5, 5, 2]), (6, None, [6, 6]), (12, None, [12]), (512, None, [12]), (5, 2, [5, 5]), (5, 99, [5, 5, 2])],
)
def test_steps_are_cut_in_order(
    batch: int, most: int | None, sizes: list[int], asked_for: list[Any], file: Path, cli: Run
) -> None:
    more = () if most is None else ("--max-steps", most)
    assert cli("plan", file, *ARGUMENTS, "--global-batch-size", batch, *more).code == 0
    ((_, _, steps),) = asked_for
    assert [len(step) for step in steps] == sizes
    assert [length for step in steps for length in step] == LENGTHS[: sum(sizes)]


@pytest.mark.parametrize("values", [[], [0], [0, 0, 0]])
def test_nothing_to_plan(values: list[int], tmp_path: Path, cli: Run) -> None:
    file = tmp_path / "a.npy"
    np.save(file, np.array(values, np.int64))
    done = cli("plan", file, "--ranks", 2)
    assert (done.code, done.err) == (0, "")
    assert f"{len(values)} sequences, 0 tokens" in done.out
    assert "nan" not in done.out
    found = _strategies(cli("plan", file, "--ranks", 2, "--json").out)
    assert all(strategy["totals"]["step_time"] == 0 for strategy in found.values())


def test_huge_lengths_are_counted_exactly(tmp_path: Path, cli: Run) -> None:
    file = tmp_path / "a.npy"
    np.save(file, np.array([2**62] * 3))
    done = cli("plan", file, *ARGUMENTS, "--overlong", "truncate")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[0].endswith(f"3 sequences, {3 * 2**62:,} tokens")
    assert done.out.splitlines()[-1].split()[:4] == ["0", "3", f"{3 * 2**62:,}", f"{2**62:,}"]


# ---- what cannot be planned ------------------------------------------------------------------------------------------


def test_a_strategy_that_cannot_says_why_in_its_row(file: Path, cli: Run) -> None:
    done = cli("plan", file, *ARGUMENTS)
    assert (done.code, done.err) == (0, "")
    (row,) = (line for line in done.out.splitlines() if line.startswith("in_order "))
    assert row.startswith("in_order       - step 0: 1 sequence is longer than the limit of 16 tokens")
    (reason,) = (line for line in done.out.splitlines() if line.startswith("in_order: "))
    assert reason.endswith("sequence 6 has 30")
    found = _strategies(cli("plan", file, *ARGUMENTS, "--json").out)
    assert found["in_order"]["failure"] == reason.removeprefix("in_order: ")
    assert (found["in_order"]["totals"], found["in_order"]["steps"]) == ({}, [])
    assert [name for name, strategy in found.items() if strategy["failure"] is None] == [
        "pad to longest",
        "static CP",
        "packing_aware",
        "uniform_cp",
        "dynamic_cp",
    ]


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_where_no_strategy_can_the_command_fails(more: tuple[str, ...], tmp_path: Path, cli: Run) -> None:
    file = tmp_path / "a.txt"
    file.write_text("5\n64\n65\n")
    done = cli("plan", file, *ARGUMENTS, "--save", tmp_path / "plan.npz", *more)
    assert (done.code, done.err) == (1, "")
    if more:
        assert all("sequence 2 has 65" in strategy["failure"] for strategy in _strategies(done.out).values())
    else:
        reasons = [line for line in done.out.splitlines() if line.endswith("sequence 2 has 65")]
        assert [line.split(": ")[0] for line in reasons[-len(STRATEGIES) :]] == list(STRATEGIES)
    assert not (tmp_path / "plan.npz").exists()


def test_one_strategy_that_cannot_is_none_that_can(file: Path, cli: Run) -> None:
    assert cli("plan", file, *ARGUMENTS, "--scheduler", "in_order").code == 1
    assert cli("plan", file, *ARGUMENTS, "--scheduler", "in_order", "packing_aware").code == 0


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--ranks", 0), "--ranks must be at least 1, got 0"),
        (("--capacity", -1), "--capacity must be at least 1, got -1"),
        (("--global-batch-size", 0), "--global-batch-size must be at least 1, got 0"),
        (("--max-steps", 0), "--max-steps must be at least 1, got 0"),
        (("--step", 1), "--step must be from 0 to 0, got 1"),
        (("--step", -1), "--step must be from 0 to 0, got -1"),
        (("--global-batch-size", 5, "--step", 3), "--step must be from 0 to 2, got 3"),
        (("--global-batch-size", 5, "--max-steps", 1, "--step", 1), "--step must be from 0 to 0, got 1"),
        (("--tp", 0), "tp must be at least 1, got 0"),
        (("--block", 0), "block must be at least 1, got 0"),
        (("--min-cp-size", 0), "min_cp_size must be at least 1, got 0"),
        (("--max-cp-size", 0), "max_cp_size must be at least 1, got 0"),
        (("--microbatch-multiple", 0), "microbatch_multiple must be at least 1, got 0"),
        (("--max-sequences", 0), "max_sequences must be at least 1, got 0"),
        (("--cp-sizes", "1,two"), "--cp-sizes must be a name or numbers with commas between, got '1,two'"),
        (("--cp-sizes", "1,,2"), "--cp-sizes must be a name or numbers with commas between, got '1,,2'"),
        (("--cp-sizes", "0"), "cp_sizes must be at least 1: cp_sizes[0] = 0"),
        (
            ("--cp-sizes", "odd"),
            "cp_sizes must be 'powers_of_two', 'divisors', 'any' or a sequence of integers, got 'odd'",
        ),
    ],
)
def test_values_that_are_wrong_are_one_line(arguments: tuple[Any, ...], line: str, file: Path, cli: Run) -> None:
    done = cli("plan", file, "--scheduler", "packing_aware", *arguments)
    assert (done.code, done.out, done.err) == (2, "", f"dcpack plan: {line}\n")


@pytest.mark.parametrize("scheduler", NAMES)
def test_a_capacity_beyond_all_sense_is_one_line(scheduler: str, file: Path, cli: Run) -> None:
    done = cli("plan", file, "--capacity", 10**20, "--scheduler", scheduler)
    assert (done.code, done.out) == (2, "")
    assert "capacity must be at most" in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("cost", ["cheap", "llama3-8b", "llama3-8b@abacus", "no/such.json"])
def test_a_cost_model_that_is_none_is_one_line(cost: str, file: Path, cli: Run) -> None:
    done = cli("plan", file, "--cost", cost)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("dcpack plan: ")
    assert cost.split("@")[-1] in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "the following arguments are required: LENGTHS"),
        (("a.txt", "--scheduler", "best"), "argument --scheduler: invalid choice: best"),
        (("a.txt", "--scheduler"), "argument --scheduler: expected at least one argument"),
        (("a.txt", "--overlong", "ignore"), "argument --overlong: invalid choice: ignore"),
        (("a.txt", "--sync", "never"), "argument --sync: invalid choice: never"),
        (("a.txt", "--on-empty", "split"), "argument --on-empty: invalid choice: split"),
        (("a.txt", "--ranks", "many"), "argument --ranks: invalid int value: many"),
        (("a.txt", "b.txt"), "unrecognized arguments: b.txt"),
    ],
)
def test_arguments_that_are_none(
    arguments: tuple[str, ...], text: str, cli: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli("plan", *arguments)
    assert caught.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert text in printed.err.replace("'", "")


# ---- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("step", "batch"), [(0, LENGTHS[:5]), (1, LENGTHS[5:10]), (2, LENGTHS[10:])])
def test_the_step_that_is_saved(step: int, batch: list[int], file: Path, tmp_path: Path, cli: Run) -> None:
    saved = tmp_path / "a plan.npz"
    done = cli("plan", file, *ARGUMENTS, "--global-batch-size", 5, "--step", step, "--save", saved)
    assert (done.code, done.err) == (0, "")
    plan = Plan.load(saved, capacity=16, padding=PaddingRule(), cp_sizes=(1, 2, 4))
    plan.validate(batch)
    assert plan.digest() == _plan(batch).digest()
    assert dict(plan.bounds) == dict(_plan(batch).bounds)


@pytest.mark.parametrize(
    ("schedulers", "options"),
    [
        (("packing_aware", "static-cp"), {"scheduler": "in_order", "cp_sizes": (2,)}),
        (("static-cp", "dynamic_cp"), {}),
        # The last one cannot plan 30 tokens on one rank: the one before it is saved.
        (("packing_aware", "in_order"), {"scheduler": "packing_aware"}),
    ],
)
def test_the_last_strategy_that_could_is_saved(
    schedulers: tuple[str, ...], options: dict[str, Any], file: Path, tmp_path: Path, cli: Run
) -> None:
    saved = tmp_path / "plan.npz"
    assert cli("plan", file, *ARGUMENTS, "--scheduler", *schedulers, "--save", saved).code == 0
    assert Plan.load(saved).digest() == _plan(**options).digest()


def test_a_picture_of_the_step(file: Path, tmp_path: Path, cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[Any, ...]] = []
    save = dcpack.cli.plan.save_plan_picture

    def keep(path: Any, plan: Plan, cost: Any, *, title: str, sync: str) -> None:
        drawn.append((plan.digest(), title, sync))
        save(path, plan, cost, title=title, sync=sync)

    monkeypatch.setattr(dcpack.cli.plan, "save_plan_picture", keep)
    image = tmp_path / "step.png"
    done = cli("plan", file, *ARGUMENTS, "--global-batch-size", 6, "--step", 1, "--sync", "step", "--image", image)
    assert (done.code, done.err) == (0, "")
    assert drawn == [(_plan(LENGTHS[6:], sync="step").digest(), "dynamic_cp, step 1, 4 ranks", "step")]
    data = image.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(data) > 5000


@pytest.mark.parametrize("sync", ["microbatch", "step"])
def test_a_trace_of_the_step(sync: str, file: Path, tmp_path: Path, cli: Run) -> None:
    trace = tmp_path / "trace.json"
    arguments = ("--cost", "llama3-8b@h100", "--scheduler", "static-cp", "--sync", sync, "--trace", trace)
    done = cli("plan", file, *ARGUMENTS, *arguments)
    assert (done.code, done.err) == (0, "")
    cost = get_cost("llama3-8b@h100")
    plan = _plan(cost=cost, scheduler="in_order", cp_sizes=(2,))
    found = json.loads(trace.read_text())
    both = [trace_events(plan, cost, sync=mode) for mode in ("microbatch", "step")]
    assert both[0] != both[1]
    assert found == both[sync == "step"]
    slices = [event for event in found["traceEvents"] if event["ph"] == "X"]
    busy = [sum(event["dur"] for event in slices if event["tid"] == rank) for rank in range(4)]
    assert busy == pytest.approx(1e6 * plan.rank_times(cost).sum(axis=0))


@pytest.mark.parametrize("option", ["--save", "--image", "--trace"])
def test_a_file_that_cannot_be_written_is_one_line(option: str, file: Path, tmp_path: Path, cli: Run) -> None:
    # A picture has no name without an ending: one is added to it.
    for path in (tmp_path / "no folder" / "a.png", *([] if option == "--image" else [tmp_path])):
        done = cli("plan", file, *ARGUMENTS, option, path)
        assert done.code in (1, 2)
        assert done.err.startswith("dcpack plan: ")
        assert str(path) in done.err
        assert done.err.count("\n") == 1


def test_a_kind_of_picture_that_is_none_is_one_line(file: Path, tmp_path: Path, cli: Run) -> None:
    done = cli("plan", file, *ARGUMENTS, "--image", tmp_path / "a.picture")
    assert done.code in (1, 2)
    assert done.err.startswith("dcpack plan: ")
    assert "picture" in done.err
    assert done.err.count("\n") == 1


# ---- the page --------------------------------------------------------------------------------------------------------


def test_the_page_shows_what_the_table_says(file: Path, tmp_path: Path, cli: Run) -> None:
    page = tmp_path / "a page.html"
    arguments = ("plan", file, *ARGUMENTS, "--global-batch-size", 5, "--max-steps", 2, "--step", 1)
    done = cli(*arguments, "--html", page)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1] == f"{page}: a page for a browser"
    text = page.read_text()
    assert "<dt>sequences</dt><dd>10</dd>" in text
    assert f"<dt>tokens</dt><dd>{sum(LENGTHS[:10])}</dd>" in text
    assert "<dt>longest</dt><dd>30 tokens</dd>" in text
    assert "Step 1: ranks over time" in text
    plan = _plan(LENGTHS[5:10])
    drawn = text.split("<h3>packing_aware</h3>")[1].split("<h3>")[0]
    assert drawn.count('class="bin"') == plan.num_bins
    assert f"step {plan.simulate(QuadraticCost()):.4g} cost units" in drawn


def test_a_page_is_written_where_nothing_can_be_planned(tmp_path: Path, cli: Run) -> None:
    file = tmp_path / "a.txt"
    file.write_text("65\n")
    page = tmp_path / "a.html"
    assert cli("plan", file, *ARGUMENTS, "--html", page).code == 1
    assert page.read_text().count("sequence 0 has 65") == len(STRATEGIES)


def test_a_page_that_cannot_be_written_is_one_line(file: Path, tmp_path: Path, cli: Run) -> None:
    done = cli("plan", file, *ARGUMENTS, "--html", tmp_path / "no folder" / "a.html")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("dcpack plan: ")
    assert done.err.count("\n") == 1
