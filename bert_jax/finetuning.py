"""Fine-tuning, from a pretrained model and examples to a scored model and its report.

A run lives in its directory: config, tokenizer, checkpoints, metrics; and once it is done, model,
predictions, scores and report. What finetune.py runs, alike in each process of a run.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from bert_jax.data.tokenization import Tokenizer
from bert_jax.errors import UserError
from bert_jax.finetune_config import FinetuneConfig
from bert_jax.finetune_data import Data, epoch_plan, host_batches, read_data
from bert_jax.finetune_results import (
    closing_summary,
    header,
    write_model,
    write_results,
)
from bert_jax.finetune_scoring import Scoring
from bert_jax.interop import Weights, load_params, load_weights
from bert_jax.interop.init_from import adopted_model, check_same_weights, told_start
from bert_jax.models.attention import check_attention
from bert_jax.report import write_report
from bert_jax.tasks.inference import Inference
from bert_jax.tasks.objective import task_objective
from bert_jax.training.checkpoints import Checkpoints
from bert_jax.training.clock import Clock
from bert_jax.training.cluster import SAME_FILES, Cluster
from bert_jax.training.compilation import keep_compiled_programs
from bert_jax.training.console import figure
from bert_jax.training.flops import finetuning_flops_per_token
from bert_jax.training.loop import Run, train_steps
from bert_jax.training.metrics import write_environment
from bert_jax.training.optimizer import make_optimizer
from bert_jax.training.program import training_program
from bert_jax.training.rates import layer_rate, with_rates
from bert_jax.training.run_directory import open_run_directory
from bert_jax.training.seal import Damage
from bert_jax.training.session import Session, in_session, open_run, save_last
from bert_jax.training.sharding import (
    batch_parts,
    check_mesh,
    make_mesh,
    process_rows,
    replicated,
)
from bert_jax.training.state import TrainState, begin_state
from bert_jax.training.stopping import STOPPED, Stopped, StopRequest
from bert_jax.training.window import Stretch, Window
from bert_jax.training.xla_options import check_xla_options

Params = Any


def finetune(
    config: FinetuneConfig,
    directory: Path,
    clock: Clock | None = None,
    detect_processes: bool = False,
    stop: StopRequest | None = None,
) -> bool:
    """Fine-tune by `config` in `directory`, or go on with the run that is there.

    Meanwhile SIGINT, SIGTERM and SIGHUP do not end the process, but ask it to stop.

    Args:
      config: validated; the run directory gets it with what was learnt of the examples.
      directory: of the run, made where it is missing; the same to all processes.
      clock: started with the process; now by default.
      detect_processes: see `join_cluster`.
      stop: of all that the process does; the run's own by default.

    Returns:
      Whether the run is finished; False where a signal stopped it and it can be resumed.

    Raises:
      UserError: a bad setting, model, example or run directory; a disk or a memory that is full.
    """
    with in_session(config.limits, directory, clock, detect_processes, stop) as session:
        return _finetune(config, session)


def _finetune(config: FinetuneConfig, session: Session) -> bool:
    directory, clock = session.directory, session.clock
    keep_compiled_programs()

    # 1. The model to begin with, its vocabulary, and the devices.
    weights = load_weights(config.init_from)
    if len(config.task.columns) > 1:
        weights.check_pairs()
    tokenizer = _tokenizer(weights, config.task.max_length)
    model = adopted_model(config.model, weights)
    config = dataclasses.replace(config, model=model)
    if config.freeze_layers > model.num_hidden_layers:
        raise UserError(
            f"config.freeze_layers={config.freeze_layers}: {weights.source} has "
            f"{model.num_hidden_layers} layers; -1 is all of them"
        )
    mesh = make_mesh(config.mesh)
    check_mesh(config, {"config.batch_size": config.batch_size}, mesh)
    check_attention(config.model, mesh.devices.flat[0].platform)
    check_xla_options(config.xla_options, mesh)
    session.check_same_settings(config)

    # 2. Examples, and what is learnt of them: labels, and so the head and the number of steps.
    with clock("reading"):
        data = read_data(config, tokenizer, batch_parts(mesh))
    session.cluster.check_same("set of examples", data.all_fingerprint, SAME_FILES)
    config = _resolved(config, data)
    task = config.task

    # 3. The run directory: this run's, or one that matches.
    if not _open(session, config, data, tokenizer):
        return False

    # 4. The state: of the newest checkpoint, else of the given weights, else from scratch.
    session.watchdog.begin("compile")
    rate = _rate(config)
    with jax.set_mesh(mesh):
        objective = task_objective(task, task.model(config.model), data.train[0], rate)
        optimizer = with_rates(make_optimizer(config.optimizer, config.total_steps), rate)
        _, _, abstract, train_step = training_program(config, objective, optimizer, mesh)
        checkpoints = Checkpoints(directory, config.keep_checkpoints)
        given = functools.partial(_with_weights, config, weights, session.cluster)
        with session.cluster.ending_alone():
            state, stored = begin_state(
                checkpoints, objective, optimizer, abstract, config.seed, given
            )
        window = Window(clock, stored)
        step = int(state.step)
        inference = Inference(
            lambda params, batch: objective.forward(params, batch, None),
            tokenizer.pad_id,
            config.batch_size // config.optimizer.accumulate,
            mesh,
            longest=task.max_length,
            sizes=data.scored_sizes(config),
        )
    if session.first:
        print(header(config, data, mesh.shape, state.params, rate, step))

    # 5. Train epoch by epoch, until the end or until dev gets no better.
    left = functools.partial(_seconds_left, config)
    with open_run(
        session, config, mesh, train_step, step, window, checkpoints, left, score=task.score
    ) as run:
        scoring = Scoring(run, data, inference)
        for epoch in range(config.epochs):
            if not _ended_early(config, data, window, epoch):
                state = _train_epoch(run, config, data, epoch, state, scoring, tokenizer.pad_id)
        save_last(run, state)

        # 6. What the best state says of dev and test; a run that is stopped leaves at once.
        session.watchdog.begin("compile")
        with clock("report"):
            finished = _finish(run, session, config, data, state, abstract, scoring, tokenizer)
        run.writer.write(clock.record(int(state.step)))
    if session.first:
        if finished:
            write_report(directory)
        print(closing_summary(directory, finished))
    return finished


def _open(session: Session, config: FinetuneConfig, data: Data, tokenizer: Tokenizer) -> bool:
    """Begin the run in its directory, or find it there; False where a signal came first."""
    task, directory = config.task, session.directory

    def open_directory() -> None:
        files = " and ".join(filter(None, (task.train, task.dev)))
        open_run_directory(directory, config, files, data.fingerprint, {"task_kind": task.kind})
        tokenizer.save(directory / "tokenizer")
        write_environment(directory)

    opened = session.begin_directory(open_directory)
    if not opened and session.first:
        print(STOPPED, file=sys.stderr)
    return opened


def _rate(config: FinetuneConfig) -> Callable[[str], float]:
    """What the learning rate of a parameter is multiplied by; see `layer_rate`."""
    return functools.partial(
        layer_rate,
        layers=config.model.num_hidden_layers,
        decay=config.layer_decay,
        head=config.head_rate,
        frozen_layers=config.freeze_layers,
        frozen_embeddings=config.freeze_embeddings,
    )


def _tokenizer(weights: Weights, max_length: int) -> Tokenizer:
    tokenizer = weights.needed_tokenizer()
    longest = weights.config.max_position_embeddings
    if max_length > longest:
        raise UserError(
            f"config.task.max_length={max_length}: {weights.source} takes sequences of at most "
            f"{longest} pieces; lower it, or extend the model by python -m bert_jax.convert "
            "--max_position_embeddings"
        )
    return tokenizer


def _resolved(config: FinetuneConfig, data: Data) -> FinetuneConfig:
    """`config` with what follows from the examples: what the task learnt, steps and warm-up."""
    steps = config.epochs * _steps_per_epoch(config, data)
    warmup = int(steps * config.warmup_fraction)  # as run_classifier.py rounds it
    return dataclasses.replace(
        config,
        task=data.task,
        steps=steps,
        optimizer=dataclasses.replace(config.optimizer, warmup_steps=warmup),
    )


def _steps_per_epoch(config: FinetuneConfig, data: Data) -> int:
    return -(-len(data.train) // config.batch_size)


def _with_weights(
    config: FinetuneConfig, weights: Weights, cluster: Cluster, params: Params
) -> Params:
    """The given weights, but for a head of another task, in the places of `params`; else these."""
    told = cluster.index == 0
    if config.scratch:
        if told:
            print(f"begun from scratch, in the architecture of {config.init_from}")
        return params
    check_same_weights(weights, cluster)
    same_head = weights.architecture == config.task.architecture and weights.head_fields.get(
        "id2label"
    ) == config.task.head_fields().get("id2label")
    kept = {
        name: tensor
        for name, tensor in weights.tensors.items()
        if same_head or name.startswith("bert/")
    }
    params, at_random = load_params(dataclasses.replace(weights, tensors=kept), params)
    if told:
        scopes = dict.fromkeys(name.rpartition("/")[0] for name in at_random)
        print(told_start(config.init_from, weights, scopes))
    return params


def _ended_early(config: FinetuneConfig, data: Data, window: Window, epoch: int) -> bool:
    """Whether dev has got no better for as many epochs as there is patience."""
    if not config.patience or window.best is None:
        return False
    return epoch * _steps_per_epoch(config, data) - window.best[0] >= (
        config.patience * _steps_per_epoch(config, data)
    )


def _train_epoch(
    run: Run,
    config: FinetuneConfig,
    data: Data,
    epoch: int,
    state: TrainState,
    scoring: Scoring,
    pad_id: int,
) -> TrainState:
    """Train from the state's step to the end of the epoch, or until the run is to stop."""
    steps = _steps_per_epoch(config, data)
    start, end = epoch * steps, (epoch + 1) * steps
    done = int(state.step) - start
    if done > steps or run.window.evaluated == end or run.stop_due():
        return state
    plan = epoch_plan(data.train, config, epoch)
    rows = process_rows(run.mesh, config.batch_size)
    sizes, parts = data.computed.sizes, batch_parts(run.mesh)
    batches = host_batches(data.train, plan[done:], config, sizes, rows, parts, pad_id)

    per_token = finetuning_flops_per_token(
        config.model,
        round(data.computed.length),
        of_pieces=data.task.of_pieces,
        frozen_layers=config.freeze_layers,
    )
    stretch = Stretch(phase=epoch, end=end, flops=per_token)
    return train_steps(run, stretch, state, batches, scoring.dev_scores, _evaluation_text)


