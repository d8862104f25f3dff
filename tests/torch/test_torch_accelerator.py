"""Which device is a process's; stand-ins for the devices."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from dcpack_torch.accelerator import Accelerator
from library_doubles import DeviceModule

from dcpack.comm.environment import Launch
from dcpack.errors import ArgumentError, BackendError


def accelerator(count: int, launch: Launch | None, device: int | str | None = None) -> Accelerator:
    module = SimpleNamespace(device_count=lambda: count, current_device=lambda: 3)
    return Accelerator("cuda", module, launch, device)


def launched(local_rank: int | None) -> Launch:
    return Launch(rank=9, world_size=16, local_rank=local_rank)


@pytest.mark.parametrize(
    ("count", "launch", "device", "index"),
    [
        (8, launched(1), 5, 5),  # what was asked for
        (8, launched(1), "cuda:6", 6),
        (1, launched(7), None, 0),  # the only one: each process was shown its own
        (8, launched(2), None, 2),  # by the launcher
        (8, None, None, 3),  # no launcher: the program has chosen
    ],
)
def test_the_device_of_a_process(count: int, launch: Launch | None, device: Any, index: int) -> None:
    found = accelerator(count, launch, device)
    assert found.index == index
    assert found.device == torch.device("cuda", index)


@pytest.mark.parametrize(
    ("launch", "device", "kind", "text"),
    [
        (launched(None), None, BackendError, "LOCAL_RANK is not set"),
        (launched(4), None, BackendError, "LOCAL_RANK is 4, but this process sees 4 cuda devices"),
        (None, 4, ArgumentError, r"device must be from 0 to 3 \(cuda devices here\), got 4"),
        (None, -1, ArgumentError, "got -1"),
        (None, True, ArgumentError, "got True"),
        (None, "npu:0", ArgumentError, "like 'cuda:0', got 'npu:0'"),
        (None, "cuda:x", ArgumentError, "got 'cuda:x'"),
    ],
)
def test_a_device_that_is_not_there(launch: Launch | None, device: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        accelerator(4, launch, device)


@pytest.mark.parametrize(
    ("num_devices", "launched", "device", "index"),
    [
        (8, launched(3), None, 3),
        (8, launched(3), 5, 5),
        (8, launched(3), "cuda:6", 6),
        (1, launched(3), None, 0),  # each process sees its own device alone
        (8, None, None, 0),
        (8, None, 2, 2),
    ],
)
def test_which_device(num_devices: int, launched: Launch | None, device: Any, index: int):
    assert Accelerator("cuda", DeviceModule("cuda", num_devices), launched, device).index == index


@pytest.mark.parametrize(
    ("launched", "device", "error", "text"),
    [
        (launched(None), None, BackendError, "LOCAL_RANK is not set, so it is not known which of 4 cuda devices"),
        (launched(4), None, BackendError, "LOCAL_RANK is 4, but this process sees 4 cuda devices"),
        (None, 4, ArgumentError, "device must be from 0 to 3"),
        (None, True, ArgumentError, "device must be from 0 to 3"),
        (None, "npu:0", ArgumentError, "device must be a number or like 'cuda:0', got 'npu:0'"),
        (None, "cuda", ArgumentError, "device must be a number or like 'cuda:0', got 'cuda'"),
    ],
)
def test_no_such_device(launched: Launch | None, device: Any, error: Any, text: str):
    with pytest.raises(error, match=text):
        Accelerator("cuda", DeviceModule("cuda", 4), launched, device)
