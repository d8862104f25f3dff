"""What a back end is: a way to a communicator, to the device, and to the samples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from dcpack._checks import Int64Array, check_kinds, list_offenders
from dcpack.comm.communicator import Communicator
from dcpack.comm.reader import Indexable, check_reader, read_in_order
from dcpack.errors import ArgumentError
from dcpack.topology import Topology

__all__ = ["Backend", "Mesh", "MeshAxes"]

_Result = TypeVar("_Result")


class Mesh(Protocol):
    """Anything that knows the groups along its axes, such as a `Topology`."""

    def groups(self, axes: Any, /) -> Sequence[Sequence[int]]:
        """Return the groups along `axes`: tuples of global numbers that hold every rank once."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MeshAxes:
    """What a mesh is, in whatever framework.

    Attributes:
        names: of its axes, outermost first.
        ranks: int64[one dim an axis], the process at each position; a process that hosts several ranks is there often.
    """

    names: tuple[str, ...]
    ranks: Int64Array


class Backend(ABC):
    """One kind of cluster, or of a stand-in for one.

    The constructor takes the options of the back end by keyword and loads its framework, and nothing else does.

    Attributes:
        name: the name in the registry.
        allows_threads: whether a communicator of its own may be used by a thread beside the training, as the loader
            does to stay ahead; not where the device wants all calls in one order.
        needs_equal_groups: whether all CP groups of a micro-batch must have one size, as where one program runs on all
            devices at once; plans with several sizes are then refused.

    Example:
        >>> from dcpack.comm import get_backend
        >>> get_backend("fake").world().size
        1
    """

    name: ClassVar[str]
    allows_threads: ClassVar[bool] = False
    needs_equal_groups: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def available(cls) -> tuple[bool, str]:
        """Return whether it can be used here, and its version or what is missing."""

    @abstractmethod
    def world(self) -> Communicator:
        """Return the communicator of all processes; never a smaller one because something is not set up."""

    def run(self, fn: Callable[[Communicator], _Result]) -> list[_Result]:
        """Run ``fn(world)`` on every rank of this process and return the results, by rank.

        Most back ends have one rank a process, which a launcher starts; some start ranks as threads.
        """
        check_kinds(fn=(fn, Callable))
        return [fn(self.world())]

    def from_mesh(self, mesh: Mesh, axes: Any) -> Communicator:
        """Return the communicator of this process's group along `axes` of `mesh`; all processes call it together.

        Args:
            mesh: gives ``groups(axes)``, tuples of global numbers that hold every member of the world once.
            axes: what the mesh calls one or several of its axes.

        Example:
            >>> from dcpack.comm import FakeBackend
            >>> class Grid:
            ...     def groups(self, axes):
            ...         return [(0, 1), (2, 3)] if axes == "cp" else [(0, 2), (1, 3)]
            >>> backend = FakeBackend(num_ranks=4)
            >>> backend.run(lambda communicator: backend.from_mesh(Grid(), "dp").ranks)
            [(0, 2), (1, 3), (0, 2), (1, 3)]
        """
        if not callable(getattr(mesh, "groups", None)):
            raise ArgumentError(f"mesh must have groups(axes), such as a Topology, got {mesh!r}")
        world = self.world()
        members = {rank: member for member, rank in enumerate(world.ranks)}
        with world.guard():
            groups = [tuple(group) for group in mesh.groups(axes)]
            if strangers := sorted({rank for group in groups for rank in group} - members.keys()):
                listed = list_offenders([str(rank) for rank in strangers])
                raise ArgumentError(f"the mesh names ranks that are not in the world of {world.size}: {listed}")
            partition = [[members[rank] for rank in group] for group in groups]
        return world.split(partition)

    def topology(self) -> Topology | None:
        """Return where the ranks of a plan for the whole world live; None where process r hosts rank r, as here.

        The processes of `world` must be there.
        """
        return None

    def describe_mesh(self, mesh: Any) -> MeshAxes:
        """Return the axes of a `Topology`, or of a mesh of the back end's framework, and which process is where.

        Raises:
            ArgumentError: something else.

        Example:
            >>> from dcpack import Topology
            >>> from dcpack.comm import FakeBackend
            >>> FakeBackend().describe_mesh(Topology(axes=("dp", "tp"), sizes=(2, 2))).ranks.tolist()
            [[0, 1], [2, 3]]
            >>> FakeBackend().describe_mesh(Topology.of_domain(4, process_of_rank=[0, 0, 1, 1])).ranks.tolist()
            [0, 0, 1, 1]
        """
        names, ranks = getattr(mesh, "axes", None), getattr(mesh, "ranks", None)
        if not isinstance(names, tuple) or not isinstance(ranks, np.ndarray) or ranks.ndim != len(names):
            raise ArgumentError(f"mesh must be a Topology or a mesh of back end {self.name!r}, got {mesh!r}")
        homes = getattr(mesh, "process_of_rank", None)
        return MeshAxes(names=names, ranks=ranks if homes is None else homes[ranks])

    def to_device(self, array: Any, device: Any = None) -> Any:
        """Return `array` on a device, by default this process's; here it stays where it is."""
        del device
        return array

    def begin_copy(self, array: Any, device: Any = None) -> Callable[[], Any]:
        """Begin what `to_device` does, ahead of the training; return what gives the result, to be called once.

        The second call is made by the thread that uses the result, on the stream on which it does. Here all is done at
        once; back ends whose devices have streams copy on one of their own.

        Example:
            >>> from dcpack.comm import FakeBackend
            >>> FakeBackend().begin_copy([1, 2])()
            [1, 2]
        """
        copied = self.to_device(array, device)
        return lambda: copied

    def copies_in_threads(self, device: Any) -> bool:
        """Return whether a thread beside the training may call `begin_copy` with this device."""
        del device
        return False

    def make_reader(
        self, dataset: Indexable, indices: Iterable[int], *, num_workers: int = 0, **options: Any
    ) -> Iterator[Any]:
        """Yield ``dataset[i]`` for each i of `indices`, in their order; see `read_in_order`.

        `options` are for back ends whose workers are processes, and have no effect here.
        """
        del options
        return read_in_order(dataset, indices, num_workers=num_workers)

    def open_reader(
        self, dataset: Indexable, *, num_workers: int = 0, **options: Any
    ) -> Callable[[Sequence[int]], Iterator[Any]]:
        """Return a function that reads as `make_reader` does, any number of times, one reading after the other.

        Workers that are processes are kept between two readings, until the function is collected.

        Example:
            >>> from dcpack.comm import FakeBackend
            >>> read = FakeBackend().open_reader(["a", "b", "c"])
            >>> list(read([2, 0])), list(read([1]))
            (['c', 'a'], ['b'])
        """
        check_reader(dataset, num_workers)
        return lambda indices: self.make_reader(dataset, indices, num_workers=num_workers, **options)
