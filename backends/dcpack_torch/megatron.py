"""Megatron-Core's data path on torch: its process groups in, its iterators, tuples and ``PackedSeqParams`` out.

torch is imported here, Megatron-Core only where an object of one of its classes is made.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields as fields_of
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from dcpack._checks import as_lengths, list_offenders
from dcpack.comm.dtypes import from_bytes
from dcpack.comm.failures import name_ranks
from dcpack.comm.membership import check_deadline
from dcpack.errors import ArgumentError, BackendError, PeerError
from dcpack.megatron import (
    ParallelGroups,
    RankBatch,
    StepData,
    StepOptions,
    get_batch_for_rank,
    wrap_data_iterator,
)
from dcpack_torch.backend import TorchGlooBackend
from dcpack_torch.c10d import registered_group
from dcpack_torch.wire import array_as_tensor, tensor_as_bytes

__all__ = ["CPGroups", "MegatronPath", "groups_of", "make_packed_seq_params", "options_from_config", "to_host"]

_GROUP_NAMES = ("tp", "pp", "dp", "dp_cp")
_SCHEDULERS = {"dp_balanced": "in_order", "default_dynamic_cp": "packing_aware"}


def to_host(value: Any) -> npt.NDArray[Any]:
    """Return a tensor of any device and dtype as a NumPy array; arrays and numbers as arrays, too.

    The memory of CPU tensors is shared where that is possible. bfloat16 and float8 need the package `ml_dtypes`.

    Args:
        value: a tensor on any device, or what NumPy makes an array of.

    Example:
        >>> to_host(torch.tensor([1, 2], dtype=torch.int16))
        array([1, 2], dtype=int16)
    """
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    data, name, shape = tensor_as_bytes(value.cpu())
    return from_bytes(data.numpy(), name.removeprefix("torch."), shape)


def groups_of(pg_collection: Any, *, deadline_s: float = 600.0) -> ParallelGroups:
    """Return this rank's groups for a ``ProcessGroupCollection`` of Megatron-Core. Collective over all ranks.

    Host data moves over Gloo whatever library the given groups use; the groups themselves are asked who their members
    are, and are not called.

    Args:
        pg_collection: anything with the process groups ``tp``, ``pp``, ``dp`` and ``dp_cp``.
        deadline_s: seconds that a call may wait for the others.

    Raises:
        ArgumentError: a group is missing.
    """
    if missing := [name for name in _GROUP_NAMES if getattr(pg_collection, name, None) is None]:
        raise ArgumentError(f"pg_collection must have the groups {', '.join(_GROUP_NAMES)}; no {', '.join(missing)}")
    backends = {
        name: TorchGlooBackend(group=getattr(pg_collection, name), deadline_s=deadline_s) for name in _GROUP_NAMES
    }
    with contextlib.ExitStack() as made:
        groups = ParallelGroups(**{name: made.enter_context(each.world()) for name, each in backends.items()})
        made.pop_all()  # all is well, so none is closed
    return groups


def options_from_config(config: Any, groups: ParallelGroups, **changes: Any) -> StepOptions:
    """Return the options that a Megatron configuration asks for.

    Args:
        config: has ``max_seqlen_per_dp_cp_rank``; of ``sequence_packing_scheduler``,
            ``virtual_pipeline_model_parallel_size``, ``microbatch_group_size_per_vp_stage``,
            ``min_dynamic_context_parallel_size`` and ``thd_max_num_seqs`` those that it has are used. The scheduler
            ``dp_balanced`` is `in_order`, ``default_dynamic_cp`` is `packing_aware`; any name of ours is taken too.
        groups: this rank's groups.
        changes: further fields of `StepOptions`, or others instead. The padding rule is one: what fp8 kernels want is
            not read from the configuration.

    Raises:
        ArgumentError: no ``max_seqlen_per_dp_cp_rank``, or what `StepOptions` refuses.

    Example:
        >>> from types import SimpleNamespace
        >>> from dcpack_torch.backend import TorchGlooBackend
        >>> world = TorchGlooBackend().world()
        >>> groups = ParallelGroups(tp=world, pp=world, dp=world, dp_cp=world)
        >>> config = SimpleNamespace(max_seqlen_per_dp_cp_rank=4096, sequence_packing_scheduler="dp_balanced")
        >>> options_from_config(config, groups).scheduler
        'in_order'
    """
    capacity = getattr(config, "max_seqlen_per_dp_cp_rank", None)
    if capacity is None:
        raise ArgumentError("config must have max_seqlen_per_dp_cp_rank, the padded tokens of one row on one rank")
    vpp_size = getattr(config, "virtual_pipeline_model_parallel_size", None) or 1
    scheduler = getattr(config, "sequence_packing_scheduler", None) or "dynamic_cp"
    found = {
        "capacity": capacity,
        "scheduler": _SCHEDULERS.get(scheduler, scheduler),
        "cp_size": groups.cp_size,
        "tp_size": groups.tp.size,
        "pp_size": groups.pp.size,
        "vpp_size": vpp_size,
        "microbatch_group_size": None if vpp_size == 1 else getattr(config, "microbatch_group_size_per_vp_stage", None),
        "min_cp_size": getattr(config, "min_dynamic_context_parallel_size", None) or 1,
        "max_sequences": getattr(config, "thd_max_num_seqs", None),
    }
    return StepOptions(**{**found, **changes})


class CPGroups:
    """The process groups of CP groups, each made when its members first need it, and kept by torch.distributed.

    Only the members make a group, in the order of their micro-batches, so no other rank is asked. Any set of ranks will
    do: Megatron-Core makes aligned powers of two beforehand. There is one for each set of ranks, whoever asks. One
    that all its members have destroyed is made anew when it is needed again.

    Args:
        backend: the library, as ``torch.distributed.new_group`` takes it; None for that of the default group.
        timeout_s: seconds that making a group, and a call in it, may take.
    """

    def __init__(self, backend: str | None = None, *, timeout_s: float = 600.0) -> None:
        self._backend = backend
        self._timeout_s = check_deadline(timeout_s, "timeout_s")

    def get(self, ranks: Sequence[int]) -> Any:
        """Return the process group of `ranks`, global numbers; its members call together.

        Raises:
            ArgumentError: ranks that are not ascending, that there are not, or without this one.
            PeerError: a member did not come in time.
        """
        members = as_lengths("ranks", ranks).tolist()
        if members != sorted(set(members)) or dist.get_rank() not in members:
            raise ArgumentError(f"ranks must ascend and hold this one, {dist.get_rank()}, got {members}")
        if members[-1] >= dist.get_world_size():
            size = dist.get_world_size()
            raise ArgumentError(f"ranks must be below the number of processes, {size}, got {members}")
        digest = hashlib.blake2b(repr(members).encode(), digest_size=16).hexdigest()
        name = f"dcpack/cp/{self._backend or ''}/{digest}"
        try:
            return registered_group(name, members, self._backend, self._timeout_s)
        except RuntimeError as error:
            text = f"the CP group of {name_ranks(members)} could not be made within {self._timeout_s:g} s: {error}"
            raise PeerError(text, cause=type(error).__name__) from error


def make_packed_seq_params(fields: Mapping[str, Any], cls: type | None = None) -> Any:
    """Return a ``PackedSeqParams`` object.

    Args:
        fields: as of `dcpack.export.packed_seq_params`.
        cls: the class; None for that of the installed Megatron-Core. A class without ``pad_between_seqs`` leaves that
            to Transformer Engine, which compares the offsets itself.

    Raises:
        BackendError: Megatron-Core is not installed.
        ArgumentError: the class lacks another field that is not None.

    Example:
        >>> from dataclasses import make_dataclass
        >>> from dcpack.export import packed_seq_params
        >>> from dcpack.layout import packed_offsets
        >>> params = packed_seq_params(packed_offsets([3, 2]))
        >>> own = make_dataclass("PackedSeqParams", params)            # None takes the one of Megatron-Core
        >>> make_packed_seq_params(params, own).max_seqlen_q
        3
    """
    if cls is None:
        try:
            cls = importlib.import_module("megatron.core.packed_seq_params").PackedSeqParams
        except ImportError as error:
            raise BackendError("PackedSeqParams needs megatron-core: pip install 'dcpack[megatron]'") from error
    assert cls is not None
    known = {field.name for field in fields_of(cls)}
    lost = sorted(n for n, v in fields.items() if n not in known and n != "pad_between_seqs" and v is not None)
    if lost:
        raise ArgumentError(f"{cls.__name__} of this release has no field for {list_offenders(lost)}")
    return cls(**{name: value for name, value in fields.items() if name in known})


class MegatronPath:
    """Megatron-Core's ``wrap_data_iterator`` and ``get_batch_on_this_rank_for_sequence_packing`` for one rank.

    Args:
        groups: this rank's groups, of `groups_of`.
        options: how to plan, such as `options_from_config`.
        device: where batches go; None for the CPU.
        cp_backend: the library of CP groups; None for that of the default group.
        cp_timeout_s: seconds that making a CP group, and a call in it, may take.
        padded_in_both: give the padded offsets in both places, as Megatron-Core does; see
            `dcpack.export.packed_seq_params`.
        params_class: the class of ``PackedSeqParams``; None for that of the installed Megatron-Core.

    Example:
        >>> from dcpack_torch.backend import TorchGlooBackend
        >>> world = TorchGlooBackend().world()                # one process; groups_of gives those of a cluster
        >>> groups = ParallelGroups(tp=world, pp=world, dp=world, dp_cp=world)
        >>> path = MegatronPath(groups, StepOptions(capacity=8))
        >>> names = ("tokens", "labels", "loss_mask", "position_ids")
        >>> samples = iter([{"padded_seq_len": 4, **{name: torch.arange(4) for name in names}}])
        >>> step = path.wrap(samples, num_microbatches=1)
        >>> path.get_rank_batch(step.data_iterator).get("tokens")
        tensor([[0, 1, 2, 3]])
    """

    def __init__(
        self,
        groups: ParallelGroups,
        options: StepOptions,
        *,
        device: torch.device | str | None = None,
        cp_backend: str | None = None,
        cp_timeout_s: float = 600.0,
        padded_in_both: bool = False,
        params_class: type | None = None,
    ) -> None:
        self.groups = groups
        self.options = options
        self.device = torch.device("cpu" if device is None else device)
        self.cp_groups = CPGroups(cp_backend, timeout_s=check_deadline(cp_timeout_s, "cp_timeout_s"))
        self._padded_in_both = padded_in_both
        self._params_class = params_class

    def to_device(self, array: Any) -> Any:
        """Return an array as a tensor on the device of this path."""
        return array_as_tensor(np.asarray(array)).to(self.device)

    def wrap(self, data_iterator: Any, num_microbatches: int, *, mtp_stages: Sequence[int] = ()) -> StepData:
        """Return the step as `dcpack.megatron.wrap_data_iterator` does; samples may hold tensors of any device."""
        return wrap_data_iterator(
            data_iterator,
            self.groups,
            self.options,
            num_microbatches=num_microbatches,
            mtp_stages=mtp_stages,
            to_host=to_host,
        )

    def get_batch(
        self, data_iterator: Iterator[Any] | None, *, vp_stage: int | None = None, mtp_on_this_rank: bool = False
    ) -> tuple[Any, ...]:
        """Return Megatron's tuple for the next micro-batch, as tensors on the device.

        Returns:
            tokens, labels, loss_mask, attention_mask (None), position_ids, packed_seq_params, padding_mask; None in
            place of what this stage does not compute on.
        """
        batch = self.get_rank_batch(data_iterator, vp_stage=vp_stage, mtp_on_this_rank=mtp_on_this_rank)
        params = {**batch.packed_seq_params, "cp_group": self.cp_groups.get(batch.packed_seq_params["cp_group"])}
        return (
            batch.get("tokens"),
            batch.get("labels"),
            batch.get("loss_mask"),
            None,
            batch.get("position_ids"),
            make_packed_seq_params(params, self._params_class),
            batch.padding_mask,
        )

    def get_rank_batch(
        self, data_iterator: Iterator[Any] | None, *, vp_stage: int | None = None, mtp_on_this_rank: bool = False
    ) -> RankBatch:
        """Return the same with all further fields, as `dcpack.megatron.get_batch_for_rank` does."""
        return get_batch_for_rank(
            data_iterator,
            self.groups,
            vpp_size=self.options.vpp_size,
            vpp_stage=vp_stage,
            has_mtp=mtp_on_this_rank,
            sharding=self.options.sharding,
            padded_in_both=self._padded_in_both,
            to_device=self.to_device,
        )
