"""A contender in a process of its own: it gets ready once, then works each time it is asked to.

    python -m benchmarks.worker MODULE '{"size": "tiny", ...}'

MODULE has a `prepare(**settings)` that returns a function without arguments, the work. A line "n"
on standard input asks for n times the work; the answer is the seconds that it took. At the end of
the input the answer is the peak of the process's memory in bytes. All is JSON on standard output.
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
    work = importlib.import_module(sys.argv[1]).prepare(**json.loads(sys.argv[2]))
    work()
    answer(time.perf_counter() - begun)
    for line in sys.stdin:
        begun = time.perf_counter()
        for _ in range(int(line)):
            work()
        answer(time.perf_counter() - begun)
    answer(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)


if __name__ == "__main__":
    main()
