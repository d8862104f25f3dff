from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import dcpack
from dcpack import (
    GlobalBatchSampler,
    QuadraticCost,
    SampleMetadata,
    Topology,
    WorkloadCost,
    build_distributed_dataloader,
)
from dcpack.comm import Communicator, FakeBackend
from dcpack.errors import ArgumentError
from dcpack.loader import CPPlanning
from dcpack.loader.rules import check_dataloader_kwargs

from loader_helpers import LENGTHS, Numbered, config, describe, domain, on_ranks, sampler  # isort: skip


class Source:
    def __iter__(self) -> Iterator[Any]:
        return iter(())


class Foreign:
    """A sampler of the user's own; arguments change what it says."""

    def __init__(self, **changes: Any) -> None:
        self.epoch = self.consumed_samples = 0
        self.global_batch_size, self.global_micro_batch_size = 4, 1
        self.yields: list[Any] = [[0], [1], [2], [3]]
        for name, value in changes.items():
            setattr(self, name, value)

    def __iter__(self) -> Iterator[Any]:
        for indices in self.yields:
            self.consumed_samples += self.global_micro_batch_size
            yield indices

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def state_dict(self) -> dict[str, int]:
        return {"consumed": self.consumed_samples}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.consumed_samples = state["consumed"]


def build(change: dict[str, Any] | None = None, settings: dict[str, Any] | None = None, dataset: Any = None) -> Any:
    arguments = {"batch_sampler": sampler(), "metadata_fn": describe, **(change or {})}
    arguments = {name: value for name, value in arguments.items() if value is not Ellipsis}
    data = Numbered() if dataset is None else dataset
    return build_distributed_dataloader(data, domain(1), config(**(settings or {})), **arguments)


META = {"metadata_fn": ..., "metadata": LENGTHS}
EXTERNAL = {"batch_sampler": ..., "external_step_source": Source()}
CP = {"scheduler": "dynamic_cp", "metadata_fn": ...}

