"""A contender in a process of its own: it gets ready once, then works each time it is asked to.

    python -m benchmarks.worker MODULE '{"size": "tiny", ...}'

MODULE has a `prepare(**settings)` that returns a function without arguments, the work; where that
only sets a device to work, MODULE's `wait` takes what it returns. A line "n" on standard input asks
for n times the work; the answer is the seconds that it took. At the end of the input the answer is
the peak of memory in bytes, of a GPU where the work was on one. All is JSON on standard output.
"""

import importlib
import json
import os
import resource
import sys
import time
from typing import Any


def main() -> None:
    # What libraries print goes elsewhere: this stream is for answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(value: Any) -> None:
        answers.write(json.dumps(value) + "\n")

    begun = time.perf_counter()
    module: Any = importlib.import_module(sys.argv[1])
    work, wait = module.prepare(**json.loads(sys.argv[2])), getattr(module, "wait", lambda _: None)
    wait(work())
    answer(time.perf_counter() - begun)
    for line in sys.stdin:
        begun = time.perf_counter()
        for _ in range(int(line)):
            done = work()
        wait(done)
        answer(time.perf_counter() - begun)
    answer(_peak_memory())


def _peak_memory() -> int:
    torch: Any = sys.modules.get("torch")
    if torch and torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated()
    if os.environ.get("JAX_PLATFORMS") == "cuda":
        import jax

        return jax.devices()[0].memory_stats()["peak_bytes_in_use"]
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


if __name__ == "__main__":
    main()
