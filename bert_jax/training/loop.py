"""The training loop: steps, their metrics, evaluations and checkpoints, until the end or a stop.

It knows nothing of where batches come from or what the model predicts, so that every kind of
training runs through it.
"""

import dataclasses
import shlex
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from bert_jax.config import Config, RunConfig
from bert_jax.errors import TrainingFailure
from bert_jax.training.checkpoints import Checkpoints
from bert_jax.training.clock import TRAIN, Clock
from bert_jax.training.console import Progress
from bert_jax.training.metrics import MetricsWriter
from bert_jax.training.optimizer import learning_rate_schedule
from bert_jax.training.sharding import shard_batch
from bert_jax.training.state import TrainState
from bert_jax.training.stopping import Stopped
from bert_jax.training.window import Stretch, Window

# Batches on their way to the devices while a step runs.
_BATCHES_AHEAD = 2


@dataclasses.dataclass(frozen=True)
class Run:
    """What the stretches of a run share."""

    directory: Path
    config: RunConfig
    mesh: Mesh
    train_step: Any  # jitted
    clock: Clock
    window: Window
    writer: MetricsWriter
    progress: Progress
    checkpoints: Checkpoints
    stop_due: Callable[[], bool]  # whether to stop here; asked alike by all processes
    ending: Callable[[], AbstractContextManager[None]]  # see `Cluster.ending_alone`
    begin: Callable[[str], None]  # see `Watchdog.begin`
    score: str = ""  # the metric of evaluations by which a state is best, if any is; more is better
    # The train step for each shape of batch that has come.
    compiled: dict[Any, Any] = dataclasses.field(default_factory=dict)


def train_steps(
    run: Run,
    stretch: Stretch,
    state: TrainState,
    host_batches: Iterable[Mapping[str, np.ndarray]],
    evaluation: Callable[[int, Any], dict[str, float]],
    evaluation_text: Callable[[Mapping[str, Any]], str],
) -> TrainState:
    """Train from the state's step to the end of the stretch, or until the run is to stop.

    An evaluation that was due at the state's step, and that the checkpoint does not know of, comes
    first.

    Args:
      run: what the stretches share.
      stretch: where it ends, and what a position of its batches costs.
      state: it is consumed.
      host_batches: this process's rows of the batches, from the state's step on.
      evaluation: from a step and its parameters to the means of the held-out metrics; raises
        `Stopped` where the run is to stop: then no record is written, and the resumed run does it
        first.
      evaluation_text: what a person is told of an "eval" record.

    Raises:
      TrainingFailure: too many steps in a row were skipped.
    """
    config, clock, window = run.config, run.clock, run.window
    step, end = int(state.step), stretch.end

    def is_due(every: int) -> bool:
        return step % every == 0 or step == end

    def evaluate() -> None:
        run.begin("compile")
        try:
            with clock("eval"):
                means = evaluation(step, state.params)
        except Stopped:
            return
        record = {"kind": "eval", "step": step, "phase": stretch.phase} | means
        run.writer.write(record)
        run.progress.print(evaluation_text(record))
        window.evaluated = step
        _note_best(run, step, means.get(run.score))

    if is_due(config.eval_every) and window.evaluated != step:
        evaluate()
    if step == end:
        return state
    run.begin("compile")
    with clock("pipeline"):
        batches = _on_devices(host_batches, run.mesh)
        batch = next(batches)
    seed = np.uint32(config.seed)
    schedule = learning_rate_schedule(config.optimizer, config.total_steps)
    while step < end and not run.stop_due():
        train_step = _compiled(run, state, batch, seed)
        run.begin("step")
        # Packed for fine-tuning, it is computed in the rows of `places`.
        positions = batch.get("places", batch["input_ids"]).size
        with clock(TRAIN):
            state, metrics, outcome = train_step(state, batch, seed)
            step += 1
            window.add(step, positions, metrics, outcome)
        if step < end:
            with clock("input"):
                batch = next(batches)
        if any(map(is_due, (config.log_every, config.eval_every, config.checkpoint_every))):
            window.settle()
        _tell_skips(run)
        _tell_metrics(run, stretch, schedule, step, is_due(config.log_every))
        if is_due(config.eval_every):
            evaluate()
        # In a row of skipped steps the state may be ruined: the last good checkpoints stay. The
        # best state is what the run ends with, and its score tells that it is sound.
        best = run.window.best is not None and run.window.best[0] == step
        if best or (is_due(config.checkpoint_every) and not window.in_row):
            save_checkpoint(run, state, step)
    return state


