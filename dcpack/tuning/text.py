"""Trials as text and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from dcpack._checks import check_kinds
from dcpack.report import format_bytes, format_table
from dcpack.tuning.search import Trial, check_trials

__all__ = ["alternatives", "format_alternatives", "trial_to_dict"]

_KNOBS = ("capacity", "strategy", "max_cp_size", "global_batch_size", "recompute")
_PARTS = ("work", "padding", "ring", "waiting")
_WIDTH = 70


def alternatives(best: Trial, trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials that differ from `best` in one thing: capacity (with its recomputation), strategy, CP, batch.

    Values that are impossible whatever the other settings are among them.

    Args:
        best: the recommended trial.
        trials: all of them.

    Example:
        >>> from dcpack.cost import get_device, get_model
        >>> from dcpack.tuning import Job, SearchSpace, recommend, search
        >>> job = Job(model=get_model("llama3-8b"), device=get_device("h100"), num_ranks=8)
        >>> space = SearchSpace(capacities=(4096, 2**20), max_cp_sizes=(8,), global_batch_sizes=(16,))
        >>> trials = search(job, space, [900, 300, 2000, 6000] * 8)
        >>> [(trial.capacity, trial.failure is None) for trial in alternatives(recommend(trials), trials)][0]
        (1048576, False)
    """
    check_kinds(best=(best, Trial))
    check_trials("trials", trials)
    found: list[Trial] = []
    for knob in ("capacity", "strategy", "max_cp_size", "global_batch_size"):
        rest = set(_KNOBS) - {knob} - ({"recompute"} if knob == "capacity" else set())
        found += [
            trial
            for trial in trials
            if getattr(trial, knob) != getattr(best, knob)
            and (trial.cause == knob or all(getattr(trial, name) == getattr(best, name) for name in rest))
        ]
    return list(dict.fromkeys(found))


def format_alternatives(best: Trial, others: Sequence[Trial]) -> str:
    """Return a table: the recommended setting, then the others, with what each differs in and what holds it back.

    Args:
        best: the recommended trial.
        others: of `alternatives`.

    Example:
        >>> from dcpack.cost import get_device, get_model
        >>> from dcpack.tuning import Job, SearchSpace, recommend, search
        >>> job = Job(model=get_model("llama3-8b"), device=get_device("h100"), num_ranks=8)
        >>> space = SearchSpace(capacities=(4096, 2**20), max_cp_sizes=(8,), global_batch_sizes=(16,))
        >>> trials = search(job, space, [900, 300, 2000, 6000] * 8)
        >>> format_alternatives(recommend(trials), []).splitlines()[-1].split()[0]
        'recommended'
    """
    check_kinds(best=(best, Trial))
    check_trials("others", others)
    headers = [
        *("changed", "ns a\ntoken", "against\nbest", "step\n(ms)", "utili-\nzation", "mean\nCP", "memory"),
        *("work", "padding", "CP comm.", "waiting", "held back by"),
    ]
    rows = [_row(best, best, "recommended"), *(_row(trial, best, _changed(trial, best)) for trial in others)]
    return format_table(headers, rows, right=range(1, len(headers) - 1))


def _changed(trial: Trial, best: Trial) -> str:
    """Name what differs; of what is impossible by one field, only that field, and recomputation with a capacity."""
    names = [name for name in _KNOBS if getattr(trial, name) != getattr(best, name)]
    if trial.cause is not None:
        names = [name for name in names if name in (trial.cause, "recompute")]
    pairs = [(name.replace("_", " "), getattr(trial, name)) for name in names]
    return ", ".join(f"{name} {value:,}" if isinstance(value, int) else f"{name} {value}" for name, value in pairs)


def _row(trial: Trial, best: Trial, what: str) -> list[str]:
    if trial.failure is not None:
        cells = ["-"] * 5 + [format_bytes(trial.memory.total)] + ["-"] * len(_PARTS)
        return [what, *cells, textwrap.shorten(trial.failure, _WIDTH, placeholder=" ...")]
    return [
        what,
        f"{1e9 * trial.token_time:,.1f}",
        f"{trial.token_time / best.token_time - 1:+.1%}" if best.token_time else "-",
        f"{1e3 * trial.step_time:,.0f}",
        f"{trial.utilization:.1%}",
        f"{trial.mean_cp_size:.2f}",
        format_bytes(trial.memory.total),
        *(f"{trial.shares.share(part):.1%}" for part in _PARTS),
        trial.shares.held_back_by(),
    ]


def trial_to_dict(trial: Trial) -> dict[str, Any]:
    """Return a trial as plain values, for JSON; times in seconds, memory in bytes.

    Args:
        trial: of `search`.

    Example:
        >>> from dcpack.cost import get_device, get_model
        >>> from dcpack.tuning import Job, SearchSpace, recommend, search
        >>> job = Job(model=get_model("llama3-8b"), device=get_device("h100"), num_ranks=8)
        >>> space = SearchSpace(capacities=(4096, 2**20), max_cp_sizes=(8,), global_batch_sizes=(16,))
        >>> trials = search(job, space, [900, 300, 2000, 6000] * 8)
        >>> trial_to_dict(recommend(trials))["capacity"]
        4096
    """
    check_kinds(trial=(trial, Trial))
    values = asdict(trial)
    values["memory"]["total"] = trial.memory.total
    if trial.failure is None:
        values["shares"] = {part: trial.shares.share(part) for part in (*_PARTS, "waiting_for_one")}
        values["held_back_by"] = trial.shares.held_back_by()
    else:
        for name in ("num_steps", "step_time", "token_time", "utilization", "mean_cp_size", "shares"):
            del values[name]
    return values
