"""Where the wall time of a run goes, by cause."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Adds up seconds by cause."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, cause: str) -> Iterator[None]:
        """Count the time of a `with` block under `cause`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[cause] += time.perf_counter() - start
