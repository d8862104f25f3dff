"""The demo: real documents through gather, plan, exchange and packing, proven, and compared with other strategies."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dcpack._checks import Int64Array, check_kinds, list_offenders
from dcpack.comm import Communicator, run_ranks
from dcpack.data import TextDocuments, find_text_files, installed_text_folders
from dcpack.demo.options import DemoOptions
from dcpack.demo.proof import RankEvidence, StepProof, check_batches, conclude
from dcpack.errors import ArgumentError
from dcpack.exchange import (
    ROUTINGS,
    SampleTable,
    build_routes,
    check_same_plan,
    exchange_samples,
    gather_samples,
)
from dcpack.plans import Plan
from dcpack.report import STRATEGIES, Planned, StrategyResult, compare_strategies, format_strategies
from dcpack.topology import Topology

__all__ = ["DemoResult", "load_documents", "prove", "prove_on", "run_demo"]

_MAX_SHOWN = 20


@dataclass(slots=True)
class DemoResult:
    """What the demo found.

    Attributes:
        steps: the verdict on each step.
        strategies: the strategies, summed over the steps.
        bytes_moved: bytes between ranks in the proof.
        report: the text to print.

    Example:
        >>> DemoResult(steps=[], strategies=[], bytes_moved=0, report="nothing was run").report
        'nothing was run'
    """

    steps: list[StepProof]
    strategies: list[StrategyResult]
    bytes_moved: int
    report: str

    @property
    def is_proven(self) -> bool:
        """Whether no step has a fault."""
        return not any(step.faults for step in self.steps)


def load_documents(options: DemoOptions) -> TextDocuments:
    """Read as many documents as the demo needs, chosen by the seed.

    Args:
        options: what the demo runs.

    Returns:
        The documents, fewer than asked for where there are no more.

    Raises:
        ArgumentError: no text, or paths that do not exist.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "text.txt").write_text("Some text. " * 30)
        ...     options = DemoOptions(data=(folder,), num_ranks=2, num_steps=1, global_batch_size=2, capacity=512)
        ...     len(load_documents(options))
        1
    """
    check_kinds(options=(options, DemoOptions))
    files = find_text_files(options.data or installed_text_folders())
    order = np.random.default_rng(options.seed).permutation(len(files))
    wanted = options.num_steps * options.global_batch_size
    documents = TextDocuments.read((files[i] for i in order), max_documents=wanted)
    if len(documents) == 0:
        raise ArgumentError(f"no readable text among {len(files)} files")
    return documents


def _documents_of_step(options: DemoOptions, documents: TextDocuments, step: int) -> Int64Array:
    """Return which documents make up a step; where they are too few, they come round again."""
    first = step * options.global_batch_size
    return np.arange(first, first + options.global_batch_size) % len(documents)


def _process_step(
    communicator: Communicator,
    options: DemoOptions,
    documents: TextDocuments,
    step: int,
    topology: Topology | None = None,
) -> tuple[RankEvidence, Plan, SampleTable, int]:
    """What one process does in one step: read its share, gather, plan, compare, exchange, check its ranks' batches."""
    chosen = _documents_of_step(options, documents, step)
    mine = chosen[communicator.rank :: communicator.size]
    samples = [{"input_ids": documents[int(i)]} for i in mine]
    gathered = gather_samples(communicator, samples)
    plan = options.cluster.plan(gathered.table.lengths, scheduler=options.scheduler)
    check_same_plan(communicator, plan)
    batches = exchange_samples(
        communicator, gathered, plan, topology=topology, sharding=options.sharding, routing=options.routing
    )
    order = np.concatenate([chosen[process :: communicator.size] for process in range(communicator.size)])
    found = [check_batches(mine, plan, rank, documents, order, options.sharding) for rank, mine in batches.items()]
    valid = next((batch.global_valid_tokens for mine in batches.values() for batch in mine), 0)
    return _merged(found), plan, gathered.table, valid


def _merged(evidence: list[RankEvidence]) -> RankEvidence:
    """Return what the ranks of one process found, as one."""
    return RankEvidence(
        faults=tuple(fault for one in evidence for fault in one.faults),
        seen=np.concatenate([np.zeros(0, np.int64), *(one.seen for one in evidence)]),
        num_valid_tokens=sum(one.num_valid_tokens for one in evidence),
    )


