"""dcpack's schedulers behind the two contracts that Megatron-Core has had for schedulers.

`PackingScheduler` is for ``scheduler_map`` of ``megatron/core/datasets/data_schedule.py``; `HybridCPScheduler` takes
the place of ``BalancedCPScheduler`` of releases up to 0.16, for example as the ``cp_balancing_scheduler`` of their
``HybridCPDataLoaderWrapper``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import index
from types import SimpleNamespace
from typing import Any

from dcpack._checks import check_int, list_offenders
from dcpack.errors import ArgumentError
from dcpack.megatron import ParallelGroups, StepOptions, plan_step, wrap_data_iterator
from dcpack.padding import PaddingRule
from dcpack_torch.megatron import MegatronPath, groups_of, to_host

__all__ = ["HybridCPScheduler", "PackingScheduler"]

_REQUIRED = ("tokens", "labels", "loss_mask", "position_ids", "original_seq_len", "padded_seq_len")


class PackingScheduler:
    """A scheduler with the constructor and the methods of Megatron-Core's ``BasePackingScheduler``.

    Args:
        max_seqlen_per_dp_cp_rank: padded tokens of one row on one rank.
        cp_size: static CP size of the mesh.
        dp_size: data-parallel ranks.
        microbatch_group_size_per_vp_stage: what the number of micro-batches is a multiple of; None without virtual
            pipelining.
        max_num_seqs: most sequences of a row, or None.
        scheduler: the name of one of ours.
        min_cp_size: smaller CP sizes are not used.
        padding: the padding rule; None pads for CP alone, as Megatron's datasets have padded for the rest.

    Example:
        >>> scheduler = PackingScheduler(100, 1, 4, None, scheduler="packing_aware")
        >>> scheduler.get_groups_and_subsamples([(0, 152), (1, 60), (2, 32)])
        [[[0], [0], [1, 2], [1, 2]]]
    """

    def __init__(
        self,
        max_seqlen_per_dp_cp_rank: int,
        cp_size: int,
        dp_size: int,
        microbatch_group_size_per_vp_stage: int | None,
        max_num_seqs: int | None = None,
        *,
        scheduler: str = "dynamic_cp",
        min_cp_size: int = 1,
        padding: PaddingRule | None = None,
    ) -> None:
        self.max_seqlen_per_dp_cp_rank = max_seqlen_per_dp_cp_rank
        self.cp_size = check_int("cp_size", cp_size, minimum=1)
        self.dp_size = check_int("dp_size", dp_size, minimum=1)
        self.microbatch_group_size_per_vp_stage = microbatch_group_size_per_vp_stage
        self.max_num_seqs = max_num_seqs
        self._fixed: dict[str, Any] = {
            "capacity": max_seqlen_per_dp_cp_rank,
            "scheduler": scheduler,
            "cp_size": cp_size,
            "min_cp_size": min_cp_size,
            "max_sequences": max_num_seqs,
            "padding": padding or PaddingRule(),
        }
        grouped = microbatch_group_size_per_vp_stage is not None
        self._options = StepOptions(
            **self._fixed,
            vpp_size=2 if grouped else 1,  # any number over 1: what counts here is the group size
            microbatch_group_size=microbatch_group_size_per_vp_stage,
        )
        # With what they were made of: another process group could get the number of one that is gone.
        self._groups: dict[tuple[int, ...], tuple[SimpleNamespace, ParallelGroups]] = {}

    @property
    def is_dynamic_cp(self) -> bool:
        """Whether CP sizes differ between micro-batches."""
        return not self._options.is_static

    def get_required_sample_keys(self) -> list[str]:
        """Return the keys that Megatron asserts in each sample."""
        return list(_REQUIRED)

    def get_groups_and_subsamples(self, sample_id_seqlens: Sequence[tuple[int, int]]) -> list[list[list[int]]]:
        """Return ``[micro-batch][DPxCP rank] -> [sample ids]`` for pairs of id and padded length.

        Raises:
            ArgumentError: ids that repeat, or lengths below 1.
            InfeasibleError: no plan was found.
        """
        return _sample_id_groups(sample_id_seqlens, self._options, self.cp_size * self.dp_size)

    def run(
        self,
        data_iterator: Any,
        num_microbatches: int,
        dp_group: Any,
        tp_group: Any,
        pp_group: Any,
        dp_cp_group: Any,
        dev: Any,
        config: Any,
    ) -> tuple[Any, int, int, int]:
        """Run the whole path, with Megatron's arguments and results; micro-batches are tensors on `dev`.

        MTP layers (``config.mtp_num_layers``) are taken to lie on the last stage, where Megatron puts them unless a
        layout of its own says otherwise.

        Returns:
            The iterator (a list under virtual pipelining), the number of micro-batches, the padded tokens and the sum
            of the squared padded lengths of the global batch.
        """
        key = tuple(id(group) for group in (dp_group, tp_group, pp_group, dp_cp_group))
        if key not in self._groups:
            collection = SimpleNamespace(dp=dp_group, tp=tp_group, pp=pp_group, dp_cp=dp_cp_group)
            self._groups[key] = collection, groups_of(collection)
        _, groups = self._groups[key]
        vpp_size = getattr(config, "virtual_pipeline_model_parallel_size", None) or 1
        group_size = self.microbatch_group_size_per_vp_stage if vpp_size > 1 else None
        options = StepOptions(
            **self._fixed,
            tp_size=groups.tp.size,
            pp_size=groups.pp.size,
            vpp_size=vpp_size,
            microbatch_group_size=group_size,
        )
        has_mtp = bool(getattr(config, "mtp_num_layers", None)) and groups.is_last_stage
        step = wrap_data_iterator(
            data_iterator,
            groups,
            options,
            num_microbatches=num_microbatches,
            mtp_stages=(vpp_size - 1,) if has_mtp else (),
            to_host=to_host,
            to_device=MegatronPath(groups, options, device=dev).to_device,
        )
        totals = step.totals
        return step.data_iterator, totals.num_microbatches, totals.num_padded_tokens, totals.squared_length_sum


class HybridCPScheduler:
    """A scheduler with the constructor and the method of Megatron-Core 0.16's ``BalancedCPScheduler``.

    Args:
        max_seq_len_per_rank: padded tokens of one row on one rank.
        dp_cp_group: the DPxCP group; only its size is asked for.
        scheduler: the name of one of ours.
        padding: the padding rule; None pads for CP alone.

    Example:
        >>> from types import SimpleNamespace
        >>> group = SimpleNamespace(size=lambda: 4)                        # on a cluster: the DPxCP process group
        >>> lengths, ids = HybridCPScheduler(100, group).get_groups_and_subsamples([(0, 152), (1, 60), (2, 32)], None)
        >>> ids
        [[[0], [0], [1, 2], [1, 2]]]
    """

    def __init__(
        self,
        max_seq_len_per_rank: int,
        dp_cp_group: Any,
        *,
        scheduler: str = "dynamic_cp",
        padding: PaddingRule | None = None,
    ) -> None:
        self.max_seq_len_per_rank = max_seq_len_per_rank
        self.total_hdp_gpus = dp_cp_group.size()
        self._options = StepOptions(
            capacity=max_seq_len_per_rank, scheduler=scheduler, padding=padding or PaddingRule()
        )

    def get_groups_and_subsamples(
        self, sample_id_seqlens: Sequence[tuple[int, int]], config: Any
    ) -> tuple[list[list[list[int]]], list[list[list[int]]]]:
        """Return ``[micro-batch][rank] -> [padded lengths]`` and ``[micro-batch][rank] -> [sample ids]``."""
        del config  # 0.16 passes it and its own scheduler does not look at it either
        groups = _sample_id_groups(sample_id_seqlens, self._options, self.total_hdp_gpus)
        length_of = dict(sample_id_seqlens)
        return [[[length_of[i] for i in ids] for ids in ranks] for ranks in groups], groups


def _sample_id_groups(pairs: Sequence[tuple[int, int]], options: StepOptions, num_ranks: int) -> list[list[list[int]]]:
    try:
        ids = [index(number) for number, _ in pairs]
        lengths = [index(length) for _, length in pairs]
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"sample_id_seqlens must hold pairs of two integers, id and length: {error}") from error
    if len(set(ids)) < len(ids):
        repeated = sorted(number for number, count in Counter(ids).items() if count > 1)
        raise ArgumentError(f"sample ids must differ; repeated: {list_offenders([str(n) for n in repeated])}")
    if empty := [str(number) for number, length in zip(ids, lengths, strict=True) if length < 1]:
        raise ArgumentError(f"sample lengths must be at least 1; not those of samples {list_offenders(empty)}")
    plan = plan_step(lengths, options, num_ranks=num_ranks)
    return [[[ids[i] for i in places] for places in ranks] for ranks in plan.to_sample_id_groups()]
