"""Random loaders against a slow model of what they must do, on the fake back end.

    python benchmarks/loader_fuzz.py --count 200 --seed 0

Each case draws a mesh, a mode, a data set and a configuration, and runs an epoch in two parts: the second resumes from
the state of the first, often on another number of ranks. What comes out is compared with plain Python loops: the order
of samples, who is in which window, what rows hold, costs, token counts, reads. Prints one line a case and stops at the
first wrong one.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

import dcpack
from dcpack import SampleMetadata, Topology, build_distributed_dataloader

__all__ = ["Case", "check_case", "draw_case"]

WORD = 2**64


@dataclass(frozen=True, kw_only=True)
class Case:
    """One random loader."""

    mode: str
    meshes: tuple[dict[str, int], dict[str, int]]  # before and after the resume
    rows: tuple[int, int]  # local batch sizes
    global_batch_size: int
    lengths: tuple[int, ...]
    seq_len: int
    window: int
    policy: str
    min_balance_gain: float
    broadcast_plan: bool
    oversized: str
    drop_last: bool
    shuffle: bool
    shuffle_buffer: int | None
    seed: int
    stop_after: int  # micro-batches of rank 0 before the resume


def draw_case(seed: int) -> Case:
    """Return the case of a seed."""
    rng = random.Random(seed)
    mode = rng.choice(["online", "metadata", "repack", "planned_cp"])
    meshes = (draw_mesh(rng), draw_mesh(rng))
    data = [num_constructors(mesh, mode) for mesh in meshes]
    size = math.lcm(*data) * rng.choice([1, 2, 3])
    rows = tuple(rng.choice([d for d in range(1, size // n + 1) if size // n % d == 0]) for n in data)
    count = rng.choice([0, rng.randint(1, size), *[rng.randint(size, 5 * size)] * 8])
    longest = rng.choice([4, 20, 60])
    lengths = tuple(rng.randint(1, longest) for _ in range(count))
    # Repacked records hold up to seq_len; planned CP takes what fits on all ranks together.
    seq_len = max(max(lengths, default=1), 8)
    oversized = "error"
    if mode in ("online", "metadata") and rng.random() < 0.3:
        seq_len, oversized = max(seq_len // 2, 1), "single"
    if mode == "planned_cp":
        seq_len = max(-(-seq_len // min(data)) * 2, 8)
    drop_last = mode in ("online", "metadata") or rng.random() < 0.5
    shuffle = rng.random() < 0.8
    return Case(
        mode=mode,
        meshes=meshes,
        rows=(rows[0], rows[1]),
        global_batch_size=size,
        lengths=lengths,
        seq_len=seq_len,
        window=1 if mode == "planned_cp" else rng.choice([1, 2, 3, 10]),
        policy=rng.choice(["local_gain", "balanced"]),
        min_balance_gain=0.0 if mode == "planned_cp" else rng.choice([0.0, 0.0, 0.1, 0.5]),
        broadcast_plan=rng.random() < 0.7,
        oversized=oversized,
        drop_last=drop_last,
        shuffle=shuffle,
        shuffle_buffer=rng.choice([None, None, 1, 5]) if shuffle else None,
        seed=rng.randint(0, 2**40),
        stop_after=rng.randint(0, 12),
    )


def draw_mesh(rng: random.Random) -> dict[str, int]:
    axes = rng.choice(
        [("dp",), ("dp", "tp"), ("pp", "dp"), ("dp", "cp"), ("dp", "cp", "tp"), ("dp_replicate", "dp_shard")]
    )
    while True:
        mesh = {axis: rng.choice([1, 2, 3]) for axis in axes}
        if np.prod(list(mesh.values())) <= 6:
            return mesh


def num_constructors(mesh: dict[str, int], mode: str) -> int:
    """Return how many ranks build batches."""
    axes = ("dp", "dp_replicate", "dp_shard", *(("cp",) if mode == "planned_cp" else ()))
    return int(np.prod([size for axis, size in mesh.items() if axis in axes], dtype=np.int64))


# ---- the loader ------------------------------------------------------------------------------------------------------


class Data:
    """Records that say who they are and count their reads."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.reads: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self.case.lengths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.reads[index] += 1
        tokens = record_tokens(self.case, index)
        sample: dict[str, Any] = {"input_ids": np.array(tokens), "labels": np.array(record_labels(self.case, index))}
        if self.case.mode == "repack":
            sample["cu_seq_lens"] = record_offsets(self.case, index)
        return sample


