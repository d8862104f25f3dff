"""Random loaders against a slow model of what they must do, on the fake back end.

    python benchmarks/loader_fuzz.py --count 200 --seed 0

Each case draws a mesh, often on processes that host several ranks, a mode, a data set and a configuration, and runs an
epoch in two parts: the second resumes from the state of the first, often on another number of ranks. What comes out is
compared with plain Python loops: the order of samples, who is in which window, what rows hold, costs, token counts,
reads. Prints one line a case and stops at the first wrong one.
"""

from __future__ import annotations

import argparse
import logging
import math
import random
import sys
from collections import Counter
from typing import Any

import numpy as np
from external_fuzz import ExternalCase, check_external, draw_external
from loader_model import (
    Case,
    assert_same,
    check_step,
    global_order,
    metadata_of,
    record_labels,
    record_offsets,
    record_tokens,
)
from loader_places import draw_place

import dcpack
from dcpack import build_distributed_dataloader

__all__ = ["check_case", "draw_case"]


def draw_case(seed: int) -> Case | ExternalCase:
    """Return the case of a seed."""
    rng = random.Random(seed)
    mode = rng.choice(["online", "metadata", "repack", "planned_cp", "planned_cp_metadata", "external"])
    if mode == "external":
        return draw_external(rng)
    plans_cp = mode in ("planned_cp", "planned_cp_metadata")
    places = (draw_place(rng, plans_cp=plans_cp), draw_place(rng, plans_cp=plans_cp))
    data = [len(place.lanes()) for place in places]
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
    if plans_cp:
        seq_len = max(-(-seq_len // min(len(place.rows()) for place in places)) * 2, 8)
    drop_last = mode in ("online", "metadata") or rng.random() < 0.5
    shuffle = rng.random() < 0.8
    return Case(
        mode=mode,
        places=places,
        rows=(rows[0], rows[1]),
        global_batch_size=size,
        lengths=lengths,
        seq_len=seq_len,
        window=1 if plans_cp else rng.choice([1, 2, 3, 10]),
        policy=rng.choice(["local_gain", "balanced"]),
        min_balance_gain=0.0 if plans_cp else rng.choice([0.0, 0.0, 0.1, 0.5]),
        broadcast_plan=rng.random() < 0.7,
        oversized=oversized,
        drop_last=drop_last,
        shuffle=shuffle,
        shuffle_buffer=rng.choice([None, None, 1, 5]) if shuffle else None,
        seed=rng.randint(0, 2**40),
        stop_after=rng.randint(0, 12),
    )


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


def run_part(case: Case, part: int, state: Any) -> list[tuple[list[Any], Counter[int], dict[str, Any], Any]]:
    """Run until the stop, or from a state to the end; by rank: batches, reads, state, what was planned."""
    place = case.places[part]
    arguments: dict[str, Any] = {"scheduler": "dynamic_cp"} if case.plans_cp else {"balancing_algorithm": case.policy}
    if case.by_index:
        arguments["metadata"] = [metadata_of(case, i) for i in range(len(case.lengths))]
    elif case.mode == "online":
        arguments["metadata_fn"] = lambda sample: metadata_of(case, (int(sample["input_ids"][0]) - 1) // 1000)
    config = dcpack.DistributedDatasetConfig(
        seq_len=case.seq_len,
        local_batch_size=case.rows[part],
        communication_backend="fake",
        metadata_mode=case.by_index,
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
            place.topology,
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

    return dcpack.run_ranks(place.num_processes, body, deadline_s=60.0)


def _first(loader: Any, count: int) -> Any:
    for _ in range(count):
        batch = next(loader, None)
        if batch is None:
            return
        yield batch


# ---- the slow model --------------------------------------------------------------------------------------------------


def check_case(case: Case | ExternalCase) -> str:
    """Run a case and compare it; returns a line about it.

    Raises:
        AssertionError: the loader did something else than the model.
    """
    if isinstance(case, ExternalCase):
        return check_external(case)
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
    places = " then ".join(map(str, case.places))
    return f"{case.mode:19} {places}; {len(steps)} steps of {size}, resumed after {done}, {count} batches"


def check_part(case: Case, part: int, results: list[Any], steps: list[list[int]], whole: range) -> None:
    lanes = case.places[part].lanes()
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
    if case.by_index and part == 1:  # to the end, so that all that was read was delivered
        for found in members:
            computed = {i for batch in found[0] for i in batch.sample_ids.tolist()}
            assert set(found[1]) <= computed, "a rank has read what it does not compute on"
    for s in whole:
        batches = [[batch for batch in found[0] if batch.step == s] for found in members]
        check_step(case, part, batches, steps[s], [found[3].get(s) for found in members])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    options = parser.parse_args()
    logging.getLogger("dcpack").setLevel(logging.ERROR)  # uneven ends are warned of, and meant here
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