RULES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"batch_sampler": ...}, {}, "there is nothing that says which samples come when"),
    ({"external_step_source": Source()}, {}, "batch_sampler and external_step_source exclude each other"),
    ({**EXTERNAL, "external_step_source": 3}, {}, "external_step_source must be iterable, got 3"),
    ({"metadata": LENGTHS}, {}, "metadata and metadata_fn exclude each other"),
    ({"metadata_fn": ...}, {}, "metadata_fn is needed"),
    ({**META}, {}, "metadata is for metadata_mode=True"),
    ({}, {"metadata_mode": True}, "metadata_mode needs metadata"),
    (
        {**META, "metadata": LENGTHS[:5]},
        {"metadata_mode": True},
        "metadata must have one value for each of 53 samples, got 5",
    ),
    ({**META, "metadata": {0: 1}}, {"metadata_mode": True}, "metadata must have values by number and a length"),
    ({"metadata_fn": 3, "collate_fn": 4}, {}, "callbacks must be callable: metadata_fn, collate_fn"),
    ({"split_fn": list}, {}, "split_fn needs pack_fn"),
    ({"pack_fn": list}, {}, "pack_fn needs split_fn"),
    (
        {**META, "split_fn": list, "pack_fn": list},
        {"metadata_mode": True},
        "split_fn needs pack_fn, and samples that are",
    ),
    ({"split_fn": list, "pack_fn": list}, {"repack_sequences": True}, "repack_sequences needs no split_fn or pack_fn"),
    ({**EXTERNAL}, {"repack_sequences": True}, "repack_sequences needs batch_sampler without external mode"),
    (
        {},
        {"dataset_reader_ranks": (0, 1)},
        r"dataset_reader_ranks must be the constructors (0,) in that order, got (0, 1)",
    ),
    ({}, {"planner_rank": 1}, "planner_rank must be one of the constructors [0], got 1"),
    ({}, {"dp_dim_names": ("data",)}, "dp_dim_names must be axes of the mesh ('dp',), got 'data'"),
    ({}, {"balance_group_size": 1}, "balance_group_size is for external_step_source alone"),
    ({}, {"drop_last": False}, "drop_last=False needs planned CP or repack_sequences; in online mode"),
    ({"dataloader_kwargs": [1]}, {}, "dataloader_kwargs must be a mapping"),
    ({"model_batch_spec": {"x": object()}}, {}, "model_batch_spec['x'] must be a TensorFieldSpec"),
    (
        {"cost_model": QuadraticCost(), "model_config": "llama3-8b"},
        {},
        "cost_model and model_config exclude each other",
    ),
    ({"model_config": "gpt9"}, {}, "unknown model 'gpt9'"),
    ({"model_config": 3}, {}, "model_config must be a model's name"),
    ({"cost_model": 3}, {}, "cost_model must be a function"),
    ({"scheduler": "local_gain", "balancing_algorithm": "balanced"}, {}, "scheduler and balancing_algorithm exclude"),
    ({"balancing_algorithm": "lpt"}, {}, "balancing_algorithm must be 'local_gain' or 'balanced'"),
    ({"scheduler": "nope"}, {}, "scheduler must be one of"),
    ({**CP}, {"balance_window_size": 2}, "balance_window_size must be 1 where CP is planned"),
    ({**CP}, {"min_balance_gain": 0.1}, "a scheduler that plans CP does not go with min_balance_gain"),
    ({**CP}, {"packing_budgets": {"x": 1}}, "a scheduler that plans CP does not go with packing_budgets"),
    ({**CP, "balancing_algorithm": "balanced"}, {}, "a scheduler that plans CP does not go with balancing_algorithm"),
    ({**CP, "metadata": LENGTHS}, {}, "metadata is for metadata_mode=True"),
    ({**CP}, {"metadata_mode": True}, "metadata_mode needs metadata"),
    (
        {**META, "scheduler": CPPlanning(aligned_fields=("pixel_values",))},
        {"metadata_mode": True},
        "aligned_fields does not go with metadata_mode",
    ),
    ({**CP, "cost_model": lambda m: WorkloadCost()}, {}, "cost_model must be a dcpack.CostModel where CP is planned"),
    (
        {**CP, **EXTERNAL},
        {},
        "a scheduler that plans CP needs batch_sampler; external_step_source is data parallel only",
    ),
    ({**EXTERNAL, "metadata_fn": ...}, {}, "metadata_fn is needed"),
    (
        {**EXTERNAL, "dataloader_kwargs": {"num_workers": 0}},
        {},
        "external_step_source does not go with dataset, dataload",
    ),
    (
        {**EXTERNAL},
        {"balance_window_size": 2, "planner_rank": 0},
        "does not go with dataset, planner_rank, balance_window",
    ),
    ({"batch_sampler": sampler(num_samples=9)}, {}, "batch_sampler is for 9 samples, the dataset has 53"),
    (
        {"batch_sampler": sampler(drop_last=False)},
        {},
        "batch_sampler does not fit: drop_last is False, the loader needs True",
    ),
    (
        {"batch_sampler": sampler(5)},
        {"local_batch_size": 2},
        "global_batch_size must be a multiple of 1 ranks x micro-",
    ),
    (
        {"batch_sampler": [[0]]},
        {},
        "batch_sampler, a list, lacks set_epoch, state_dict, load_state_dict, epoch, consumed",
    ),
    ({"batch_sampler": Foreign(global_micro_batch_size=2)}, {}, "global_micro_batch_size is 2, the loader needs 1"),
    ({"batch_sampler": Foreign(global_batch_size=True)}, {}, "batch_sampler.global_batch_size must be an integer"),
    (
        {"batch_sampler": Foreign(dp_rank=1, dp_world_size=2)},
        {},
        "dp_rank is 1, the loader needs 0, dp_world_size is 2",
    ),
    ({"batch_sampler": Foreign(micro_batch_size=3)}, {}, "micro_batch_size is 3, the loader needs 1"),
    (
        {"batch_sampler": Foreign(consumed_samples=3, global_micro_batch_size=2)},
        {"local_batch_size": 2},
        "consumed_samples 3 is inside a micro-batch of 2 samples",
    ),
]


@pytest.mark.parametrize(("change", "settings", "text"), RULES, ids=[text[:60] for _, _, text in RULES])
def test_arguments_that_cannot_go_together(change: Any, settings: Any, text: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        build(change, settings)
    assert text in str(caught.value)


@pytest.mark.parametrize("scheduler", ["dynamic_cp", CPPlanning(scheduler="packing_aware")])
def test_mixed_cp_sizes_are_refused_where_one_program_runs_on_all_ranks(
    monkeypatch: pytest.MonkeyPatch, scheduler: Any
) -> None:
    assert build({**CP, "scheduler": scheduler}) is not None
    monkeypatch.setattr(FakeBackend, "needs_equal_groups", True)
    with pytest.raises(ArgumentError, match=r"mixes CP sizes in a micro-batch, but on back end 'fake'.*'uniform_cp'"):
        build({**CP, "scheduler": scheduler})
    for equal in ("uniform_cp", CPPlanning(scheduler="uniform_cp", max_cp_size=1)):
        assert build({**CP, "scheduler": equal}) is not None


def test_a_config_of_another_type_is_refused() -> None:
    with pytest.raises(ArgumentError, match="a configuration must be a mapping, got int"):
        build_distributed_dataloader(Numbered(), domain(1), 3)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="dataset must have samples by number and a length"):
        build(dataset=iter([]))


