"""How many workers there are."""

import os

from bert_jax.data.workers import core_count


def test_cores_are_those_that_the_process_may_use(monkeypatch):
    assert core_count() == len(os.sched_getaffinity(0))
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    assert core_count() == os.cpu_count()
