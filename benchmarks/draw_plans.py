"""Draw the plans that `docs/planner.md` shows: one batch by `packing_aware` and by `dynamic_cp`, and a long one.

python benchmarks/draw_plans.py docs/pictures
"""

from __future__ import annotations

import sys
from pathlib import Path

import length_sets

import dcpack
from dcpack.report import save_plan_picture

CAPACITY = 8192
COST = dcpack.RingCost()
PLANS = (
    ("sft", "packing_aware", "powers_of_two"),
    ("sft", "dynamic_cp", "powers_of_two"),
    ("longctx", "dynamic_cp", "any"),
)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    batches = {"sft": length_sets.sft()[:512], "longctx": length_sets.longctx()[:512]}
    for name, scheduler, cp_sizes in PLANS:
        plan = dcpack.plan(
            batches[name], num_ranks=64, capacity=CAPACITY, scheduler=scheduler, cp_sizes=cp_sizes, cost=COST
        )
        path = folder / f"{name}_{scheduler}.png"
        save_plan_picture(path, plan, COST, title=f"{name}, {scheduler}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