def test_a_plain_dict_is_a_configuration() -> None:
    settings = {"seq_len": 64, "local_batch_size": 1, "communication_backend": "fake"}
    loader = build_distributed_dataloader(
        Numbered(), domain(1), settings, batch_sampler=sampler(), metadata_fn=describe
    )
    assert len(loader) == 48


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"shuffle": True, "batch_size": 2}, "must leave to the loader what it manages: shuffle, batch_size"),
        ({"worker": 1, "num_workres": 2}, "has unknown options worker, num_workres; known are num_workers,"),
        ({1: 2}, "must be named by str, got 1"),
        ({"num_workers": True}, "num_workers must be an integer"),
        (
            {"prefetch_factor": 2, "persistent_workers": True},
            "need num_workers of at least 1: prefetch_factor, persistent",
        ),
        ({"timeout": 1.0}, "need num_workers of at least 1: timeout"),
        ({"num_workers": 1, "timeout": float("inf")}, "timeout must be a finite number of seconds"),
        ({"num_workers": 1, "multiprocessing_context": "thread"}, "multiprocessing_context must be one of"),
        ({"pin_memory": 1}, "pin_memory must be True or False"),
        ({"worker_init_fn": 1}, "worker_init_fn must be callable"),
        ({"num_workers": 1, "prefetch_factor": 0}, "prefetch_factor must be at least 1"),
    ],
)
def test_options_of_workers(options: Any, text: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        check_dataloader_kwargs(options)
    assert text in str(caught.value)


def test_options_that_mean_nothing_without_workers_are_left_out() -> None:
    options = {
        "num_workers": 0,
        "timeout": 0,
        "persistent_workers": False,
        "prefetch_factor": None,
        "pin_memory": False,
    }
    assert check_dataloader_kwargs(options) == {"num_workers": 0, "pin_memory": False}


# ---- across ranks ----------------------------------------------------------------------------------------------------


def differing(num_ranks: int, arguments: Any) -> str:
    """The error of ranks that were given different arguments."""

    def body(communicator: Communicator) -> str:
        given = {"dataset": Numbered(), "settings": {}, "sampler": sampler(), **arguments(communicator.rank)}
        try:
            build_distributed_dataloader(
                given["dataset"],
                given.get("mesh", domain(num_ranks)),
                config(**given["settings"]),
                batch_sampler=given["sampler"],
                metadata_fn=describe,
            )
        except dcpack.DcpackError as error:
            return f"{type(error).__name__}: {error}"
        return ""

    texts = on_ranks(num_ranks, body)
    assert all(texts)
    return "\n".join(texts)


def test_a_wrong_argument_on_one_rank_is_an_error_on_all() -> None:
    found = differing(2, lambda rank: {"settings": {"balance_group_size": 1 if rank else None}}).splitlines()
    assert found[0].startswith("PeerError: rank 1 failed")
    assert any(line.startswith("ArgumentError: balance_group_size is for") for line in found)


def test_datasets_of_other_lengths_are_an_error_on_all() -> None:
    lengths = [5] * 87, [5] * 89
    found = differing(
        2, lambda rank: {"dataset": Numbered(lengths[rank]), "sampler": sampler(num_samples=len(lengths[rank]))}
    )
    assert found.count("dataset_size must be the same on all ranks: rank 0 has 87, rank 1 has 89") == 2


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"seq_len": 65}, "seq_len must be the same on all ranks: rank 0 has 64, rank 1 has 65"),
        (
            {"device_prefetch_depth": 3},
            "device_prefetch_depth must be the same on all ranks: rank 0 has 1, rank 1 has 3",
        ),
    ],
)
def test_configurations_are_compared(settings: Any, text: str) -> None:
    assert differing(2, lambda rank: {"settings": settings if rank else {}}).count(text) == 2


def test_seeds_and_global_batches_are_compared() -> None:
    found = differing(2, lambda rank: {"sampler": sampler(seed=rank)})
    assert found.count("seed must be the same on all ranks: rank 0 has 0, rank 1 has 1") == 2
    found = differing(2, lambda rank: {"sampler": sampler(12 + 12 * rank)})
    assert found.count("global_batch_size must be the same on all ranks: rank 0 has 12, rank 1 has 24") == 2


