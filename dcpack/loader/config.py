"""The configuration of the loader: one frozen dataclass, from arguments, a mapping or a file."""

from __future__ import annotations

import importlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from dcpack._checks import as_real, check_choice, check_flags, check_int, check_path, list_offenders
from dcpack._rebuilt import Rebuilt
from dcpack.comm import list_backends
from dcpack.errors import ArgumentError
from dcpack.layout import MAX_OFFSET
from dcpack.loader.types import OVERSIZED_POLICIES, amounts_by_name

__all__ = ["SHORT_BACKEND_NAMES", "DistributedDatasetConfig", "backend_name"]

SHORT_BACKEND_NAMES: Mapping[str, str] = {
    "gloo": "torch-gloo",
    "nccl": "torch-nccl",
    "hccl": "torch-hccl",
    "xla": "torch-xla",
}
"""What `communication_backend` may also be, and the name that it stands for."""

_FLAGS = ("dataset_already_sharded", "drop_last", "metadata_mode", "broadcast_plan", "log_balance", "repack_sequences")


def backend_name(name: Any) -> str:
    """Return the full name of a back end.

    Raises:
        ArgumentError: no such name; lists those that there are.

    Example:
        >>> backend_name("fake"), backend_name("gloo")
        ('fake', 'torch-gloo')
    """
    full = SHORT_BACKEND_NAMES.get(name, name) if isinstance(name, str) else None
    known = list_backends()
    if full not in known:
        short = ", ".join(sorted(SHORT_BACKEND_NAMES))
        raise ArgumentError(f"communication_backend must be one of {', '.join(known)} or {short}, got {name!r}")
    return full


