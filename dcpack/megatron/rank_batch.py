"""What one rank computes on in one micro-batch: its CP slice, the same on all ranks of its tensor-parallel group."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dcpack._checks import Int64Array, as_array, check_choice, check_flags, check_int, check_kinds, list_offenders
from dcpack.comm import broadcast_tree
from dcpack.comm.guard import tell_failure
from dcpack.errors import ArgumentError
from dcpack.export import megatron_fields, packed_seq_params
from dcpack.layout import MAX_OFFSET, PackedOffsets, padding_mask
from dcpack.megatron.groups import ParallelGroups
from dcpack.megatron.pack import METADATA_KEYS
from dcpack.megatron.stages import FIRST_STAGE_FIELDS, LAST_STAGE_FIELDS, StageNeeds, fields_left_out, needs_of_stage
from dcpack.sharding import SHARDINGS, local_token_indices

__all__ = ["RankBatch", "get_batch_for_rank", "slice_for_cp_rank"]

_NOT_PER_TOKEN = (*METADATA_KEYS, "padding_mask", "sample_fields", "cp_group")


@dataclass(frozen=True, kw_only=True, eq=False)
class RankBatch:
    """One rank's part of one micro-batch.

    Attributes:
        fields: per-token fields by Megatron's names, [1, t, ...]; those that this stage does not compute on are not
            there. ``tokens``, ``labels``, ``position_ids`` are int64, ``loss_mask`` is float32.
        packed_seq_params: the fields of ``PackedSeqParams``, on every stage; its ``cp_group`` is a tuple of the global
            ranks that share the row.
        padding_mask: bool[1, t], True in padding; on every stage.
        sample_fields: fields that are not per token, a mapping for each sequence of the row.

    Example:
        >>> RankBatch(fields={"tokens": np.array([[1, 2]])}, packed_seq_params={}, padding_mask=np.zeros((1, 2), bool),
        ...     sample_fields=[{}]).get("labels") is None
        True
    """

    fields: dict[str, Any]
    packed_seq_params: dict[str, Any]
    padding_mask: Any
    sample_fields: list[dict[str, Any]]

    def get(self, name: str) -> Any | None:
        """Return the per-token field `name`, or None where this stage does not compute on it."""
        check_kinds(name=(name, str))
        return self.fields.get(name)


def slice_for_cp_rank(
    cu_seqlens_padded: Any, num_slots: int, cp_size: int, cp_rank: int, sharding: str = "zigzag"
) -> Int64Array:
    """Return the slots of a packed row that CP rank `cp_rank` holds, in its order.

    The sequences are sliced by `sharding`; a tail behind the last one is cut into equal runs.

    Args:
        cu_seqlens_padded: int32[n + 1], offsets of the row.
        num_slots: slots of the row, at least the last offset; the tail must divide by the CP size.
        cp_size: ranks that share the row.
        cp_rank: the rank asked for.
        sharding: one of ``dcpack.sharding.SHARDINGS``.

    Returns:
        int64[num_slots / cp_size].

    Raises:
        ArgumentError: a row that the CP ranks cannot share.

    Example:
        >>> slice_for_cp_rank([0, 8], 10, 2, 0).tolist()
        [0, 1, 6, 7, 8]
    """
    own = local_token_indices(cu_seqlens_padded, cp_size, cp_rank, sharding)
    end = int(np.asarray(cu_seqlens_padded)[-1])
    num_slots = check_int("num_slots", num_slots, minimum=end, maximum=MAX_OFFSET)
    share, rest = divmod(num_slots - end, cp_size)
    if share < 0 or rest:
        raise ArgumentError(f"the tail of a row of {num_slots} slots, from {end}, must divide by {cp_size} CP ranks")
    return np.concatenate([own, end + cp_rank * share + np.arange(share)])


def get_batch_for_rank(
    data_iterator: Iterator[Mapping[str, Any]] | None,
    groups: ParallelGroups,
    *,
    vpp_size: int = 1,
    vpp_stage: int | None = None,
    has_mtp: bool = False,
    sharding: str = "zigzag",
    padded_in_both: bool = False,
    to_device: Callable[[Any], Any] | None = None,
) -> RankBatch:
    """Return this rank's part of the next micro-batch. Collective over the tensor-parallel group, one message.

    The first rank of the group takes the next micro-batch, slices it for its CP rank and sends the slice to the others.
    What the iterator yields is not changed. All ranks agree when each has its part, whether it moves arrays or not.

    Args:
        data_iterator: of `make_data_iterators`; None on all but the first rank of the tensor-parallel group.
        groups: this rank's groups.
        vpp_size: virtual stages of a rank.
        vpp_stage: which of them asks; None where there is one.
        has_mtp: whether this stage holds MTP layers and so needs all fields.
        sharding: how CP ranks slice a row, one of ``dcpack.sharding.SHARDINGS``.
        padded_in_both: see `dcpack.export.packed_seq_params`.
        to_device: moves the arrays of the result, such as ``backend.to_device``; None leaves them on the host.

    Raises:
        PeerError: the iterator has ended or is missing, a micro-batch lacks a field, a rank asks for another part of
            it than the first one, or `to_device` failed where it is given; on every rank of the group.

    Example:
        >>> from dcpack.comm import run_ranks
        >>> from dcpack.megatron import build_groups, pack_sequences
        >>> from dcpack.topology import Topology
        >>> lengths = {"original_seq_len": np.array([3]), "padded_seq_len": np.array([4])}
        >>> sample = {name: np.arange(4) for name in ("tokens", "labels", "loss_mask", "position_ids")}
        >>> def fn(communicator):
        ...     groups = build_groups(communicator, Topology(axes=("tp",), sizes=(2,)))
        ...     rows = iter([pack_sequences([{**sample, **lengths}])]) if groups.tp.rank == 0 else None
        ...     batch = get_batch_for_rank(rows, groups)
        ...     return batch.fields["labels"].tolist(), batch.padding_mask.tolist()
        >>> run_ranks(2, fn)[1]
        ([[0, 1, 2, -100]], [[False, False, False, True]])
    """
    message: dict[str, Any] | None = None
    index: Int64Array | None = None
    asked: dict[str, Any] = {}
    check_kinds(groups=(groups, ParallelGroups))
    with tell_failure(groups.tp, peer_errors=True):  # the others wait in the broadcast
        check_kinds(to_device=(to_device, Callable | None))
        asked = check_flags(padded_in_both=padded_in_both, has_mtp=has_mtp)
        check_choice("sharding", sharding, SHARDINGS)
        needs = needs_of_stage(
            is_first=groups.is_first_stage,
            is_last=groups.is_last_stage,
            vpp_size=vpp_size,
            vpp_stage=vpp_stage,
            has_mtp=has_mtp,
        )
        asked |= {"sharding": sharding, "vpp_size": int(vpp_size), "vpp_stage": int(vpp_stage or 0)}
        if groups.tp.rank == 0:
            message, index = _take_next(data_iterator, needs, sharding)
            message["asked"] = asked
        elif data_iterator is not None:
            raise ArgumentError("data_iterator must be None on all but the first rank of a tensor-parallel group")
    if groups.tp.size > 1:
        message = broadcast_tree(groups.tp, message, 0)
    assert message is not None
    with groups.tp.guard():  # on all ranks, as none knows whether another one moves arrays
        _check_asked(asked, message["asked"])
        if index is None:
            index = _slots_of(message["metadata"], sharding)
        return _batch_of(message, index, groups, asked["padded_in_both"], to_device)


def _check_asked(asked: Mapping[str, Any], first: Mapping[str, Any]) -> None:
    if wrong := [f"{name} {value!r}, not {first[name]!r}" for name, value in asked.items() if value != first[name]]:
        raise ArgumentError(
            "all ranks of a tensor-parallel group must ask for the same micro-batch; "
            f"against the first: {list_offenders(wrong)}"
        )


def _take_next(data_iterator: Any, needs: StageNeeds, sharding: str) -> tuple[dict[str, Any], Int64Array]:
    if not hasattr(data_iterator, "__next__"):
        raise ArgumentError(f"data_iterator must be an iterator on this rank, got {type(data_iterator).__name__}")
    try:
        row = next(data_iterator)
    except StopIteration as error:
        raise ArgumentError("data_iterator has ended: it holds the micro-batches of one step") from error
    if not isinstance(row, Mapping):
        raise ArgumentError(f"data_iterator must yield mappings, got {type(row).__name__}")
    wanted = [*(FIRST_STAGE_FIELDS if needs[0] else ()), *(LAST_STAGE_FIELDS if needs[1] else ())]
    if missing := [name for name in (*METADATA_KEYS, *wanted) if name not in row]:
        raise ArgumentError(f"the micro-batch lacks {list_offenders(missing)}")
    metadata = {name: row[name] for name in METADATA_KEYS}
    index = _slots_of(metadata, sharding)
    if not any(needs):
        return {"metadata": metadata, "fields": {}, "sample_fields": []}, index
    left_out = fields_left_out(needs)
    fields = {name: row[name] for name in row if name not in _NOT_PER_TOKEN and name not in left_out}
    sliced = {name: np.take(as_array(f"the micro-batch's {name}", fields[name]), index, axis=0) for name in fields}
    sample_fields = copy.deepcopy(row.get("sample_fields", []))
    return {"metadata": metadata, "fields": sliced, "sample_fields": sample_fields}, index


def _slots_of(metadata: Mapping[str, Any], sharding: str) -> Int64Array:
    place = (metadata["num_slots"], metadata["local_cp_size"], metadata["cp_rank"])
    return slice_for_cp_rank(metadata["cu_seqlens_padded"], *place, sharding)


def _batch_of(
    message: Mapping[str, Any],
    index: Int64Array,
    groups: ParallelGroups,
    padded_in_both: bool,
    to_device: Callable[[Any], Any] | None,
) -> RankBatch:
    move = to_device or _stay
    metadata = message["metadata"]
    cp_size = metadata["local_cp_size"]
    offsets = PackedOffsets(**{name: metadata[name] for name in ("cu_seqlens", "cu_seqlens_padded", "max_seqlen")})
    mask = np.ones(metadata["num_slots"], np.bool_)
    mask[: offsets.cu_seqlens_padded[-1]] = padding_mask(offsets.cu_seqlens, offsets.cu_seqlens_padded)
    params = packed_seq_params(
        offsets,
        local_cp_size=cp_size,
        cp_group=groups.cp_group(metadata["cp_rank"], cp_size),
        padded_in_both=padded_in_both,
        num_tokens=metadata["num_slots"],
    )
    return RankBatch(
        fields={name: move(array) for name, array in megatron_fields(message["fields"]).items()},
        packed_seq_params={name: _moved(value, move) for name, value in params.items()},
        padding_mask=move(mask[index][np.newaxis]),
        sample_fields=[{name: move(v) for name, v in fields.items()} for fields in message["sample_fields"]],
    )


def _stay(array: Any) -> Any:
    return array


def _moved(value: Any, move: Callable[[npt.NDArray[Any]], Any]) -> Any:
    return move(value) if isinstance(value, np.ndarray) else value
