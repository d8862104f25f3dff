"""Write a Megatron-Core index of many sequences, to see how large lengths are read. There is no ``.bin`` beside it.

    python benchmarks/make_idx.py /tmp/ten_million.idx --num-sequences 10000000
    python benchmarks/make_idx.py /tmp/ten_million.idx --read

`--read` reads the lengths of the file instead, and prints the seconds and the peak memory of the process.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time

import numpy as np

from dcpack.data import read_lengths, write_megatron_idx

CHUNK = 1 << 20
LONGEST = 32768


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", help="the .idx file")
    parser.add_argument("--num-sequences", type=int, default=10_000_000, help="sequences to write")
    parser.add_argument("--seed", type=int, default=0, help="of the lengths")
    parser.add_argument("--read", action="store_true", help="read the file instead of writing it")
    args = parser.parse_args()
    start = time.perf_counter()
    if args.read:
        lengths = read_lengths(args.path)
        what = f"read {lengths.size:,} lengths, {int(lengths.sum(dtype=np.int64)):,} tokens"
    else:
        write_megatron_idx(args.path, draw_lengths(args.num_sequences, args.seed), dtype=np.int32)
        what = f"wrote {args.num_sequences:,} lengths"
    seconds = time.perf_counter() - start
    print(f"{what} in {seconds:.2f} s, peak memory {peak_memory_mib():.0f} MiB")
    return 0


def draw_lengths(num_sequences: int, seed: int) -> np.ndarray:
    """int32[num_sequences], a long-tailed mixture as in fine-tuning data, drawn a chunk at a time."""
    rng = np.random.default_rng(seed)
    lengths = np.empty(num_sequences, np.int32)
    for start in range(0, num_sequences, CHUNK):
        chunk = lengths[start : start + CHUNK]
        chunk[:] = np.clip(np.rint(600 * np.exp(1.3 * rng.standard_normal(chunk.size))), 16, LONGEST)
    return lengths


def peak_memory_mib() -> float:
    """Largest resident size of this process; Linux counts in KiB, macOS in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


if __name__ == "__main__":
    sys.exit(main())
