from __future__ import annotations

import numpy as np
import pytest

from dcpack.comm.agreement import check_partition, describe_sides, require_same, untransposed_counts
from dcpack.comm.failures import Failure, agreed_error, name_ranks
from dcpack.errors import ArgumentError, PeerError


def test_describe_sides_keeps_the_order_of_the_group():
    assert describe_sides(["b", "a", "b"], [7, 3, 5]) == "ranks 7, 5: b; rank 3: a"
    many = describe_sides([str(i) for i in range(12)], range(12))
    assert many.startswith("rank 0: 0; rank 1: 1;")
    assert many.endswith("rank 7: 7; and 4 more")


def test_require_same():
    require_same("roots", "broadcast (call 0)", ["root 1"] * 3, [0, 1, 2])
    with pytest.raises(
        PeerError, match=r"^roots differ in broadcast \(call 0\): rank 4: root 4; rank 6: root 6$"
    ) as caught:
        require_same("roots", "broadcast (call 0)", ["root 4", "root 6"], [4, 6])
    assert (caught.value.rank, caught.value.cause) == (None, "")


def test_untransposed_counts_names_every_pair():
    sent = np.array([[1, 2], [3, 4]])
    assert untransposed_counts(sent, sent.T, [0, 1]) == []
    assert untransposed_counts(sent, np.array([[1, 0], [2, 9]]), [8, 6]) == [
        "rank 6 sends 3 elements to rank 8, which expects 0",
        "rank 6 sends 4 elements to rank 6, which expects 9",
    ]


def test_check_partition():
    assert check_partition([np.array([2, 0]), (1,)], 3) == ((2, 0), (1,))
    with pytest.raises(ArgumentError, match=r"partition\[0\], partition\[2\] is empty"):
        check_partition([[], [0], []], 1)
    with pytest.raises(ArgumentError, match=r"partition\[1\] must be an integer, got 1.0 \(float\)"):
        check_partition([[0], [1.0]], 2)  # pyright: ignore[reportArgumentType] the wrong type is what is tested
    with pytest.raises(ArgumentError, match=r"partition\[0\] must be at least 0, got -1"):
        check_partition([[-1, 0]], 2)
    with pytest.raises(ArgumentError, match="0 to 2 exactly once: 0 occurs 3 times, 2 is missing, 5 is out of range"):
        check_partition([[0, 0, 1], [0, 5]], 3)


def test_agreed_error_lists_few_of_many():
    failures = {rank: Failure("ValueError", f"ValueError: {rank}", "trace") for rank in range(20, 9, -1)}
    lines = str(agreed_error(failures, "agree (call 1)")).splitlines()
    assert lines[0] == "rank 10 failed in agree (call 1): ValueError: 10"
    assert lines[1] == "rank 11 failed too: ValueError: 11"
    assert lines[9] == "2 more ranks failed too"
    assert lines[10:] == ["Traceback of rank 10:", "trace"]


def test_name_ranks():
    assert name_ranks([4]) == "rank 4"
    assert name_ranks(list(range(10))) == "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more"


def test_failure_of_a_peer_error_is_one_line():
    failure = Failure.of(PeerError("rank 1 failed: ValueError: x\nTraceback of rank 1:\n...", rank=1))
    assert failure.summary == "dcpack.errors.PeerError: rank 1 failed: ValueError: x"
    assert "Traceback of rank 1" in failure.trace


def test_failure_keeps_the_end_of_a_long_traceback():
    failure = Failure.of(ValueError("a" * 50_000 + "the end"))
    assert len(failure.summary) == 2_000
    assert len(failure.trace) == 12_000
    assert failure.trace.rstrip().endswith("the end")
