"""What samples and rows cost, for the balancing of windows.

A cost model is one of two things: a function from `SampleMetadata` to `WorkloadCost`, additive over a row; or a
`dcpack.CostModel`, which prices whole rows by their lengths. Repacked rows are priced by the causal square of their
sequences and of the padding behind them, which is a segment of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from dcpack._checks import Float64Array, Int64Array
from dcpack.api import DEFAULT_COST
from dcpack.cost import CostModel, TransformerModel, get_cost
from dcpack.errors import ArgumentError
from dcpack.loader.types import SampleKey, SampleMetadata, WorkloadCost

__all__ = ["AdditiveCosts", "CostRule", "RowCosts", "SquaresWithPadding", "TimesOfRows", "is_length_model"]


class RowCosts(Protocol):
    """Costs of the samples of a window, alone and in rows.

    Attributes:
        items: float64[n], an additive cost of each sample, exact or near what it adds to a row.
    """

    @property
    def items(self) -> Float64Array:
        """float64[n]: an additive cost of each sample."""
        ...

    def rows(self, row_of: Int64Array, num_rows: int) -> Float64Array:
        """Return float64[num_rows]: the cost of each row; `row_of` (int64[n]) says where each sample is."""
        ...


def _sums(row_of: Int64Array, values: Float64Array | Int64Array, num_rows: int) -> Float64Array:
    return np.bincount(row_of, weights=values, minlength=num_rows).astype(np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class AdditiveCosts:
    """Costs that add up over a row."""

    items: Float64Array

    def rows(self, row_of: Int64Array, num_rows: int) -> Float64Array:
        """Return float64[num_rows]: the sums."""
        return _sums(row_of, self.items, num_rows)


@dataclass(frozen=True, slots=True, eq=False)
class SquaresWithPadding:
    """The square of every sequence, and of the padding that fills the row: causal attention, in pairs times two.

    Args:
        tokens: int64[n], tokens of each sequence.
        seq_len: tokens of a row.

    Example:
        >>> SquaresWithPadding(np.array([3, 2]), 6).rows(np.array([0, 0]), 1).tolist()
        [14.0]
    """

    tokens: Int64Array
    seq_len: int

    @property
    def items(self) -> Float64Array:
        """float64[n]: the squares alone."""
        return np.square(self.tokens.astype(np.float64))

    def rows(self, row_of: Int64Array, num_rows: int) -> Float64Array:
        """Return float64[num_rows]: the squares of a row and of what is left of it."""
        padding = np.maximum(self.seq_len - _sums(row_of, self.tokens, num_rows), 0.0)
        return _sums(row_of, self.items, num_rows) + np.square(padding)


@dataclass(frozen=True, eq=False)
class TimesOfRows:
    """Times of rows by a `dcpack.CostModel`, without CP."""

    model: CostModel
    tokens: Int64Array

    @cached_property
    def _columns(self) -> Float64Array:
        return self.model.columns(self.tokens)

    @property
    def items(self) -> Float64Array:
        """float64[n]: the time of each sample alone in a row, less that of an empty row."""
        return self._items

    @cached_property
    def _items(self) -> Float64Array:
        times = self._times(np.concatenate([np.zeros((1, self._columns.shape[1])), self._columns]))
        return np.maximum(times[1:] - times[0], 0.0)

    def rows(self, row_of: Int64Array, num_rows: int) -> Float64Array:
        """Return float64[num_rows]: the time of each row."""
        sums = np.zeros((num_rows, self._columns.shape[1]))
        np.add.at(sums, row_of, self._columns)
        return self._times(sums)

    def _times(self, sums: Float64Array) -> Float64Array:
        return self.model.bin_time(sums, np.ones(len(sums), np.int64), np.zeros(len(sums), np.bool_))


def is_length_model(model: Any) -> bool:
    """Tell whether `model` is a `dcpack.CostModel`, which prices lengths."""
    return all(hasattr(model, name) for name in ("columns", "bin_time", "node_size", "unit"))


@dataclass(frozen=True, slots=True)
class CostRule:
    """Which of these prices the samples of a loader.

    Args:
        of_metadata: the user's function, or None.
        of_lengths: the user's `dcpack.CostModel`, or None.
        repacks: whether rows are repacked text.
    """

    of_metadata: Callable[[SampleMetadata], WorkloadCost] | None = None
    of_lengths: CostModel | None = None
    repacks: bool = False

    @classmethod
    def choose(cls, cost_model: Any, model_config: Any, *, repacks: bool = False) -> CostRule:
        """Return the rule for the arguments of `build_distributed_dataloader`.

        Raises:
            ArgumentError: both are given, or one is neither kind of cost model.
        """
        if cost_model is not None and model_config is not None:
            raise ArgumentError("cost_model and model_config exclude each other: give one")
        if model_config is not None:
            if not isinstance(model_config, str | Mapping | TransformerModel):
                raise ArgumentError(
                    f"model_config must be a model's name, its dimensions or a TransformerModel, got {model_config!r}"
                )
            model = model_config if isinstance(model_config, str | TransformerModel) else dict(model_config)
            return cls(of_lengths=get_cost({"model": model, "device": "h100"}), repacks=repacks)
        if cost_model is None:
            return cls(repacks=repacks)
        if is_length_model(cost_model):
            return cls(of_lengths=cost_model, repacks=repacks)
        if not callable(cost_model):
            raise ArgumentError(
                f"cost_model must be a function from SampleMetadata to WorkloadCost or a CostModel, got {cost_model!r}"
            )
        function: Any = cost_model
        return cls(of_metadata=function, repacks=repacks)

    def of_sample(self, metadata: SampleMetadata, key: SampleKey) -> WorkloadCost | None:
        """Return what a sample costs as far as its reader can tell; None where its length decides.

        Args:
            metadata: as the user described it.
            key: which sample it is; the user's function sees it.

        Raises:
            ArgumentError: the user's function returned something else.
        """
        if self.of_lengths is not None:
            return None
        if self.of_metadata is None:
            return metadata.cost
        cost = self.of_metadata(metadata.with_key(key))
        if not isinstance(cost, WorkloadCost):
            raise ArgumentError(f"cost_model must return a WorkloadCost, got {cost!r}")
        return cost

    def of_window(self, tokens: Int64Array, llm: Float64Array | None, seq_len: int) -> RowCosts:
        """Return the costs of a window.

        Args:
            tokens: int64[n], tokens of each sample.
            llm: float64[n], costs that the readers told, or None.
            seq_len: tokens of a row.
        """
        if llm is not None:
            return AdditiveCosts(llm)
        if self.of_lengths is None and self.repacks:
            return SquaresWithPadding(tokens, seq_len)
        return TimesOfRows(self.planning_cost, tokens)

    @property
    def planning_cost(self) -> CostModel:
        """The cost model that prices lengths; where none was given, `dcpack.plan`'s default."""
        return get_cost(DEFAULT_COST) if self.of_lengths is None else self.of_lengths
