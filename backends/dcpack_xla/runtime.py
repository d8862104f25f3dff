"""What is used of torch_xla, in one place: much of it has no public name. As in torch_xla 2.9."""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from dcpack.errors import BackendError

__all__ = ["Runtime", "load_runtime"]

# Threads of one process that compile at the same time wait for each other for ever.
_compiling = threading.Lock()


class Runtime:
    """The XLA runtime of this process; `load_runtime` gives the only one there is."""

    def __init__(self) -> None:
        self._package = importlib.import_module("torch_xla")
        self._model = importlib.import_module("torch_xla.core.xla_model")
        self._facts = importlib.import_module("torch_xla.runtime")
        self._native = self._package._XLAC

    # Where this thread is.

    @property
    def version(self) -> str:
        """The version of torch_xla."""
        return self._package.__version__

    @property
    def kind(self) -> str:
        """``"CPU"``, ``"TPU"``, ..., as PJRT_DEVICE says."""
        return self._facts.device_type()

    @property
    def is_spmd(self) -> bool:
        """Whether one program is sharded over all devices, so that there are no ranks."""
        return self._facts.is_spmd()

    @property
    def num_processes(self) -> int:
        """Processes that the runtime knows."""
        return self._facts.process_count()

    @property
    def num_devices(self) -> int:
        """Devices of all these processes."""
        return self._facts.global_device_count()

    @property
    def num_local_devices(self) -> int:
        """Devices of this process."""
        return self._facts.addressable_device_count()

    @property
    def num_joined(self) -> int:
        """Devices that collectives span: all, or only this one."""
        return self._facts.world_size()

    @property
    def ordinal(self) -> int:
        """The number of this thread's device among all devices."""
        return self._facts.global_ordinal()

    @property
    def device(self) -> torch.device:
        """This thread's device."""
        return self._package.device()

    # How ranks start.

    def rendezvous(self) -> Any:
        """Return the store of torch_xla's own rendezvous; under torchrun this also tells the process its devices."""
        store, _, _ = next(iter(importlib.import_module("torch.distributed.rendezvous").rendezvous("xla://")))
        return store

    def run_threads(self, fn: Callable[[], Any]) -> list[Any]:
        """Call `fn` in a thread for each device of this process, which is all there are; return what they return."""
        starter = importlib.import_module("torch_xla._internal.pjrt")
        results = starter._run_thread_per_device(0, 1, fn, starter.initialize_multiprocess)
        return [results[ordinal] for ordinal in sorted(results)]

    # What devices do.

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Record the concatenation of all devices' tensors along their first dim."""
        return self._model.all_gather(tensor, dim=0, pin_layout=False)

    def all_to_all(self, tensor: torch.Tensor) -> torch.Tensor:
        """Record the exchange of rows: row j goes to device j."""
        return self._model.all_to_all(tensor, 0, 0, len(tensor), pin_layout=False)

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Record the sum over all devices."""
        return self._model.all_reduce(self._model.REDUCE_SUM, tensor, pin_layout=False)

    @contextlib.contextmanager
    def apart(self, device: torch.device) -> Iterator[None]:
        """Record the collectives of the body on `device`, in no order with those that the caller has recorded.

        torch_xla chains collectives by a token: without a fresh one, running ours would run the caller's, too.
        """
        name = str(device)
        self._native._xla_set_default_device(name)
        theirs = self._native._get_all_reduce_token(name)
        self._native._set_all_reduce_token(name, None)
        try:
            yield
        finally:
            self._native._set_all_reduce_token(name, theirs)

    def fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        """Compute `tensor`, and nothing that it does not need, and return it in host memory."""
        with _compiling:
            self._native._xla_sync_multi([tensor], devices=[], wait=False)
        return tensor.cpu()

    def count_compilations(self) -> int:
        """Return how many programs this process has compiled."""
        return self._count("CompileTime")

    def count_executions(self) -> int:
        """Return how many programs the devices of this process have run."""
        return self._count("ExecuteReplicatedTime") + self._count("ExecuteTime")

    def _count(self, metric: str) -> int:
        found = importlib.import_module("torch_xla.debug.metrics").metric_data(metric)
        return found[0] if found else 0


@functools.cache
def load_runtime() -> Runtime:
    """Import torch_xla and return the runtime.

    Raises:
        BackendError: it cannot be imported.
    """
    try:
        return Runtime()
    except (ImportError, OSError, RuntimeError) as error:  # with another torch than its own it fails in many ways
        raise BackendError(
            f"torch_xla cannot be imported: {error} (it loads only beside the torch of its own version; here is torch "
            f"{torch.__version__})"
        ) from error