def _tell_metrics(
    run: Run, stretch: Stretch, schedule: optax.Schedule, step: int, due: bool
) -> None:
    """Log a record where it is `due`; between two, show now and then what there is of the next."""
    if due:
        # The schedule counts the steps that were not skipped.
        rate = schedule(max(step - run.window.skipped - 1, 0))
        record = run.window.record(step, stretch) | {"learning_rate": np.asarray(rate).item()}
        run.writer.write(record)
        run.progress.update(step, record)
    elif run.progress.due():
        run.progress.update(step, run.window.so_far(step, stretch))


def _note_best(run: Run, step: int, score: float | None) -> None:
    """Note the best evaluation, whose checkpoint stays."""
    if score is not None and run.window.would_be_best(score):
        run.window.best = step, score


def _compiled(
    run: Run, state: TrainState, batch: Mapping[str, jax.Array], seed: np.uint32
) -> Callable[..., Any]:
    """The train step for batches of this shape."""
    shape = tuple((name, array.shape) for name, array in batch.items())
    if shape not in run.compiled:
        # Else the steps that are under way are done meanwhile, in what is told to be compilation.
        run.window.settle()
        run.begin("compile")
        # Before the first step there is nothing to save, and no reason to wait for the compiler.
        interruptible = nullcontext() if run.compiled else run.ending()
        with run.clock("compile"), interruptible:
            run.compiled[shape] = run.train_step.lower(state, batch, seed).compile()
    return run.compiled[shape]


def before_scoring(run: Run, limit: str, told: str) -> None:
    """Before each batch that is scored: keep the watchdog quiet, and show how far it is.

    Args:
      run: whose model is scored.
      limit: of the watchdog, for the batch.
      told: how far it is.

    Raises:
      Stopped: the run is to stop.
    """
    if run.stop_due():
        raise Stopped
    run.begin(limit)
    run.progress.note(told)


def save_checkpoint(run: Run, state: TrainState, step: int) -> None:
    """Begin to save the state of `step`, and what the window holds, and take the time.

    Raises:
      TrainingFailure: too many steps in a row were skipped, or a parameter is not finite.
      UserError: as `Checkpoints.save`.
    """
    settle(run)
    run.begin("save")
    with run.clock("checkpoint"):
        if not _all_finite(state.params):
            raise TrainingFailure(
                f"the parameters of step {step} are not finite: no checkpoint was written of "
                f"them; lower config.optimizer.learning_rate, in another --workdir"
            )
        run.checkpoints.save(state, step, run.window.state())
    run.writer.write(run.clock.record(step))


def settle(run: Run) -> None:
    """Wait for all steps, and log those that were skipped.

    Raises:
      TrainingFailure: too many in a row were skipped.
    """
    run.window.settle()
    _tell_skips(run)


@jax.jit
def _all_finite(params: Any) -> jax.Array:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(params)]))


def _tell_skips(run: Run) -> None:
    """Log the steps that were skipped; too many in a row end the run."""
    for record in run.window.new_skips():
        run.writer.write(record)
        step, in_row = record["step"], record["in_row"]
        run.progress.print(f"step {step:,} skipped: {record['reason']}")
        if in_row >= run.config.optimizer.max_skipped:
            first = step - in_row + 1
            raise TrainingFailure(
                f"{in_row} steps in a row were skipped, from step {first} on: {record['reason']}; "
                f"no checkpoint was written of them. {_look_at(run, first)}"
                "lower config.optimizer.learning_rate, in another --workdir"
            )


def _look_at(run: Run, step: int) -> str:
    """How to see the batch of a step, for the start of a sentence; of pretraining alone."""
    if not isinstance(run.config, Config):
        return ""
    return (
        f"python -m bert_jax.batch {shlex.quote(str(run.directory))} --step={step} prints the "
        "first one's batch; should that be sound, "
    )


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
