from __future__ import annotations

import importlib
import subprocess
import sys
import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcpack.comm import Communicator, Counters, FakeBackend, launch, run_ranks
from dcpack.comm.fake_communicator import FakeCommunicator
from dcpack.errors import ArgumentError, PeerError


@st.composite
def count_tables(draw: Any):
    size = draw(st.integers(1, 5))
    row = st.lists(st.integers(0, 6), min_size=size, max_size=size)
    return np.array(draw(st.lists(row, min_size=size, max_size=size)))


@settings(max_examples=50, deadline=None)
@given(count_tables(), st.integers(1, 40))
def test_all_to_all_moves_every_element_once(table: Any, max_message_bytes: Any):
    size = len(table)

    def fn(communicator: Communicator):
        me = communicator.rank
        # Element k that i sends to j is the number (i, j, k) in mixed radix, so that each is unlike all others.
        parts = [(me * size + j) * 10 + np.arange(table[me, j]) for j in range(size)]
        return communicator.all_to_all(np.concatenate(parts), table[me], table[:, me]).tolist()

    received = run_ranks(size, fn, max_message_bytes=max_message_bytes)
    for j in range(size):
        assert received[j] == [(i * size + j) * 10 + k for i in range(size) for k in range(table[i, j])]


@settings(max_examples=50, deadline=None)
@given(count_tables(), st.data())
def test_any_wrong_count_is_found_and_named(table: Any, data: Any):
    size = len(table)
    i, j = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, size - 1))
    wrong = table.copy()
    wrong[i, j] += data.draw(st.integers(1, 5))  # what j expects of i

    def fn(communicator: Communicator):
        me = communicator.rank
        with pytest.raises(PeerError) as caught:
            communicator.all_to_all(np.zeros(table[me].sum()), table[me], wrong[:, me])
        return str(caught.value)

    expected = f"rank {i} sends {table[i, j]} elements to rank {j}, which expects {wrong[i, j]}"
    assert run_ranks(size, fn) == [f"counts differ in all_to_all (call 0): {expected}"] * size


def test_bytes_sent_are_bytes_received():
    def fn(communicator: Communicator):
        me, size = communicator.rank, communicator.size
        communicator.all_gather(np.zeros((me, 3), np.float32))
        counts = [me + other for other in range(size)]
        communicator.all_to_all(np.zeros(sum(counts), np.int16), counts, counts)
        communicator.broadcast(np.zeros(7), 2)
        communicator.agree()
        return communicator.counters

    counted = run_ranks(4, fn)
    assert sum(each.bytes_sent for each in counted) == sum(each.bytes_received for each in counted)
    # Rank 1: 12 bytes to 3 others; 2 bytes each of 1 + 3 + 4 elements to the others. Of the others 0 + 24 + 36 bytes,
    # as many of the all-to-all, and the 56 bytes of the root.
    expected = {"all_gather": 1, "all_to_all": 1, "broadcast": 1, "agree": 1, "barrier": 0, "split": 0, "dup": 0}
    sent = {**dict.fromkeys(expected, 0), "all_gather": 36, "all_to_all": 16}
    assert counted[1] == Counters(calls=expected, sent=sent, bytes_received=60 + 16 + 56)
    assert counted[1].bytes_sent == 36 + 16


def test_a_failed_call_counts_no_bytes():
    def fn(communicator: Communicator):
        with pytest.raises(PeerError, match="dtypes differ"):
            communicator.all_gather(np.zeros(3, np.int32 if communicator.rank else np.int64))
        return communicator.counters

    for counted in run_ranks(2, fn):
        assert (counted.calls["all_gather"], counted.bytes_sent, counted.bytes_received) == (1, 0, 0)


def test_error_text_in_full():
    def fn(communicator: Communicator):
        try:
            communicator.agree([None, ValueError("boom"), KeyError("x")][communicator.rank])
        except PeerError as error:
            return str(error).splitlines()
        return None

    lines = run_ranks(3, fn)
    assert lines[0] == lines[1] == lines[2]
    assert lines[0] == [
        "rank 1 failed in agree (call 0): ValueError: boom",
        "rank 2 failed too: KeyError: 'x'",
        "Traceback of rank 1:",
        "ValueError: boom",
    ]


def test_traceback_of_the_failing_rank_reaches_all():
    def load_the_sample():
        raise OSError("disk gone")

    def fn(communicator: Communicator):
        with pytest.raises(PeerError, match=r"(?s)rank 1 failed in agree .*in load_the_sample") as caught:  # noqa: PT012 a guard needs its body
            with communicator.guard():
                if communicator.rank == 1:
                    load_the_sample()
        return type(caught.value.__cause__)

    assert run_ranks(2, fn) == [type(None), OSError]


