"""Tensors on an XLA device, encoded on the host; the device is played by host memory, and torch_xla is not needed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from dcpack_torch.libraries import GlooLibrary
from dcpack_xla.communicator import Place, XlaCommunicator

from dcpack.comm import decode_tree, encode_tree, encoded_size


class DeviceTensor(torch.Tensor):
    """A tensor that says it is on an XLA device."""


setattr(DeviceTensor, "device", SimpleNamespace(type="xla"))  # noqa: B010 - type checkers see no such assignment


class Runtime:
    """Fetches tensors, and counts them."""

    def __init__(self) -> None:
        self.num_fetched = 0

    def fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        self.num_fetched += 1
        return tensor.as_subclass(torch.Tensor)


def test_they_are_encoded_as_those_of_the_device_and_fetched_by_the_runtime() -> None:
    runtime = Runtime()
    pool: Any = SimpleNamespace(library=GlooLibrary())
    place = Place(runtime=runtime, device=torch.device("cpu"))
    options: dict[str, Any] = {"deadline_s": 60.0, "max_message_bytes": 1 << 20}
    alone = XlaCommunicator(place, None, pool, None, "alone", 0, [0], **options)
    tensor = torch.arange(3).as_subclass(DeviceTensor)
    for count in (1, 2, 3, 4):
        tree = {"on": [tensor] * count, "off": torch.ones(2), "array": np.arange(2)}
        told = encoded_size(alone, tree)
        assert runtime.num_fetched == 0  # nothing is moved to tell
        message = encode_tree(alone, tree)
        assert runtime.num_fetched == count
        assert len(message) == told
        assert message.tobytes().count(b'"xla.torch.int64"') == count
        decoded = decode_tree(alone, message)
        assert [each.tolist() for each in decoded["on"]] == [[0, 1, 2]] * count
        runtime.num_fetched = 0
