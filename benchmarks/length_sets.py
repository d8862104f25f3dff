"""Sequence lengths of six kinds of training data, from fixed seeds.

The benchmarks take a whole set (a million lengths) for packing and its first 512, 2048 or 8192 as one global batch.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["SETS", "longctx", "make", "pretrain_docs", "rl", "sft", "split_docs", "uniform"]

Lengths = npt.NDArray[np.int64]

NUM_LENGTHS = 1_000_000


def sft(n: int = NUM_LENGTHS, seed: int = 1001) -> Lengths:
    """Lognormal, median 600, clipped to 16..32768."""
    rng = np.random.default_rng(seed)
    return np.clip(np.rint(600 * np.exp(1.3 * rng.standard_normal(n))), 16, 32768).astype(np.int64)


def longctx(n: int = NUM_LENGTHS, seed: int = 1002) -> Lengths:
    """95% log-uniform 200..4096, 5% log-uniform 32768..131072."""
    rng = np.random.default_rng(seed)
    low = np.exp(rng.uniform(np.log(200), np.log(4096), n))
    high = np.exp(rng.uniform(np.log(32768), np.log(131072), n))
    return np.clip(np.rint(np.where(rng.random(n) < 0.05, high, low)), 1, 131072).astype(np.int64)


def pretrain_docs(n: int = NUM_LENGTHS, seed: int = 1003) -> Lengths:
    """97% lognormal, median 800; 3% Pareto from 8000; clipped to 8..1000000."""
    rng = np.random.default_rng(seed)
    body = 800 * np.exp(1.2 * rng.standard_normal(n))
    tail = 8000 * (1 + rng.pareto(1.1, n))
    return np.clip(np.rint(np.where(rng.random(n) < 0.03, tail, body)), 8, 1_000_000).astype(np.int64)


def split_docs(docs: Lengths, capacity: int) -> Lengths:
    """Cut every document longer than `capacity` into pieces of it and a remainder, in order."""
    counts = -(-docs // capacity)
    out = np.full(int(counts.sum()), capacity, np.int64)
    ends = np.cumsum(counts) - 1
    out[ends] = docs - (counts - 1) * capacity
    return out


def rl(n_prompts: int = 125_000, responses: int = 8, seed: int = 1004) -> Lengths:
    """Prompts with eight responses each, all lengths of a prompt around its own median."""
    rng = np.random.default_rng(seed)
    prompt = np.clip(250 * np.exp(0.6 * rng.standard_normal(n_prompts)), 16, 2048)
    median = 2500 * np.exp(0.9 * rng.standard_normal(n_prompts))
    response = median[:, None] * np.exp(0.6 * rng.standard_normal((n_prompts, responses)))
    return np.clip(np.rint(prompt[:, None] + response), 32, 32768).astype(np.int64).ravel()


def uniform(n: int = NUM_LENGTHS, high: int = 8192, seed: int = 1005) -> Lengths:
    """Uniform from 1 to `high`."""
    return np.random.default_rng(seed).integers(1, high + 1, n).astype(np.int64)


SETS = ("sft_S4k", "sft_S32k", "longctx_S128k", "pretrain_S8k", "rl_S32k", "uniform_S8k")


def make(name: str) -> tuple[Lengths, int]:
    """Return the lengths of a set and the capacity it is packed into."""
    made = {
        "sft_S4k": lambda: (np.minimum(sft(), 4096), 4096),
        "sft_S32k": lambda: (sft(), 32768),
        "longctx_S128k": lambda: (longctx(), 131072),
        "pretrain_S8k": lambda: (split_docs(pretrain_docs(), 8192)[:NUM_LENGTHS], 8192),
        "rl_S32k": lambda: (rl(), 32768),
        "uniform_S8k": lambda: (uniform(), 8192),
    }
    return made[name]()
