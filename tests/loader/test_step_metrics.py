"""What a loader says of its steps: values by hand, and what every mode must hold."""

from __future__ import annotations

import itertools
import logging
import time
from typing import Any

import numpy as np
import pytest

import dcpack
from dcpack import DistributedDataLoader, SampleMetadata, build_distributed_dataloader
from dcpack.comm import Communicator
from dcpack.cost import StepRecorder
from dcpack.loader import StepRecord, log_to_tensorboard, log_to_wandb, time_recorder
from dcpack.loader.sharing import Planned
from dcpack.loader.stages import STAGES, Span

from loader_helpers import LENGTHS, Numbered, config, describe, domain, mesh, on_ranks, sampler  # isort: skip

ALL_RANKS = {"loader/step(ms)", "loader/wait(ms)", "loader/num_valid_tokens", "loader/global_valid_tokens"}
BUILDERS = ALL_RANKS | {
    *("loader/num_tokens", "loader/num_padded_tokens", "loader/useful_tokens(1/s)", "loader/padded_tokens(1/s)"),
    *("loader/padding_share", "loader/utilization", "loader/imbalance_before", "loader/imbalance_after"),
    *("loader/mean_cp_size", "loader/samples_moved", "loader/bytes_sent(B)", "loader/hidden_share"),
    *(f"loader/{name}(ms)" for name in STAGES),
}
COSTS = [9, 9, 1, 1]


def level(communicator: Communicator, **options: Any) -> DistributedDataLoader:
    """Four samples of 5 tokens; those of cost 9 are read by rank 0, those of cost 1 by rank 1."""
    return build_distributed_dataloader(
        Numbered([5] * 4),
        domain(2),
        config(seq_len=8, local_batch_size=2, **options),
        batch_sampler=sampler(4, 4, shuffle=False),
        metadata_fn=lambda sample: SampleMetadata(pack_tokens=5, cost=COSTS[int(sample["input_ids"][0])]),
    )


def test_values_by_hand() -> None:
    def body(communicator: Communicator) -> dict[str, float]:
        with level(communicator) as loader:
            assert loader.metrics() == {}
            assert loader.last_step is None
            list(loader)
            return loader.metrics()

    for metrics in on_ranks(2, body):
        assert set(metrics) == BUILDERS
        assert metrics["loader/num_tokens"] == metrics["loader/num_padded_tokens"] == 20
        assert metrics["loader/num_valid_tokens"] == 10
        assert metrics["loader/global_valid_tokens"] == 20
        assert metrics["loader/imbalance_before"] == pytest.approx(1.8)  # 18 and 2
        assert metrics["loader/imbalance_after"] == pytest.approx(1.0)
        assert metrics["loader/samples_moved"] == 2
        assert metrics["loader/utilization"] == 20 / 32
        assert metrics["loader/padding_share"] == 0
        assert metrics["loader/mean_cp_size"] == 1
        # One sample of 2 x 5 int64 leaves each rank, with a header.
        assert 80 < metrics["loader/bytes_sent(B)"] < 1000


def test_planned_cp_by_hand() -> None:
    def body(communicator: Communicator) -> dict[str, float]:
        loader = build_distributed_dataloader(
            Numbered([16, 15]),
            domain(2),
            config(seq_len=8),
            batch_sampler=sampler(2, 2, shuffle=False),
            scheduler="dynamic_cp",
            cost_model=dcpack.QuadraticCost(),
        )
        list(loader)
        return loader.metrics()

    for metrics in on_ranks(2, body):
        # The half that the other rank computes, 8 ids and 8 labels or 7 and 7, on multiples of 16 bytes; no digests.
        assert metrics["loader/bytes_sent(B)"] == 2 * 64
        assert set(metrics) == BUILDERS
        # Two sequences, each read by one rank and computed by both; 15 is padded to 16.
        assert metrics["loader/imbalance_before"] == pytest.approx(16**2 / ((16**2 + 15**2) / 2))
        assert metrics["loader/imbalance_after"] == 1
        assert metrics["loader/mean_cp_size"] == 2
        assert metrics["loader/samples_moved"] == 2
        assert metrics["loader/num_padded_tokens"] == 32
        assert metrics["loader/padding_share"] == metrics["loader/utilization"] - 30 / 32 == 1 / 32


def test_repacked_text_counts_the_fill_of_its_rows() -> None:
    records = [
        {"input_ids": np.arange(n), "labels": np.arange(n), "cu_seq_lens": np.array([0, n], np.int32)} for n in (6, 2)
    ]
    with build_distributed_dataloader(
        records,
        domain(1),
        config(seq_len=8, local_batch_size=2, repack_sequences=True, pad_token_id=0),
        batch_sampler=sampler(2, 2, shuffle=False),
    ) as loader:
        list(loader)
        metrics = loader.metrics()
    assert metrics["loader/num_padded_tokens"] == 16
    assert metrics["loader/padding_share"] == 0.5


