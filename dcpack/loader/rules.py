"""What may go with what: the arguments of `build_distributed_dataloader`, checked before any group is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dcpack._checks import as_real, check_choice, check_flags, check_int, list_offenders
from dcpack.comm import Backend
from dcpack.errors import ArgumentError
from dcpack.loader.config import DistributedDatasetConfig
from dcpack.loader.costs import CostRule
from dcpack.loader.cp_planner import CPPlanning
from dcpack.loader.deliver import check_batch_spec
from dcpack.loader.metadata_mode import Metadata, open_metadata
from dcpack.loader.policies import choose_policy, plans_cp
from dcpack.loader.protocols import ExternalStepSource
from dcpack.loader.roles import Roles
from dcpack.loader.rounds import check_sampler
from dcpack.loader.sampler import GlobalBatchSampler
from dcpack.scheduling.driver import get_scheduler

__all__ = ["MODES", "Request", "check_dataloader_kwargs"]

MODES = ("online", "metadata", "external", "planned_cp")
"""The modes of the loader."""

_ALLOWED = (
    *("num_workers", "pin_memory", "prefetch_factor", "persistent_workers", "timeout", "worker_init_fn"),
    *("multiprocessing_context", "pin_memory_device", "in_order"),
)
_MANAGED = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "collate_fn", "drop_last", "generator")
_NEED_WORKERS = ("prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context")


def check_dataloader_kwargs(options: Any) -> dict[str, Any]:
    """Return the options of the workers that read, if they can go together.

    Raises:
        ArgumentError: options that are unknown or managed by the loader, that need workers, or of the wrong type; all
            of a kind are named.

    Example:
        >>> check_dataloader_kwargs({"shuffle": True})
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: dataloader_kwargs must leave to the loader what it manages: shuffle
    """
    if not isinstance(options, Mapping):
        raise ArgumentError(f"dataloader_kwargs must be a mapping, got {options!r}")
    if wrong := [repr(key) for key in options if not isinstance(key, str)]:
        raise ArgumentError(f"dataloader_kwargs must be named by str, got {list_offenders(wrong)}")
    if managed := [key for key in options if key in _MANAGED]:
        raise ArgumentError(f"dataloader_kwargs must leave to the loader what it manages: {list_offenders(managed)}")
    if unknown := [key for key in options if key not in _ALLOWED]:
        known = ", ".join(_ALLOWED)
        raise ArgumentError(f"dataloader_kwargs has unknown options {list_offenders(unknown)}; known are {known}")
    num_workers = check_int("num_workers", options.get("num_workers", 0), minimum=0)
    if num_workers == 0 and (needy := [key for key in _NEED_WORKERS if options.get(key)]):
        raise ArgumentError(f"options of workers need num_workers of at least 1: {list_offenders(needy)}")
    check_flags(**{name: options[name] for name in ("pin_memory", "persistent_workers", "in_order") if name in options})
    as_real("timeout", options.get("timeout", 0), what="number of seconds")
    if options.get("prefetch_factor") is not None:
        check_int("prefetch_factor", options["prefetch_factor"], minimum=1)
    if options.get("worker_init_fn") is not None and not callable(options["worker_init_fn"]):
        raise ArgumentError(f"worker_init_fn must be callable, got {options['worker_init_fn']!r}")
    context = options.get("multiprocessing_context")
    if isinstance(context, str):
        check_choice("multiprocessing_context", context, _start_methods())
    # What is as it would be without is not handed on: it means nothing without workers.
    return {key: value for key, value in options.items() if num_workers or key not in _NEED_WORKERS}


def _start_methods() -> list[str]:
    import multiprocessing  # where it is asked for: importing it changes the main module's name

    return multiprocessing.get_all_start_methods()


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """The arguments of `build_distributed_dataloader`, as the user gave them."""

    dataset: Any
    config: DistributedDatasetConfig
    metadata_fn: Callable[..., Any] | None
    metadata: Any
    dataloader_kwargs: Mapping[str, Any]
    pack_fn: Callable[..., Any] | None
    split_fn: Callable[..., Any] | None
    collate_fn: Callable[..., Any] | None
    model_batch_spec: Any
    batch_sampler: Any
    external_step_source: Any
    model_config: Any
    cost_model: Any
    balancing_algorithm: Any
    scheduler: Any

    # ---- what is wanted ------------------------------------------------------------------------------------------

    def cp_planning(self) -> CPPlanning | None:
        """Return how CP is planned, or None where it is not."""
        if self.scheduler is None:
            return None
        if isinstance(self.scheduler, CPPlanning):
            return self.scheduler
        scheduler = get_scheduler(self.scheduler)
        return CPPlanning(scheduler=scheduler) if plans_cp(scheduler) else None

    def mode(self) -> str:
        """Return the mode, one of `MODES`."""
        if self.cp_planning() is not None:
            return "planned_cp"
        if self.external_step_source is not None:
            return "external"
        return "metadata" if self.config.metadata_mode else "online"

    def cost_rule(self) -> CostRule:
        """Return what prices samples."""
        return CostRule.choose(self.cost_model, self.model_config, repacks=self.config.repack_sequences)

    # ---- rules ---------------------------------------------------------------------------------------------------

    def check(self, roles: Roles, plan_rank: int, *, is_constructor: bool, backend: Backend) -> None:
        """Refuse arguments that cannot go together.

        Args:
            roles: of the mesh.
            plan_rank: this rank's lane.
            is_constructor: whether this rank builds batches; data is looked at there alone.
            backend: of the mesh.

        Raises:
            ArgumentError: the first rule that is broken.
        """
        self._check_callbacks()
        mode = self.mode()
        self._check_sources(mode)
        self._check_metadata_use(mode)
        self._check_packing(mode)
        choose_policy(None if mode == "planned_cp" else self.scheduler, self.balancing_algorithm, 1)
        rule = self.cost_rule()
        check_dataloader_kwargs(self.dataloader_kwargs)
        check_batch_spec(self.spec())
        self._check_readers(roles)
        if mode == "external":
            self._check_external(roles)
        else:
            self._check_native(mode)
        if mode == "planned_cp":
            self._check_planned_cp(rule)
            self._check_cp_sizes(backend)
        if is_constructor and mode != "external":
            self._check_data(len(roles.lanes), plan_rank)

    def spec(self) -> Any:
        """Return what batches look like, where somebody says so: the argument, or the `collate_fn`."""
        if self.model_batch_spec is not None:
            return self.model_batch_spec
        return getattr(self.collate_fn, "model_batch_spec", None)

    def _check_callbacks(self) -> None:
        names = ("metadata_fn", "pack_fn", "split_fn", "collate_fn")
        wrong = [name for name in names if getattr(self, name) is not None and not callable(getattr(self, name))]
        if wrong:
            raise ArgumentError(f"callbacks must be callable: {list_offenders(wrong)}")

    def _check_sources(self, mode: str) -> None:
        if self.batch_sampler is None and self.external_step_source is None:
            raise ArgumentError(
                "there is nothing that says which samples come when: give batch_sampler (GlobalBatchSampler, or one of "
                "your own) or external_step_source"
            )
        if self.batch_sampler is not None and self.external_step_source is not None:
            raise ArgumentError("batch_sampler and external_step_source exclude each other: give one")
        if self.external_step_source is not None and not isinstance(self.external_step_source, ExternalStepSource):
            raise ArgumentError(f"external_step_source must be iterable, got {self.external_step_source!r}")
        if mode == "planned_cp" and self.external_step_source is not None:
            raise ArgumentError(
                "a scheduler that plans CP needs batch_sampler; external_step_source is data parallel only"
            )

    def _check_metadata_use(self, mode: str) -> None:
        if self.metadata is not None and self.metadata_fn is not None:
            raise ArgumentError("metadata and metadata_fn exclude each other: give one")
        by_index = self.config.metadata_mode and mode != "external"
        if by_index and self.metadata is None:
            raise ArgumentError("metadata_mode needs metadata (lengths by index), not metadata_fn")
        if not by_index and self.metadata is not None:
            raise ArgumentError("metadata is for metadata_mode=True; here samples are described by metadata_fn")
        needs_fn = mode == "external" or (mode == "online" and not self.config.repack_sequences)
        if needs_fn and self.metadata_fn is None:
            raise ArgumentError("metadata_fn is needed: it says of each sample how many tokens it takes")

    def _check_packing(self, mode: str) -> None:
        if self.config.repack_sequences:
            given = [name for name in ("split_fn", "pack_fn") if getattr(self, name) is not None]
            if given or mode != "online":
                what = f"no {' or '.join(given)} of your own" if given else f"batch_sampler without {mode} mode"
                raise ArgumentError(f"repack_sequences needs {what}")
            return
        if self.split_fn is not None and (mode != "online" or self.pack_fn is None):
            raise ArgumentError("split_fn needs pack_fn, and samples that are read before the plan (online mode)")
        if self.pack_fn is not None and self.split_fn is None and mode != "external":
            raise ArgumentError("pack_fn needs split_fn: without it each sample is a row")

    def _check_readers(self, roles: Roles) -> None:
        readers = self.config.dataset_reader_ranks
        if readers is not None and readers != roles.constructors:
            raise ArgumentError(
                f"dataset_reader_ranks must be the constructors {roles.constructors} in that order, got {readers}"
            )

    def _check_native(self, mode: str) -> None:
        if self.config.balance_group_size is not None:
            raise ArgumentError("balance_group_size is for external_step_source alone")
        if not self.config.drop_last and not (mode == "planned_cp" or self.config.repack_sequences):
            raise ArgumentError(
                f"drop_last=False needs planned CP or repack_sequences; in {mode} mode nothing can stand in, with zero "
                "weight, in rows that stay empty"
            )

    def _check_external(self, roles: Roles) -> None:
        config, default = self.config, DistributedDatasetConfig(seq_len=1, local_batch_size=1)
        refused = [name for name in ("model_batch_spec", "split_fn", "dataset") if getattr(self, name) is not None]
        refused += ["dataloader_kwargs"] * bool(self.dataloader_kwargs)
        refused += [
            name
            for name in (
                *("metadata_mode", "repack_sequences", "dataset_reader_ranks", "planner_rank"),
                *("balance_window_size", "device_prefetch_depth", "drop_last"),
            )
            if getattr(config, name) != getattr(default, name)
        ]
        if refused:
            raise ArgumentError(f"external_step_source does not go with {list_offenders(refused)}")
        if roles.has_peers:
            raise ArgumentError(
                f"external_step_source is data parallel only, but {max(map(len, roles.lanes))} ranks share a batch"
            )

    def _check_planned_cp(self, rule: CostRule) -> None:
        config = self.config
        refused = [name for name in ("split_fn", "pack_fn", "balancing_algorithm") if getattr(self, name) is not None]
        refused += [name for name in ("repack_sequences", "packing_budgets") if getattr(config, name)]
        refused += ["min_balance_gain"] * (config.min_balance_gain > 0)
        if refused:
            raise ArgumentError(f"a scheduler that plans CP does not go with {list_offenders(refused)}")
        if config.balance_window_size != 1:
            raise ArgumentError(
                f"balance_window_size must be 1 where CP is planned, as the window is the whole step, got "
                f"{config.balance_window_size}"
            )
        planning = self.cp_planning()
        assert planning is not None
        if config.metadata_mode and planning.aligned_fields:
            raise ArgumentError(
                "aligned_fields does not go with metadata_mode: which fields samples have is not known before they are "
                "read, and the plan comes first"
            )
        if rule.of_metadata is not None:
            raise ArgumentError("cost_model must be a dcpack.CostModel where CP is planned: it prices lengths")

    def _check_cp_sizes(self, backend: Backend) -> None:
        planning = self.cp_planning()
        assert planning is not None
        scheduler = get_scheduler(planning.scheduler)
        if backend.needs_equal_groups and not getattr(scheduler, "equal_groups", False):
            raise ArgumentError(
                f"scheduler {scheduler.name!r} mixes CP sizes in a micro-batch, but on back end {backend.name!r} one "
                "program runs on all devices, with one CP size, and every mixture would be compiled anew: use "
                "'uniform_cp'"
            )

    def _check_data(self, dp_size: int, dp_rank: int) -> None:
        if not all(hasattr(self.dataset, name) for name in ("__len__", "__getitem__")):
            raise ArgumentError(
                f"dataset must have samples by number and a length on the ranks that build batches, got "
                f"{type(self.dataset).__name__}"
            )
        try:
            size = len(self.dataset)
        except TypeError as error:  # a 0-d array has a __len__ that fails
            raise ArgumentError(f"dataset must have a length: {error}") from error
        if self.metadata is not None and len(metadata := self.open_metadata()) != size:
            raise ArgumentError(f"metadata must have one value for each of {size} samples, got {len(metadata)}")
        sampler = self.batch_sampler
        if isinstance(sampler, GlobalBatchSampler):
            if sampler.num_samples != size:
                raise ArgumentError(f"batch_sampler is for {sampler.num_samples} samples, the dataset has {size}")
            sampler.bind(dp_rank, dp_size, self.config.local_batch_size, seed=self.config.seed)
        check_sampler(
            sampler,
            dp_rank=dp_rank,
            dp_size=dp_size,
            local_batch_size=self.config.local_batch_size,
            drop_last=self.config.drop_last,
        )

    def open_metadata(self) -> Metadata:
        """Return the metadata by index."""
        return open_metadata(self.metadata)
