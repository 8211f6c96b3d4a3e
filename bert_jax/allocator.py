"""How glibc hands out memory to a process that trains on a CPU.

The arrays of a step are freed and allocated again in the next. glibc gives large ones back to the
system every time; kept, and on huge pages, a step of a small model is 1.3 to 1.5 times as fast
(both together: either alone does nothing; docs/cpu_path.md). glibc reads its settings when a
process starts and not later, so that a process can only set them by starting once more. They are
for the memory of the main thread: what another takes and frees is given back all the same.
"""

import os
import signal
import sys

from bert_jax.training.stopping import SIGNALS

SETTINGS = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
    "MALLOC_TOP_PAD_": str(1 << 28),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
_OFF = "BERT_JAX_ALLOCATOR"


def restart_with_allocator() -> None:
    """Start this process once more, its allocator set, where that pays: on Linux, on a CPU.

    To be called before anything is done that should not be done twice. A setting of the user's
    stays; BERT_JAX_ALLOCATOR=default leaves all as they are. A signal that comes meanwhile waits
    until the new process calls this.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    if sys.platform != "linux" or os.environ.get("JAX_PLATFORMS", "cpu") != "cpu":
        return
    missing = {name: value for name, value in SETTINGS.items() if name not in os.environ}
    if not missing or os.environ.get(_OFF) == "default":
        return
    print(
        "allocator: large blocks are kept, on huge pages (BERT_JAX_ALLOCATOR=default: glibc's way)",
        file=sys.stderr,
        flush=True,
    )
    # Both blocks and what they hold back outlive `execve`, which the handlers of signals do not.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | missing)


def take_memory_in_main_thread() -> None:
    """Have the thread that calls a program on a CPU run it, and take the memory for it.

    By itself JAX leaves that to a thread of its own, and the caller only waits. Programs over
    several devices have threads of their own either way. For pretraining, whose steps have one
    shape or two: where they have many, as in fine-tuning, the memory that is kept comes to up
    to 1.6 times as much (docs/cpu_path.md). To be called before JAX sees a device.
    """
    # Only now: `restart_with_allocator` comes before what takes seconds to import.
    import jax

    jax.config.update("jax_cpu_enable_async_dispatch", False)
