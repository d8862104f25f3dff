"""Which pipeline stage needs which part of the data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dcpack._checks import as_lengths, check_flag, check_flags, check_int, list_offenders
from dcpack.errors import ArgumentError

__all__ = ["FIRST_STAGE_FIELDS", "LAST_STAGE_FIELDS", "StageNeeds", "needs_of_stage", "needs_of_virtual_stages"]

FIRST_STAGE_FIELDS = ("tokens", "position_ids")
"""What the first stage computes on; stages that predict several tokens (MTP) as well."""

LAST_STAGE_FIELDS = ("labels", "loss_mask")
"""What the last stage computes on; stages that predict several tokens (MTP) as well."""

MAX_STAGES = 2**16
"""Most stages of a pipeline, and most virtual stages of a rank."""

StageNeeds = tuple[bool, bool]
"""Whether a stage needs `FIRST_STAGE_FIELDS`, and whether it needs `LAST_STAGE_FIELDS`."""


def needs_of_virtual_stages(
    *, is_first: bool, is_last: bool, vpp_size: int = 1, mtp_stages: Sequence[int] = ()
) -> tuple[StageNeeds, ...]:
    """Return what each virtual stage of one pipeline rank needs.

    The first stage of the model is the first virtual stage of the first rank, the last one the last virtual stage of
    the last rank. Stages with MTP layers need all; the rest need to know where sequences lie, and nothing else.

    Args:
        is_first: whether the rank is the first of its pipeline.
        is_last: whether it is the last.
        vpp_size: virtual stages of a rank; 1 without virtual pipelining.
        mtp_stages: virtual stages of this rank that hold MTP layers.

    Raises:
        ArgumentError: `mtp_stages` that are not there; all are named.

    Example:
        >>> needs_of_virtual_stages(is_first=True, is_last=False, vpp_size=2)
        ((True, False), (False, False))
    """
    is_first, is_last = check_flags(is_first=is_first, is_last=is_last).values()
    vpp_size = check_int("vpp_size", vpp_size, minimum=1, maximum=MAX_STAGES)
    stages = as_lengths("mtp_stages", mtp_stages).tolist()
    if wrong := [str(stage) for stage in stages if stage >= vpp_size]:
        raise ArgumentError(f"mtp_stages must be from 0 to {vpp_size - 1}, got {list_offenders(wrong)}")
    return tuple(
        ((is_first and stage == 0) or stage in stages, (is_last and stage == vpp_size - 1) or stage in stages)
        for stage in range(vpp_size)
    )


def needs_of_stage(*, is_first: bool, is_last: bool, vpp_size: int, vpp_stage: int | None, has_mtp: bool) -> StageNeeds:
    """Return what one stage needs; see `needs_of_virtual_stages`.

    Args:
        is_first: whether the rank is the first of its pipeline.
        is_last: whether it is the last.
        vpp_size: virtual stages of a rank.
        vpp_stage: which of them; None where there is one.
        has_mtp: whether it holds MTP layers.

    Raises:
        ArgumentError: a virtual stage that is missing or not there.

    Example:
        >>> needs_of_stage(is_first=False, is_last=True, vpp_size=2, vpp_stage=1, has_mtp=False)
        (False, True)
    """
    has_mtp = check_flag("has_mtp", has_mtp)
    vpp_size = check_int("vpp_size", vpp_size, minimum=1, maximum=MAX_STAGES)
    if vpp_stage is None and vpp_size > 1:
        raise ArgumentError(f"vpp_stage must be given where vpp_size is {vpp_size}")
    stage = check_int("vpp_stage", 0 if vpp_stage is None else vpp_stage, minimum=0, maximum=vpp_size - 1)
    mtp_stages = (stage,) if has_mtp else ()
    return needs_of_virtual_stages(is_first=is_first, is_last=is_last, vpp_size=vpp_size, mtp_stages=mtp_stages)[stage]


def fields_left_out(needs: StageNeeds) -> set[str]:
    """Return the fields that a stage with these needs does without.

    Example:
        >>> sorted(fields_left_out((True, False)))
        ['labels', 'loss_mask']
    """
    left_out = set() if needs[0] else set(FIRST_STAGE_FIELDS)
    return left_out if needs[1] else left_out | set(LAST_STAGE_FIELDS)


def is_needed(needs: Any) -> bool:
    """Tell whether any stage of `needs`, a sequence of `StageNeeds`, needs data.

    Example:
        >>> is_needed([(False, False), (False, True)])
        True
    """
    return any(first or last for first, last in needs)
