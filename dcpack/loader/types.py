"""What users of the loader say of samples: metadata, costs, and what rows must keep."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from dcpack._checks import as_real, check_choice, check_int, check_items, check_kinds, list_offenders
from dcpack._rebuilt import Rebuilt
from dcpack.errors import ArgumentError, InfeasibleError

__all__ = [
    "OVERSIZED_POLICIES",
    "PackingConstraints",
    "SampleKey",
    "SampleMetadata",
    "WorkloadCost",
    "amounts_by_name",
]

OVERSIZED_POLICIES = ("error", "single")
"""What becomes of a sample longer than `seq_len`: an error, or it is alone in its row."""


_NO_AMOUNTS: Mapping[str, float] = MappingProxyType({})  # one for all samples


def amounts_by_name(name: str, values: Any) -> Mapping[str, float]:
    """Return `values` as a read-only mapping from names that are not empty to finite numbers of at least 0.

    Example:
        >>> dict(amounts_by_name("packing_budgets", {"images": 4}))
        {'images': 4.0}
    """
    if values is _NO_AMOUNTS:
        return _NO_AMOUNTS
    if not isinstance(values, Mapping):
        raise ArgumentError(f"{name} must be a mapping from names to numbers, got {values!r}")
    if wrong := [repr(key) for key in values if not isinstance(key, str) or not key]:
        raise ArgumentError(f"{name} must be named by str that are not empty, got {list_offenders(wrong)}")
    return MappingProxyType({key: as_real(f"{name}[{key!r}]", value) for key, value in values.items()})


@dataclass(frozen=True, slots=True)
class WorkloadCost:
    """What a sample costs in each part of a training step, in units of the user's choice; additive.

    Balancing looks at `llm`. The other parts are there for balancing algorithms of one's own.

    Args:
        io: reading.
        transform: preparing on the host.
        encoder: encoders of other modes, such as vision.
        llm: the language model.
        memory: what it takes of the device's memory.
        communication: moving it.

    Raises:
        ArgumentError: a part that is not finite or below 0.

    Example:
        >>> cost = WorkloadCost(llm=9.0, encoder=2.0) + WorkloadCost(llm=1.0)
        >>> cost.llm, cost.dominant, cost.total
        (10.0, 10.0, 12.0)
    """

    io: float = 0.0
    transform: float = 0.0
    encoder: float = 0.0
    llm: float = 0.0
    memory: float = 0.0
    communication: float = 0.0

    def __post_init__(self) -> None:
        for part in fields(self):
            object.__setattr__(self, part.name, as_real(part.name, getattr(self, part.name)))

    def parts(self) -> tuple[float, ...]:
        """Return the parts in the order of the arguments."""
        return tuple(getattr(self, part.name) for part in fields(self))

    @classmethod
    def of_parts(cls, parts: Sequence[float]) -> WorkloadCost:
        """Return the cost whose `parts` these are."""
        names = [part.name for part in fields(cls)]
        values = list(check_items("parts", parts))
        if len(values) != len(names):
            raise ArgumentError(f"parts must be {', '.join(names)}, got {len(values)} numbers")
        return cls(**dict(zip(names, values, strict=True)))

    def __add__(self, other: WorkloadCost) -> WorkloadCost:
        return WorkloadCost.of_parts([a + b for a, b in zip(self.parts(), other.parts(), strict=True)])

    @property
    def dominant(self) -> float:
        """The largest part."""
        return max(self.parts())

    @property
    def total(self) -> float:
        """The sum of the parts."""
        return sum(self.parts())


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class SampleKey:
    """Which sample it is; keys order samples as the sampler gave them.

    Attributes:
        position: global position in the epoch (external step source: number in the step, over all ranks of a group).
        part: number of the sequence in its record, 0 without `split_fn`.
        reader: number of the reader that has it.
        dataset_index: index in the dataset, -1 where there is none.

    Example:
        >>> sorted([SampleKey(position=1), SampleKey(position=0, part=1)])[0].part
        1
    """

    position: int
    part: int = 0
    reader: int = 0
    dataset_index: int = -1


@dataclass(frozen=True, slots=True)
class SampleMetadata(Rebuilt):
    """What planning knows of a sample; what a `metadata_fn` returns.

    Args:
        pack_tokens: tokens that it takes in a row, at least 1.
        cost: what it costs, in parts, or a number, which is `WorkloadCost.llm`. Used where no cost model is given; then
            all samples of a step must have one or none.
        sample_id: a name of the user's own, a whole number of at least 0 or a str.
        features: nested plain Python values for cost models and balancing algorithms. ``num_valid_tokens`` says how
            many of its tokens count in the loss, where the payload has no labels.
        packing_costs: what it takes of each of `DistributedDatasetConfig.packing_budgets`.
        key: set by the loader on its own copy.

    Raises:
        ArgumentError: an argument of the wrong type or range.

    Example:
        >>> SampleMetadata(pack_tokens=5, cost=9).cost.llm
        9.0
    """

    pack_tokens: int
    cost: Any = None
    sample_id: int | str | None = None
    features: Mapping[str, Any] = field(default_factory=dict)
    packing_costs: Mapping[str, float] = field(default_factory=lambda: _NO_AMOUNTS)
    key: SampleKey | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "pack_tokens", check_int("pack_tokens", self.pack_tokens, minimum=1, maximum=2**40))
        if self.cost is not None and not isinstance(self.cost, WorkloadCost):
            object.__setattr__(self, "cost", WorkloadCost(llm=as_real("cost", self.cost)))
        if isinstance(self.sample_id, str):
            if not self.sample_id:
                raise ArgumentError("sample_id must not be empty")
        elif self.sample_id is not None:
            object.__setattr__(self, "sample_id", check_int("sample_id", self.sample_id, minimum=0))
        if not isinstance(self.features, Mapping):
            raise ArgumentError(f"features must be a mapping, got {self.features!r}")
        try:
            if self.features:
                json.dumps(dict(self.features), allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ArgumentError(f"features must be nested plain values without NaN and cycles: {error}") from error
        object.__setattr__(self, "packing_costs", amounts_by_name("packing_costs", self.packing_costs))
        if self.key is not None:
            check_kinds(key=(self.key, SampleKey))

    def with_key(self, key: SampleKey) -> SampleMetadata:
        """Return a copy with the key; the user's object may be shared and stays as it is."""
        check_kinds(key=(key, SampleKey))
        keyed = object.__new__(type(self))  # its values are checked already
        for name in SampleMetadata.__slots__:
            object.__setattr__(keyed, name, getattr(self, name))
        object.__setattr__(keyed, "key", key)
        return keyed

    def to_tree(self) -> dict[str, Any]:
        """Return it as plain values, without the key."""
        return {
            "pack_tokens": self.pack_tokens,
            "cost": None if self.cost is None else list(self.cost.parts()),
            "sample_id": self.sample_id,
            "features": json.dumps(dict(self.features)),
            "packing_costs": dict(self.packing_costs),
        }

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> SampleMetadata:
        """Return what `to_tree` gave.

        Example:
            >>> metadata = SampleMetadata(pack_tokens=5, features={"images": [1, 2]})
            >>> SampleMetadata.from_tree(metadata.to_tree()) == metadata
            True
        """
        keys = ("pack_tokens", "cost", "sample_id", "features", "packing_costs")
        if not isinstance(tree, Mapping) or set(tree) != set(keys) or not isinstance(tree["features"], str):
            raise ArgumentError(f"tree must be one of to_tree, with {', '.join(keys)}, got {tree!r:.100}")
        cost = None if tree["cost"] is None else WorkloadCost.of_parts(tree["cost"])
        return cls(**{**tree, "cost": cost, "features": json.loads(tree["features"])})


