from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dcpack.demo.run
from dcpack.comm import Communicator, Fault, run_ranks
from dcpack.data import END_OF_DOCUMENT, TextDocuments
from dcpack.demo import DemoOptions, load_documents, prove, run_demo
from dcpack.demo.proof import StepProof
from dcpack.errors import ArgumentError, PeerError
from dcpack.exchange import ROUTINGS, PackedBatch, exchange_samples
from dcpack.plans import Plan
from dcpack.report import STRATEGIES
from dcpack.scheduling import SCHEDULERS
from dcpack.sharding import SHARDINGS

RANKS = (1, 2, 3, 4, 8)
POLICIES = ("split", "truncate", "drop")
# An odd capacity: two tokens a sequence and rank are lost to padding as soon as CP comes in.
CAPACITY = 251
ONE_CP_SIZE = ("in_order", "balanced", "local_gain")


def _nothing() -> None:
    pass


def _prove(options: DemoOptions, documents: TextDocuments) -> tuple[list[StepProof], list[Plan]]:
    verdicts, plans, _, _ = prove(options, documents, done=_nothing)
    return verdicts, plans


def _run(options: DemoOptions) -> Any:
    return run_demo(options, progress=lambda _: _nothing)


def _cases() -> list[Any]:
    """All ranks x CP on and off x shardings x schedulers; routings and policies take turns, so that all pairs occur."""
    grid = product(RANKS, (None, 1), sorted(SHARDINGS), sorted(SCHEDULERS))
    return [(*case, ROUTINGS[(i + i // 8) % 2], POLICIES[(i + i // 3) % 3]) for i, case in enumerate(grid)]


def test_the_cases_cover_all_pairs() -> None:
    values = (RANKS, (None, 1), sorted(SHARDINGS), sorted(SCHEDULERS), ROUTINGS, POLICIES)
    for a, b in combinations(range(len(values)), 2):
        assert {(case[a], case[b]) for case in _cases()} == set(product(values[a], values[b])), (a, b)


def _limit(num_ranks: int, max_cp_size: int | None, scheduler: str) -> int:
    """The longest document that fits somewhere: without CP the capacity, over n ranks n times 250 of the 251 slots."""
    largest = 1 if scheduler in ONE_CP_SIZE else min(max_cp_size or num_ranks, num_ranks)
    return CAPACITY if largest == 1 else 250 * largest


@pytest.mark.parametrize(("num_ranks", "max_cp_size", "sharding", "scheduler", "routing", "overlong"), _cases())
def test_everything_that_can_be_asked_for_is_proven(
    text_folder: Path,
    num_ranks: int,
    max_cp_size: int | None,
    sharding: str,
    scheduler: str,
    routing: str,
    overlong: str,
) -> None:
    options = DemoOptions(
        data=(str(text_folder),),
        num_ranks=num_ranks,
        num_steps=2,
        global_batch_size=16,
        capacity=CAPACITY,
        scheduler=scheduler,
        max_cp_size=max_cp_size,
        overlong=overlong,
        sharding=sharding,
        routing=routing,
    )
    documents = load_documents(options)
    verdicts, plans = _prove(options, documents)
    limit = _limit(num_ranks, max_cp_size, scheduler)
    assert len(documents) == 31
    assert int(documents.lengths().max()) > limit  # so that every policy has something to do
    for step, verdict in enumerate(verdicts):
        lengths = documents.lengths()[np.arange(16 * step, 16 * step + 16) % 31]
        kept = {"split": lengths, "truncate": np.minimum(lengths, limit), "drop": lengths[lengths <= limit]}[overlong]
        assert verdict.faults == []
        assert verdict.num_documents == 16
        assert verdict.num_tokens == kept.sum()
        assert verdict.num_dropped_tokens == lengths.sum() - kept.sum()
    largest = max(int(plan.cp_size.max()) for plan in plans)
    if num_ranks > 1 and max_cp_size is None and scheduler not in ONE_CP_SIZE:
        assert largest > 1
    else:
        assert largest == 1


@pytest.mark.parametrize("overlong", POLICIES)
@pytest.mark.parametrize(("num_ranks", "num_cut"), [(1, 12), (2, 9), (4, 6), (8, 4)])
def test_documents_that_were_cut_are_counted(text_folder: Path, num_ranks: int, num_cut: int, overlong: str) -> None:
    # Documents of over 251, 500, 1000 and 2000 tokens among the 31: sizes in bytes, and one token that ends each.
    options = DemoOptions(
        data=(str(text_folder),),
        num_ranks=num_ranks,
        num_steps=1,
        global_batch_size=31,
        capacity=251,
        overlong=overlong,
    )
    (verdict,), _ = _prove(options, load_documents(options))
    assert verdict.faults == []
    assert verdict.num_cut_documents == num_cut


@pytest.mark.parametrize("num_ranks", [2, 8])
def test_fewer_documents_than_ranks(num_ranks: int) -> None:
    options = DemoOptions(num_ranks=num_ranks, num_steps=1, global_batch_size=1, capacity=64)
    (verdict,), _ = _prove(options, TextDocuments.of([b"a few words"]))
    assert verdict == StepProof(num_tokens=12, num_documents=1)
    (verdict,), (plan,) = _prove(
        DemoOptions(num_ranks=num_ranks, num_steps=1, global_batch_size=1, capacity=64, max_cp_size=1),
        TextDocuments.of([b"a few words"]),
    )
    assert verdict == StepProof(num_tokens=12, num_documents=1)
    assert plan.dummy.sum() == num_ranks - 1


def test_too_few_documents_come_round_again() -> None:
    # 3 and 6 tokens: the steps are 0 1 0 1 0 and 1 0 1 0 1.
    documents = TextDocuments.of([b"ab", b"lmnop"])
    options = DemoOptions(num_ranks=2, num_steps=2, global_batch_size=5, capacity=16)
    verdicts, _ = _prove(options, documents)
    assert verdicts == [StepProof(num_tokens=21, num_documents=5), StepProof(num_tokens=24, num_documents=5)]


def test_dropping_every_document_leaves_nothing_to_prove_wrong() -> None:
    options = DemoOptions(
        num_ranks=2, num_steps=1, global_batch_size=2, capacity=4, overlong="drop", max_cp_size=1, scheduler="in_order"
    )
    (verdict,), _ = _prove(options, TextDocuments.of([b"too long", b"and this"]))
    assert verdict == StepProof(num_documents=2, num_cut_documents=2, num_dropped_tokens=18)


# ---- a fault on the wire ------------------------------------------------------------------------------------------


def _flip(monkeypatch: pytest.MonkeyPatch, *, call: int = 0, offset: int = 0) -> None:
    fault = Fault(rank=0, call=call, action="flip_byte", verb="all_to_all", offset=offset)
    monkeypatch.setattr(dcpack.demo.run, "run_ranks", partial(run_ranks, faults=[fault]))


# A document of 5 tokens, a b c d and the end, over 2 ranks in chunks of 2: rank 0 holds it, rank 1 gets c d and the
# end, 12 bytes of input_ids in a segment of 16, and as many of labels.
FIVE = TextDocuments.of([b"abcd"])
SENT = {"input_ids": [99, 100, END_OF_DOCUMENT], "labels": [100, END_OF_DOCUMENT, -100]}


def _two_ranks(**options: Any) -> DemoOptions:
    return DemoOptions(num_ranks=2, num_steps=1, global_batch_size=1, capacity=4, **options)


def _faults_of_flip(field: str, slot: int, byte: int) -> list[str]:
    """All that the proof must find where one byte of one element was inverted, and nothing else."""
    right = SENT[field][slot]
    wrong = int(np.array(right, np.int32) ^ np.array(0xFF << 8 * byte, np.int64).astype(np.int32))
    where = "micro-batch 0, rank 1"
    faults = [f"{where}: {field}: slot {slot} is {wrong}, expected {right} (1 differ)"]
    if right == -100:  # what was ignored now counts
        faults += [
            f"{where}: loss_mask: slot {slot} is 1.0, expected 0 (1 differ)",
            f"{where}: 3 valid tokens, expected 2",
            "5 valid tokens on all ranks, the batches say 4",
        ]
    return faults


@pytest.mark.parametrize("offset", range(32))
def test_one_flipped_byte_of_slices(monkeypatch: pytest.MonkeyPatch, offset: int) -> None:
    _flip(monkeypatch, offset=offset)
    field, within = ("input_ids", "labels")[offset // 16], offset % 16
    if within < 12:
        (verdict,), _ = _prove(_two_ranks(), FIVE)
        assert verdict.faults == _faults_of_flip(field, within // 4, within % 4)
    else:  # the bytes that align segments are nobody's tokens
        assert _prove(_two_ranks(), FIVE)[0] == [StepProof(num_tokens=5, num_documents=1)]


@pytest.mark.parametrize("offset", range(64))
def test_one_flipped_byte_of_whole_sequences(monkeypatch: pytest.MonkeyPatch, offset: int) -> None:
    # 20 bytes in 32 for each field; rank 1 computes on tokens 2 to 4 and throws the others away.
    _flip(monkeypatch, offset=offset)
    (verdict,), _ = _prove(_two_ranks(routing="whole"), FIVE)
    within = offset % 32
    if not 8 <= within < 20:
        assert verdict.faults == []
        return
    assert verdict.faults == _faults_of_flip(("input_ids", "labels")[offset // 32], within // 4 - 2, within % 4)


def test_a_fault_in_a_later_step_is_found_in_that_step(monkeypatch: pytest.MonkeyPatch) -> None:
    _flip(monkeypatch, call=1)
    options = DemoOptions(num_ranks=2, num_steps=3, global_batch_size=1, capacity=4)
    verdicts, _ = _prove(options, FIVE)
    found = "micro-batch 0, rank 1: input_ids: slot 0 is 156, expected 99 (1 differ)"
    assert [verdict.faults for verdict in verdicts] == [[], [found], []]


def test_the_demo_says_that_the_proof_failed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"abcd")
    _flip(monkeypatch)
    result = _run(_two_ranks(data=(str(tmp_path),)))
    assert not result.is_proven
    assert result.report.splitlines()[-2:] == [
        "PROOF FAILED under packing_aware: 1 fault (0 documents cut or dropped by overlong='split', 0 tokens dropped)",
        "step 0: micro-batch 0, rank 1: input_ids: slot 0 is 156, expected 99 (1 differ)",
    ]
    assert "PROVEN" not in result.report


@pytest.mark.parametrize(
    ("num_faults", "headline", "num_shown", "last"),
    [
        (2, "PROOF FAILED under packing_aware: 2 faults (", 2, "step 0: fault 1"),
        (20, "PROOF FAILED under packing_aware: 20 faults (", 20, "step 0: fault 19"),
        (1501, "PROOF FAILED under packing_aware: 1,501 faults (", 21, "and 1,481 more"),
    ],
)
def test_many_faults_are_counted_and_the_first_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, num_faults: int, headline: str, num_shown: int, last: str
) -> None:
    (tmp_path / "a.txt").write_bytes(b"abcd")
    verdict = StepProof(faults=[f"fault {i}" for i in range(num_faults)])
    monkeypatch.setattr(dcpack.demo.run, "conclude", lambda *_: verdict)
    lines = _run(_two_ranks(data=(str(tmp_path),))).report.splitlines()
    assert lines[-num_shown - 1].startswith(headline)
    assert lines[-num_shown] == "step 0: fault 0"
    assert lines[-1] == last


def test_one_faulty_step_of_many_is_enough_to_fail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"abcd")
    _flip(monkeypatch, call=1)
    result = _run(DemoOptions(data=(str(tmp_path),), num_ranks=2, num_steps=3, global_batch_size=1, capacity=4))
    assert [bool(step.faults) for step in result.steps] == [False, True, False]
    assert not result.is_proven
    assert result.report.splitlines()[-1].startswith("step 1: micro-batch 0, rank 1: input_ids: slot 0")


def test_a_rank_that_fails_ends_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    faults = [Fault(rank=1, call=0, action="raise", verb="all_to_all")]
    monkeypatch.setattr(dcpack.demo.run, "run_ranks", partial(run_ranks, faults=faults))
    with pytest.raises(PeerError, match=r"^rank 1 failed in all_to_all .*: RuntimeError: fault on rank 1") as caught:
        _prove(_two_ranks(), FIVE)
    assert caught.value.rank == 1


@pytest.mark.usefixtures("leaping_clock")
def test_a_rank_that_vanishes_ends_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    faults = [Fault(rank=1, call=0, action="vanish", verb="all_to_all")]
    monkeypatch.setattr(dcpack.demo.run, "run_ranks", partial(run_ranks, faults=faults))
    with pytest.raises(PeerError, match="rank 1 did not arrive in all_to_all"):
        _prove(_two_ranks(), FIVE)


def _tamper(monkeypatch: pytest.MonkeyPatch, change: Callable[[list[PackedBatch]], list[PackedBatch]]) -> None:
    """Change what rank 1 gets out of the exchange."""

    def tampered(communicator: Communicator, *args: Any, **options: Any) -> dict[int, list[PackedBatch]]:
        batches = exchange_samples(communicator, *args, **options)
        return {rank: change(mine) if rank == 1 else mine for rank, mine in batches.items()}

    monkeypatch.setattr(dcpack.demo.run, "exchange_samples", tampered)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda batches: [], "rank 1 has 0 batches, the plan says 1"),
        (lambda batches: batches * 2, "rank 1 has 2 batches, the plan says 1"),
    ],
)
def test_a_batch_that_is_lost_or_doubled(monkeypatch: pytest.MonkeyPatch, change: Any, fault: str) -> None:
    _tamper(monkeypatch, change)
    (verdict,), _ = _prove(_two_ranks(), FIVE)
    assert verdict.faults[0] == fault


def test_rank_0_without_batches_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # The step's own count is taken from rank 0; without its batches that count must not come out right by chance.
    monkeypatch.setattr(
        dcpack.demo.run, "exchange_samples", lambda communicator, *args, **options: {communicator.rank: []}
    )
    (verdict,), _ = _prove(_two_ranks(), FIVE)
    assert verdict.num_tokens == 0
    assert verdict.faults == [
        "rank 0 has 0 batches, the plan says 1",
        "rank 1 has 0 batches, the plan says 1",
        "token 0 of sequence 0 and 4 more did not arrive",
    ]


# ---- the whole demo -----------------------------------------------------------------------------------------------


def test_the_report(tmp_path: Path) -> None:
    for name, size in (("a.txt", 2), ("b.md", 5), ("c.py", 9)):
        (tmp_path / name).write_bytes(b"x" * size)
    (tmp_path / "latin1.txt").write_bytes(b"\xe4\xf6\xfc")
    result = _run(DemoOptions(data=(str(tmp_path),), num_ranks=2, num_steps=1, global_batch_size=4, capacity=32))
    assert result.is_proven
    lines = result.report.splitlines()
    assert lines[0] == ("3 documents, 19 byte tokens: median 6, longest 10; 1 files left out (not UTF-8)")
    assert lines[1] == ("2 ranks, 1 steps of 4 documents, capacity 32 tokens a rank, zigzag slices, sliced routing")
    for name in STRATEGIES:
        assert sum(line.startswith(name) for line in lines) == 1
    # The first of the three documents comes twice: 19 and 3, 6 or 10 tokens.
    (verdict,) = result.steps
    assert verdict.num_tokens in (22, 25, 29)
    assert lines[-1].startswith(
        f"PROVEN under packing_aware: {verdict.num_tokens} tokens arrived exactly once, each at the right rank with "
        "its position, label and segment, compared with the source; 0 documents cut or dropped by overlong='split', "
        "0 tokens dropped."
    )


def test_bytes_that_moved(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"abcd")
    result = _run(_two_ranks(data=(str(tmp_path),)))
    by_name = {strategy.name: strategy for strategy in result.strategies}
    assert (by_name["packing_aware"].bytes_moved, by_name["packing_aware"].bytes_whole) == (32, 64)
    # The five tokens in pieces of 4 and 1: rank 1 gets the one, or the four, of both fields.
    assert by_name["in_order"].bytes_moved == by_name["in_order"].bytes_whole == 32
    assert (by_name["pad to longest"].bytes_moved, by_name["pad to longest"].bytes_whole) == (None, None)
    assert result.bytes_moved >= 32
    assert "32 B" in result.report
    alone = _run(DemoOptions(data=(str(tmp_path),), num_ranks=1, num_steps=1, global_batch_size=2, capacity=8))
    assert alone.bytes_moved == 0
    assert {strategy.bytes_moved for strategy in alone.strategies} == {0, None}


def test_strategies_that_cannot_plan_are_said_to_fail_and_the_proof_goes_on(tmp_path: Path) -> None:
    # 901 tokens fit on 4 ranks of 256 but not on one.
    (tmp_path / "long.txt").write_bytes(b"y" * 900)
    options = DemoOptions(
        data=(str(tmp_path),), num_ranks=4, num_steps=1, global_batch_size=1, capacity=256, overlong="error"
    )
    result = _run(options)
    assert result.is_proven
    failed = {strategy.name: strategy.failure for strategy in result.strategies if strategy.failure}
    assert list(failed) == ["in_order"]
    assert "1 sequence is longer than the limit of 256 tokens (256 x 1 ranks" in failed["in_order"]
    assert f"in_order: {failed['in_order']}" in result.report.splitlines()


@pytest.mark.parametrize(("overlong", "size"), [("split", 10), ("error", 900)])
def test_progress_reaches_its_total(tmp_path: Path, overlong: str, size: int) -> None:
    # 2 steps, once for the proof and once for each of the strategies, also where a strategy gives up.
    (tmp_path / "a.txt").write_bytes(b"z" * size)
    totals: list[int] = []
    calls: list[int] = []

    def progress(total: int) -> Callable[[], object]:
        totals.append(total)
        return lambda: calls.append(1)

    options = DemoOptions(
        data=(str(tmp_path),), num_ranks=4, num_steps=2, global_batch_size=1, capacity=256, overlong=overlong
    )
    assert run_demo(options, progress=progress).is_proven
    assert totals == [2 * (1 + len(STRATEGIES))]
    assert len(calls) == totals[0]


# ---- options and documents ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_ranks": 0}, "num_ranks must be at least 1, got 0"),
        ({"num_steps": 0}, "num_steps must be from 1 to 16777216, got 0"),
        ({"global_batch_size": -1}, "global_batch_size must be from 1 to 16777216, got -1"),
        ({"capacity": 0}, "capacity must be at least 1, got 0"),
        ({"capacity": 8.0}, r"capacity must be an integer, got 8.0 \(float\)"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"max_cp_size": 0}, "max_cp_size must be at least 1, got 0"),
        ({"scheduler": "best"}, "scheduler must be one of 'in_order', 'packing_aware', 'dynamic_cp', .*, got 'best'"),
        ({"overlong": "ignore"}, "overlong must be one of .*'truncate', got 'ignore'"),
        ({"sharding": "spiral"}, "sharding must be one of 'zigzag', .*, got 'spiral'"),
        ({"routing": "slow"}, "routing must be one of 'sliced', 'whole', got 'slow'"),
    ],
)
def test_wrong_options(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{text}$"):
        DemoOptions(**options)


def test_documents_are_chosen_by_the_seed_and_no_more_than_needed(text_folder: Path) -> None:
    def read(seed: int) -> list[bytes]:
        options = DemoOptions(data=(str(text_folder),), num_steps=2, global_batch_size=3, seed=seed)
        documents = load_documents(options)
        return [documents[i][:-1].astype(np.uint8).tobytes() for i in range(len(documents))]

    first = read(1)
    assert len(first) == 6
    assert first == read(1)
    assert first != read(2)
    everything = {file.read_bytes() for file in text_folder.iterdir()}
    assert set(first) <= everything


def test_data_without_readable_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe")
    (tmp_path / "b.txt").write_bytes(b"")
    with pytest.raises(ArgumentError, match=r"^no readable text among 2 files$"):
        load_documents(DemoOptions(data=(str(tmp_path),)))


def test_without_data_the_texts_of_the_machine_are_read(monkeypatch: pytest.MonkeyPatch, text_folder: Path) -> None:
    monkeypatch.setattr(dcpack.demo.run, "installed_text_folders", lambda: [text_folder])
    assert len(load_documents(DemoOptions(num_steps=1, global_batch_size=100))) == 31
