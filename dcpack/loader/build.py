"""`build_distributed_dataloader`: from arguments to a loader. Checks first, then groups, then the mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dcpack._checks import list_offenders
from dcpack.comm import Backend, Communicator, all_gather_trees, get_backend
from dcpack.comm.guard import tell_failure
from dcpack.errors import ArgumentError, PeerError
from dcpack.loader.batches import Packing, StepMaker, default_collate
from dcpack.loader.config import DistributedDatasetConfig
from dcpack.loader.cp_planner import CPPlanner
from dcpack.loader.deliver import Delivery
from dcpack.loader.external import ExternalSteps, balance_groups
from dcpack.loader.loader import DistributedDataLoader
from dcpack.loader.metadata_mode import MetadataSteps
from dcpack.loader.online import OnlineSteps
from dcpack.loader.planned_cp import PlannedCPSteps
from dcpack.loader.planned_cp_metadata import PlannedCPMetadataSteps
from dcpack.loader.planning import WindowPlanner
from dcpack.loader.policies import choose_policy
from dcpack.loader.protocols import BalancingAlgorithm, BatchSampler, ExternalStepSource
from dcpack.loader.reading import SampleReader
from dcpack.loader.roles import Roles, assign_roles
from dcpack.loader.rounds import SamplerRounds, SamplerSource, length_of
from dcpack.loader.rules import Request, check_dataloader_kwargs
from dcpack.loader.sampler import GlobalBatchSampler
from dcpack.loader.state import whole_steps
from dcpack.loader.text_rows import TextRows
from dcpack.loader.types import PackingConstraints, SampleMetadata

__all__ = ["build_distributed_dataloader"]


def build_distributed_dataloader(
    dataset: Any,
    mesh: Any,
    config: DistributedDatasetConfig | Mapping[str, Any],
    *,
    metadata_fn: Callable[[Any], SampleMetadata] | None = None,
    metadata: Any = None,
    dataloader_kwargs: Mapping[str, Any] | None = None,
    pack_fn: Callable[[Sequence[Any]], Any] | None = None,
    split_fn: Callable[[Any], Sequence[Any]] | None = None,
    collate_fn: Callable[[Any], Any] | None = None,
    device: Any = None,
    model_batch_spec: Any = None,
    batch_sampler: BatchSampler | None = None,
    external_step_source: ExternalStepSource | None = None,
    model_config: Any = None,
    cost_model: Any = None,
    balancing_algorithm: str | BalancingAlgorithm | None = None,
    scheduler: Any = None,
) -> DistributedDataLoader:
    """Return a loader of balanced micro-batches on this rank; all ranks of the mesh call it together.

    Args:
        dataset: map-style, whole and the same on every rank that builds batches; None on others and with
            `external_step_source`.
        mesh: a `Topology` or a mesh of the back end's framework, over all processes.
        config: the configuration, or a mapping of it.
        metadata_fn: describes a sample; see docs/loader.md for which mode needs it.
        metadata: lengths or `SampleMetadata` by index, a source with ``lengths()``, or a Megatron ``.idx`` file; for
            `metadata_mode`.
        dataloader_kwargs: options of the workers that read.
        pack_fn: a row from its samples.
        split_fn: a record to its samples.
        collate_fn: a batch from rows; under planned CP from a `dcpack.exchange.PackedBatch`.
        device: where batches go; None: they stay arrays on the host.
        model_batch_spec: what batches look like, for peers: nested `TensorFieldSpec`; else
            ``collate_fn.model_batch_spec``, or that of repacked text, or none, and each message says it.
        batch_sampler: which samples come when: `GlobalBatchSampler`, or your own that keeps its protocol.
        external_step_source: where whole steps come from instead.
        model_config: dimensions of the model that prices samples, instead of `cost_model`.
        cost_model: a function from `SampleMetadata` to `WorkloadCost`, or a `dcpack.CostModel`.
        balancing_algorithm: ``"local_gain"`` (default), ``"balanced"``, or your own `BalancingAlgorithm`.
        scheduler: instead of that a scheduler; one that assigns CP sizes (``"dynamic_cp"``, or `CPPlanning` with more
            options) plans whole steps.

    Raises:
        ArgumentError: arguments that cannot be, before any group is made; on this rank.
        PeerError: the same on other ranks.

    Example:
        >>> import dcpack
        >>> data = [{"input_ids": [1] * n} for n in (9, 9, 1, 1)]
        >>> config = dcpack.DistributedDatasetConfig(seq_len=16, local_batch_size=2, communication_backend="fake")
        >>> def train(communicator):
        ...     loader = dcpack.build_distributed_dataloader(
        ...         data, dcpack.Topology.of_domain(2), config,
        ...         metadata_fn=lambda sample: dcpack.SampleMetadata(pack_tokens=len(sample["input_ids"]), cost=len(
        ...             sample["input_ids"])),
        ...         batch_sampler=dcpack.GlobalBatchSampler(4, global_batch_size=4, shuffle=False))
        ...     return [sum(len(sample["input_ids"]) for sample in batch.data) for batch in loader]
        >>> dcpack.run_ranks(2, train)
        [[10], [10]]
    """
    settings = config if isinstance(config, DistributedDatasetConfig) else DistributedDatasetConfig.from_dict(config)
    request = Request(
        dataset=dataset,
        config=settings,
        metadata_fn=metadata_fn,
        metadata=metadata,
        dataloader_kwargs=dataloader_kwargs if dataloader_kwargs is not None else {},
        pack_fn=pack_fn,
        split_fn=split_fn,
        collate_fn=collate_fn,
        model_batch_spec=model_batch_spec,
        batch_sampler=batch_sampler,
        external_step_source=external_step_source,
        model_config=model_config,
        cost_model=cost_model,
        balancing_algorithm=balancing_algorithm,
        scheduler=scheduler,
    )
    backend = get_backend(settings.backend)
    return _Builder(request, backend, backend.world(), device).build(mesh)


class _Builder:
    """One rank on its way to a loader."""

    def __init__(self, request: Request, backend: Backend, world: Communicator, device: Any) -> None:
        self.request = request
        self.config = request.config
        self.backend = backend
        self.world = world
        self.device = device
        self.rank = world.ranks[world.rank]

    def build(self, mesh: Any) -> DistributedDataLoader:
        roles = self._checked_roles(mesh)
        facts = self._compare()
        members = {rank: member for member, rank in enumerate(self.world.ranks)}
        peers = [[members[rank]] for lane in roles.lanes for rank in lane[1:]]
        plane = self.world.split([[members[rank] for rank in roles.constructors], *peers])
        lane = self.world.split([[members[rank] for rank in lane] for lane in roles.lanes])
        communicators = (plane, lane)
        group = plane
        if self.mode == "external":
            group = balance_groups(plane, self.config.balance_group_size)
            plane = plane.dup()  # one that no thread has called yet
            communicators = (*communicators, plane, group)
        with self.world.guard():
            maker = self._maker(roles, plane, group) if lane.rank == 0 else None
            return DistributedDataLoader(
                maker=maker,
                delivery=Delivery(lane, roles, self.rank, self._spec()),
                sampler=self.request.batch_sampler,
                backend=self.backend,
                device=self.device,
                device_prefetch_depth=self.config.device_prefetch_depth,
                fills_rows=self.config.repack_sequences,
                fingerprint=facts["fingerprint"],
                length=facts["length"],
                epoch=facts["epoch"],
                step=facts["step"],
                communicators=communicators,
                in_thread=self.backend.allows_threads or plane.size == 1,
            )

    # ---- checks --------------------------------------------------------------------------------------------------

    def _checked_roles(self, mesh: Any) -> Roles:
        """Return the roles, if this rank's arguments and those of all others can be."""
        roles, error = None, None
        try:
            roles = self._roles(mesh)
            self.plan_rank = roles.lane_of(self.rank)
            self.is_constructor = roles.constructors[self.plan_rank] == self.rank
            self.request.check(roles, self.plan_rank, is_constructor=self.is_constructor, backend=self.backend)
            self.mode = self.request.mode()
            self._bind_peer(roles)
        except Exception as caught:
            error = caught
        try:
            self.world.agree(error)
        except PeerError:
            if error is not None:
                raise error from None  # what is wrong here is an error of its own kind here
            raise
        assert roles is not None
        return roles

    def _roles(self, mesh: Any) -> Roles:
        axes = self.backend.describe_mesh(mesh)
        found, wanted = sorted(set(axes.ranks.ravel().tolist())), sorted(self.world.ranks)
        if found != wanted:
            raise ArgumentError(f"mesh must hold every process: it has those of {found}, the processes are {wanted}")
        return assign_roles(
            axes,
            dp_dim_names=self.config.dp_dim_names,
            plans_cp=self.request.cp_planning() is not None,
            planner_rank=self.config.planner_rank,
        )

    def _bind_peer(self, roles: Roles) -> None:
        """Tell a sampler of ours on a rank that only receives which rank's it is, so that its state goes along."""
        sampler = self.request.batch_sampler
        if not self.is_constructor and isinstance(sampler, GlobalBatchSampler):
            sampler.bind(self.plan_rank, len(roles.lanes), self.config.local_batch_size, seed=self.config.seed)

    def _compare(self) -> dict[str, Any]:
        """Compare what must be the same on all ranks, and learn what the constructors know. Collective.

        Raises:
            ArgumentError: configurations, modes, specs or lengths differ; on all ranks, naming who has what.
        """
        with tell_failure(self.world):
            facts = self._facts()
        heard = all_gather_trees(self.world, facts)
        ranks = self.world.ranks
        for name in sorted({name for facts in heard for name in facts["config"]}):
            self._require_same(name, [facts["config"][name] for facts in heard], ranks)
        for name in ("mode", "spec"):
            self._require_same(name, [facts[name] for facts in heard], ranks)
        data = [(rank, facts["data"]) for rank, facts in zip(ranks, heard, strict=True) if facts["data"] is not None]
        of_ranks = [rank for rank, _ in data]
        for name in ("dataset_size", "metadata_size", "epoch", "step"):
            self._require_same(name, [found[name] for _, found in data], of_ranks)
        for name in sorted(data[0][1]["fingerprint"]):
            self._require_same(name, [found["fingerprint"].get(name) for _, found in data], of_ranks)
        lengths = [found["length"] for _, found in data]
        return {**data[0][1], "length": None if None in lengths else min(lengths)}

    @staticmethod
    def _require_same(name: str, values: Sequence[Any], ranks: Sequence[int]) -> None:
        if any(value != values[0] for value in values):
            listed = [f"rank {rank} has {value!r}" for rank, value in zip(ranks, values, strict=True)]
            raise ArgumentError(f"{name} must be the same on all ranks: {list_offenders(listed)}")

    def _facts(self) -> dict[str, Any]:
        config = {name: _plain(value) for name, value in self.config.to_dict().items()}
        spec = self.request.spec()
        return {
            "config": config,
            "mode": self.mode,
            "spec": None if spec is None else repr(spec),
            "data": self._data_facts() if self.is_constructor else None,
        }

    def _data_facts(self) -> dict[str, Any]:
        request, config = self.request, self.config
        if self.mode == "external":
            source = request.external_step_source
            length = length_of(source)
            return {
                "dataset_size": None,
                "metadata_size": None,
                "epoch": 0,
                "step": 0,
                "length": None if length is None else length * config.local_batch_size,
                "fingerprint": {
                    "source": type(source).__name__,
                    "num_ranks": self.world.size,
                    "local_batch_size": config.local_batch_size,
                },
            }
        sampler: Any = request.batch_sampler
        fingerprint = {
            "source": type(sampler).__name__,
            "dataset_size": len(request.dataset),
            "seed": int(getattr(sampler, "seed", config.seed)),
            "global_batch_size": int(sampler.global_batch_size),
            "drop_last": config.drop_last,
        }
        if not isinstance(sampler, GlobalBatchSampler):
            fingerprint["global_micro_batch_size"] = int(sampler.global_micro_batch_size)
        return {
            "dataset_size": len(request.dataset),
            "metadata_size": None if request.metadata is None else len(request.open_metadata()),
            "epoch": int(sampler.epoch),
            "step": whole_steps(sampler, sampler.consumed_samples) if isinstance(sampler, GlobalBatchSampler) else 0,
            "length": None if self.mode == "planned_cp" else length_of(sampler),
            "fingerprint": fingerprint,
        }

    # ---- the mode ------------------------------------------------------------------------------------------------

    def _spec(self) -> Any:
        spec = self.request.spec()
        if spec is None and self.config.repack_sequences and self.request.collate_fn is None:
            return self._text_rows().batch_spec(self.config.local_batch_size)
        return spec

    def _text_rows(self) -> TextRows:
        return TextRows(seq_len=self.config.seq_len, pad_token_id=self.config.pad_token_id)

    def _maker(self, roles: Roles, plane: Communicator, group: Communicator) -> StepMaker:
        if self.mode == "external":
            return self._external(plane, group)
        request, config = self.request, self.config
        sampler: Any = request.batch_sampler
        rounds = SamplerRounds(
            sampler,
            dp_rank=self.plan_rank,
            local_batch_size=config.local_batch_size,
            may_be_short=not config.drop_last,
        )
        reader = SampleReader(self.backend, request.dataset, check_dataloader_kwargs(request.dataloader_kwargs))
        source = SamplerSource(rounds=rounds, reader=reader, num_dropped=getattr(sampler, "num_dropped", 0))
        if self.mode == "planned_cp":
            return self._planned_cp(roles, plane, source)
        planner = self._planner(
            roles.planner, rows_per_round=config.local_batch_size, window=config.balance_window_size
        )
        packing = self._packing()
        if self.mode == "metadata":
            return MetadataSteps(plane, source, metadata=request.open_metadata(), packing=packing, planner=planner)
        split = self._text_rows().split if config.repack_sequences else request.split_fn
        describe = request.metadata_fn or _describe_text
        return OnlineSteps(plane, source, metadata_fn=describe, split_fn=split, packing=packing, planner=planner)

    def _planned_cp(self, roles: Roles, plane: Communicator, source: SamplerSource) -> StepMaker:
        request, config = self.request, self.config
        options = request.cp_planning()
        assert options is not None
        planner = CPPlanner(
            options=options,
            capacity=config.seq_len,
            tp_size=roles.tp_size,
            cost=request.cost_rule().planning_cost,
            overlong=config.oversized_policy,
            planner=roles.planner,
            broadcast=config.broadcast_plan,
            logs=config.log_balance,
            hosts=roles.hosts,
        )
        collate = request.collate_fn
        if config.metadata_mode:
            metadata = request.open_metadata()
            return PlannedCPMetadataSteps(plane, source, collate_fn=collate, planner=planner, metadata=metadata)
        return PlannedCPSteps(plane, source, collate_fn=collate, planner=planner, metadata_fn=request.metadata_fn)

    def _external(self, plane: Communicator, group: Communicator) -> StepMaker:
        rows = self.config.local_batch_size
        planner = self._planner(0, rows_per_round=1, window=rows)
        return ExternalSteps(
            plane,
            group,
            source=self.request.external_step_source,
            metadata_fn=self.request.metadata_fn or _describe_text,
            packing=self._packing(),
            planner=planner,
            rows_per_step=rows,
        )

    def _planner(self, planner: int, *, rows_per_round: int, window: int) -> WindowPlanner:
        request, config = self.request, self.config
        return WindowPlanner(
            policy=choose_policy(request.scheduler, request.balancing_algorithm, rows_per_round),
            rule=request.cost_rule(),
            constraints=PackingConstraints(
                seq_len=config.seq_len,
                oversized_policy=config.oversized_policy,
                packing_budgets=config.packing_budgets or {},
            ),
            min_balance_gain=config.min_balance_gain,
            rows_per_round=rows_per_round,
            window_size=window,
            one_a_row=self.mode == "metadata" or (self.mode == "online" and not self._splits),
            may_be_empty=not config.drop_last,
            sync="step" if self.mode == "external" else "microbatch",
            planner=planner,
            broadcast=config.broadcast_plan,
            logs=config.log_balance,
        )

    @property
    def _splits(self) -> bool:
        return self.config.repack_sequences or self.request.split_fn is not None

    def _packing(self) -> Packing:
        request = self.request
        if self.config.repack_sequences:
            text = self._text_rows()
            return Packing(text.pack, request.collate_fn or text.collate)
        pack = request.pack_fn
        if self.mode == "external" and pack is None:
            pack = default_collate
        return Packing(pack, request.collate_fn or default_collate)


def _describe_text(sequence: Mapping[str, Any]) -> SampleMetadata:
    """Describe a sequence of repacked text: its tokens."""
    return SampleMetadata(pack_tokens=len(sequence["input_ids"]))


def _plain(value: Any) -> Any:
    """Return a setting as what can be sent and compared."""
    return list(value) if isinstance(value, tuple) else value
