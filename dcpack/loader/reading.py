"""Reading samples by index, and what counts in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dcpack._checks import check_int, list_offenders
from dcpack.comm import Backend
from dcpack.errors import ArgumentError
from dcpack.exchange import SPELLINGS
from dcpack.loader.types import SampleMetadata
from dcpack.loss import count_valid_tokens

__all__ = ["SampleReader", "num_valid_tokens"]


class SampleReader:
    """Reads samples in the order asked for.

    Args:
        backend: whose workers read.
        dataset: with ``len()`` and samples by number.
        options: as in `dataloader_kwargs`: the number of workers, and options of theirs.
    """

    def __init__(self, backend: Backend, dataset: Any, options: Mapping[str, Any]) -> None:
        self._read = backend.open_reader(dataset, **options)
        self.num_samples = len(dataset)

    def read(self, indices: Sequence[int]) -> list[Any]:
        """Return ``dataset[i]`` for each of `indices`.

        Raises:
            ArgumentError: indices outside of the dataset, or without a sample; all are named. What the dataset raises
                passes.
        """
        if outside := [str(i) for i in indices if not 0 <= i < self.num_samples]:
            raise ArgumentError(f"indices must be below {self.num_samples} samples, got {list_offenders(outside)}")
        samples = list(self._read(list(indices)))
        if len(samples) != len(indices):
            raise ArgumentError(f"the workers returned {len(samples)} samples for {len(indices)} indices")
        if missing := [f"dataset[{i}]" for i, sample in zip(indices, samples, strict=True) if sample is None]:
            raise ArgumentError(
                f"dataset must have a sample at every index, but {list_offenders(missing)} gave None, as what a filter "
                "left out does"
            )
        return samples


def num_valid_tokens(payload: Any, metadata: SampleMetadata) -> int:
    """Return how many tokens of a sample count in the loss.

    ``features["num_valid_tokens"]`` says so; else the labels of the payload, under any known spelling, and its loss
    mask; else all tokens count.

    Example:
        >>> num_valid_tokens({"labels": [5, -100]}, SampleMetadata(pack_tokens=2))
        1
    """
    given = metadata.features.get("num_valid_tokens")
    if given is not None:
        return check_int("features['num_valid_tokens']", given, minimum=0, maximum=metadata.pack_tokens)
    if not isinstance(payload, Mapping):
        return metadata.pack_tokens
    fields = {SPELLINGS.get(name, name): value for name, value in payload.items()}
    if "labels" not in fields:
        return metadata.pack_tokens
    return count_valid_tokens(fields["labels"], fields.get("loss_mask"))
