"""The suite must fail for a communicator that is wrong: each test breaks the fake one in one way."""

from __future__ import annotations

import dataclasses
import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest

from dcpack.comm import Communicator, communicator, membership, run_ranks, trees
from dcpack.comm.fake_communicator import FakeCommunicator
from dcpack.errors import ArgumentError
from dcpack.testing import COMMUNICATOR_CHECKS, check_communicator, run_communicator_check
from dcpack.testing.expect import DTYPE_NAMES, as_dtype, expect_peer_error, pattern, require_identical

# For a defect whose ranks all come to an end, so that what does not fail can be told, however slow the machine is.
LONG_S = 60.0


def _failing_checks(size: Any = 3, deadline_s: float = 0.3):
    """What fails; with the short deadline, which ends defects that leave ranks waiting, that may be too much."""
    failing = set()
    for name in COMMUNICATOR_CHECKS:
        try:
            check_communicator(partial(run_ranks, deadline_s=deadline_s), sizes=(size,), names=[name])
        except AssertionError:
            failing.add(name)
    return failing


def _replace(monkeypatch: pytest.MonkeyPatch, name: Any, make: Any, cls: type[Communicator] = FakeCommunicator):
    monkeypatch.setattr(cls, name, make(getattr(cls, name)))


def test_nothing_fails_without_a_defect():
    assert _failing_checks(deadline_s=LONG_S) == set()


def test_results_that_alias_the_input(monkeypatch: pytest.MonkeyPatch):
    def make(original: Any):
        def all_gather(self: Any, payload: Any, sizes: Any):
            parts = original(self, payload, sizes)
            parts[self.rank] = payload
            return parts

        return all_gather

    _replace(monkeypatch, "_all_gather_bytes", make)
    assert "no_shared_memory" in _failing_checks()


def test_results_shared_between_ranks(monkeypatch: pytest.MonkeyPatch):
    def all_gather(self: Any, payload: Any, sizes: Any):
        return self._hand_over([payload] * self.size)

    monkeypatch.setattr(FakeCommunicator, "_all_gather_bytes", all_gather)
    assert "no_shared_memory" in _failing_checks()


def test_read_only_results(monkeypatch: pytest.MonkeyPatch):
    def make(original: Any):
        def from_wire(self: Any, buffer: Any, dtype: Any, shape: Any):
            array = original(self, buffer, dtype, shape)
            array.setflags(write=False)
            return array

        return from_wire

    _replace(monkeypatch, "from_wire", make)
    assert {"all_gather_uneven", "all_to_all_even", "broadcast_roots"} <= _failing_checks()


@pytest.mark.parametrize("dtype", ["bool", "bfloat16", "float8_e4m3fn", "uint16", "complex128"])
def test_one_dtype_that_does_not_travel(monkeypatch: pytest.MonkeyPatch, dtype: Any):
    def make(original: Any):
        def to_wire(self: Any, array: Any):
            if np.asarray(array).dtype == as_dtype(dtype):
                raise TypeError(f"Invalid scalar type {dtype}")
            return original(self, array)

        return to_wire

    _replace(monkeypatch, "to_wire", make)
    assert {"all_gather_dtypes", "all_to_all_dtypes", "broadcast_dtypes"} <= _failing_checks()


def test_floats_whose_bits_change(monkeypatch: pytest.MonkeyPatch):
    def make(original: Any):
        def from_wire(self: Any, buffer: Any, dtype: Any, shape: Any):
            array = original(self, buffer, dtype, shape)
            return np.nan_to_num(array) if dtype == "float32" else array  # NaNs become 0

        return from_wire

    _replace(monkeypatch, "from_wire", make)
    assert {"all_gather_dtypes", "all_to_all_dtypes", "broadcast_dtypes", "broadcast_trees"} <= _failing_checks()


def test_a_structure_whose_fault_only_its_sender_hears(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trees, "_encode_or_tell", trees._encode)
    assert _failing_checks(deadline_s=LONG_S) == {"trees_that_cannot_be_sent"}


@pytest.mark.parametrize("name", ["wire_size", "_host_bytes"])
def test_names_that_differ_between_what_is_told_and_what_is_written(monkeypatch: pytest.MonkeyPatch, name: str):
    def make(original: Any):
        def named_otherwise(self: Any, array: Any):
            data, dtype, shape = original(self, array)
            return data, f"{dtype}x", shape

        return named_otherwise

    _replace(monkeypatch, name, make)
    assert "encoded_trees" in _failing_checks(deadline_s=LONG_S)


def test_arrays_that_are_encoded_as_others_of_their_size(monkeypatch: pytest.MonkeyPatch):
    def make(original: Any):
        def host_bytes(self: Any, array: Any):
            data, dtype, shape = original(self, array)
            return data, "int8" if dtype == "bool" else dtype, shape

        return host_bytes

    _replace(monkeypatch, "_host_bytes", make)
    assert _failing_checks(deadline_s=LONG_S) >= {"encoded_trees", "broadcast_trees"}


