"""Trying settings on the user's own lengths: what fits in memory, what is fastest, and why the others are not."""

from dcpack.tuning.memory import RECOMPUTE, STATE_SHARDINGS, MemoryEstimate, MemoryOptions, estimate_memory
from dcpack.tuning.search import Job, SearchSpace, Trial, recommend, sample_lengths, search
from dcpack.tuning.shares import TimeShares, time_shares
from dcpack.tuning.text import alternatives, format_alternatives, trial_to_dict

__all__ = [
    "RECOMPUTE",
    "STATE_SHARDINGS",
    "Job",
    "MemoryEstimate",
    "MemoryOptions",
    "SearchSpace",
    "TimeShares",
    "Trial",
    "alternatives",
    "estimate_memory",
    "format_alternatives",
    "recommend",
    "sample_lengths",
    "search",
    "time_shares",
    "trial_to_dict",
]
