from __future__ import annotations

import inspect

import pytest

from dcpack import errors
from dcpack.errors import ArgumentError, BackendError, DcpackError, InfeasibleError, PeerError, PlanError


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (ArgumentError, ValueError),
        (InfeasibleError, ValueError),
        (PlanError, ValueError),
        (BackendError, RuntimeError),
        (PeerError, RuntimeError),
    ],
)
def test_each_kind_is_ours_and_the_builtin_that_callers_expect(kind: type[Exception], builtin: type[Exception]) -> None:
    with pytest.raises(builtin, match=r"^what happened$") as caught:
        raise kind("what happened")
    assert isinstance(caught.value, DcpackError)


def test_the_kinds_can_be_told_apart() -> None:
    kinds = [ArgumentError, InfeasibleError, PlanError, BackendError, PeerError]
    for kind in kinds:
        assert [other for other in kinds if issubclass(kind, other)] == [kind]


def test_every_error_class_is_public() -> None:
    defined = [name for name, value in vars(errors).items() if inspect.isclass(value)]
    assert sorted(defined) == sorted(errors.__all__)


def test_peer_error_tells_who_and_why() -> None:
    error = PeerError("rank 2 failed: KeyError: 'x'", rank=2, cause="KeyError")
    assert (str(error), error.rank, error.cause) == ("rank 2 failed: KeyError: 'x'", 2, "KeyError")
    nobody = PeerError("calls do not match")
    assert (nobody.rank, nobody.cause) == (None, "")