def test_agree_takes_exceptions_only():
    def fn(communicator: Communicator):
        wrong: Any = "no" if communicator.rank == 0 else None
        text = r"rank 0 .*ArgumentError: error must be an exception or None, got 'no' \(str\)"
        with pytest.raises(PeerError, match=text):
            communicator.agree(wrong)
        communicator.barrier()

    run_ranks(2, fn)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_guard_tells_of_an_exit_and_lets_it_pass(kind: Any):
    def fn(communicator: Communicator):
        try:
            with communicator.guard():
                if communicator.rank == 1:
                    raise kind
        except PeerError as error:
            return error.rank, error.cause
        except kind:
            return "passed"
        return "nothing"

    assert run_ranks(2, fn) == [(1, kind.__name__), "passed"]


def test_a_forgotten_guard_calls_nothing():
    def fn(communicator: Communicator):
        if communicator.rank == 0:
            communicator.guard().__enter__()
        communicator.barrier()
        return communicator.counters.calls["agree"]

    assert run_ranks(2, fn) == [0, 0]


def test_an_error_without_a_text_does_not_hang_the_others():
    class SpeechlessError(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    def fn(communicator: Communicator):
        with pytest.raises(PeerError, match=r"rank 0 failed in agree .*SpeechlessError"):
            communicator.agree(SpeechlessError() if communicator.rank == 0 else None)
        communicator.barrier()

    run_ranks(2, fn, deadline_s=20)


def test_a_broken_communicator_says_why_and_does_not_wait():
    texts = []

    def fn(communicator: Communicator):
        if communicator.rank == 1:
            return  # rank 0 then waits for nobody
        for _ in range(3):
            with pytest.raises(PeerError) as caught:
                communicator.barrier()
            assert (caught.value.rank, caught.value.cause) == (1, "")
            texts.append(str(caught.value))

    run_ranks(2, fn)
    why = "rank 1 has finished; it does not arrive in barrier (call 0)"
    assert texts == [why] + [f"this communicator is broken: {why}"] * 2


def test_a_failure_of_the_back_end_breaks_the_communicator(monkeypatch: pytest.MonkeyPatch):
    def fail(self: Any, payload: Any, sizes: Any):
        raise OSError("link down")

    monkeypatch.setattr(FakeCommunicator, "_all_gather_bytes", fail)

    def fn(communicator: Communicator):
        communicator.barrier()
        with pytest.raises(
            PeerError, match=r"^the back end failed in all_gather \(call 1\): OSError: link down$"
        ) as caught:
            communicator.all_gather([1])
        assert (caught.value.rank, caught.value.cause) == (None, "OSError")
        assert isinstance(caught.value.__cause__, OSError)
        with pytest.raises(PeerError, match="broken: the back end failed"):
            communicator.barrier()
        return True

    assert run_ranks(2, fn) == [True, True]


def test_an_interrupt_in_a_call_breaks_the_communicator(monkeypatch: pytest.MonkeyPatch):
    def interrupt(self: Any, payload: Any, sizes: Any):
        raise KeyboardInterrupt

    monkeypatch.setattr(FakeCommunicator, "_all_gather_bytes", interrupt)

    def fn(communicator: Communicator):
        with pytest.raises(KeyboardInterrupt):
            communicator.all_gather([1])
        with pytest.raises(PeerError, match=r"broken: all_gather \(call 0\) was interrupted by KeyboardInterrupt"):
            communicator.barrier()
        return True

    assert run_ranks(2, fn) == [True, True]


def test_the_second_thread_is_turned_away():
    def fn(communicator: Communicator):
        communicator.barrier()
        caught = []

        def work():
            with pytest.raises(ArgumentError) as info:
                communicator.barrier()
            caught.append(str(info.value))

        thread = threading.Thread(target=work, name="prefetch")
        thread.start()
        thread.join()
        communicator.barrier()
        return caught

    texts = run_ranks(2, fn)
    assert texts[1] == [
        "a communicator belongs to one thread: this one to 'dcpack-rank-1', called from 'prefetch'; "
        "make another with dup()"
    ]


def test_the_thread_that_calls_first_owns_it():
    communicator = FakeBackend().world()
    thread = threading.Thread(target=communicator.barrier)
    thread.start()
    thread.join()
    with pytest.raises(ArgumentError, match=r"make another with dup\(\)"):
        communicator.barrier()
    communicator.close()  # any thread may


class Tensor:
    """An array that only a back end knows."""

    def __init__(self, values: Any):
        self.values = values


class TensorCommunicator(FakeCommunicator):
    universal_dtypes = FakeCommunicator.universal_dtypes | {"tensor.float32"}

    def to_wire(self, array: Any):
        if not isinstance(array, Tensor):
            return super().to_wire(array)
        payload, dtype, shape = super().to_wire(array.values)
        return payload, f"tensor.{dtype}", shape

    def from_wire(self, buffer: Any, dtype: Any, shape: Any):
        if not dtype.startswith("tensor."):
            return super().from_wire(buffer, dtype, shape)
        return Tensor(super().from_wire(buffer, dtype.removeprefix("tensor."), shape))

    def wire_itemsize(self, dtype: Any):
        return super().wire_itemsize(dtype.removeprefix("tensor."))


def test_native_arrays_come_out_native(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(launch, "FakeCommunicator", TensorCommunicator)

    def fn(communicator: Communicator):
        me = communicator.rank
        mine = Tensor(np.full(2, me, np.float32))
        gathered = communicator.all_gather(mine)
        exchanged = communicator.all_to_all(mine, [1, 1], [1, 1])
        sent = communicator.broadcast(mine if me == 1 else None, 1)
        plain = communicator.all_gather(mine.values)
        assert isinstance(plain[0], np.ndarray)
        with pytest.raises(PeerError, match=r"dtypes differ .*rank 0: tensor.float32; rank 1: float32"):
            communicator.all_gather(mine if me == 0 else mine.values)
        return [tensor.values.tolist() for tensor in (*gathered, exchanged, sent)]

    expected = [[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 1.0]]
    assert run_ranks(2, fn) == [expected, expected]


def test_a_dtype_of_another_back_end_is_refused_by_all(monkeypatch: pytest.MonkeyPatch):
    class Receiver(TensorCommunicator):
        def wire_itemsize(self, dtype: Any):
            return FakeCommunicator.wire_itemsize(self, dtype)

        universal_dtypes = FakeCommunicator.universal_dtypes

    monkeypatch.setattr(launch, "FakeCommunicator", Receiver)

    def fn(communicator: Communicator):
        with pytest.raises(PeerError, match=r"rank 0 failed in broadcast .*'tensor.float32' cannot be received"):
            communicator.broadcast(Tensor(np.zeros(2, np.float32)) if communicator.rank == 0 else None, 0)
        communicator.barrier()
        return True

    assert run_ranks(2, fn) == [True, True]


def test_receiver_without_ml_dtypes(monkeypatch: pytest.MonkeyPatch):
    real = importlib.import_module

    def without(name: Any, *arguments: Any):
        if name == "ml_dtypes" and threading.current_thread().name == "dcpack-rank-1":
            raise ImportError(f"No module named {name!r}")
        return real(name, *arguments)

    monkeypatch.setattr(importlib, "import_module", without)

    def fn(communicator: Communicator):
        array = np.arange(3).astype(ml_dtypes.bfloat16) if communicator.rank == 0 else None
        with pytest.raises(
            PeerError, match=r"rank 1 failed in broadcast .*bfloat16 needs the package ml_dtypes here"
        ) as caught:
            communicator.broadcast(array, 0)
        assert caught.value.cause == "BackendError"
        # All are in step, and ordinary dtypes need nothing.
        return communicator.broadcast(np.arange(3.0) if communicator.rank == 0 else None, 0).tolist()

    assert run_ranks(3, fn) == [[0.0, 1.0, 2.0]] * 3


def test_nothing_optional_is_imported():
    program = """
import sys
import numpy as np
from dcpack.comm import get_backend, run_ranks
run_ranks(2, lambda c: (c.all_gather(np.zeros(2)), c.broadcast(np.zeros(2), 0)))
run_ranks(2, lambda c: c.all_to_all(np.zeros(2), [1, 1], [1, 1]))
get_backend("fake")
print(sorted({"ml_dtypes", "torch", "jax", "torch_xla", "absl", "tqdm"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "[]", "")


def test_limits_of_a_communicator():
    communicator = FakeBackend().world()
    with pytest.raises(ArgumentError, match="max_message_bytes must be from 1 to"):
        communicator.max_message_bytes = 0
    child = communicator.split([[0]])
    assert (child.max_message_bytes, child.deadline_s) == (1 << 30, 60.0)
    communicator.max_message_bytes = 9
    assert communicator.dup().max_message_bytes == 9


def test_a_long_partition_is_quoted_in_part():
    def fn(communicator: Communicator):
        partition = [list(range(communicator.size))]
        other = [[member] for member in range(communicator.size)]
        with pytest.raises(PeerError) as caught:
            communicator.split(other if communicator.rank == 7 else partition)
        return str(caught.value)

    texts = run_ranks(40, fn)
    assert len(set(texts)) == 1
    assert texts[0].startswith("partitions differ in split (call 0): ranks 0, 1, 2, 3, 4, 5, 6, 8 and 31 more: [[0, 1,")


def test_a_back_end_that_carries_nothing_inline_says_so_where_it_claims_to() -> None:
    def body(communicator: Communicator) -> str:
        communicator.inline_bytes = 8
        with pytest.raises(PeerError) as failed:
            communicator.barrier()
        return str(failed.value)

    for text in run_ranks(2, body):
        assert text.endswith("BackendError: FakeCommunicator has inline_bytes 8 and no _exchange_inline")