@pytest.mark.parametrize("mode", ["online", "metadata", "planned_cp"])
def test_every_mode_and_rank(mode: str) -> None:
    arguments: dict[str, Any] = {
        "online": {"metadata_fn": describe},
        "metadata": {"metadata": LENGTHS},
        "planned_cp": {"scheduler": "dynamic_cp"},
    }[mode]

    def body(communicator: Communicator) -> list[StepRecord]:
        records: list[StepRecord] = []
        with build_distributed_dataloader(
            Numbered(),
            mesh(dp=2, tp=2),
            config(local_batch_size=3, metadata_mode=mode == "metadata"),
            batch_sampler=sampler(),
            **arguments,
        ) as loader:
            loader.on_step(records.append)
            for _ in range(2):
                list(loader)
        return records

    results = on_ranks(4, body)
    for rank, records in enumerate(results):
        assert [(r.number, r.epoch, r.step) for r in records] == [(n, n // 4, n % 4) for n in range(8)]
        for record in records:
            metrics = record.metrics()
            assert set(metrics) == (BUILDERS if rank % 2 == 0 else ALL_RANKS)
            assert all(isinstance(value, float) for value in metrics.values())
            if rank % 2 == 0:
                assert {span.name for span in record.spans} == set(STAGES)
                assert metrics["loader/imbalance_after"] >= 1
                assert record.global_valid_tokens == metrics["loader/num_tokens"]
        for earlier, later in itertools.pairwise(records):
            assert earlier.start <= earlier.end <= later.start
    for step in range(8):
        assert sum(results[rank][step].num_valid_tokens for rank in (0, 2)) == results[0][step].global_valid_tokens


def record(**values: Any) -> StepRecord:
    plans = (dcpack.plan([4, 2], num_ranks=2, capacity=4),)
    planned = Planned(plans=plans, loads_before=(4.0, 2.0), loads_after=(4.0, 2.0))
    options: dict[str, Any] = {
        "number": 0,
        "epoch": 0,
        "step": 0,
        "start": 10.0,
        "end": 10.5,
        "waits": (Span(name="wait", start=10.0, end=10.1),),
        "spans": (Span(name="read", start=9.0, end=9.3), Span(name="pack", start=9.3, end=9.4)),
        "planned": planned,
        "num_valid_tokens": 6,
        "global_valid_tokens": 6,
        "bytes_sent": 0,
        "fills_rows": False,
    }
    return StepRecord(**{**options, **values})


def test_times_by_hand() -> None:
    metrics = record().metrics()
    assert metrics["loader/step(ms)"] == pytest.approx(500)
    assert metrics["loader/wait(ms)"] == pytest.approx(100)
    assert metrics["loader/read(ms)"] == pytest.approx(300)
    assert metrics["loader/pack(ms)"] == pytest.approx(100)
    assert metrics["loader/plan(ms)"] == 0
    assert metrics["loader/hidden_share"] == pytest.approx(0.75)  # 100 of 400 ms were waited for
    assert metrics["loader/useful_tokens(1/s)"] == pytest.approx(12)
    assert record(spans=()).metrics()["loader/hidden_share"] == 1


def test_times_are_recorded_for_a_fit() -> None:
    recorder = StepRecorder(warmup=0)
    callback = time_recorder(recorder)
    callback(record())
    callback(record(planned=None))  # a rank that only receives
    two = record().planned
    assert two is not None
    callback(record(planned=Planned(plans=two.plans * 2)))
    assert [sample.time for sample in recorder.samples] == [pytest.approx(0.4)]  # less the waiting


def test_the_time_of_a_step_goes_on_while_it_trains() -> None:
    with build_distributed_dataloader(
        Numbered(), domain(1), config(local_batch_size=12), batch_sampler=sampler(), metadata_fn=describe
    ) as loader:
        next(loader)
        first = loader.metrics()["loader/step(ms)"]
        time.sleep(0.01)
        assert loader.metrics()["loader/step(ms)"] >= first + 10
        next(loader)
        assert loader.last_step is not None
        assert loader.last_step.step == 1


@pytest.mark.parametrize("planned_cp", [False, True])
@pytest.mark.parametrize("asked", [False, True])
def test_balancing_is_logged_where_it_is_asked_for_alone(
    caplog: pytest.LogCaptureFixture, asked: bool, planned_cp: bool
) -> None:
    def body(communicator: Communicator) -> None:
        if planned_cp:
            loader = build_distributed_dataloader(
                Numbered(),
                domain(2),
                config(log_balance=asked),
                batch_sampler=sampler(),
                scheduler="dynamic_cp",
            )
        else:
            loader = level(communicator, log_balance=asked)
        next(loader)
        loader.close()

    with caplog.at_level(logging.INFO, logger="dcpack"):
        on_ranks(2, body)
    found = [message for message in caplog.messages if message.startswith("step: imbalance")]
    assert bool(found) is asked
    if asked and not planned_cp:
        assert found[0] == "step: imbalance 1.8000 as read, 1.0000 as planned; 2 samples moved; mean CP size 1.000"


class Logger:
    """Both kinds of logger."""

    def __init__(self) -> None:
        self.scalars: list[tuple[str, float, int]] = []
        self.logged: list[tuple[dict[str, float], int]] = []

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.scalars.append((tag, scalar_value, global_step))

    def log(self, data: Any, *, step: int) -> None:
        self.logged.append((dict(data), step))


def test_loggers_get_every_number_of_every_step() -> None:
    logger = Logger()
    for callback in (log_to_tensorboard(logger, first_step=7), log_to_wandb(logger, first_step=7)):
        for number in (0, 1):
            callback(record(number=number))
    metrics = record().metrics()
    assert logger.scalars == [(name, value, step) for step in (7, 8) for name, value in metrics.items()]
    assert logger.logged == [(metrics, 7), (metrics, 8)]
    with pytest.raises(dcpack.ArgumentError, match="first_step"):
        log_to_wandb(logger, first_step=-1)