def record_tokens(case: Case, index: int) -> list[int]:
    """Tokens that occur nowhere else."""
    return [1 + index * 1000 + t for t in range(case.lengths[index])]


def record_labels(case: Case, index: int) -> list[int]:
    """Every third label does not count."""
    return [-100 if (index + t) % 3 == 0 else 7 for t in range(case.lengths[index])]


def record_offsets(case: Case, index: int) -> list[int]:
    """Sequences of up to three tokens and the rest."""
    length = case.lengths[index]
    return sorted({0, min(1 + index % 3, length), length})


def run_part(case: Case, part: int, state: Any) -> list[tuple[list[Any], Counter[int], dict[str, Any], Any]]:
    """Run until the stop, or from a state to the end; by rank: batches, reads, state, what was planned."""
    mesh = case.meshes[part]
    topology = Topology(axes=tuple(mesh), sizes=tuple(mesh.values()))
    arguments: dict[str, Any] = {"balancing_algorithm": case.policy}
    if case.mode == "planned_cp":
        arguments = {"scheduler": "dynamic_cp"}
    elif case.mode == "metadata":
        arguments["metadata"] = [metadata_of(case, i) for i in range(len(case.lengths))]
    elif case.mode == "online":
        arguments["metadata_fn"] = lambda sample: metadata_of(case, (int(sample["input_ids"][0]) - 1) // 1000)
    config = dcpack.DistributedDatasetConfig(
        seq_len=case.seq_len,
        local_batch_size=case.rows[part],
        communication_backend="fake",
        metadata_mode=case.mode == "metadata",
        repack_sequences=case.mode == "repack",
        pad_token_id=0 if case.mode == "repack" else None,
        balance_window_size=case.window,
        min_balance_gain=case.min_balance_gain,
        broadcast_plan=case.broadcast_plan,
        oversized_policy=case.oversized,
        drop_last=case.drop_last,
    )

    def body(communicator: dcpack.Communicator) -> tuple[list[Any], Counter[int], dict[str, Any], Any]:
        data = Data(case)
        loader = build_distributed_dataloader(
            data,
            topology,
            config,
            batch_sampler=dcpack.GlobalBatchSampler(
                len(case.lengths),
                global_batch_size=case.global_batch_size,
                seed=case.seed,
                shuffle=case.shuffle,
                shuffle_buffer=case.shuffle_buffer,
                drop_last=case.drop_last,
            ),
            **arguments,
        )
        if state is not None:
            loader.load_state_dict(state)
        batches: list[Any] = []
        planned = {}
        for batch in loader if part else _first(loader, case.stop_after):
            batches.append(batch)
            if loader.last_planned is not None:
                planned[batch.step] = loader.last_planned
        state_then = loader.state_dict()
        loader.close()  # nothing is read any more
        return batches, Counter(data.reads), state_then, planned

    return dcpack.run_ranks(topology.num_ranks, body, deadline_s=60.0)


def _first(loader: Any, count: int) -> Any:
    for _ in range(count):
        batch = next(loader, None)
        if batch is None:
            return
        yield batch


def metadata_of(case: Case, index: int) -> SampleMetadata:
    return SampleMetadata(pack_tokens=case.lengths[index], cost=cost_of(case, index))


def cost_of(case: Case, index: int) -> int:
    return case.lengths[index] ** 2 + index % 5


# ---- the slow model --------------------------------------------------------------------------------------------------


def mix(word: int) -> int:
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % WORD
    return word ^ (word >> 31)


def word_at(seed: int, number: int) -> int:
    """Return a random word of epoch 0."""
    golden = 0x9E3779B97F4A7C15
    stream = mix(mix((seed + golden) % WORD))
    return mix((stream + (number + 1) * golden) % WORD)


def global_order(case: Case) -> list[int]:
    """Return the samples of the epoch in order."""
    count = len(case.lengths)
    if not case.shuffle:
        order = list(range(count))
    elif case.shuffle_buffer is None:
        order = sorted(range(count), key=lambda i: (word_at(case.seed, i), i))
    else:
        waiting, buffer, order = list(range(count)), [], []
        for position in range(count):
            while waiting and len(buffer) < case.shuffle_buffer:
                buffer.append(waiting.pop(0))
            at = word_at(case.seed, position) % len(buffer)
            buffer[at], buffer[-1] = buffer[-1], buffer[at]
            order.append(buffer.pop())
    size = case.global_batch_size
    return order[: count // size * size] if case.drop_last else order


def check_case(case: Case) -> str:
    """Run a case and compare it; returns a line about it.

    Raises:
        AssertionError: the loader did something else than the model.
    """
    order, size = global_order(case), case.global_batch_size
    steps = [order[start : start + size] for start in range(0, len(order), size)]
    first = run_part(case, 0, None)
    state = first[0][2]
    assert all(found[2] == state for found in first), "states differ between ranks"
    done = state["step"]
    check_part(case, 0, first, steps, range(done))
    second = run_part(case, 1, state)
    check_part(case, 1, second, steps, range(done, len(steps)))
    assert all(found[2]["step"] == len(steps) for found in second), "the end is not the end"
    count = sum(len(found[0]) for found in (*first, *second))
    meshes = " then ".join(" x ".join(f"{axis} {n}" for axis, n in mesh.items()) for mesh in case.meshes)
    return f"{case.mode:10} {meshes}; {len(steps)} steps of {size}, resumed after {done}, {count} batches"


def check_part(case: Case, part: int, results: list[Any], steps: list[list[int]], whole: range) -> None:
    mesh, mode = case.meshes[part], case.mode
    topology = Topology(axes=tuple(mesh), sizes=tuple(mesh.values()))
    data = ["dp", "dp_replicate", "dp_shard", *(["cp"] if mode == "planned_cp" else [])]
    lanes = topology.groups([axis for axis in mesh if axis not in data])
    for lane in lanes:
        for peer in lane[1:]:
            assert not results[peer][1], "a rank that receives has read"
            assert len(results[peer][0]) == len(results[lane[0]][0]), "peers got another number of batches"
            for mine, theirs in zip(results[lane[0]][0], results[peer][0], strict=True):
                assert_same(mine.data, theirs.data)
                assert mine.sample_ids.tolist() == theirs.sample_ids.tolist()
    members = [results[lane[0]] for lane in lanes]
    reads = sum((found[1] for found in members), start=Counter[int]())
    begun = sorted({batch.step for found in members for batch in found[0]})
    wanted = Counter(i for s in begun for i in steps[s])
    # The step behind those that have begun is read ahead, as far as the thread that does it has come.
    ahead = Counter(steps[begun[-1] + 1]) if begun and begun[-1] + 1 < len(steps) else Counter[int]()
    assert wanted <= reads <= wanted + ahead, f"read {reads}, wanted {wanted}"
    for s in whole:
        batches = [[batch for batch in found[0] if batch.step == s] for found in members]
        check_step(case, part, batches, steps[s], [found[3].get(s) for found in members])


def check_step(case: Case, part: int, batches: list[list[Any]], members: list[int], planned: list[Any]) -> None:
    """Check one whole step: `batches[rank]` against its samples in global order."""
    numbers = [[(b.microbatch, b.num_microbatches) for b in mine] for mine in batches]
    assert all(found == numbers[0] for found in numbers), "ranks have other micro-batches"
    assert [m for m, _ in numbers[0]] == list(range(numbers[0][0][1])), "micro-batches are missing"
    valid = {i: sum(label != -100 for label in record_labels(case, i)) for i in members}
    total = sum(valid.values())
    assert all(b.global_valid_tokens == total for mine in batches for b in mine), "global valid tokens"
    assert sum(b.num_valid_tokens for mine in batches for b in mine) == total, "valid tokens do not add up"
    if case.mode == "planned_cp":
        check_planned(case, batches, members)
    elif case.mode == "repack":
        check_repacked(case, part, batches, members, planned)
    else:
        check_rows(case, part, batches, members)


def windows_of(case: Case, part: int, members: list[int], num_ranks: int) -> list[tuple[range, list[list[int]]]]:
    """Return for each window its micro-batches, and the samples that the sampler gave each rank for them."""
    rows = case.rows[part]
    per_round = rows * num_ranks
    rounds = [members[start : start + per_round] for start in range(0, len(members), per_round)]
    windows = []
    for start in range(0, len(rounds), case.window):
        numbers = range(start, min(start + case.window, len(rounds)))
        given = [[i for r in numbers for i in rounds[r][d * rows : (d + 1) * rows]] for d in range(num_ranks)]
        windows.append((numbers, given))
    return windows


def makespan(loads: list[list[float]]) -> float:
    """Return the slowest rank of each micro-batch, summed; loads ``[micro-batch][rank]``."""
    return sum(max(ranks) for ranks in loads)


def check_rows(case: Case, part: int, batches: list[list[Any]], members: list[int]) -> None:
    """Whole samples: rows, windows, costs."""
    num_ranks, rows = len(batches), case.rows[part]
    for numbers, reference in windows_of(case, part, members, num_ranks):
        got: list[int] = []
        loads = []
        for m in numbers:
            loads.append([sum(cost_of(case, i) for i in batches[d][m].sample_ids.tolist()) for d in range(num_ranks)])
            for d in range(num_ranks):
                batch = batches[d][m]
                assert len(batch.data) == rows, "another number of rows"
                for row, i in zip(batch.data, batch.sample_ids.tolist(), strict=True):
                    assert row["input_ids"].tolist() == record_tokens(case, i), "another sample"
                    assert row["labels"].tolist() == record_labels(case, i), "other labels"
                    assert case.oversized == "single" or len(row["input_ids"]) <= case.seq_len
                got += batch.sample_ids.tolist()
        flat = [i for rank in reference for i in rank]
        assert sorted(got) == sorted(flat), "samples left their window"
        before = makespan(
            [
                [sum(cost_of(case, i) for i in reference[d][k * rows : (k + 1) * rows]) for d in range(num_ranks)]
                for k in range(len(numbers))
            ]
        )
        after = makespan(loads)
        unmoved = all(
            batches[d][m].sample_ids.tolist() == reference[d][k * rows : (k + 1) * rows]
            for d in range(num_ranks)
            for k, m in enumerate(numbers)
        )
        assert unmoved or (before - after) / before > case.min_balance_gain - 1e-9, "a change that does not pay"


def check_repacked(case: Case, part: int, batches: list[list[Any]], members: list[int], planned: list[Any]) -> None:
    """Repacked text: every sequence whole and once, rows of the right shape, costs with the new padding."""
    rows = case.rows[part]
    sequences = Counter[tuple[tuple[int, ...], tuple[int, ...]]]()
    for i in members:
        offsets = record_offsets(case, i)
        for start, end in pairwise(offsets):
            tokens, labels = record_tokens(case, i)[start:end], record_labels(case, i)[start:end]
            sequences[tuple(tokens), tuple(labels)] += 1
    found = Counter[tuple[tuple[int, ...], tuple[int, ...]]]()
    loads = []
    for m in range(len(batches[0])):
        loads.append([0.0] * len(batches))
        for d, mine in enumerate(batches):
            data = mine[m].data
            assert data["input_ids"].shape == data["labels"].shape == (rows, case.seq_len), "another shape"
            offsets = data["cu_seq_lens"].tolist()
            assert (offsets[0], offsets[-1]) == (0, rows * case.seq_len), "offsets do not cover the rows"
            tokens, labels = data["input_ids"].ravel().tolist(), data["labels"].ravel().tolist()
            for start, end in pairwise(offsets):
                loads[-1][d] += (end - start) ** 2
                if tokens[start] == 0:
                    assert (set(tokens[start:end]), set(labels[start:end])) == ({0}, {-100}), "padding is not padding"
                else:
                    found[tuple(tokens[start:end]), tuple(labels[start:end])] += 1
    assert found == sequences, "sequences were lost, cut or repeated"
    after = makespan(loads)
    told = sum(decision.objective_after for decision in planned[0].decisions)
    assert abs(told - after) <= 1e-6 * max(after, 1.0), f"the objective is {after}, the loader says {told}"
    assert all(d.accepted is (d.gain > case.min_balance_gain) for d in planned[0].decisions), "the gate"


def check_planned(case: Case, batches: list[list[Any]], members: list[int]) -> None:
    """Planned CP: groups, capacity, and every token once with its label and position."""
    seen = Counter[int]()
    placed = Counter[tuple[int, int, int]]()
    for m in range(len(batches[0])):
        at = 0
        while at < len(batches):
            batch = batches[at][m]
            assert batch.cp_rank == 0, "groups do not partition the ranks"
            group = [batches[at + r][m] for r in range(batch.cp_size)]
            assert [b.cp_rank for b in group] == list(range(batch.cp_size)), "CP ranks"
            assert all(b.sample_ids.tolist() == batch.sample_ids.tolist() for b in group), "siblings"
            seen.update(i for i in batch.sample_ids.tolist() if i >= 0)
            for b in group:
                data = b.data
                assert len(data["input_ids"]) <= case.seq_len, "over capacity"
                real = data["segment_ids"] > 0
                if not b.is_dummy:
                    for token, label, position in zip(
                        data["input_ids"][real].tolist(),
                        data["labels"][real].tolist(),
                        data["position_ids"][real].tolist(),
                        strict=True,
                    ):
                        placed[token, label, position] += 1
            at += batch.cp_size
    assert seen == Counter(members), "samples were lost or repeated"
    wanted = Counter(
        (token, label, position)
        for i in members
        for position, (token, label) in enumerate(zip(record_tokens(case, i), record_labels(case, i), strict=True))
    )
    assert placed == wanted, "tokens were lost, repeated or mislabelled"


def assert_same(mine: Any, theirs: Any) -> None:
    """Compare nested arrays and values."""
    assert type(mine) is type(theirs), "another type"
    if isinstance(mine, dict):
        assert list(mine) == list(theirs), "other keys"
        for key in mine:
            assert_same(mine[key], theirs[key])
    elif isinstance(mine, list | tuple):
        assert len(mine) == len(theirs), "another length"
        for one, other in zip(mine, theirs, strict=True):
            assert_same(one, other)
    elif isinstance(mine, np.ndarray):
        assert mine.dtype == theirs.dtype, "another dtype"
        assert np.array_equal(mine, theirs), "other arrays"
    else:
        assert mine == theirs, "another value"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    options = parser.parse_args()
    modes = Counter[str]()
    for seed in range(options.seed, options.seed + options.count):
        case = draw_case(seed)
        try:
            print(f"{seed:5} {check_case(case)}", flush=True)
        except Exception as error:
            print(f"{seed:5} FAILED: {type(error).__name__}: {str(error).splitlines()[0]}\n{case}", flush=True)
            raise
        modes[case.mode] += 1
    print(f"{options.count} cases as the model says: {dict(sorted(modes.items()))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