def prove(
    options: DemoOptions, documents: TextDocuments, *, done: Callable[[], object]
) -> tuple[list[StepProof], list[Plan], list[SampleTable], int]:
    """Run every step on all ranks and judge it.

    Args:
        options: what the demo runs.
        documents: of `load_documents`.
        done: called after each step, for progress.

    Returns:
        The verdicts, the plans, the sample tables, and the bytes that moved between ranks.

    Raises:
        ArgumentError: an argument of another kind, or no documents.
        PeerError: a rank failed, or `done` did.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "text.txt").write_text("Some text. " * 30)
        ...     options = DemoOptions(data=(folder,), num_ranks=2, num_steps=1, global_batch_size=2, capacity=512)
        ...     verdicts, plans, _, _ = prove(options, load_documents(options), done=lambda: None)
        >>> verdicts[0].faults, verdicts[0].num_tokens == int(plans[0].lengths.sum())
        ([], True)
    """
    check_kinds(options=(options, DemoOptions), documents=(documents, TextDocuments), done=(done, Callable))
    if len(documents) == 0:
        raise ArgumentError("documents must hold at least one document")

    def run_all_steps(communicator: Communicator) -> list[tuple[RankEvidence, Plan, SampleTable, int]]:
        results = []
        for step in range(options.num_steps):
            results.append(_process_step(communicator, options, documents, step))
            if communicator.rank == 0:
                done()
        moved.append(communicator.counters.bytes_sent)
        return results

    moved: list[int] = []
    by_rank = run_ranks(options.num_ranks, run_all_steps, deadline_s=options.deadline_s)
    verdicts, plans, tables = [], [], []
    for of_step in zip(*by_rank, strict=True):
        _, plan, table, valid = of_step[0]
        verdicts.append(conclude(plan, [evidence for evidence, *_ in of_step], valid))
        plans.append(plan)
        tables.append(table)
    return verdicts, plans, tables, sum(moved)


def prove_on(
    communicator: Communicator,
    options: DemoOptions,
    documents: TextDocuments,
    *,
    done: Callable[[], object],
    topology: Topology | None = None,
) -> tuple[list[StepProof], list[Plan], list[SampleTable], int]:
    """Run every step as one process of `communicator` and judge it by the evidence of all. Collective.

    Returns:
        As `prove`; the same on every rank.
    """
    _check_same_documents(communicator, documents)
    verdicts, plans, tables, moved = [], [], [], 0
    for step in range(options.num_steps):
        sent = communicator.counters.bytes_sent
        evidence, plan, table, valid = _process_step(communicator, options, documents, step, topology)
        sent = communicator.counters.bytes_sent - sent
        found, total = _gather_evidence(communicator, evidence, valid)
        verdicts.append(conclude(plan, found, total))
        plans.append(plan)
        tables.append(table)
        moved += sum(int(part[0]) for part in communicator.all_gather(np.array([sent])))
        done()
    return verdicts, plans, tables, moved


def _check_same_documents(communicator: Communicator, documents: TextDocuments) -> None:
    """Raise on every rank where one read other documents: nodes with other files need ``--data`` on a shared disk."""
    digest = np.frombuffer(hashlib.sha256(documents.tokens.tobytes() + documents.offsets.tobytes()).digest(), np.uint8)
    digests = communicator.all_gather(digest)
    pairs = zip(communicator.ranks, digests, strict=True)
    other = [f"rank {rank}" for rank, part in pairs if bytes(part) != bytes(digests[0])]
    if other:
        raise ArgumentError(f"all ranks must read the same documents; others than rank 0's on {list_offenders(other)}")


def _gather_evidence(communicator: Communicator, evidence: RankEvidence, valid: int) -> tuple[list[RankEvidence], int]:
    """Return the evidence of all ranks, and the valid tokens of the step as the first rank with a batch has them."""
    seen = communicator.all_gather(evidence.seen)
    texts = communicator.all_gather(np.frombuffer(json.dumps([evidence.faults, valid]).encode(), np.uint8))
    counts = communicator.all_gather(np.array([evidence.num_valid_tokens]))
    parsed = [json.loads(bytes(text)) for text in texts]
    found = [
        RankEvidence(faults=tuple(faults), seen=part, num_valid_tokens=int(count[0]))
        for (faults, _), part, count in zip(parsed, seen, counts, strict=True)
    ]
    return found, max(total for _, total in parsed)


