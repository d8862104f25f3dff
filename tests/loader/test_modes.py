"""All modes on fake ranks: what every step must hold, whatever the layout."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dcpack
from dcpack import DistributedDatasetConfig, SampleMetadata, Topology, build_distributed_dataloader
from dcpack.comm import Communicator
from dcpack.data import ArraySource, write_megatron_index
from dcpack.loader import CPPlanning

from loader_helpers import (  # isort: skip
    plans_ahead_and_taken,
    LENGTHS,
    Numbered,
    by_index,
    by_step,
    config,
    describe,
    domain,
    mesh,
    on_ranks,
    plain_steps,
    plans_cp,
    rows_of,
    sampler,
)

LAYOUTS = {
    "dp4": mesh(dp=4),
    "dp2xtp2": mesh(dp=2, tp=2),
    "dp2xcp2": mesh(dp=2, cp=2),
    "pp2xdp2": mesh(pp=2, dp=2),
}
MODES: dict[str, dict[str, Any]] = {
    "online": {"metadata_fn": describe},
    "metadata": {"metadata": LENGTHS},
    "planned_cp": {"scheduler": "dynamic_cp"},
    "planned_cp_metadata": {"scheduler": "dynamic_cp", "metadata": LENGTHS},
}


def run(
    layout: Topology, settings: DistributedDatasetConfig, **arguments: Any
) -> list[tuple[list[Any], Numbered, Any]]:
    def body(communicator: Communicator) -> tuple[list[Any], Numbered, Any]:
        data = Numbered()
        with build_distributed_dataloader(data, layout, settings, batch_sampler=sampler(), **arguments) as loader:
            batches = list(loader)
            return batches, data, (loader.state_dict(), loader.num_dropped)

    return on_ranks(layout.num_ranks, body)


def constructors(layout: Topology, mode: str) -> list[int]:
    axes = ("dp", "cp") if plans_cp(mode) else ("dp",)
    return [rank for rank in range(4) if all(c == 0 for a, c in layout.coordinates(rank).items() if a not in axes)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_step_is_the_plain_samplers(layout: str, mode: str) -> None:
    topology = LAYOUTS[layout]
    builders = constructors(topology, mode)
    settings = config(
        local_batch_size=12 // len(builders) // 3,
        seq_len=32,
        metadata_mode=by_index(mode),
        balance_window_size=1 if plans_cp(mode) else 2,
    )
    results = run(topology, settings, **MODES[mode])
    wanted = plain_steps(53, global_batch_size=12, seed=5)
    if plans_cp(mode):
        # Each bin on its first rank: siblings hold slices of the same samples.
        outputs = [[b for b in results[rank][0] if b.cp_rank == 0] for rank in builders]
    else:
        outputs = [results[rank][0] for rank in builders]
    assert by_step(outputs) == dict(enumerate(wanted))
    # Each sample is read once, by those that build batches alone.
    reads = sum((results[rank][1].reads for rank in builders), start=type(results[0][1].reads)())
    assert reads == sum(wanted, start=type(reads)())
    assert all(not results[rank][1].reads for rank in range(4) if rank not in builders)
    # The state and what is dropped are the same on all ranks.
    assert all(facts == results[0][2] for _, _, facts in results)
    assert results[0][2][1] == 5
    for batches, _, _ in results:
        numbers = [(b.step, b.microbatch, b.num_microbatches) for b in batches]
        assert numbers == [(s, m, n) for s, _, n in dict.fromkeys((b.step, 0, b.num_microbatches) for b in batches)
                           for m in range(n)]  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layout", ["dp2xtp2", "pp2xdp2"])
def test_peers_get_what_their_constructor_gets(layout: str, mode: str) -> None:
    topology = LAYOUTS[layout]
    results = run(topology, config(local_batch_size=2, seq_len=32, metadata_mode=by_index(mode)), **MODES[mode])
    other = "tp" if layout == "dp2xtp2" else "pp"
    for group in topology.groups((other,)):
        first, second = (results[rank][0] for rank in group)
        assert len(first) == len(second) > 0
        for mine, theirs in zip(first, second, strict=True):
            assert mine.sample_ids.tolist() == theirs.sample_ids.tolist()
            assert (mine.num_valid_tokens, mine.global_valid_tokens) == (
                theirs.num_valid_tokens,
                theirs.global_valid_tokens,
            )
            assert_same(mine.data, theirs.data)
            assert (mine.cp_size, mine.cp_rank) == (theirs.cp_size, theirs.cp_rank)
    for rank, (batches, _, _) in enumerate(results):
        assert all(rank in b.cp_ranks and b.cp_ranks.index(rank) == b.cp_rank for b in batches)


def assert_same(mine: Any, theirs: Any) -> None:
    assert type(mine) is type(theirs)
    if isinstance(mine, dict):
        assert list(mine) == list(theirs)
        for key in mine:
            assert_same(mine[key], theirs[key])
    elif isinstance(mine, list | tuple):
        assert len(mine) == len(theirs)
        for one, other in zip(mine, theirs, strict=True):
            assert_same(one, other)
    elif isinstance(mine, np.ndarray):
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs)
    else:
        assert mine == theirs


@pytest.mark.parametrize("mode", ["online", "metadata"])
@pytest.mark.parametrize("broadcast", [True, False])
def test_costs_18_and_2_become_10_and_10(mode: str, broadcast: bool) -> None:
    costs = [9, 9, 1, 1]
    arguments: dict[str, Any] = (
        {"metadata": [SampleMetadata(pack_tokens=5, cost=cost) for cost in costs]}
        if mode == "metadata"
        else {"metadata_fn": lambda sample: SampleMetadata(pack_tokens=5, cost=costs[int(sample["input_ids"][0])])}
    )

    def body(communicator: Communicator) -> tuple[list[int], Any]:
        settings = config(seq_len=8, local_batch_size=2, metadata_mode=by_index(mode), broadcast_plan=broadcast)
        order = sampler(4, 4, shuffle=False)
        loader = build_distributed_dataloader(Numbered([5] * 4), domain(2), settings, batch_sampler=order, **arguments)
        (batch,) = loader
        assert loader.last_planned is not None
        return batch.sample_ids.tolist(), loader.last_planned.decisions

    results = on_ranks(2, body)
    assert [sum(costs[i] for i in ids) for ids, _ in results] == [10, 10]
    for _, (decision,) in results:
        assert (decision.objective_before, decision.objective_after) == (18, 10)


def test_windows_are_clipped_at_steps_and_keep_their_members() -> None:
    # Three micro-batches a step, windows of 2: micro-batches 0 and 1 exchange samples, 2 stays by itself.
    def body(communicator: Communicator) -> list[Any]:
        settings = config(local_batch_size=2, balance_window_size=2)
        return list(
            build_distributed_dataloader(
                Numbered(), domain(2), settings, batch_sampler=sampler(shuffle=False), metadata_fn=describe
            )
        )

    results = on_ranks(2, body)
    for step in range(4):
        for members, first, count in ((range(2), 0, 8), (range(2, 3), 8, 4)):
            got = [i for batches in results for b in batches if b.step == step and b.microbatch in members
                   for i in b.sample_ids.tolist()]  # fmt: skip
            assert sorted(got) == list(range(12 * step + first, 12 * step + first + count))
    assert all(b.num_microbatches == 3 for batches in results for b in batches)
    # What the batches hold is what they say.
    assert all(rows_of(b) == [[i] for i in b.sample_ids.tolist()] for batches in results for b in batches)


def test_valid_tokens_are_counted_here_and_over_the_step() -> None:
    class Labelled(Numbered):
        def __getitem__(self, index: int) -> dict[str, np.ndarray]:
            sample = super().__getitem__(index)
            sample["labels"][: index % 3] = -100
            return sample

    for mode, arguments in MODES.items():

        def body(communicator: Communicator, mode: str = mode, arguments: Any = arguments) -> list[Any]:
            settings = config(local_batch_size=1, metadata_mode=by_index(mode))
            return list(
                build_distributed_dataloader(
                    Labelled(), domain(4), settings, batch_sampler=sampler(shuffle=False), **arguments
                )
            )

        valid = [max(int(n) - i % 3, 0) for i, n in enumerate(LENGTHS)]
        results = on_ranks(4, body)
        for step in range(4):
            batches = [b for found in results for b in found if b.step == step]
            total = sum(valid[12 * step : 12 * step + 12])
            assert {b.global_valid_tokens for b in batches} == {total}
            assert sum(b.num_valid_tokens for b in batches) == total


def test_metadata_mode_moves_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(self: Communicator, *args: Any) -> Any:
        raise AssertionError("all_to_all was called")

    monkeypatch.setattr(Communicator, "all_to_all", forbidden)
    results = run(domain(4), config(metadata_mode=True, balance_window_size=3), metadata=LENGTHS)
    assert sum(len(batches) for batches, _, _ in results) == 48
    with pytest.raises(dcpack.PeerError, match="all_to_all was called"):
        run(domain(4), config(balance_window_size=3), metadata_fn=describe)


def test_an_epoch_is_planned_ahead_without_reading() -> None:
    def body(communicator: Communicator) -> tuple[list[str], list[str], int]:
        data = Numbered()
        loader = build_distributed_dataloader(
            data,
            domain(2),
            config(local_batch_size=2, metadata_mode=True, balance_window_size=2),
            metadata=LENGTHS,
            batch_sampler=sampler(),
        )
        return plans_ahead_and_taken(loader, data)

    for ahead, found, reads in on_ranks(2, body):
        assert ahead == found
        assert len(ahead) == 8
        assert reads == 0


def test_planned_cp_cuts_long_samples_and_says_the_group() -> None:
    lengths = [100, 20, 12, 8, 8, 8, 4, 4]

    def body(communicator: Communicator) -> list[Any]:
        return list(
            build_distributed_dataloader(
                Numbered(lengths),
                domain(4),
                config(seq_len=32, local_batch_size=2),
                batch_sampler=sampler(8, 8, shuffle=False),
                scheduler=CPPlanning(max_cp_size=4),
            )
        )

    results = on_ranks(4, body)
    long = [[b for b in batches if 0 in b.sample_ids.tolist()] for batches in results]
    assert [(b.cp_size, b.cp_rank, b.cp_ranks) for (b,) in long] == [(4, rank, (0, 1, 2, 3)) for rank in range(4)]
    tokens = [int((b.data["input_ids"][b.data["segment_ids"] > 0] == 0).sum()) for (b,) in long]
    assert sum(tokens) == 100
    assert max(tokens) <= 32
    assert all(len(b.data["input_ids"]) <= 32 for batches in results for b in batches)


def test_planned_cp_pads_by_the_tp_size_of_the_mesh() -> None:
    def body(communicator: Communicator) -> list[int]:
        loader = build_distributed_dataloader(
            Numbered([5, 7, 9, 11]),
            mesh(dp=2, tp=2),
            config(seq_len=32, local_batch_size=2),
            batch_sampler=sampler(4, 4),
            scheduler=CPPlanning(max_cp_size=1),
        )
        return [int(n) for batch in loader for n in np.diff(batch.data["cu_seqlens_padded"])]

    assert {n % 2 for lengths in on_ranks(4, body) for n in lengths} == {0}


@pytest.mark.parametrize("mode", ["planned_cp", "repack"])
def test_the_tail_is_delivered_with_dummies(mode: str) -> None:
    # 53 samples in batches of 12: the fifth step has 5.
    class Text(Numbered):
        def __getitem__(self, index: int) -> dict[str, Any]:
            sample = super().__getitem__(index)
            return {**sample, "cu_seq_lens": [0, len(sample["input_ids"])]}

    arguments: dict[str, Any] = {"scheduler": "dynamic_cp"} if mode == "planned_cp" else {}
    lengths = LENGTHS

    def body(communicator: Communicator) -> tuple[list[Any], int]:
        settings = config(seq_len=64, local_batch_size=3, drop_last=False, repack_sequences=mode == "repack")
        loader = build_distributed_dataloader(
            Text(lengths), domain(4), settings, batch_sampler=sampler(drop_last=False), **arguments
        )
        return list(loader), loader.num_dropped

    results = on_ranks(4, body)
    outputs = [[b for b in batches if b.cp_rank == 0] for batches, _ in results]
    assert by_step(outputs) == dict(enumerate(plain_steps(53, global_batch_size=12, seed=5, drop_last=False)))
    assert all(dropped == 0 for _, dropped in results)
    for batches, _ in results:
        assert all(b.num_valid_tokens == 0 for b in batches if b.is_dummy)
    if mode == "repack":
        tail = [b for batches, _ in results for b in batches if b.step == 4]
        assert all(b.data["input_ids"].shape == (3, 64) for b in tail)
        assert sum(int((b.data["labels"] != -100).sum()) for b in tail) == tail[0].global_valid_tokens


def test_repacked_rows_hold_every_sequence_once_and_level_the_squares() -> None:
    # Two records of 10 tokens: 9 + 1, and four of 2 and 2 of padding. Costs 82 and 16 + 4.
    records = [
        {"input_ids": [1] * 9 + [2], "labels": [1] * 10, "cu_seq_lens": [0, 9, 10]},
        {
            "input_ids": [3, 3, 4, 4, 5, 5, 6, 6, 0, 0],
            "labels": [1] * 8 + [-100] * 2,
            "cu_seq_lens": [0, 2, 4, 6, 8, 10],
        },
        {"input_ids": [7] * 9 + [8], "labels": [1] * 10, "cu_seq_lens": [0, 9, 10]},
        {"input_ids": [9, 9], "labels": [1, 1], "cu_seq_lens": [0, 2]},
    ]

    def body(communicator: Communicator) -> tuple[Any, Any]:
        settings = config(seq_len=10, local_batch_size=2, repack_sequences=True, pad_token_id=0)
        # Rank 0 reads records 0 and 2, which are dear.
        loader = build_distributed_dataloader(
            [records[i] for i in (0, 2, 1, 3)], domain(2), settings, batch_sampler=sampler(4, 4, shuffle=False)
        )
        (batch,) = loader
        assert loader.last_planned is not None
        return batch.data, loader.last_planned.decisions[0]

    results = on_ranks(2, body)
    found: dict[int, int] = {}
    for data, _ in results:
        assert data["cu_seq_lens"][-1] == 20
        for row in data["input_ids"].tolist():
            for token in row:
                found[token] = found.get(token, 0) + 1
    found.pop(0)
    assert found == {1: 9, 2: 1, 3: 2, 4: 2, 5: 2, 6: 2, 7: 9, 8: 1, 9: 2}
    decision = results[0][1]
    # Before: two rows of 81 + 1, against 4 * 4 + 2 * 2 and 2 * 2 + 8 * 8.
    assert decision.objective_before == 164
    assert decision.accepted
    assert decision.objective_after < 164
    assert results[0][1] == results[1][1]


def test_split_and_pack_are_the_users() -> None:
    records = [[[1, 1, 1], [2]], [[3, 3, 3], [4]], [[5]], [[6]]]

    def body(communicator: Communicator) -> Any:
        loader = build_distributed_dataloader(
            records,
            domain(2),
            config(seq_len=4, local_batch_size=2),
            batch_sampler=sampler(4, 4, shuffle=False),
            split_fn=list,
            metadata_fn=lambda sequence: SampleMetadata(pack_tokens=len(sequence), cost=len(sequence) ** 2),
            pack_fn=lambda sequences: sorted(token for sequence in sequences for token in sequence),
            collate_fn=lambda rows: {"rows": rows},
        )
        (batch,) = loader
        return batch.data["rows"]

    results = on_ranks(2, body)
    assert sorted(token for rows in results for row in rows for token in row) == [1, 1, 1, 2, 3, 3, 3, 4, 5, 6]
    assert all(len(rows) == 2 and all(0 < len(row) <= 4 for row in rows) for rows in results)
    # 9 + 1 + 9 + 1 against 1 + 1 became even.
    assert sorted(sum(row.count(1) // 3 + row.count(3) // 3 for row in rows) for rows in results) == [1, 1]


def test_sizes_that_a_sample_may_have_do_not_matter_online() -> None:
    """Payloads of any nested kind travel, and those that stay are the very objects that were read."""

    class Mixed:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            return {"n": index, "text": "x" * index, "images": [np.zeros((index, 2), np.float16)], "pair": (1, None)}

    def body(communicator: Communicator) -> list[Any]:
        loader = build_distributed_dataloader(
            Mixed(),
            domain(2),
            config(local_batch_size=2),
            batch_sampler=sampler(4, 4, shuffle=False),
            metadata_fn=lambda sample: SampleMetadata(pack_tokens=1, cost=[9, 9, 1, 1][sample["n"]]),
        )
        (batch,) = loader
        return list(batch.data)

    found = sorted((sample for samples in on_ranks(2, body) for sample in samples), key=lambda sample: sample["n"])
    for index, sample in enumerate(found):
        assert_same(sample, Mixed()[index])


@pytest.mark.parametrize("mode", ["online", "metadata"])
def test_an_algorithm_of_ones_own_sees_the_window_in_global_order(mode: str) -> None:
    class Keep:
        def __init__(self) -> None:
            self.seen: list[Any] = []

        def assign(self, samples: Any, *, reference_bins: Any, **facts: Any) -> Any:
            self.seen.append([(s.key.position, s.key.dataset_index, s.key.reader, s.pack_tokens) for s in samples])
            return reference_bins

        def objective(self, rank_costs: Any) -> float:
            return max(cost.llm for cost in rank_costs)

    def body(communicator: Communicator) -> list[Any]:
        policy = Keep()
        lengths = LENGTHS[:8]
        arguments: dict[str, Any] = {"metadata": lengths} if mode == "metadata" else {"metadata_fn": describe}
        settings = config(local_batch_size=2, balance_window_size=2, metadata_mode=by_index(mode))
        order = sampler(8, 8, shuffle=False)
        list(
            build_distributed_dataloader(
                Numbered(lengths),
                domain(2),
                settings,
                batch_sampler=order,
                balancing_algorithm=policy,
                **arguments,
            )
        )
        return policy.seen

    seen, nothing = on_ranks(2, body)
    # Rank d reads positions 4 r + 2 d and the next in round r; rank 0 alone plans.
    assert seen == [[(i, i, i // 2 % 2, int(LENGTHS[i])) for i in range(8)]]
    assert nothing == []


def test_uniform_cp_gives_all_ranks_one_size() -> None:
    results = run(domain(4), config(seq_len=32, local_batch_size=3), scheduler="uniform_cp")
    sizes = [{b.cp_size for found, _, _ in results for b in found if (b.step, b.microbatch) == (s, m)}
             for s in range(4) for m in range(max(b.microbatch for b in results[0][0] if b.step == s) + 1)]  # fmt: skip
    assert {len(found) for found in sizes} == {1}
    outputs = [[b for b in found if b.cp_rank == 0] for found, _, _ in results]
    assert by_step(outputs) == dict(enumerate(plain_steps(53, global_batch_size=12, seed=5)))


@pytest.mark.parametrize("kind", ["array", "list", "source", "idx", "metadata"])
def test_lengths_by_index_come_in_many_forms(kind: str, tmp_path: Path) -> None:
    tokens = [np.arange(n) for n in LENGTHS]
    write_megatron_index(tmp_path / "corpus", tokens, dtype=np.int32)
    forms: dict[str, Any] = {
        "array": LENGTHS,
        "list": LENGTHS.tolist(),
        "source": ArraySource(tokens),
        "idx": tmp_path / "corpus.idx",
        "metadata": [SampleMetadata(int(n)) for n in LENGTHS],
    }
    results = run(domain(2), config(local_batch_size=2, metadata_mode=True), metadata=forms[kind])
    wanted = run(domain(2), config(local_batch_size=2, metadata_mode=True), metadata=LENGTHS)
    assert [[b.sample_ids.tolist() for b in found] for found, _, _ in results] == [
        [b.sample_ids.tolist() for b in found] for found, _, _ in wanted
    ]


def test_decisions_are_logged_where_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    def messages(log_balance: bool) -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="dcpack"):
            run(domain(2), config(local_batch_size=2, log_balance=log_balance), metadata_fn=describe)
        return caplog.messages

    assert messages(False) == []
    found = [text for text in messages(True) if text.startswith("window ")]
    assert len(found) == 12  # one window a micro-batch, told by the planner alone
    assert all("samples received by rank" in text for text in found)


def test_ranks_that_come_to_other_plans_are_an_error_on_all() -> None:
    class Own:
        """Decides by the rank, which no policy may."""

        def __init__(self, rank: int) -> None:
            self.rank = rank

        def assign(self, samples: Any, *, reference_bins: Any, **facts: Any) -> Any:
            return reference_bins[:: -1 if self.rank else 1]

        def objective(self, rank_costs: Any) -> float:
            return rank_costs[0].llm if self.rank else 0.0

    def body(communicator: Communicator) -> None:
        loader = build_distributed_dataloader(
            Numbered([9, 3]),
            domain(2),
            config(broadcast_plan=False),
            batch_sampler=sampler(2, 2, shuffle=False),
            metadata_fn=describe,
            balancing_algorithm=Own(communicator.rank),
        )
        next(loader)

    text = "this rank's plan differs from that of rank 0: window 0: bin 0: micro-batch 0, ranks 0..0"
    with pytest.raises(dcpack.PeerError, match=text):
        on_ranks(2, body)
