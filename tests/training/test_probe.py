"""The probe times a real product."""

import jax
import numpy as np

from bert_jax.training.probe import expected_speed


def test_the_expected_speed_is_a_share_of_what_a_product_reaches(monkeypatch):
    """A clock that gives each reading 1 s after the last: three products of 2 * 2048^3 a second."""
    readings = iter(range(100))
    monkeypatch.setattr("time.perf_counter", lambda: next(readings))
    assert jax.default_backend() == "cpu"
    for dtype in ("float32", "bfloat16"):
        np.testing.assert_allclose(expected_speed(dtype), 0.4 * 3 * 2 * 2048**3)
