from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from dcpack import DistributedDatasetConfig
from dcpack.errors import ArgumentError

GOOD: dict[str, Any] = {"seq_len": 8, "local_batch_size": 2}


def test_the_defaults_are_those_of_the_interface() -> None:
    values = DistributedDatasetConfig(**GOOD).to_dict()
    assert values == {
        "seq_len": 8,
        "local_batch_size": 2,
        "dp_dim_names": None,
        "dataset_reader_ranks": None,
        "dataset_already_sharded": False,
        "planner_rank": None,
        "oversized_policy": "error",
        "drop_last": True,
        "seed": 1234,
        "min_balance_gain": 0.0,
        "packing_budgets": None,
        "communication_backend": "torch-gloo",
        "balance_group_size": None,
        "metadata_mode": False,
        "broadcast_plan": True,
        "balance_window_size": 1,
        "log_balance": False,
        "repack_sequences": False,
        "pad_token_id": None,
        "device_prefetch_depth": 1,
    }


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"seq_len": 0}, "seq_len must be from 1 to 2147483647, got 0"),
        ({"seq_len": True}, "seq_len must be an integer, got True (bool)"),
        ({"local_batch_size": 1.0}, "local_batch_size must be an integer, got 1.0 (float)"),
        ({"balance_window_size": False}, "balance_window_size must be an integer, got False (bool)"),
        ({"seed": -1}, "seed must be from 0 to 9223372036854775807, got -1"),
        ({"device_prefetch_depth": -1}, "device_prefetch_depth must be from 0 to 2147483647"),
        ({"balance_group_size": 0}, "balance_group_size must be from 1 to 2147483647, got 0"),
        ({"planner_rank": True}, "planner_rank must be an integer, got True"),
        ({"pad_token_id": -1}, "pad_token_id must be from 0 to 2147483647"),
        (
            {"drop_last": 1, "broadcast_plan": "yes"},
            "drop_last must be True or False, got 1 (int); broadcast_plan must be True or False, got 'yes' (str)",
        ),
        ({"oversized_policy": "drop"}, "oversized_policy must be one of 'error', 'single', got 'drop'"),
        ({"min_balance_gain": 1.0}, "min_balance_gain must be a finite number of at least 0 and below 1, got 1.0"),
        ({"min_balance_gain": float("nan")}, "min_balance_gain must be a finite number"),
        ({"min_balance_gain": True}, "min_balance_gain must be a finite number"),
        ({"packing_budgets": {"": 1}}, "packing_budgets must be named by str that are not empty"),
        (
            {"packing_budgets": {"images": -1}},
            "packing_budgets['images'] must be a finite number of at least 0, got -1",
        ),
        ({"packing_budgets": {"images": True}}, "packing_budgets['images'] must be a finite number"),
        ({"packing_budgets": {"images": float("inf")}}, "packing_budgets['images'] must be a finite number"),
        ({"communication_backend": "mpi"}, "communication_backend must be one of fake,"),
        ({"communication_backend": {"name": "mpi"}}, "communication_backend must be one of fake,"),
        ({"dp_dim_names": ()}, "dp_dim_names must be None or a tuple that is not empty, got ()"),
        ({"dp_dim_names": "dp"}, "dp_dim_names must be None or a tuple that is not empty, got 'dp'"),
        ({"dp_dim_names": ("dp", "dp")}, "dp_dim_names must hold each item once"),
        ({"dp_dim_names": (1,)}, "dp_dim_names must hold names, got 1"),
        ({"dataset_reader_ranks": (0, True)}, "dataset_reader_ranks must be an integer, got True"),
        ({"dataset_reader_ranks": (1, 1)}, "dataset_reader_ranks must hold each item once, got (1, 1)"),
        ({"dataset_already_sharded": True}, "dataset_already_sharded must be False"),
        ({"repack_sequences": True, "metadata_mode": True}, "so metadata_mode must be False"),
    ],
)
def test_what_cannot_be_is_refused_by_name(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError) as caught:
        DistributedDatasetConfig(**{**GOOD, **change})
    assert text in str(caught.value)
    assert isinstance(caught.value, ArgumentError)


@pytest.mark.parametrize(("short", "full"), [("gloo", "torch-gloo"), ("nccl", "torch-nccl"), ("hccl", "torch-hccl"),
                                             ("fake", "fake"), ("torch-gloo", "torch-gloo")])  # fmt: skip
