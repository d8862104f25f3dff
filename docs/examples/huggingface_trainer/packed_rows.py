"""A batch sampler that plans packed rows by length, and a collator that flattens them, for Hugging Face's Trainer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

import dcpack
from dcpack.cost import get_cost
from dcpack.errors import ArgumentError
from dcpack.export import huggingface_flat
from dcpack.layout import packed_offsets, position_ids, shift_labels


class PackedRows:
    """Rows of sample indices, each at most `capacity` tokens, the same list on every process.

    A step of the optimizer is `rows_per_step` = processes x gradient_accumulation_steps rows that cost about the same.
    Row number i goes to process i % processes, as accelerate deals batches. Which rows there are depends on the seed;
    the order of the steps on seed and epoch. So an epoch always has the same number of rows, which the Trainer needs to
    know beforehand, and the same steps come on any number of processes with the same `rows_per_step`. Where samples are
    too few to fill the last step of a window, rows of it are empty lists, which `flatten` makes rows without weight.

    Args:
        lengths: tokens of each sample, int[n].
        capacity: tokens of a row at most.
        rows_per_step: rows of one optimizer step over all processes.
        seed: of both orders.
        window: samples that are planned together; more pack tighter, fewer stay nearer to the random order.
        cost: prices rows, see `dcpack.plan`; your model and device if you can.
    """

    def __init__(
        self,
        lengths: Any,
        *,
        capacity: int,
        rows_per_step: int,
        seed: int = 0,
        window: int = 4096,
        cost: dcpack.CostModel | None = None,
    ) -> None:
        if empty := np.flatnonzero(np.asarray(lengths) == 0)[:5].tolist():
            raise ArgumentError(f"samples without tokens are in no row; leave out {empty} and the like")
        self.seed, self.epoch, self.lengths = seed, 0, np.asarray(lengths, np.int64)
        cost = cost or get_cost("llama3-8b@h100")
        order = np.random.default_rng(seed).permutation(self.lengths.size)
        self.steps: list[list[list[int]]] = []
        for ids in np.array_split(order, max(1, order.size // max(window, rows_per_step))):
            plan = dcpack.plan(
                self.lengths[ids],
                num_ranks=rows_per_step,
                capacity=capacity,
                scheduler="balanced",
                cost=cost,
                on_empty="dummy",
            )
            # Rows of like cost side by side: the processes wait for each other in every micro-batch.
            slowest_first = np.argsort(-plan.rank_times(cost), axis=1, kind="stable")
            for rows, places in zip(plan.to_sample_id_groups(), slowest_first, strict=True):
                self.steps.append([[int(ids[i]) for i in rows[place]] for place in places])

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the steps; the Trainer's callback below calls it."""
        self.epoch = epoch

    def __len__(self) -> int:
        return sum(map(len, self.steps))

    def __iter__(self) -> Iterator[list[int]]:
        for step in np.random.default_rng([self.seed, self.epoch]).permutation(len(self.steps)):
            yield from self.steps[step]


def flatten(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the samples of a row end to end, as a model of transformers takes it.

    Args:
        samples: ``input_ids`` of each and, if there are, ``labels`` under the same tokens, not shifted; -100 is
            ignored. Without, every token is a target. No samples give a row of one token that is no target.

    Returns:
        ``input_ids``, ``labels``, ``position_ids`` (int64[1, t]); ``cu_seq_lens_q``, ``cu_seq_lens_k`` (int32[n + 1]);
        ``max_length_q``, ``max_length_k`` (ints).
    """
    samples = samples or [{"input_ids": [0]}]
    columns = {
        name: [np.asarray(sample.get(name, sample["input_ids"]), np.int64) for sample in samples]
        for name in ("input_ids", "labels")
    }
    lengths = [ids.size for ids in columns["input_ids"]]
    if wrong := [n for n, labels in enumerate(columns["labels"]) if labels.size != lengths[n]]:
        raise ArgumentError(f"labels must have one number for each of input_ids; samples {wrong} of the row do not")
    fields = {name: np.concatenate(parts) for name, parts in columns.items()}
    packed = packed_offsets(lengths)
    fields["labels"] = shift_labels(fields["labels"], packed.cu_seqlens)  # the export puts them back, checked
    flat = huggingface_flat(packed, {**fields, "position_ids": position_ids(lengths)})
    return {name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in flat.items()}