def test_limit_that_each_rank_takes_for_itself(monkeypatch: pytest.MonkeyPatch):
    def make(original: Any):
        def exchange_records(self: Any, record: Any, failure: Any):
            own = self.max_message_bytes
            return [dataclasses.replace(each, max_message_bytes=own) for each in original(self, record, failure)]

        return exchange_records

    _replace(monkeypatch, "_exchange_records", make, Communicator)
    assert "rounds" in _failing_checks()


def test_agreement_that_only_the_failing_rank_hears(monkeypatch: pytest.MonkeyPatch):
    def make(original: Any):
        def agree(self: Any, error: Any = None):
            if error is not None:
                raise membership.PeerError("alone", rank=self.ranks[self.rank])

        return agree

    _replace(monkeypatch, "agree", make, Communicator)
    assert {"agree_one_error", "agree_many_errors", "guard"} <= _failing_checks()


def test_no_check_of_verbs_and_shapes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Communicator, "_require_same", lambda self, what, values: None)
    assert {"different_dtypes", "different_dims", "different_roots"} <= _failing_checks()


def test_no_check_of_counts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(communicator, "count_checksums", lambda rank, sent, expected: (0, 0))
    assert {"different_counts", "swapped_counts"} <= _failing_checks()


def test_sums_of_counts_instead_of_checksums(monkeypatch: pytest.MonkeyPatch):
    sums = lambda rank, sent, expected: (int(sent.sum()), int(expected.sum()))  # noqa: E731 short
    monkeypatch.setattr(communicator, "count_checksums", sums)
    failing = _failing_checks(deadline_s=LONG_S)
    assert "swapped_counts" in failing
    assert "different_counts" not in failing


def test_groups_in_sorted_order(monkeypatch: pytest.MonkeyPatch):
    def make(original: Any):
        def split(self: Any, partition: Any, block: Any):
            return original(self, tuple(tuple(sorted(each)) for each in partition), block)

        return split

    _replace(monkeypatch, "_split", make)
    assert {"split_reordered", "split_again"} <= _failing_checks()


def test_dup_that_is_the_original(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Communicator, "dup", lambda self: self)
    assert {"dup_is_independent", "dup_in_a_thread", "closed"} <= _failing_checks()


def test_close_that_does_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Communicator, "close", lambda self: None)
    assert _failing_checks(deadline_s=LONG_S) == {"closed"}


def test_any_thread_may_call(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(membership.threading, "current_thread", lambda: "one for all")
    assert "one_thread" in _failing_checks(size=1)


def test_the_driver_sees_a_check_that_ran_on_no_rank():
    with pytest.raises(
        AssertionError, match=r"'members' on 2 ranks: expected to run on ranks 0 to 1 of 2, but .* \[\]"
    ):
        check_communicator(lambda size, fn: [], sizes=(2,), names=["members"])


def test_the_driver_sees_a_launcher_that_starts_worlds_of_one():
    with pytest.raises(AssertionError, match="expected to run on ranks 0 to 2 of 3"):
        check_communicator(lambda size, fn: [run_ranks(1, fn)[0] for _ in range(size)], sizes=(3,), names=["members"])


def test_the_driver_sees_a_launcher_that_leaves_ranks_out():
    with pytest.raises(AssertionError, match="expected to run on ranks 0 to 1 of 2"):
        check_communicator(lambda size, fn: run_ranks(size, fn)[:1], sizes=(2,), names=["members"])


def test_the_driver_needs_something_to_do():
    with pytest.raises(ArgumentError, match=r"nothing to check: sizes \[\]"):
        check_communicator(run_ranks, sizes=())
    with pytest.raises(ArgumentError, match="nothing to check"):
        check_communicator(run_ranks, names=[])
    with pytest.raises(ArgumentError, match="names must be one of 'all_gather_uneven'"):
        check_communicator(run_ranks, names=["no_such_check"])


def test_the_driver_runs_everything_by_default():
    ran = []

    def run(size: Any, fn: Any):
        ran.append((size, fn.args[0]))
        return [(fn.args[0], rank, size) for rank in range(size)]

    check_communicator(run)
    assert ran == [(size, name) for size in (1, 2, 3, 4) for name in COMMUNICATOR_CHECKS]


def test_checks_can_be_sent_to_processes():
    for name, check in COMMUNICATOR_CHECKS.items():
        assert pickle.loads(pickle.dumps(check)) is check
        assert check.__doc__, f"{name} does not say what it checks"
    sent = pickle.loads(pickle.dumps(partial(run_communicator_check, "barrier")))
    assert run_ranks(2, sent) == [("barrier", 0, 2), ("barrier", 1, 2)]


def test_expectations_fail_where_they_should():
    with pytest.raises(AssertionError, match="expected a PeerError that says 'x', got the result 3"):
        expect_peer_error(lambda: 3, "x")
    for wrong, text in (
        ([1.0], "got list"),
        (np.ones(1, np.float32), "got dtype float32"),
        (np.ones((1, 1)), r"got shape \(1, 1\)"),
        (np.nextafter(np.ones(1), 2), "other bits"),
    ):
        with pytest.raises(AssertionError, match=text):
            require_identical(wrong, np.ones(1), "it")
    assert len({pattern(dtype, (9,), seed=1).dtype for dtype in DTYPE_NAMES}) == len(DTYPE_NAMES) == 16
