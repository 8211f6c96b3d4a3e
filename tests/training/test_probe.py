"""The probe times a real product."""

import jax
import numpy as np
import pytest

from bert_jax.training.probe import expected_speed


def test_the_expected_speed_is_a_share_of_what_a_product_reaches(monkeypatch):
    """A clock that gives each reading 1 s after the last: three products of 2 * 1024^3 a second."""
    readings = iter(range(100))
    monkeypatch.setattr("time.perf_counter", lambda: next(readings))
    assert jax.default_backend() == "cpu"
    for dtype in ("float32", "bfloat16"):
        np.testing.assert_allclose(expected_speed(dtype), 0.4 * 3 * 2 * 1024**3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_timed_is_done_and_not_compiling_and_counts_for_every_device(dtype, monkeypatch):
    """Of accelerators, which compute while the program goes on, in all processes together."""
    told: list[str] = []

    class Product:
        def block_until_ready(self) -> None:
            told.append("done")

    def multiply(left: jax.Array, right: jax.Array) -> Product:
        told.append(f"{left.dtype} * {right.dtype}")
        return Product()

    def clock() -> float:
        told.append("clock")
        return float(len(told))

    monkeypatch.setattr("jax.jit", lambda function: multiply)
    monkeypatch.setattr("time.perf_counter", clock)
    monkeypatch.setattr("jax.default_backend", lambda: "tpu")
    monkeypatch.setattr("jax.device_count", lambda: 16)
    speed = expected_speed(dtype)
    product = f"{dtype} * {dtype}"
    assert told == [product, "done", "clock", *[product] * 3, "done", "clock"]
    np.testing.assert_allclose(speed, 0.4 * 16 * 3 * 2 * 2048**3 / 5)
