"""What the processes of the tests of the exactness example run."""

from __future__ import annotations

import contextlib
import importlib
import io
from typing import Any

import torch

import dcpack


def prove(rank: int, size: int, options: list[dict[str, Any]]) -> Any:
    """Run the proof with each of the options and return its reports."""
    proof = importlib.import_module("proof")
    with dcpack.get_backend("torch-gloo").world() as world:
        return [proof.prove(world, proof.ProofOptions(**given)) for given in options]


def run_main(rank: int, size: int, arguments: list[str], tolerances: list[float]) -> list[tuple[int, str]]:
    """Run the script with each of the tolerances for float64; return its exit statuses and what it printed."""
    found = []
    for tolerance in tolerances:
        importlib.import_module("checking").TOLERANCES["float64"] = tolerance
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            status = importlib.import_module("main").main(arguments)
        found.append((status, printed.getvalue()))
    return found


def gather_with_gradient(rank: int, size: int) -> tuple[list[float], list[float]]:
    """Gather one token a rank, weigh what arrived by this rank's number, and return both it and the gradient."""
    attention = importlib.import_module("attention")
    local = torch.full((1, 1), float(rank + 1), requires_grad=True)
    whole = attention.gather_tokens(local, torch.distributed.group.WORLD)
    weights = torch.tensor([[10.0 ** (size * rank + place) for place in range(size)]])
    (whole * weights).sum().backward()
    assert local.grad is not None
    return whole.flatten().tolist(), local.grad.flatten().tolist()
