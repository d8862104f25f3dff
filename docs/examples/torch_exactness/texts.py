"""The steps to train on: beginnings of real documents, with the cases that make losses go wrong.

The steps take turns in five kinds. Which documents, and how long, is fixed by the seed and the texts of the machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dcpack.data import TextDocuments, find_text_files, installed_text_folders
from dcpack.layout import IGNORED_LABEL

__all__ = ["LONGEST", "STEP_KINDS", "Sample", "make_steps"]

Sample = dict[str, npt.NDArray[Any]]
"""``input_ids`` int32[t]; shifted ``labels`` int64[t] or ``loss_mask`` float32[t] where not all tokens count."""

LONGEST = 250
"""Tokens of the longest sequence; no multiple of 4, 8 or 16, so that CP slices are padded."""

STEP_KINDS = ("everything counts", "prompts masked", "very uneven", "few sequences", "nothing counts")
"""What step ``i`` is: the kind number ``i`` modulo 5."""

_LENGTHS = {
    "everything counts": (LONGEST, 1, 187, 90, 61, 33, 17, 5, 2, 121, 44, 1, 201, 150),
    "prompts masked": (231, 101, 77, 1, 53, 29, 13, 3, 140, 9),
    "very uneven": (LONGEST, 240, 238, 235, 11, 1),
    "few sequences": (203, 1),
    "nothing counts": (177, 63, 1, 20, 9),
}


def make_steps(num_steps: int, *, seed: int) -> list[list[Sample]]:
    """Return the samples of each step, the same in every process of the machine.

    Example:
        >>> [len(samples) for samples in make_steps(5, seed=1)]
        [14, 10, 6, 2, 5]
    """
    kinds = [STEP_KINDS[step % len(STEP_KINDS)] for step in range(num_steps)]
    random = np.random.default_rng(seed)
    documents = _read_documents(sum(len(_LENGTHS[kind]) for kind in kinds), random)
    steps = []
    for kind in kinds:
        lengths = random.permutation(_LENGTHS[kind]).tolist()
        steps.append([_sample(kind, documents.pop()[:length], place) for place, length in enumerate(lengths)])
    return steps


def _read_documents(count: int, random: np.random.Generator) -> list[npt.NDArray[np.int32]]:
    """Return `count` documents of at least `LONGEST` tokens: modules of the standard library."""
    library: Path = installed_text_folders()[0]
    documents = TextDocuments.read(find_text_files(sorted(library.glob("*.py"))))
    long_enough = np.flatnonzero(documents.lengths() >= LONGEST)
    # They differ in their middle more than in their first lines.
    starts = [int(random.integers(0, documents.lengths()[i] - LONGEST + 1)) for i in long_enough]
    pieces = [documents[int(i)][start:] for i, start in zip(long_enough, starts, strict=True)]
    return [pieces[i] for i in random.permutation(np.arange(count) % len(pieces))]


def _sample(kind: str, input_ids: npt.NDArray[np.int32], place: int) -> Sample:
    size = input_ids.size
    labels = np.append(input_ids[1:], IGNORED_LABEL).astype(np.int64)
    if kind == "prompts masked":
        prompt = np.arange(size) < size // 2
        if place % 2:
            return {"input_ids": input_ids, "loss_mask": np.where(prompt, 0, 1).astype(np.float32)}
        return {"input_ids": input_ids, "labels": np.where(prompt, IGNORED_LABEL, labels)}
    if kind == "very uneven":  # of a long sequence the first tokens count, of others none
        return {
            "input_ids": input_ids,
            "labels": np.where(np.arange(size) < 30 * (size == LONGEST), labels, IGNORED_LABEL),
        }
    if kind == "nothing counts":
        return {"input_ids": input_ids, "labels": np.full(size, IGNORED_LABEL)}
    return {"input_ids": input_ids}