def test_back_ends_have_short_names(short: str, full: str) -> None:
    chosen = DistributedDatasetConfig(**GOOD, communication_backend=short)
    assert chosen.communication_backend == full
    assert chosen.backend == {"name": full}
    options = DistributedDatasetConfig(**GOOD, communication_backend={"name": short, "deadline_s": 5})
    assert options.backend == {"name": full, "deadline_s": 5}


TOML = 'seq_len = 8\nlocal_batch_size = 2\ndp_dim_names = ["dp_shard"]\n[packing_budgets]\nimages = 4\n'
YAML = "seq_len: 8\nlocal_batch_size: 2\ndp_dim_names: [dp_shard]\npacking_budgets: {images: 4}\n"
WANTED = DistributedDatasetConfig(**GOOD, dp_dim_names=("dp_shard",), packing_budgets={"images": 4})


def test_toml_and_json_files_hold_configurations(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(TOML)
    (tmp_path / "a.json").write_text(json.dumps(WANTED.to_dict()))
    assert DistributedDatasetConfig.from_file(tmp_path / "a.toml") == WANTED
    assert DistributedDatasetConfig.from_file(str(tmp_path / "a.json")) == WANTED


def test_yaml_files_hold_configurations(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(YAML)
    assert DistributedDatasetConfig.from_file(tmp_path / "a.yaml") == WANTED
    (tmp_path / "b.yml").write_text("{")
    with pytest.raises(ArgumentError, match=r"b\.yml: not valid YAML"):
        DistributedDatasetConfig.from_file(tmp_path / "b.yml")


def test_yaml_without_its_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.yaml").write_text(YAML)
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ArgumentError, match=r"a.yaml: YAML needs the package PyYAML: pip install 'dcpack\[yaml\]'"):
        DistributedDatasetConfig.from_file(tmp_path / "a.yaml")


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("a.json", "{", "not valid JSON"),
        ("a.toml", "seq_len", "not valid TOML"),
        ("a.ini", "", "must end in .json, .toml, .yaml or .yml, got '.ini'"),
        ("a.json", "[1]", "a configuration must be a mapping, got list"),
        ("a.json", '{"seq_len": 8}', "settings are missing: local_batch_size"),
        ("a.json", '{"seq_len": 8, "local_batch_size": 1, "sead": 1, "x": 2}', "unknown settings sead, x; known are"),
        ("a.json", '{"seq_len": 8, "local_batch_size": 0}', "local_batch_size must be from 1 to 2147483647, got 0"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, name: str, content: str, text: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ArgumentError) as caught:
        DistributedDatasetConfig.from_file(tmp_path / name)
    assert str(caught.value).startswith(str(tmp_path / name))
    assert text in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"none\.json: cannot be read"):
        DistributedDatasetConfig.from_file(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("a b.json", '{\n"seq_len": 8,\n"local_batch_size" 1}', "line 3 column"),
        ("a b.json", "[" * 100_000, "not valid JSON"),
        ("a b.toml", 'seq_len = 8\nlocal_batch_size = "', "at end of document"),
        ("a b.yaml", "seq_len: 8\nlocal_batch_size: [1", "line 2"),
        ("a b.yaml", "seq_len: 8\nlocal_batch_size: 2026-13-45", "not valid YAML"),
        ("a b.yaml", "!!python/object/apply:os.getcwd []", "could not determine a constructor"),
        ("a b.json", "\0\0\0", "not valid JSON"),
        ("a b.yml", "\x08", "not valid YAML"),
    ],
)
def test_broken_files_name_the_place(tmp_path: Path, name: str, content: str, place: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ArgumentError) as caught:
        DistributedDatasetConfig.from_file(tmp_path / name)
    assert str(caught.value).startswith(str(tmp_path / name))
    assert place in str(caught.value)


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (".json", '{"seq_len": 8, "local_batch_size": 2}'),
        (".toml", "seq_len = 8\nlocal_batch_size = 2\n"),
        (".yaml", "seq_len: 8\nlocal_batch_size: 2\n"),
    ],
)
def test_a_file_that_was_cut_is_named_or_says_less(tmp_path: Path, suffix: str, text: str) -> None:
    file = tmp_path / f"a config{suffix}"
    for length in range(len(text)):
        file.write_text(text[:length])
        if text[:length].rstrip() == text.rstrip():  # all that is left out is the end of the line
            assert DistributedDatasetConfig.from_file(file).local_batch_size == 2
            continue
        with pytest.raises(ArgumentError) as caught:
            DistributedDatasetConfig.from_file(file)
        assert str(file) in str(caught.value)