def test_a_mesh_must_hold_all_processes() -> None:
    found = differing(2, lambda rank: {"mesh": Topology.of_domain(3)})
    assert "mesh must hold every process: it has those of [0, 1, 2], the processes are [0, 1]" in found


# ---- samplers of the user's own --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("yields", "text"),
    [
        ([[0], [1, 2]], "must yield local_batch_size 1 indices, got 2"),
        ([[]], "must yield local_batch_size 1 indices, got 0"),
        ([[0.0]], "must yield whole numbers, got 0.0"),
        ([[True]], "must yield whole numbers, got True"),
        ([3], "must yield lists of indices, got 3"),
        ([[99]], "indices must be below 53 samples, got 99"),
    ],
)
def test_what_a_sampler_yields_is_checked(yields: Any, text: str) -> None:
    with pytest.raises(dcpack.PeerError) as caught:
        list(build({"batch_sampler": Foreign(yields=yields)}))
    assert text in str(caught.value)


def test_a_sampler_must_say_how_far_it_is() -> None:
    class Silent(Foreign):
        def __iter__(self) -> Iterator[Any]:
            return iter(self.yields)

    with pytest.raises(
        dcpack.PeerError, match="consumed_samples of batch_sampler must grow by global_micro_batch_size 1"
    ):
        list(build({"batch_sampler": Silent()}))


def test_readers_that_end_at_different_rounds_are_an_error_on_all() -> None:
    def body(communicator: Communicator) -> list[Any]:
        rank = communicator.rank
        own: Any = Foreign(global_micro_batch_size=2, yields=[[rank], [rank + 2]][: 2 - rank], dp_rank=rank)
        return list(
            build_distributed_dataloader(Numbered(), domain(2), config(), batch_sampler=own, metadata_fn=describe)
        )

    with pytest.raises(dcpack.DcpackError, match="rank 0 read 2, rank 1 read 1"):
        on_ranks(2, body)


def test_a_sampler_of_the_users_own_is_resumed() -> None:
    whole = [b.sample_ids.tolist() for b in build({"batch_sampler": Foreign(global_batch_size=2)})]
    assert whole == [[0], [1], [2], [3]]
    first = build({"batch_sampler": Foreign(global_batch_size=2)})
    assert [next(first).sample_ids.tolist() for _ in range(3)] == whole[:3]
    state = first.state_dict()
    assert state["source"] == {"consumed": 2}  # the step that has begun is replayed

    class Going(Foreign):
        def __iter__(self) -> Iterator[Any]:
            for indices in self.yields[self.consumed_samples :]:
                self.consumed_samples += 1
                yield indices

    second = build({"batch_sampler": Going(global_batch_size=2)})
    with pytest.raises(ArgumentError, match="source was 'Foreign', is 'Going'"):
        second.load_state_dict(state)
    second.load_state_dict({**state, "fingerprint": {**state["fingerprint"], "source": "Going"}})
    assert [b.sample_ids.tolist() for b in second] == whole[2:]


def test_errors_of_callbacks_reach_all_ranks_and_a_stop_is_no_end() -> None:
    def stop(sample: Any) -> SampleMetadata:
        raise StopIteration

    with pytest.raises(dcpack.PeerError, match="RuntimeError: metadata_fn raised StopIteration"):
        list(build({"metadata_fn": stop}))
    with pytest.raises(dcpack.PeerError, match="metadata_fn must return a SampleMetadata, got 3"):
        list(build({"metadata_fn": lambda sample: 3}))
    with pytest.raises(dcpack.PeerError, match="collate_fn must return a batch, got None"):
        list(build({"collate_fn": lambda rows: None}))


def test_a_sample_longer_than_a_row_is_named() -> None:
    with pytest.raises(dcpack.InfeasibleError, match=r"dataset\[\d+\] has \d+ tokens, more than seq_len 8"):
        list(build(settings={"seq_len": 8}))
    assert len(list(build(settings={"seq_len": 8, "oversized_policy": "single"}))) == 48


def test_the_sampler_is_bound_once() -> None:
    own = GlobalBatchSampler(53, global_batch_size=12)
    build({"batch_sampler": own}, {"seed": 77})
    assert (own.dp_rank, own.dp_world_size, own.micro_batch_size, own.seed) == (0, 1, 1, 77)