def _finish(
    run: Run,
    session: Session,
    config: FinetuneConfig,
    data: Data,
    state: TrainState,
    abstract: TrainState,
    scoring: Scoring,
    tokenizer: Tokenizer,
) -> bool:
    """Score the run's best state and write it; False where the run is to stop before.

    Raises:
      UserError: the checkpoint of the best state is damaged.
    """
    step = int(state.step)
    best = run.window.best[0] if run.window.best else step
    if run.stop_due() and step < config.total_steps:
        return False
    if best != step:
        try:
            # A reader of its own: the run's is closed.
            checkpoints = Checkpoints(session.directory, config.keep_checkpoints)
            state, _ = checkpoints.restore_step(best, abstract)
        except Damage as damage:
            raise UserError(
                f"{session.directory}: the checkpoint of step {best}, the best one, is damaged "
                f"({damage}); train again in another --workdir"
            ) from damage
    try:
        task, results = scoring.results(best, state.params)
    except Stopped:
        return False
    run.begin("save")
    # One copy on each device: the first process is to write all of it.
    params = jax.jit(lambda tree: tree, out_shardings=replicated(run.mesh))(state.params)
    if session.first:
        write_model(session.directory, config, task, tokenizer, params)
        write_results(session.directory, config, data, task, results, best)
    return True


def _evaluation_text(record: Mapping[str, Any]) -> str:
    scores = [
        f"{name} {figure(value, '.4f')}"
        for name, value in record.items()
        if name not in ("kind", "step", "phase")
    ]
    return f"epoch {record['phase'] + 1}, dev: {', '.join(scores)}"


def _seconds_left(config: FinetuneConfig, step: int, record: Mapping[str, Any]) -> float | None:
    speed = record.get("steps_per_second")
    return (config.total_steps - step) / speed if speed else None
