"""Conformance suites: the checks that a new back end must pass, to be run from its own tests."""

from __future__ import annotations

from dcpack.testing.communicator import COMMUNICATOR_CHECKS, check_communicator, run_communicator_check

__all__ = ["COMMUNICATOR_CHECKS", "check_communicator", "run_communicator_check"]
