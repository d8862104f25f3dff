"""The back end `jax`: processes of jax.distributed, or one process, with any number of devices each."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from dcpack import Topology
from dcpack._checks import check_int
from dcpack.comm import Backend, Communicator
from dcpack.comm.backend import Mesh, MeshAxes
from dcpack.comm.failures import name_ranks
from dcpack.comm.membership import DEFAULT_DEADLINE_S, check_deadline
from dcpack.comm.watchdog import end_process_after
from dcpack.errors import BackendError, PeerError
from dcpack_jax.board import Board
from dcpack_jax.communicator import JaxCommunicator, Process
from dcpack_jax.mesh import AXES, MeshGroups
from dcpack_jax.private import job, service_client
from dcpack_jax.start import Ending, start_processes
from dcpack_jax.turns import Runner, Turns
from dcpack_jax.wire import device_array

__all__ = ["JaxBackend"]

# Processes of a large job start minutes apart.
_DEFAULT_START_DEADLINE_S = 600.0
# Blocks are padded to equal sizes: larger messages would cost memory, and smaller ones rounds.
_DEFAULT_MAX_MESSAGE_BYTES = 1 << 24
_DEFAULT_SERVICE_BYTES = 1 << 16


class JaxBackend(Backend):
    """Processes of jax.distributed, as members; the ranks of a plan are their devices.

    The world is, in this order: the processes of ``jax.distributed``, if it was initialized; those that the launcher
    names (RANK, WORLD_SIZE, and JAX_COORDINATOR_ADDRESS, as ``dcpack launch`` sets them); those of the cluster that JAX
    itself finds (TPU pods, Slurm, ...); or, where there is none of these, this process alone. ``jax.distributed`` is
    then initialized, which must come before any device is used.

    Args:
        platform: whose devices carry payload, such as ``"cpu"``, ``"tpu"``, ``"gpu"``. ``"cpu"`` goes over the network
            of the hosts and disturbs no computation of the accelerators; with others, all processes must start the
            collectives and their own computations in the same order.
        coordinator: ``host:port`` in process 0 for jax.distributed, another port than MASTER_PORT; None for that of
            the launcher.
        deadline_s: seconds that a call may wait for the others.
        start_deadline_s: seconds that `world` may wait for all processes to start.
        max_message_bytes: larger messages are sent in rounds. Messages are padded to a power of two, and all blocks of
            an all-to-all to the same one.
        service_bytes: payload that is at most this, over all members of a call, goes through the coordination service
            and needs no compiled program.

    Example:
        >>> JaxBackend().to_device({"input_ids": np.array([3, 4])})["input_ids"].tolist()
        [3, 4]
    """

    name = "jax"
    needs_equal_groups = True

    def __init__(
        self,
        *,
        platform: str = "cpu",
        coordinator: str | None = None,
        deadline_s: float = DEFAULT_DEADLINE_S,
        start_deadline_s: float = _DEFAULT_START_DEADLINE_S,
        max_message_bytes: int = _DEFAULT_MAX_MESSAGE_BYTES,
        service_bytes: int = _DEFAULT_SERVICE_BYTES,
    ) -> None:
        self.platform = platform
        self.coordinator = coordinator
        self.deadline_s = check_deadline(deadline_s)
        self.start_deadline_s = check_deadline(start_deadline_s, "start_deadline_s")
        self.max_message_bytes = check_int("max_message_bytes", max_message_bytes, minimum=1)
        self.service_bytes = check_int("service_bytes", service_bytes, minimum=0)
        self._world: JaxCommunicator | None = None

    @classmethod
    def available(cls) -> tuple[bool, str]:
        """Return that it can be used, and the version; no device is touched, as that must wait for the world."""
        return True, f"jax {jax.__version__}"

    def world(self) -> Communicator:
        """Return the communicator of all processes, the same one each time; the first time they call it together.

        Raises:
            PeerError: some process did not come within `start_deadline_s`.
            BackendError: the environment is set in part, or devices were used before.
        """
        if self._world is None:
            self._world = self._make_world()
        return self._world

    def from_mesh(self, mesh: Mesh | jax.sharding.Mesh, axes: Any) -> Communicator:
        """Return the communicator of this process's group along `axes` of `mesh`; all processes call it together.

        Args:
            mesh: a `jax.sharding.Mesh` whose groups along `axes` are whole processes; or whatever else has
                ``groups(axes)``, with processes in them.
            axes: the name of an axis, or several.
        """
        return super().from_mesh(MeshGroups(mesh) if isinstance(mesh, jax.sharding.Mesh) else mesh, axes)

    def topology(self) -> Topology | None:
        """Return where the ranks of a plan live: rank r is the r-th device of ``jax.devices()``.

        For a mesh of your own see `dcpack_jax.mesh.topology_of_mesh`.
        """
        self.world()
        homes = [device.process_index for device in jax.devices()]
        return Topology.of_domain(len(homes), process_of_rank=homes)

    def describe_mesh(self, mesh: Any) -> MeshAxes:
        """Return the axes of a `jax.sharding.Mesh` or of a `Topology`, and the process of each device.

        Axes of the usual names (`dcpack_jax.mesh.AXES`) get those of dcpack: ``data`` is ``dp``.
        """
        if not isinstance(mesh, jax.sharding.Mesh):
            return super().describe_mesh(mesh)
        names = tuple(AXES.get(name, name) for name in map(str, mesh.axis_names))
        return MeshAxes(names=names, ranks=MeshGroups(mesh).processes)

    def to_device(self, array: Any, device: Any = None) -> Any:
        """Return NumPy arrays as JAX arrays on this process's first device; JAX arrays stay where they are.

        Args:
            array: an array, or mappings, lists and tuples of them, of which anything else stays as it is. Values that
                would be cut to 32 bits are an error.
            device: another device, or a sharding of this process's devices; None: the first.
        """
        if isinstance(array, np.ndarray | np.generic):
            return device_array(np.asarray(array), jax.local_devices()[0] if device is None else device)
        if isinstance(array, Mapping):
            return {key: self.to_device(value, device) for key, value in array.items()}
        if isinstance(array, list | tuple):
            moved = [self.to_device(value, device) for value in array]
            return moved if isinstance(array, list) else tuple(moved)
        return array

    def _make_world(self) -> JaxCommunicator:
        start_processes(self.coordinator, self.start_deadline_s, _ending)
        rank, size = job() if jax.distributed.is_initialized() else (0, 1)
        uid = f"dcpack/{next(_worlds)}"
        process = Process(
            client=service_client() if size > 1 else None,
            devices=self._assemble(uid, rank, size) if size > 1 else (),
            service_bytes=self.service_bytes,
            turns=_turns,
            runner=_shared_runner(),
            ending=_ending,
        )
        return JaxCommunicator(
            process,
            uid,
            rank,
            tuple(range(size)),
            deadline_s=self.deadline_s,
            max_message_bytes=self.max_message_bytes,
        )

    def _assemble(self, uid: str, rank: int, size: int) -> tuple[Any, ...]:
        """Wait for all processes; return the device of each that carries payload."""

        def absent(members: list[int]) -> PeerError:
            text = f"{name_ranks(members)} did not start within {self.start_deadline_s:g} s"
            return PeerError(text, rank=members[0])

        board = Board(service_client(), f"{uid}/start", rank, size)
        board.exchange(b"", time.monotonic() + self.start_deadline_s, absent)
        with end_process_after(self.start_deadline_s, lambda: PeerError("the devices of all processes did not start")):
            try:
                devices = jax.devices(self.platform)
            except RuntimeError as error:
                raise BackendError(
                    f"no devices of platform {self.platform!r}: {error}; choose one with platform=, or name it in "
                    "JAX_PLATFORMS, as in JAX_PLATFORMS=tpu,cpu"
                ) from error
        first: dict[int, Any] = {}
        for device in sorted(devices, key=lambda device: device.id):
            first.setdefault(device.process_index, device)
        if missing := [other for other in range(size) if other not in first]:
            raise BackendError(f"{name_ranks(missing)} have no device of platform {self.platform!r}")
        return tuple(first[other] for other in range(size))


@functools.cache
def _shared_runner() -> Runner:
    return Runner()


_turns = Turns()
_ending = Ending()
_worlds = itertools.count()
