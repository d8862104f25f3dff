"""Where a loader is, as small JSON-able values, and what must not have changed when it goes on from there."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dcpack._checks import check_int, check_names, list_offenders
from dcpack.errors import ArgumentError
from dcpack.loader.sampler import GlobalBatchSampler

__all__ = ["STATE_VERSION", "LoaderState", "whole_steps"]

STATE_VERSION = 1
"""Version of the format."""

_KEYS = ("version", "fingerprint", "epoch", "step", "source")


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderState:
    """Whole optimizer steps that are done, and where the source was after them.

    Attributes:
        fingerprint: what must be the same on resuming.
        epoch: epoch.
        step: steps of it that are done.
        source: state of the batch sampler or step source; None on ranks that have none.
    """

    fingerprint: Mapping[str, Any]
    epoch: int
    step: int
    source: Mapping[str, Any] | None

    def to_dict(self) -> dict[str, Any]:
        """Return it as a dict of its own, which later steps do not change.

        Raises:
            ArgumentError: the state of the source is no mapping, or not JSON-able.
        """
        if self.source is not None and not isinstance(self.source, Mapping):
            raise ArgumentError(f"the state of the source must be a mapping, got {self.source!r}")
        values = {
            "version": STATE_VERSION,
            "fingerprint": dict(self.fingerprint),
            "epoch": self.epoch,
            "step": self.step,
            "source": None if self.source is None else copy.deepcopy(dict(self.source)),
        }
        try:
            json.dumps(values)
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"the state of the source must be JSON-able: {error}") from error
        return values

    @classmethod
    def from_dict(cls, values: Any, fingerprint: Mapping[str, Any]) -> LoaderState:
        """Return the state in `values`, if it fits a loader with this fingerprint.

        Raises:
            ArgumentError: something else, another version, or a state that cannot fit; names all that differ.
        """
        if not isinstance(values, Mapping):
            raise ArgumentError(f"state must be one of state_dict(), got {values!r}")
        if missing := [key for key in _KEYS if key not in values]:
            raise ArgumentError(f"state must be one of state_dict(), this one lacks {', '.join(missing)}")
        if type(values["version"]) is not int or values["version"] != STATE_VERSION:
            raise ArgumentError(f"state must be of version {STATE_VERSION}, got {values['version']!r}")
        then = values["fingerprint"]
        if not isinstance(then, Mapping):
            raise ArgumentError(f"fingerprint of the state must be a mapping, got {then!r}")
        changed = [
            f"{name} was {then.get(name)!r}, is {fingerprint.get(name)!r}"
            for name in sorted({*check_names("fingerprint of the state", then), *fingerprint})
            if json.dumps(then.get(name), default=repr) != json.dumps(fingerprint.get(name), default=repr)
        ]
        if changed:
            raise ArgumentError(f"the state does not fit this loader: {list_offenders(changed)}")
        source = values["source"]
        if source is not None and not isinstance(source, Mapping):
            raise ArgumentError(f"source of the state must be a mapping or None, got {source!r}")
        return cls(
            fingerprint=dict(fingerprint),
            epoch=check_int("epoch of the state", values["epoch"], minimum=0),
            step=check_int("step of the state", values["step"], minimum=0),
            source=None if source is None else copy.deepcopy(dict(source)),
        )

    def check_position(self, sampler: GlobalBatchSampler) -> None:
        """Refuse a state whose step and source are not of the same moment: one of them was damaged.

        Raises:
            ArgumentError: the source has given other samples than the steps took.
        """
        if self.source is None:
            return
        given = self.source.get("consumed_samples")
        # A sampler that was put inside a step before its loader was built has given a part of the next one, too.
        if type(given) is not int or whole_steps(sampler, given) != self.step:
            expected = min(self.step * sampler.global_batch_size, sampler.num_used)
            raise ArgumentError(
                f"the state is of step {self.step}, behind {expected} samples; its source has given {given!r}"
            )

    def source_of_builder(self) -> Mapping[str, Any]:
        """Return the state of the source, for a rank that builds batches.

        Raises:
            ArgumentError: there is none, or it is of another epoch.
        """
        if self.source is None:
            raise ArgumentError(
                "this rank needs the state of a rank that builds batches, the one given is of a rank that receives"
            )
        if self.source.get("epoch", self.epoch) != self.epoch:
            raise ArgumentError(f"the state is of epoch {self.epoch}, its source of epoch {self.source['epoch']}")
        return self.source


def whole_steps(sampler: GlobalBatchSampler, consumed: int) -> int:
    """Return the optimizer steps of an epoch that are whole when its sampler has given so many samples.

    Example:
        >>> sampler = GlobalBatchSampler(10, global_batch_size=4, drop_last=False)
        >>> [whole_steps(sampler, consumed) for consumed in (0, 4, 6, 10)]
        [0, 1, 1, 3]
    """
    return sampler.num_steps if consumed == sampler.num_used else consumed // sampler.global_batch_size
