"""The step after the present one, made while that trains: in a thread of its own, or when the caller's thread asks.

At most one step is ahead. Where the collectives may run in a thread, one thread makes all steps of a loader, so that
its communicators have one owner. Where they may not, `prefetch_plan` and `prefetch` make the next step by halves, on
the caller's thread; what was not asked for is done when the step is taken.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from dcpack.comm import Communicator
from dcpack.errors import PeerError
from dcpack.loader.batches import Draft, Step, StepMaker
from dcpack.loader.sharing import Planned
from dcpack.loader.stages import Stages

__all__ = ["StepsAhead"]

_log = logging.getLogger(__name__)

# A step that is being made when the loader is closed has so long to end together with those of the other ranks. Then
# its calls are cut off, and it has as long again.
_GRACE_S = 2.0
# After an error in the training the others hear of it in their next call: they are in the same step of the training.
_TELL_S = 30.0


class StepsAhead:
    """Makes the steps of a constructor one after the other, one ahead of what was taken.

    Args:
        maker: of steps. It belongs to this object from now on, but for `begin_epoch` and the like while nothing is
            ahead.
        in_thread: whether steps may be made in a thread.
        communicators: closed with it.
    """

    def __init__(self, maker: StepMaker, *, in_thread: bool, communicators: tuple[Communicator, ...]) -> None:
        self._maker = maker
        self._thread = _WorkThread() if in_thread else None
        self._at = (0, 0)
        self._draft: Draft | None = None
        self._is_planned = False
        self._result: Future[Step | None] | None = None
        self._called_back: Future[Step | None] | None = None  # the result that `when_made` was asked for
        self._has_failed = False
        self._finalizer = weakref.finalize(self, _end, self._thread, maker.stages, communicators)

    def begin(self, epoch: int, step: int) -> None:
        """Say which step is the next; nothing may be ahead."""
        self._at = (epoch, step)
        self._draft, self._is_planned, self._result = None, False, None

    def take(self) -> Step | None:
        """Return the next step, or None at the end of the epoch, and begin the one after it if there is a thread."""
        self.prefetch()
        assert self._result is not None
        result = self._result
        try:
            step = result.result()
        finally:
            self._has_failed = result.done() and result.exception() is not None
            self._draft, self._is_planned, self._result, self._called_back = None, False, None, None
        self._at = (self._at[0], self._at[1] + 1)
        if step is not None and self._thread is not None:
            self.prefetch()
        return step

    def prefetch_plan(self) -> None:
        """Read and plan the next step, if that is not done yet; with a thread: begin it there."""
        if self._thread is not None:
            self.prefetch()
        elif not self._is_planned:
            with self._failing():
                self._draft = self._maker.plan_step(*self._at)
            self._is_planned = True

    def prefetch(self) -> None:
        """Make the next step ready, if that is not done yet; with a thread: begin it there."""
        if self._result is not None:
            return
        if self._thread is not None:
            epoch, step = self._at
            self._result = self._thread.submit(_Making(self._maker, epoch, step))
            return
        self.prefetch_plan()
        with self._failing():
            step = _built(self._draft, self._maker.stages)
        self._result = Future()
        self._result.set_result(step)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._has_failed = True
            raise

    def peek(self) -> Planned | None:
        """Wait for what is ahead and return its plans; None where nothing is, or the epoch ends."""
        if self._result is not None:
            step = self._result.result()
            return None if step is None else step.planned
        return None if self._draft is None else self._draft.planned

    def made(self) -> Step | None:
        """Return the step that is ahead if it is made; None if it is not, or failed, or the epoch ends."""
        return None if self._result is None or not self._result.done() else _step_of(self._result)

    def when_made(self, callback: Callable[[Step], None]) -> None:
        """Have `callback`, which raises nothing, called with the step that is ahead, in the thread that makes it.

        Once for each step, however often this is asked for.
        """

        def call(result: Future[Step | None]) -> None:
            if (step := _step_of(result)) is not None:
                callback(step)

        if self._result is not None and self._result is not self._called_back:
            self._called_back = self._result
            self._result.add_done_callback(call)

    def tell(self, error: BaseException) -> None:
        """Have the other constructors learn of an error here; of a step that failed they have heard.

        A thread tells them while this one goes on; without one they are waited for.
        """
        if self._has_failed:
            if self._thread is not None:
                self._thread.take_no_more()
            return
        telling = _Telling(self._maker, error)
        if self._thread is None:
            telling()
        else:
            self._thread.is_telling = True
            # An interrupt reaches all ranks by itself, and is meant to end this one now.
            self._thread.is_patient = isinstance(error, Exception)
            self._thread.submit(telling)
            self._thread.take_no_more()

    def close(self) -> None:
        """End the thread, and close the communicators; whatever it does. Any number of times."""
        self._finalizer()
        self._draft = self._result = self._called_back = None


def _step_of(result: Future[Step | None]) -> Step | None:
    """Return the step in a future that is done."""
    return None if result.cancelled() or result.exception() is not None else result.result()


class _Making:
    """A step to be made in the thread."""

    def __init__(self, maker: StepMaker, epoch: int, step: int) -> None:
        self._maker, self._at = maker, (epoch, step)

    def __call__(self) -> Step | None:
        return _built(self._maker.plan_step(*self._at), self._maker.stages)


class _Telling:
    """An error that the others are to hear of."""

    def __init__(self, maker: StepMaker, error: BaseException) -> None:
        self._maker, self._error = maker, error

    def __call__(self) -> None:
        with contextlib.suppress(PeerError):
            self._maker.tell(self._error)


def _built(draft: Draft | None, stages: Stages) -> Step | None:
    step = None if draft is None else draft.build()
    spans = stages.take()
    return None if step is None else replace(step, spans=spans)


class _WorkThread:
    """A thread that does one job after the other, until one fails; it is started with the first.

    It holds nothing between two jobs, so that a loader can be collected.

    Attributes:
        is_telling: whether its last job is to tell of an error.
        is_patient: whether that may take as long as a step of the training.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self.is_telling = self.is_patient = False
        self._thread = threading.Thread(target=_serve, args=(self._jobs,), name="dcpack-loader", daemon=True)

    def submit(self, job: Callable[[], Any]) -> Future[Any]:
        """Have `job` done after all others; its result or error comes through the future."""
        if self._thread.ident is None:
            self._thread.start()
        future: Future[Any] = Future()
        self._jobs.put((future, job))
        return future

    def take_no_more(self) -> None:
        """Let it end after its last job, whether or not anybody closes the loader."""
        if self._thread.ident is not None:
            self._jobs.put(None)

    def end(self, seconds: float) -> bool:
        """Let it end after its last job; return whether it has, after so many seconds at most.

        It may end itself, where it is the one that collects a loader: then it does when it is back from here.
        """
        if self._thread.ident is None:
            return True
        self._jobs.put(None)
        if self._thread is threading.current_thread():
            return True
        self._thread.join(seconds)
        return not self._thread.is_alive()


def _serve(jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]) -> None:
    has_failed = False
    while (item := jobs.get()) is not None:
        future, job = item
        if has_failed:
            future.cancel()
        else:
            try:
                future.set_result(job())
            except BaseException as error:
                has_failed = True
                future.set_exception(error)
        del item, future, job  # or a closed loader would live on in this frame


def _end(thread: _WorkThread | None, stages: Stages, communicators: tuple[Communicator, ...]) -> None:
    """End what a loader started; also called when it is collected, and at the end of the program."""
    if thread is None or not thread.is_telling:  # else the step that is being made goes on, to the telling behind it
        stages.stop()
    has_ended = thread is None or thread.end(_GRACE_S)
    if not has_ended and thread is not None and thread.is_patient:
        _log.warning(
            "an error is told to the other ranks: waiting until they take their next step, %g s at most", _TELL_S
        )
        has_ended = thread.end(_TELL_S)
    for communicator in communicators:
        communicator.close()
    if not has_ended and thread is not None and not thread.end(_GRACE_S):
        _log.warning("the thread of a closed loader is still in the user's code; it ends when that returns")
