"""How the world is found, how it starts, and how its processes end."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import pytest
from dcpack_jax.backend import JaxBackend
from dcpack_jax.turns import Turns

import dcpack
from dcpack.errors import ArgumentError, BackendError, DcpackError

LAUNCHED = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
ADDRESS = {"JAX_COORDINATOR_ADDRESS": "127.0.0.1:29501"}


@pytest.mark.parametrize(
    ("variables", "kind", "text"),
    [
        (LAUNCHED, BackendError, "JAX_COORDINATOR_ADDRESS is not set"),
        (ADDRESS, BackendError, "JAX_COORDINATOR_ADDRESS is 127.0.0.1:29501, but RANK and WORLD_SIZE are not set"),
        ({"RANK": "0", **ADDRESS}, BackendError, "the environment of the launcher is incomplete: RANK=0 set"),
        ({**LAUNCHED, "JAX_COORDINATOR_ADDRESS": "29501"}, ArgumentError, "must be host:port, got '29501'"),
        ({**LAUNCHED, "JAX_COORDINATOR_ADDRESS": "node:29500"}, BackendError, "another port than MASTER_PORT, 29500"),
        ({**LAUNCHED, **ADDRESS}, BackendError, "devices of JAX were used before the world was made"),
    ],
)
def test_a_half_set_environment_is_an_error(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], kind: type[DcpackError], text: str
) -> None:
    jax.devices()  # the last case; for the others it does not matter
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(kind) as caught:
        JaxBackend().world()
    assert text in str(caught.value)


def test_without_a_launcher_the_world_is_this_process() -> None:
    world = dcpack.get_backend("jax").world()
    assert (world.ranks, world.rank) == ((0,), 0)


def test_options_are_checked() -> None:
    with pytest.raises(ArgumentError, match="deadline_s"):
        JaxBackend(deadline_s=0)
    with pytest.raises(ArgumentError, match="service_bytes"):
        JaxBackend(service_bytes=-1)


SCRIPT = """
import sys
import time
import dcpack
backend = dcpack.get_backend("jax", start_deadline_s={start})
{before}
world = backend.world()
world.barrier()
{body}
print(f"rank {{world.rank}} ends well")
"""

DEADLINE_S = 100


def run(count: int, body: str, *, before: str = "", start: float = 60.0) -> tuple[int, str, str]:
    """Run a script on so many processes, which must end within `DEADLINE_S`; return status, stdout and stderr."""
    script = SCRIPT.format(body=body, before=before, start=start)
    done = subprocess.run(
        [sys.executable, "-m", "dcpack", "launch", "-n", str(count), "--", sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        # JAX would take the SIGTERM of the launcher for a notice of preemption, and go on.
        env={**os.environ, "JAX_PLATFORMS": "cpu", "JAX_ENABLE_PREEMPTION_SERVICE": "false"},
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_processes_that_end_at_different_times_end_well() -> None:
    code, stdout, stderr = run(2, "time.sleep(2 * world.rank)")
    assert code == 0, stderr
    assert sorted(line for line in stdout.splitlines() if "well" in line) == ["rank 0 ends well", "rank 1 ends well"]


def test_an_error_on_one_rank_ends_all_within_the_deadline() -> None:
    code, stdout, stderr = run(2, "if world.rank == 1: raise ValueError('no such sample')\nworld.barrier()")
    assert code == 1
    assert "ValueError: no such sample" in stderr
    assert "ends well" not in stdout
    # JAX's own goodbye would have waited for minutes, longer than `run` does.


def test_who_loses_a_rank_says_so_and_ends() -> None:
    body = f"world._deadline_s = 3.0\ntry:\n    time.sleep({2 * DEADLINE_S} * (world.rank == 1)) or world.barrier()\n"
    body += "except dcpack.PeerError as error:\n    print(error, flush=True)\n    raise"
    code, stdout, _ = run(2, body)
    assert code == 1
    assert stdout.count("rank 1 did not arrive in barrier (call 1) within 3 s") == 1


def test_a_rank_that_never_starts_ends_the_others() -> None:
    late = f"import os; os.environ['RANK'] == '1' and time.sleep({2 * DEADLINE_S})"
    code, _, stderr = run(2, "", before=late, start=3.0)
    assert code == 75
    assert "PeerError: the processes of the job did not all start within 3 s" in stderr


def test_the_one_that_asked_longest_gets_its_turn() -> None:
    turns = Turns()
    assert turns.ask("b", 0)
    assert not turns.ask("a", 1)
    assert not turns.ask("c", 2)
    turns.leave("b")
    assert not turns.ask("a", 2), "c has asked as often, and is the same one on all processes"
    assert turns.ask("c", 2)
    assert turns.ask("c", 3), "it keeps the turn that it has"
    turns.give_up("c")
    assert turns.ask("a", 4)
    turns.leave("a")
    turns.leave("c")
    assert turns.ask("d", 0), "who has left is not waited for"


def test_no_framework_but_jax_is_imported() -> None:
    script = "import sys, dcpack; dcpack.get_backend('jax'); print('torch' in sys.modules, 'jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.split() == ["False", "True"]
