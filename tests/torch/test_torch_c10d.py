"""What is taken from inside torch.distributed: that it is there, and that groups come out as they should."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from dcpack_torch import c10d


@pytest.fixture
def alone() -> Iterator[Any]:
    """A default group of this process alone; its store."""
    store = c10d.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield store
    dist.destroy_process_group()


def timeout_of(group: Any) -> timedelta:
    return group._get_backend(torch.device("cpu")).options._timeout


def test_stores_and_options_are_those_of_torch() -> None:
    store = c10d.PrefixStore("inner", c10d.PrefixStore("outer", c10d.HashStore()))
    store.set("key", "value")
    assert store.get("key") == b"value"
    for options in (c10d.AllgatherOptions(), c10d.AllToAllOptions(), c10d.BroadcastOptions()):
        options.timeout = timedelta(seconds=2.5)
        assert options.timeout == timedelta(seconds=2.5)
    options = c10d.BroadcastOptions()
    options.rootRank, options.rootTensor = 3, 0
    assert (options.rootRank, options.rootTensor) == (3, 0)


def test_the_store_of_the_default_group(alone: Any) -> None:
    c10d.default_store().set("from here", "1")
    assert c10d.default_store().get("from here") == b"1"


def test_without_a_default_group_there_is_no_store() -> None:
    assert not dist.is_initialized()
    with pytest.raises(ValueError, match="Default process group has not been initialized"):
        c10d.default_store()


def test_a_registered_back_end_is_told_all_of_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def make(options: Any, extra: Any) -> str:
        seen.append((options, extra))
        return "made"

    plugins: Any = dist.Backend._plugins
    monkeypatch.setitem(plugins, "DOUBLE", SimpleNamespace(creator_fn=make, extended_api=True))
    store = c10d.HashStore()
    assert c10d.make_registered_group("double", store, "a/b", 1, (4, 7, 9), 2.5) == "made"
    ((options, extra),) = seen
    assert extra is None
    assert (options.group_id, options.group_rank, options.group_size) == ("a/b", 1, 3)
    assert (options.global_ranks_in_group, options.timeout) == ([4, 7, 9], timedelta(seconds=2.5))
    options.store.set("key", "value")
    assert store.get("key") == b"value"


def test_a_group_is_known_to_torch_and_made_once_a_name(alone: Any) -> None:
    group = c10d.registered_group("mine/0", [0], None, 7.0)
    assert (dist.get_world_size(group), dist.get_rank(group)) == (1, 0)
    assert dist.get_process_group_ranks(group) == [0]
    assert dist.get_backend(group) == "gloo"
    assert timeout_of(group) == timedelta(seconds=7)
    assert group.group_name == "mine/0/1"
    total = torch.ones(2)
    dist.all_reduce(total, group=group)
    assert total.tolist() == [1.0, 1.0]
    assert c10d.registered_group("mine/0", [0], "gloo", 9.0) is group
    other = c10d.registered_group("mine/1", [0], "gloo", 9.0)
    assert other is not group
    assert timeout_of(other) == timedelta(seconds=9)


def test_what_others_have_made_does_not_change_a_name(alone: Any) -> None:
    # torch's own name for a group of members alone holds how many groups this process has.
    first = c10d.registered_group("mine/0", [0], None, 7.0)
    dist.new_group([0])
    assert c10d.registered_group("mine/1", [0], None, 7.0).group_name == "mine/1/1"
    assert c10d.registered_group("mine/0", [0], None, 7.0) is first


def test_only_members_make_a_group_and_the_binding_of_the_default_group_comes_back(alone: Any) -> None:
    default: Any = dist.group.WORLD
    default.bound_device_id = torch.device("cuda", 1)
    with pytest.raises(ValueError, match="0 is not in list"):
        c10d.registered_group("mine/0", [1], None, 7.0)
    assert default.bound_device_id == torch.device("cuda", 1)
