"""The three programs on several devices of one process: what they move, exactly, and that they are kept."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from dcpack_jax.programs import MEMBERS, Programs, _compiled


def test_one_member_moves_words_as_they_are() -> None:
    programs = Programs(jax.devices()[:1], 0)
    words = np.array([0, 1, 2**31, 2**32 - 1], np.uint32)
    for found in (programs.all_gather(words), programs.all_to_all(words[None])):
        assert (found.dtype, found.tolist()) == (np.uint32, [words.tolist()])
    assert programs.sum(words).tolist() == words.tolist()


def test_a_program_is_compiled_once_a_verb_and_size() -> None:
    before = _compiled.cache_info()
    for _ in range(3):
        for member in (Programs(jax.devices()[:1], 0), Programs(jax.devices()[:1], 0)):  # of equal devices
            member.sum(np.zeros(4, np.uint32))
    after = _compiled.cache_info()
    assert after.currsize - before.currsize <= 1
    assert after.hits - before.hits >= 5


def test_the_member_must_be_of_the_group() -> None:
    with pytest.raises(IndexError):
        Programs(jax.devices()[:1], 1)


# Four devices in one process are asked directly: each program gets the rows of all members at once.
_BODY = f"""
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from dcpack_jax import programs as P
assert jax.device_count() == 4
for order in ([0, 1, 2, 3], [2, 0, 3, 1]):
    devices = [jax.devices()[i] for i in order]
    mesh = Mesh(np.array(devices), ({MEMBERS!r},))
    sharding = NamedSharding(mesh, PartitionSpec({MEMBERS!r}))
    rows = (np.arange(4)[:, None, None] * 100 + np.arange(4)[:, None] * 10 + np.arange(2)).astype(np.uint32)
    rows[3] += np.uint32(2**32 - 400)                      # beyond int32, and sums beyond uint32
    flat = rows[:, 0]
    whole = P._compiled(P._all_gather, mesh)(jax.device_put(flat, sharding))
    assert whole.shape == (4, 2) and np.array_equal(np.asarray(whole), flat), "all members' words, in their order"
    swapped = np.asarray(P._compiled(P._all_to_all, mesh)(jax.device_put(rows, sharding)))
    assert np.array_equal(swapped, rows.transpose(1, 0, 2)), "row i of member j is row j of member i"
    total = np.asarray(P._compiled(P._sum, mesh)(jax.device_put(flat, sharding)))
    assert np.array_equal(total, (flat.astype(np.uint64).sum(0) % 2**32).astype(np.uint32)), "modulo 2**32"
print("right")
"""


def test_words_of_four_members_arrive_where_they_should() -> None:
    environment = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", _BODY], capture_output=True, text=True, timeout=100, env={**os.environ, **environment}
    )
    assert (done.returncode, done.stdout.strip()) == (0, "right"), done.stderr
