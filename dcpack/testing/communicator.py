"""The conformance suite of communicators: what a back end must do, as checks that its author can run.

Each check is a function of a communicator that every rank of a fresh group runs; it raises AssertionError where the
result is wrong. They are module-level functions, so that launchers of processes can send them by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from dcpack._checks import check_choice, check_int, check_items, check_kinds, check_names
from dcpack.comm import Communicator
from dcpack.errors import ArgumentError
from dcpack.testing.communicator_errors import ERROR_CHECKS
from dcpack.testing.communicator_groups import GROUP_CHECKS
from dcpack.testing.communicator_trees import TREE_CHECKS
from dcpack.testing.communicator_verbs import VERB_CHECKS

__all__ = ["COMMUNICATOR_CHECKS", "check_communicator", "run_communicator_check"]

COMMUNICATOR_CHECKS: dict[str, Callable[[Communicator], None]] = {
    check.__name__: check for check in (*VERB_CHECKS, *TREE_CHECKS, *ERROR_CHECKS, *GROUP_CHECKS)
}
"""All checks by name. They need the package `ml_dtypes`, and hold for groups of any size."""


def run_communicator_check(name: str, communicator: Communicator) -> tuple[str, int, int]:
    """Run one check on one rank and return its name, the rank and the size: the proof that it ran.

    Args:
        name: one of `COMMUNICATOR_CHECKS`.
        communicator: of this rank.

    Returns:
        `name`, the rank, and the size.

    Raises:
        AssertionError: the back end breaks the contract.

    Example:
        >>> from dcpack.comm import FakeBackend
        >>> run_communicator_check("barrier", FakeBackend().world())
        ('barrier', 0, 1)
    """
    check_kinds(communicator=(communicator, Communicator))
    COMMUNICATOR_CHECKS[check_choice("name", name, COMMUNICATOR_CHECKS)](communicator)
    return name, communicator.rank, communicator.size


def check_communicator(
    run: Callable[[int, Callable[[Communicator], Any]], Sequence[Any]],
    sizes: Sequence[int] = (1, 2, 3, 4),
    names: Sequence[str] | None = None,
) -> None:
    """Run the checks on groups of all `sizes`, as the author of a back end would in a test.

    Args:
        run: ``run(size, fn)`` calls ``fn(communicator)`` on each of `size` ranks of a fresh group, and returns the
            results by rank, such as `dcpack.comm.run_ranks`. `fn` can be pickled.
        sizes: sizes of the groups.
        names: keys of `COMMUNICATOR_CHECKS`; None for all.

    Raises:
        AssertionError: a check failed, or did not run on every rank.

    Example:
        >>> from dcpack.comm import run_ranks
        >>> check_communicator(run_ranks, sizes=(2,), names=["all_gather_uneven", "split_halves"])
        >>> check_communicator(lambda size, fn: [], sizes=(2,), names=["barrier"])
        Traceback (most recent call last):
        ...
        AssertionError: check 'barrier' on 2 ranks: expected to run on ranks 0 to 1 of 2, but it came back from []
    """
    names = list(COMMUNICATOR_CHECKS if names is None else check_names("names", names))
    sizes = [check_int("sizes", size, minimum=1) for size in check_items("sizes", sizes)]
    check_kinds(run=(run, Callable))
    if not names or not sizes:
        raise ArgumentError(f"nothing to check: sizes {sizes}, names {names}")
    for size in sizes:
        for name in names:
            check_choice("names", name, COMMUNICATOR_CHECKS)
            try:
                proofs = list(run(size, partial(run_communicator_check, name)))
            except Exception as error:
                raise AssertionError(f"check {name!r} on {size} ranks: {error}") from error
            if [tuple(proof) for proof in proofs] != [(name, rank, size) for rank in range(size)]:
                raise AssertionError(
                    f"check {name!r} on {size} ranks: expected to run on ranks 0 to {size - 1} of {size}, but it came "
                    f"back from {proofs}"
                )
