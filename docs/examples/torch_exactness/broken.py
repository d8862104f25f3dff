"""Mistakes that real training code makes, each of which the check must see."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from attention import gather_tokens
from inputs import Inputs
from texts import Sample

from dcpack.exchange import PackedBatch

__all__ = ["BROKEN", "break_inputs", "break_samples", "break_weights"]

BROKEN = {
    "labels_across_boundary": "labels are shifted over the row, so that a sequence ends with a token of the next",
    "mean_of_means": "each micro-batch of each rank is divided by its own tokens, then averaged",
    "unpadded_slices": "CP slices are cut by the offsets of the real tokens from the padded row",
    "positions_run_on": "positions do not restart with each sequence",
    "attention_across_sequences": "a token sees all earlier ones of its row",
    "average_kept": "the averaging of DDP and FSDP is not undone (changes only the ways that use them)",
}
"""What each variant does wrong."""


def break_samples(broken: str | None, samples: list[Sample]) -> list[Sample]:
    """Return the samples of a rank as the variant prepares them."""
    if broken != "labels_across_boundary":
        return samples
    following = [sample["input_ids"][0] for sample in samples[1:]]
    ends = [*following, -100]
    return [
        sample
        if "labels" in sample or "loss_mask" in sample
        else {**sample, "labels": np.append(sample["input_ids"][1:], end).astype(np.int64)}
        for sample, end in zip(samples, ends[: len(samples)], strict=True)
    ]


def break_inputs(broken: str | None, inputs: Inputs, batch: PackedBatch, group: dist.ProcessGroup | None) -> Inputs:
    """Return the tokens of a slice as the variant would have them; the ranks of the group call it together."""
    if broken == "positions_run_on":
        return replace(inputs, positions=inputs.slots)
    if broken == "attention_across_sequences":
        return replace(inputs, segments=inputs.segments.clamp(max=1))
    if broken == "unpadded_slices" and group is not None:
        row = {f.name: gather_tokens(getattr(inputs, f.name)[None], group)[0] for f in fields(inputs)}
        in_order = row["slots"].argsort()
        taken = in_order[torch.from_numpy(_wrong_slots(batch))]
        return Inputs(**{name: tensor[taken] for name, tensor in row.items()})
    return inputs


def _wrong_slots(batch: PackedBatch) -> npt.NDArray[np.int64]:
    """Return the slots of a zigzag slice as if the sequences began at the real offsets in the padded row."""
    found = []
    for start, stop in zip(batch.cu_seqlens[:-1].tolist(), batch.cu_seqlens[1:].tolist(), strict=True):
        chunk = -(-(stop - start) // (2 * batch.cp_size))
        for place in (batch.cp_rank, 2 * batch.cp_size - 1 - batch.cp_rank):
            found.append(start + place * chunk + np.arange(chunk))
    return np.concatenate(found)


def break_weights(
    broken: str | None, weights: npt.NDArray[np.float64], batch: PackedBatch, *, num_ranks: int
) -> npt.NDArray[np.float64]:
    """Return the weights of the tokens of a slice as the variant has them."""
    if broken != "mean_of_means":
        return weights
    return (weights > 0) / (max(batch.num_valid_tokens, 1) * batch.num_microbatches * num_ranks)
