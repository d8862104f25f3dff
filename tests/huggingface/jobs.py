"""What a process of the tests runs: the example's training, with what it saw and learned written to a file."""

# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "examples" / "huggingface_trainer"))

import torch
import trainer as example  # found through the line above


def record(trainer: Any) -> list[list[int]]:
    """Return a list that will hold the samples of each row that is trained; a sample starts with its number."""
    rows: list[list[int]] = []
    step = trainer.training_step

    def training_step(model: Any, inputs: dict[str, Any], *rest: Any) -> Any:
        rows.append(inputs["input_ids"][inputs["position_ids"] == 0].tolist())
        return step(model, inputs, *rest)

    trainer.training_step = training_step
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--save_steps", type=int, default=0)
    parser.add_argument("--resume", default=None)
    parser.add_argument("--forget_epoch", action="store_true")
    flags = parser.parse_args()
    saving = {"save_strategy": "steps", "save_steps": flags.save_steps} if flags.save_steps else {}
    trainer = example.build(
        str(flags.folder / "output"),
        gradient_accumulation_steps=flags.accumulate,
        use_cpu=True,
        disable_tqdm=True,
        **saving,
    )
    if flags.forget_epoch:
        trainer.remove_callback(example.SetEpoch)
    rows = record(trainer)
    trainer.train(resume_from_checkpoint=flags.resume)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    weights = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
    seen = {"rows": rows, "losses": losses, "weights": weights.tolist(), "num_rows": len(trainer.rows)}
    (flags.folder / f"rank{os.environ.get('RANK', '0')}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