@dataclass(frozen=True, slots=True)
class DistributedDatasetConfig(Rebuilt):
    """What the loader shall do; see docs/loader.md for the modes.

    Args:
        seq_len: tokens of a row; with planned CP the capacity of a row on one rank.
        local_batch_size: rows of a rank in a micro-batch; with an external step source rows of a rank in a step.
        dp_dim_names: axes of the mesh that are data parallel; None: those of dp_replicate, dp_shard, dp that it has.
        dataset_reader_ranks: global ranks that read; None: the constructors. Nothing else is supported.
        dataset_already_sharded: must be False: the loader decides who reads what.
        planner_rank: global rank that plans; None: the lowest constructor.
        oversized_policy: ``"error"``, or ``"single"``: a sample longer than `seq_len` is alone in its row.
        drop_last: False delivers the samples behind the last whole global batch too, with zero-weight dummies in rows
            that stay empty; only with planned CP or `repack_sequences`.
        seed: for `GlobalBatchSampler` without a seed of its own, and the check on resuming.
        min_balance_gain: in [0, 1); a placement is changed where its objective falls by more than this part.
        packing_budgets: hard limits of a row beside its tokens, by name.
        communication_backend: name of a back end, or a mapping with its ``"name"`` and options.
        balance_group_size: external step source: consecutive ranks that balance among each other; None: a node.
        metadata_mode: plan from lengths by index, before anything is read.
        broadcast_plan: one rank plans and sends its plan; False: all plan, and digests are compared.
        balance_window_size: micro-batches that are planned together.
        log_balance: log what balancing decided.
        repack_sequences: split text records into sequences and pack them anew.
        pad_token_id: what rows are filled with, and what is stripped from the ends of records; None: 0, and nothing.
        device_prefetch_depth: batches on the device ahead of the training; 0: on demand.

    Raises:
        ArgumentError: an argument of the wrong type or range.

    Example:
        >>> config = DistributedDatasetConfig(seq_len=4096, local_batch_size=1, communication_backend="fake")
        >>> config.min_balance_gain, DistributedDatasetConfig.from_dict(config.to_dict()) == config
        (0.0, True)
    """

    seq_len: int
    local_batch_size: int
    dp_dim_names: tuple[str, ...] | None = None
    dataset_reader_ranks: tuple[int, ...] | None = None
    dataset_already_sharded: bool = False
    planner_rank: int | None = None
    oversized_policy: str = "error"
    drop_last: bool = True
    seed: int = 1234
    min_balance_gain: float = 0.0
    packing_budgets: Mapping[str, float] | None = None
    communication_backend: str | Mapping[str, Any] = "torch-gloo"
    balance_group_size: int | None = None
    metadata_mode: bool = False
    broadcast_plan: bool = True
    balance_window_size: int = 1
    log_balance: bool = False
    repack_sequences: bool = False
    pad_token_id: int | None = None
    device_prefetch_depth: int = 1

    def __post_init__(self) -> None:
        for name in ("seq_len", "local_batch_size", "balance_window_size"):
            self._set(name, check_int(name, getattr(self, name), minimum=1, maximum=MAX_OFFSET))
        self._set("seed", check_int("seed", self.seed, minimum=0, maximum=2**63 - 1))
        for name in ("device_prefetch_depth",):
            self._set(name, check_int(name, getattr(self, name), minimum=0, maximum=MAX_OFFSET))
        for name, minimum in (("balance_group_size", 1), ("planner_rank", 0), ("pad_token_id", 0)):
            if getattr(self, name) is not None:
                self._set(name, check_int(name, getattr(self, name), minimum=minimum, maximum=MAX_OFFSET))
        for name, flag in check_flags(**{name: getattr(self, name) for name in _FLAGS}).items():
            self._set(name, flag)
        check_choice("oversized_policy", self.oversized_policy, OVERSIZED_POLICIES)
        self._set("min_balance_gain", as_real("min_balance_gain", self.min_balance_gain, below=1))
        if self.packing_budgets is not None:
            self._set("packing_budgets", amounts_by_name("packing_budgets", self.packing_budgets))
        self._check_names()
        self._check_backend()
        if self.repack_sequences and self.metadata_mode:
            raise ArgumentError("repack_sequences needs the samples before the plan, so metadata_mode must be False")
        if self.dataset_already_sharded:
            raise ArgumentError("dataset_already_sharded must be False: every rank needs the whole dataset")

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _check_names(self) -> None:
        for name, kind in (("dp_dim_names", str), ("dataset_reader_ranks", int)):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, str | bytes) or not isinstance(value, Sequence) or not value:
                raise ArgumentError(f"{name} must be None or a tuple that is not empty, got {value!r}")
            items = tuple(value)
            if kind is int:
                items = tuple(check_int(name, item, minimum=0) for item in items)
            elif wrong := [repr(item) for item in items if not isinstance(item, str) or not item]:
                raise ArgumentError(f"{name} must hold names, got {list_offenders(wrong)}")
            if len(set(items)) < len(items):
                raise ArgumentError(f"{name} must hold each item once, got {items}")
            self._set(name, items)

    def _check_backend(self) -> None:
        chosen = self.communication_backend
        if isinstance(chosen, Mapping):
            self._set("communication_backend", {**chosen, "name": backend_name(chosen.get("name"))})
        else:
            self._set("communication_backend", backend_name(chosen))

    @property
    def backend(self) -> dict[str, Any]:
        """Name and options of the back end, as `dcpack.get_backend` takes them."""
        chosen = self.communication_backend
        return dict(chosen) if isinstance(chosen, Mapping) else {"name": chosen}

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, as `from_dict` and JSON take them."""
        values = {name: getattr(self, name) for name in (field.name for field in fields(self))}
        return {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the configuration that a mapping holds.

        Raises:
            ArgumentError: keys that are unknown or missing (all are named), or a value that cannot be.
        """
        if not isinstance(values, Mapping):
            raise ArgumentError(f"a configuration must be a mapping, got {type(values).__name__}")
        known = [field.name for field in fields(cls)]
        if unknown := sorted(str(key) for key in values if key not in known):
            raise ArgumentError(f"unknown settings {list_offenders(unknown)}; known are {', '.join(known)}")
        if missing := [name for name in ("seq_len", "local_batch_size") if name not in values]:
            raise ArgumentError(f"settings are missing: {', '.join(missing)}")
        return cls(**values)

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Return the configuration in a file: ``.json``, ``.toml``, or ``.yaml`` and ``.yml``, which need PyYAML.

        Raises:
            ArgumentError: a file that cannot be read or holds no configuration; names the file.
        """
        file = check_path("path", path)
        try:
            return cls.from_dict(_parse(file))
        except ArgumentError as error:
            raise ArgumentError(f"{file}: {error}") from error


def _parse(file: Path) -> Any:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise ArgumentError(f"cannot be read: {error}") from error
    if file.suffix in (".yaml", ".yml"):
        return _parse_yaml(text)
    parsers = {".json": json.loads, ".toml": tomllib.loads}
    if file.suffix not in parsers:
        raise ArgumentError(f"must end in .json, .toml, .yaml or .yml, got {file.suffix!r}")
    try:
        return parsers[file.suffix](text)
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"not valid {file.suffix[1:].upper()}: {error}") from error


def _parse_yaml(text: str) -> Any:
    try:
        yaml: Any = importlib.import_module("yaml")
    except ImportError as error:
        raise ArgumentError("YAML needs the package PyYAML: pip install 'dcpack[yaml]'") from error
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ArgumentError(f"not valid YAML: {error}") from error
