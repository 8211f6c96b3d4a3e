"""What would fit, with memory that follows a formula instead of a compiler."""

import jax
import pytest
from small_run import get_config

from bert_jax.planning import fitting
from bert_jax.planning.fitting import largest_batch, remedies

STATE = 1000.0


@pytest.fixture
def compiled(monkeypatch) -> list[float]:
    """Bytes of each compilation asked for."""
    found: list[float] = []
    kept = {"none": 100.0, "dots": 60.0, "full": 20.0}

    def memory_of(config, phase, devices):
        rows = phase.batch_size / len(devices) / config.optimizer.accumulate
        found.append(STATE + rows * kept[config.model.remat] + 0.1 * rows**2)
        return found[-1]

    monkeypatch.setattr(fitting, "memory_of", memory_of)
    return found


@pytest.mark.parametrize("limit", [1250.0, 2000.0, 10_000.0])
def test_the_largest_batch_fits_and_one_a_little_larger_does_not(compiled, limit):
    config = get_config()
    taken = STATE + 2 * 100 + 0.1 * 4
    batch = largest_batch(config, config.phases[0], jax.devices(), limit, taken)

    def memory(rows: float) -> float:
        return STATE + rows * 100 + 0.1 * rows**2

    assert memory(batch) <= limit < memory(batch * 16 / 15 + 1)
    assert len(compiled) <= 4


def test_the_cheapest_remedies_are_named(compiled):
    config = get_config()
    found = remedies(config, config.phases[0], jax.devices(), STATE + 130)
    assert list(found) == ["--config.model.remat=dots", "--config.optimizer.accumulate=2"]
    assert all(taken <= STATE + 130 for taken in found.values())


def test_only_full_rematerialisation_helps(compiled):
    config = get_config()
    found = remedies(config, config.phases[0], jax.devices(), STATE + 50)
    assert list(found) == ["--config.model.remat=full"]


def test_nothing_helps_where_the_state_is_too_large(compiled):
    config = get_config()
    assert remedies(config, config.phases[0], jax.devices(), STATE) == {}