@dataclass(frozen=True, slots=True)
class PackingConstraints(Rebuilt):
    """What every row must keep: its tokens within `seq_len`, and further amounts within budgets.

    Args:
        seq_len: tokens of a row.
        oversized_policy: ``"error"``, or ``"single"``: a sample longer than `seq_len` is allowed, alone in its row.
        packing_budgets: limit by name; no sample and no row may exceed one, whatever the policy.

    Example:
        >>> constraints = PackingConstraints(seq_len=8)
        >>> constraints.fits([SampleMetadata(pack_tokens=5), SampleMetadata(pack_tokens=4)])
        False
    """

    seq_len: int
    oversized_policy: str = "error"
    packing_budgets: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "seq_len", check_int("seq_len", self.seq_len, minimum=1))
        check_choice("oversized_policy", self.oversized_policy, OVERSIZED_POLICIES)
        object.__setattr__(self, "packing_budgets", amounts_by_name("packing_budgets", self.packing_budgets))

    def is_oversized(self, sample: SampleMetadata) -> bool:
        """Tell whether the sample is longer than a row."""
        if not isinstance(sample, SampleMetadata):
            raise ArgumentError(f"sample must be a SampleMetadata, got {type(sample).__name__}")
        return sample.pack_tokens > self.seq_len

    def sample_faults(self, sample: SampleMetadata) -> list[str]:
        """Return what is wrong with a sample, even alone in a row; empty if nothing is."""
        faults = []
        if self.is_oversized(sample) and self.oversized_policy == "error":
            faults.append(f"{sample.pack_tokens} tokens, more than seq_len {self.seq_len}")
        for name, limit in self.packing_budgets.items():
            if name not in sample.packing_costs:
                faults.append(f"packing_costs lack the budget {name!r}")
            elif sample.packing_costs[name] > limit:
                faults.append(f"{sample.packing_costs[name]:g} of budget {name!r}, more than {limit:g}")
        return faults

    def fits(self, samples: Sequence[SampleMetadata]) -> bool:
        """Tell whether these samples may share a row; none may be empty-handed or break a limit alone."""
        check_kinds(samples=(samples, list | tuple))
        if not samples or any(self.sample_faults(sample) for sample in samples):
            return False
        if any(self.is_oversized(sample) for sample in samples):
            return len(samples) == 1
        if sum(sample.pack_tokens for sample in samples) > self.seq_len:
            return False
        return all(
            math.fsum(sample.packing_costs[name] for sample in samples) <= limit
            for name, limit in self.packing_budgets.items()
        )

    def validate_samples(self, samples: Sequence[SampleMetadata]) -> None:
        """Refuse samples that fit in no row.

        Raises:
            InfeasibleError: names all of them.
        """
        check_kinds(samples=(samples, list | tuple))
        check_kinds(**{f"samples[{i}]": (sample, SampleMetadata) for i, sample in enumerate(samples)})
        named = [(_name_of(i, sample), self.sample_faults(sample)) for i, sample in enumerate(samples)]
        if listed := [f"{name}: {'; '.join(faults)}" for name, faults in named if faults]:
            raise InfeasibleError(f"samples that fit in no row: {list_offenders(listed)}")


def _name_of(index: int, sample: SampleMetadata) -> str:
    if sample.sample_id is not None:
        return f"sample {sample.sample_id!r}"
    if sample.key is not None and sample.key.dataset_index >= 0:
        return f"dataset[{sample.key.dataset_index}]"
    return f"sample {index}"
