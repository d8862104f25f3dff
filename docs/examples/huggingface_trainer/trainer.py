"""Train a small Llama on packed rows with Hugging Face's Trainer, on one process or several.

    pip install 'dcpack[torch]' transformers accelerate
    torchrun --nproc-per-node 2 trainer.py

Both files of this folder are meant to be copied into your project.
"""

# pyright: reportMissingImports=false, reportUntypedBaseClass=false
# Hugging Face's packages are not among those that this project's tests install: tests/huggingface/run.sh does.

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from packed_rows import PackedRows, flatten
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

CAPACITY, VOCABULARY = 64, 128


class SetEpoch(TrainerCallback):
    """Tells the batch sampler which epoch begins, also where training resumes in the middle of one."""

    def __init__(self, rows: PackedRows) -> None:
        self.rows = rows

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """`state.epoch` is a fraction where training resumes."""
        self.rows.set_epoch(int(state.epoch))


class PackedTrainer(Trainer):
    """A Trainer whose batches are packed rows of at most `capacity` tokens; pass `flatten` as `data_collator`."""

    def __init__(self, *args: Any, lengths: Any, capacity: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.args.n_gpu > 1:
            raise ValueError("one process with several GPUs would cut rows; start one process a GPU with torchrun")
        if self.args.accelerator_config.dispatch_batches or self.args.accelerator_config.split_batches:
            raise ValueError("dispatch_batches and split_batches cut rows; leave them out of accelerator_config")
        rows_per_step = self.args.world_size * self.args.gradient_accumulation_steps
        self.rows = PackedRows(lengths, capacity=capacity, rows_per_step=rows_per_step, seed=self.args.seed)
        self.add_callback(SetEpoch(self.rows))

    def get_train_dataloader(self) -> torch.utils.data.DataLoader:
        """Return the rows of this process; `prepare` deals them, row i to process i % world_size."""
        loader = torch.utils.data.DataLoader(
            self.train_dataset,
            batch_sampler=self.rows,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
        )
        return self.accelerator.prepare(loader)


class Documents(torch.utils.data.Dataset):
    """Token sequences of very different lengths, that start with their number."""

    def __init__(self, num_samples: int = 96) -> None:
        self.lengths = np.random.default_rng(0).integers(4, CAPACITY, num_samples)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        return {"input_ids": [index, *((n * (index % 5 + 1)) % 64 for n in range(1, self.lengths[index]))]}


def build(folder: str, **options: Any) -> PackedTrainer:
    """Build the trainer of a model of two layers."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=CAPACITY,
    )
    documents = Documents()
    arguments: dict[str, Any] = {
        "output_dir": folder,
        "per_device_train_batch_size": 1,  # one row; it is not used otherwise
        "num_train_epochs": 3,
        "learning_rate": 0.01,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "seed": 3,
        **options,
    }
    return PackedTrainer(
        model=LlamaForCausalLM(config),
        args=TrainingArguments(**arguments),
        train_dataset=documents,
        data_collator=flatten,
        lengths=documents.lengths,
        capacity=CAPACITY,
    )


if __name__ == "__main__":
    trainer = build(sys.argv[1] if len(sys.argv) > 1 else "trainer_output")
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    if trainer.is_world_process_zero():
        print(f"{len(losses)} steps, loss {losses[0]:.3f} to {losses[-1]:.3f}")
