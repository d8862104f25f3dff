"""What torch.distributed has no public name for, in one place. All of it is there in torch 2.4 to 2.13.

`PrefixStore`, `HashStore` and the options of collectives are documented, but exported in part; the store of the default
group and the constructors of registered back ends are not public at all.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist

__all__ = [
    "AllToAllOptions",
    "AllgatherOptions",
    "BroadcastOptions",
    "HashStore",
    "PrefixStore",
    "default_store",
    "make_registered_group",
    "registered_group",
]

_native: Any = importlib.import_module("torch._C._distributed_c10d")

AllgatherOptions = _native.AllgatherOptions
AllToAllOptions = _native.AllToAllOptions
BroadcastOptions = _native.BroadcastOptions
HashStore = _native.HashStore
PrefixStore = _native.PrefixStore

# How many groups of a name were made, for each default group. The store keeps what the members of a group wrote, so one
# that was destroyed and is made anew needs a name that was never used.
_num_made: WeakKeyDictionary[Any, Counter[str]] = WeakKeyDictionary()


def default_store() -> Any:
    """Return the store of the default group, through which the processes of the job find each other."""
    return importlib.import_module("torch.distributed.distributed_c10d")._get_default_store()


def make_registered_group(name: str, store: Any, uid: str, member: int, ranks: Sequence[int], timeout_s: float) -> Any:
    """Return a new process group of a back end that a package registered with torch.distributed.

    Args:
        name: the registered name.
        store: of this group alone.
        uid: name of the group.
        member: group-local number of this process.
        ranks: global numbers of the members.
        timeout_s: the time-out of the group.
    """
    options = _native._DistributedBackendOptions()
    options.store = store
    options.group_id = uid
    options.group_rank = member
    options.group_size = len(ranks)
    options.global_ranks_in_group = list(ranks)
    options.timeout = timedelta(seconds=timeout_s)
    plugins: Any = dist.Backend._plugins
    return plugins[name.upper()].creator_fn(options, None)


def registered_group(name: str, ranks: Sequence[int], backend: str | None, timeout_s: float) -> Any:
    """Return the process group of that name that torch.distributed knows; its members alone make it, together.

    `torch.distributed.new_group` is a call of all processes, or, with ``use_local_synchronization``, puts the number of
    groups that a process holds into the name: members that hold different numbers would wait for each other for ever.

    Args:
        name: of the group, the same on all members and no other's. A number is added, which counts how often it was
            made: if one member destroys it, all must.
        ranks: global numbers of the members, this process among them, ascending.
        backend: the library, as ``new_group`` takes it; None for that of the default group.
        timeout_s: seconds that its making, and a call in it, may take.
    """
    module: Any = importlib.import_module("torch.distributed.distributed_c10d")
    world, default = module._world, module._get_default_group()
    num_made = _num_made.setdefault(default, Counter())
    latest = f"{name}/{num_made[name]}"
    known = next((group for group, other in world.pg_names.items() if other == latest), None)
    if known is not None:
        return known
    default_backend, store = world.pg_map[default]
    # NCCL splits groups off a default group that is bound to a device, which is a call of all processes.
    bound, default.bound_device_id = default.bound_device_id, None
    try:
        group, _ = module._new_process_group_helper(
            len(ranks),
            list(ranks).index(default.rank()),
            list(ranks),
            dist.Backend(backend or default_backend),
            store,
            f"{name}/{num_made[name] + 1}",
            timeout=timedelta(seconds=timeout_s),
        )
    finally:
        default.bound_device_id = bound
    num_made[name] += 1
    world.pg_group_ranks[group] = {rank: member for member, rank in enumerate(ranks)}
    return group
