"""The training loop: steps, their metrics, evaluations and checkpoints, until the end or a stop.

It knows nothing of where batches come from or what the model predicts, so that every kind of
training runs through it.
"""

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax.config import Config
from bert_jax.training.checkpoints import Checkpoints
from bert_jax.training.clock import Clock
from bert_jax.training.console import Progress, evaluation_line
from bert_jax.training.evaluation import mean_metrics
from bert_jax.training.flops import peak_flops
from bert_jax.training.metrics import MetricsWriter
from bert_jax.training.optimizer import learning_rate_schedule
from bert_jax.training.sharding import shard_batch
from bert_jax.training.state import TrainState
from bert_jax.training.stopping import StopRequest

# Batches on their way to the devices while a step runs.
_BATCHES_AHEAD = 2
# Steps that the host may have started and not seen the end of.
_STEPS_AHEAD = 2


@dataclasses.dataclass(frozen=True)
class Run:
    """What the stretches of a run share."""

    config: Config
    mesh: Mesh
    train_step: Any  # jitted
    clock: Clock
    writer: MetricsWriter
    progress: Progress
    checkpoints: Checkpoints
    stop: StopRequest


@dataclasses.dataclass(frozen=True)
class Stretch:
    """Steps whose batches have one shape: a phase.

    phase: its number, from 0.
    end: the run's step at which it ends.
    tokens: positions of a global batch, padding included.
    flops: of a step, over all devices.
    """

    phase: int
    end: int
    tokens: int
    flops: float


def train_steps(
    run: Run,
    stretch: Stretch,
    state: TrainState,
    host_batches: Iterable[Mapping[str, np.ndarray]],
    evaluation: Callable[[Any], dict[str, float]],
    baseline: Mapping[str, float],
) -> TrainState:
    """Train from the state's step to the end of the stretch, or until the run is to stop.

    Args:
      run: what the stretches share.
      stretch: where it ends, and what a step of it costs.
      state: it is consumed.
      host_batches: this process's rows of the batches, from the state's step on.
      evaluation: from parameters to the means of the held-out metrics.
      baseline: what a trivial model scores there, to print beside it.
    """
    config, clock = run.config, run.clock
    step, end = int(state.step), stretch.end
    with clock("pipeline"):
        batches = _on_devices(host_batches, run.mesh)
        batch = next(batches)
    with clock("compile"):
        train_step = run.train_step.lower(state, batch).compile()
    schedule = learning_rate_schedule(config.optimizer, config.total_steps)
    window = Window(clock, stretch)
    while step < end and not run.stop.pending:
        with clock("train"):
            state, metrics, grad_norm = train_step(state, batch)
            window.add(metrics, grad_norm)
        step += 1
        if step < end:
            with clock("input"):
                batch = next(batches)
        if step % config.log_every == 0 or step == end:
            record = window.record(step) | {"learning_rate": np.asarray(schedule(step - 1)).item()}
            run.writer.write(record)
            run.progress.update(step, record)
        if step % config.eval_every == 0 or step == end:
            with clock("train"):
                jax.block_until_ready(state)
            with clock("eval"):
                means = evaluation(state.params)
            record = {"kind": "eval", "step": step, "phase": stretch.phase} | means
            run.writer.write(record)
            run.progress.print(evaluation_line(record, baseline))
        if step % config.checkpoint_every == 0 or step == end:
            with clock("checkpoint"):
                run.checkpoints.save(state, step, {})
    return state


class Window:
    """The steps since the last "train" record: their metrics, still on the devices, and time."""

    def __init__(self, clock: Clock, stretch: Stretch) -> None:
        self._clock, self._stretch = clock, stretch
        peak = peak_flops(jax.devices()[0].device_kind)
        self._peak = peak and peak * jax.device_count()
        self._restart()

    def _restart(self) -> None:
        self._metrics: list[Any] = []
        self._norms: list[jax.Array] = []
        self._began = {cause: self._clock.seconds[cause] for cause in ("train", "input")}

    def add(self, metrics: Any, grad_norm: jax.Array) -> None:
        """Add a step, and wait for the one two before it, so that the host does not run ahead."""
        self._metrics.append(metrics)
        self._norms.append(grad_norm)
        if len(self._norms) > _STEPS_AHEAD:
            self._norms[-1 - _STEPS_AHEAD].block_until_ready()

    def record(self, step: int) -> dict[str, Any]:
        """The "train" record of the window, which then starts anew."""
        with self._clock("train"):
            norms = np.array(jax.device_get(self._norms), np.float64)
        means = mean_metrics(self._metrics)
        spent = {cause: self._clock.seconds[cause] - began for cause, began in self._began.items()}
        seconds, steps = sum(spent.values()), len(norms)
        record = {
            "kind": "train",
            "step": step,
            "phase": self._stretch.phase,
            "loss": means["mlm_loss"] + means.get("nsp_loss", 0.0),
            **means,
            "grad_norm": float(norms.mean()),
            "tokens_per_second": self._stretch.tokens * steps / seconds,
            "mfu": self._stretch.flops * steps / seconds / self._peak if self._peak else None,
            "input_wait": spent["input"] / seconds,
        }
        self._restart()
        return record


def _on_devices(
    batches: Iterable[Mapping[str, np.ndarray]], mesh: Mesh
) -> Iterator[dict[str, jax.Array]]:
    """The batches as sharded arrays, copied ahead of their use."""
    ahead: deque[dict[str, jax.Array]] = deque()
    for batch in batches:
        ahead.append(shard_batch(mesh, batch))
        if len(ahead) > _BATCHES_AHEAD:
            yield ahead.popleft()
    yield from ahead
