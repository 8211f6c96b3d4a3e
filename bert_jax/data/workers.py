"""Worker processes: light to start, clean to stop, with results in order."""

import multiprocessing
import os
import signal
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from bert_jax.errors import handles_signals

Task = TypeVar("Task")
Result = TypeVar("Result")


def core_count() -> int:
    """The cores that this process may use; where the system does not say (macOS), the machine's."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def worker_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Fresh processes that import only what they are sent, and that end when this one does.

    A new process would otherwise import the program's main module first, and with it JAX where
    that is `train`: so it is hidden from them.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker)
    try:
        yield pool
    finally:
        sys.modules["__main__"] = main
        with _interrupts_held():
            pool.shutdown(cancel_futures=True)


def ordered(
    pool: ProcessPoolExecutor,
    function: Callable[[Task], Result],
    tasks: Iterable[Task],
    window: int,
) -> Iterator[Result]:
    """The results in the order of `tasks`, of which at most `window` are under way.

    Ctrl-C is raised between two tasks or results, in the main thread as ever.
    """
    pending: deque[Future[Result]] = deque()
    for task in tasks:
        with _interrupts_held():
            pending.append(pool.submit(function, task))
        if len(pending) >= window:
            yield _result(pending)
    while pending:
        yield _result(pending)


def _result(pending: deque[Future[Result]]) -> Result:
    with _interrupts_held():
        return pending.popleft().result()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Let Ctrl-C wait for the end of the block.

    Raised inside the pool, it could leave one of its locks taken, and the pool would then never
    shut down. Processes that the block starts have it blocked for good: a terminal sends it to
    all, and the parent stops them.
    """
    if not handles_signals():
        yield  # Ctrl-C is never raised here
        return
    held: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: held.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    if held:
        signal.raise_signal(signal.SIGINT)


def _start_worker() -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one process a core is parallel enough
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent:
        parent.join()
        os._exit(1)  # it was killed: nobody is left to take results or to say stop