def run_demo(
    options: DemoOptions,
    *,
    progress: Callable[[int], Callable[[], object]],
    communicator: Communicator | None = None,
    topology: Topology | None = None,
) -> DemoResult:
    """Run the whole demo.

    Args:
        options: what to run.
        progress: given the number of units of work, returns what is called after each.
        communicator: this process's view of the processes, all of which make this call; None runs the ranks as threads
            of this process.
        topology: which process hosts which of ``options.num_ranks`` ranks; None where process r hosts rank r.

    Returns:
        The verdicts, the strategies compared, and the text to print.

    Raises:
        ArgumentError: an argument of another kind, no text, or paths that do not exist.
        PeerError: that, on some process of `communicator`, or a process that failed.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "text.txt").write_text("Some text. " * 30)
        ...     options = DemoOptions(data=(folder,), num_ranks=2, num_steps=1, global_batch_size=2, capacity=512)
        ...     print(run_demo(options, progress=lambda count: lambda: None).report.splitlines()[-1].split(":")[0])
        PROVEN under packing_aware
    """
    started = time.perf_counter()
    check_kinds(communicator=(communicator, Communicator | None))
    with contextlib.nullcontext() if communicator is None else communicator.guard():
        check_kinds(progress=(progress, Callable), topology=(topology, Topology | None))
        documents = load_documents(options)
    done = progress(options.num_steps * (1 + len(STRATEGIES)))
    if communicator is None:
        verdicts, _, tables, moved = prove(options, documents, done=done)
    else:
        verdicts, _, tables, moved = prove_on(communicator, options, documents, done=done, topology=topology)
    moved_by = {name: [0, 0] for name in STRATEGIES}

    def count_bytes(name: str, step: int, planned: Planned) -> None:
        for k, routing in enumerate(ROUTINGS):
            routes = build_routes(
                planned.plan,
                tables[step],
                num_processes=options.num_ranks if communicator is None else communicator.size,
                process_of_rank=None if topology is None else topology.process_of_rank,
                sharding=options.sharding,
                routing=routing,
            )
            moved_by[name][k] += routes.bytes_moved

    strategies = compare_strategies(
        options.cluster,
        [table.lengths for table in tables],
        done=done,
        inspect=lambda name, step, planned: name == "pad to longest" or count_bytes(name, step, planned),
    )
    for result in strategies:
        if result.failure is None and result.name != "pad to longest":
            result.bytes_moved, result.bytes_whole = moved_by[result.name]
    result = DemoResult(steps=verdicts, strategies=strategies, bytes_moved=moved, report="")
    result.report = _report(options, documents, result, time.perf_counter() - started)
    return result


def _report(options: DemoOptions, documents: TextDocuments, result: DemoResult, seconds: float) -> str:
    lengths = documents.lengths()
    unit = options.cluster.cost.unit
    total = sum(step.num_tokens for step in result.steps)
    lines = [
        f"{len(documents)} documents, {int(lengths.sum()):,} byte tokens: median {int(np.median(lengths)):,}, "
        f"longest {int(lengths.max()):,}"
        + (f"; {documents.num_unreadable} files left out (not UTF-8)" if documents.num_unreadable else ""),
        f"{options.num_ranks} ranks, {options.num_steps} steps of {options.global_batch_size} documents, capacity "
        f"{options.capacity:,} tokens a rank, {options.sharding} slices, {options.routing} routing",
        "",
        format_strategies(result.strategies, unit=unit),
        f"step time: mean over steps by {options.cluster.cost!r}; above bound: over the lower bound of the same pieces",
        "moved: bytes between ranks by slices, fused; beside it by whole sequences, field by field",
        "",
    ]
    lines += [f"{r.name}: {r.failure}" for r in result.strategies if r.failure]
    cut = sum(step.num_cut_documents for step in result.steps)
    dropped = sum(step.num_dropped_tokens for step in result.steps)
    faults = [f"step {s}: {fault}" for s, step in enumerate(result.steps) for fault in step.faults]
    counts = f"{cut} documents cut or dropped by overlong={options.overlong!r}, {dropped:,} tokens dropped"
    if faults:
        number = f"{len(faults):,} fault{'' if len(faults) == 1 else 's'}"
        lines += [f"PROOF FAILED under {options.scheduler}: {number} ({counts})", *faults[:_MAX_SHOWN]]
        lines += [f"and {len(faults) - _MAX_SHOWN:,} more"] * (len(faults) > _MAX_SHOWN)
    else:
        lines.append(
            f"PROVEN under {options.scheduler}: {total:,} tokens arrived exactly once, each at the right rank with its "
            f"position, label and segment, compared with the source; {counts}. {seconds:.1f} s"
        )
    return "\n".join(lines)
