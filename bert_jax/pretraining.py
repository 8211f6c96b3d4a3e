"""Pretraining, from text or token shards to a model and its report.

A run lives in its directory: config, tokenizer, checkpoints, metrics, report. What train.py runs,
alike in each process of a run; process 0 alone writes and prints.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax.allocator import take_memory_in_main_thread
from bert_jax.config import Config, Phase
from bert_jax.data.batch_shapes import row_predictions
from bert_jax.data.packing import PackedExamples
from bert_jax.data.pipeline import (
    ALL_ROWS,
    Examples,
    PairExamples,
    Rows,
    majority_baseline,
    phase_examples,
    train_dataset,
)
from bert_jax.data.shards import SPLITS, Manifest, open_shards, read_manifest
from bert_jax.data.tokenization import Tokenizer, load_tokenizer
from bert_jax.data.vocabulary_files import read_vocab
from bert_jax.errors import UserError
from bert_jax.fill_mask import choose_sentences, predict_masks
from bert_jax.interop import load_weights
from bert_jax.interop.init_from import adopt, check_same_weights, start_params, told_start
from bert_jax.models.attention import check_attention
from bert_jax.prepare import default_directory, prepare
from bert_jax.report import write_report
from bert_jax.training.checkpoints import Checkpoints
from bert_jax.training.clock import Clock, account
from bert_jax.training.cluster import SAME_FILES, Cluster
from bert_jax.training.compilation import keep_compiled_programs
from bert_jax.training.console import (
    evaluation_line,
    header,
    how_to_continue,
    pretraining_seconds_left,
    summary,
)
from bert_jax.training.evaluation import evaluate
from bert_jax.training.flops import training_flops_per_token
from bert_jax.training.loop import Run, before_scoring, train_steps
from bert_jax.training.metrics import read_metrics, write_environment
from bert_jax.training.objective import Objective
from bert_jax.training.probe import expected_speed
from bert_jax.training.program import pretraining_program
from bert_jax.training.run_directory import open_run_directory
from bert_jax.training.run_files import write_json
from bert_jax.training.run_sections import baseline_of, of_kind
from bert_jax.training.session import Session, in_session, open_run, save_last
from bert_jax.training.sharding import (
    batch_parts,
    check_mesh,
    make_mesh,
    process_rows,
    replicated,
)
from bert_jax.training.state import TrainState, begin_state, parameter_count
from bert_jax.training.steps import compile_eval_step
from bert_jax.training.stopping import STOPPED
from bert_jax.training.window import Stretch, Window
from bert_jax.training.xla_options import check_xla_options

_SENTENCES = 12


def train(
    config: Config, directory: Path, clock: Clock | None = None, detect_processes: bool = False
) -> bool:
    """Pretrain by `config` in `directory`, or go on with the run that is there.

    Meanwhile SIGINT, SIGTERM and SIGHUP do not end the process, but ask it to stop.

    Args:
      config: validated; the run directory gets it with the vocabulary and shards it found.
      directory: of the run, made where it is missing; the same to all processes.
      clock: started with the process; now by default.
      detect_processes: see `join_cluster`.

    Returns:
      Whether the run is finished; False where a signal stopped it and it can be resumed.

    Raises:
      UserError: a bad setting, corpus or run directory; a disk or a memory that is full.
    """
    take_memory_in_main_thread()
    with in_session(config.limits, directory, clock, detect_processes) as session:
        return _train(config, session)


def _train(config: Config, session: Session) -> bool:
    directory, clock, cluster = session.directory, session.clock, session.cluster
    keep_compiled_programs()

    # 1. What model and which devices. What the mesh cannot divide is told before hours of work.
    corpus = config.corpus
    if config.init_from:
        config = adopt(config, load_weights(config.init_from))
    mesh = make_mesh(config.mesh)
    batch_sizes = {
        f"config.phases[{index}].batch_size": phase.batch_size
        for index, phase in enumerate(config.phases)
    }
    check_mesh(config, batch_sizes, mesh)
    check_attention(config.model, mesh.devices.flat[0].platform)
    check_xla_options(config.xla_options, mesh)
    # Shards and weights, with their vocabulary, are compared by what they hold: each process may
    # have them elsewhere.
    anywhere = dataclasses.replace(config.data, dir="")
    session.check_same_settings(dataclasses.replace(config, data=anywhere, corpus=corpus))

    # 2. Text to token shards, on first use.
    if not cluster.by_first("token shards", lambda: _prepare(config, clock)):
        return _nothing_to_save(cluster)
    config, manifest = with_token_shards(config)
    tokenizer = _tokenizer(Path(config.data.dir), manifest)
    cluster.check_same("set of token shards", lambda: manifest.fingerprint, SAME_FILES)

    # 3. The run directory: this run's, or one that matches.
    def open_directory() -> None:
        open_run_directory(directory, config, config.data.dir, manifest.fingerprint)
        tokenizer.save(directory / "tokenizer")
        write_environment(directory)

    if not session.begin_directory(open_directory):
        return _nothing_to_save(cluster)

    # 4. The state: of the newest checkpoint, else of given weights, else from scratch.
    session.watchdog.begin("compile")
    with jax.set_mesh(mesh):
        objective, optimizer, abstract, train_step = pretraining_program(config, mesh)
        checkpoints = Checkpoints(directory, config.keep_checkpoints)
        given = functools.partial(_with_weights, config.init_from, tokenizer, cluster)
        with cluster.ending_alone():
            state, stored = begin_state(
                checkpoints, objective, optimizer, abstract, config.seed, given
            )
        window = Window(clock, stored)
        step = int(state.step)
        if config.init_from and not step:
            window.evaluated = -1  # what the weights are worth before they are trained is wanted
    if session.first:
        print(_header(config, mesh, state, step))

    # 5. Train through the phases.
    seconds_left = functools.partial(pretraining_seconds_left, config)
    with open_run(
        session, config, mesh, train_step, step, window, checkpoints, seconds_left
    ) as run:
        eval_step = compile_eval_step(objective)
        for index in range(len(config.phases)):
            state = _train_phase(run, config, index, state, eval_step, tokenizer, cluster)
        if int(state.step) == 0:
            return _nothing_to_save(cluster)
        save_last(run, state)
        # A stop may come in the last evaluation, which then is left to the resumed run.
        finished = window.evaluated == config.total_steps

        # 6. What a person wants to see; a run that is stopped leaves at once.
        if finished:
            session.watchdog.begin("compile")
            with clock("report"):
                predictions = _predictions(config, tokenizer, objective, state)
                _report(directory, predictions, enabled=session.first)
        run.writer.write(clock.record(int(state.step)))
    if session.first:
        print(_closing_summary(directory, finished))
    return finished


def _with_weights(source: str, tokenizer: Tokenizer, cluster: Cluster, params: Any) -> Any:
    if not source:
        return params
    weights = load_weights(source)
    check_same_weights(weights, cluster)
    params, at_random = start_params(weights, tokenizer, params)
    if cluster.index == 0:
        print(told_start(source, weights, at_random))
    return params


def _nothing_to_save(cluster: Cluster) -> bool:
    if cluster.index == 0:
        print(STOPPED, file=sys.stderr)
    return False


def _header(config: Config, mesh: Mesh, state: TrainState, step: int) -> str:
    return header(
        config,
        parameter_count(state.params),
        mesh.shape,
        jax.devices()[0].device_kind,
        step,
        expected_speed(config.model.dtype),
    )


def _prepare(config: Config, clock: Clock) -> None:
    """Make token shards where none are given and this corpus has none yet."""
    if config.data.dir:
        return
    directory = default_directory(config.corpus, config.model.vocab_size)
    print(f"token shards of {config.corpus.source} in {directory}")
    stages: dict[str, float] = {}
    prepare(config.corpus, config.model.vocab_size, directory, seconds=stages)
    for stage, seconds in stages.items():
        clock.move("start", stage, seconds)


def with_token_shards(config: Config) -> tuple[Config, Manifest]:
    """What is known of the token shards, and the config that fits them.

    Raises:
      UserError: shards that are damaged, or given and without a piece of `corpus.new_tokens`; a
        vocabulary that is larger than the model's.
    """
    model = config.model
    directory = Path(config.data.dir or default_directory(config.corpus, model.vocab_size))
    manifest = read_manifest(directory)
    if manifest.vocab_size > model.vocab_size:
        raise UserError(
            f"{directory}: its vocabulary has {manifest.vocab_size} pieces, more than "
            f"config.model.vocab_size={model.vocab_size}; set "
            f"--config.model.vocab_size={manifest.vocab_size}"
        )
    if config.data.dir and config.corpus.new_tokens:
        _check_new_tokens(directory, Path(config.corpus.new_tokens))
    config = dataclasses.replace(
        config,
        # A small corpus gives a smaller vocabulary than was asked for.
        model=dataclasses.replace(model, vocab_size=manifest.vocab_size),
        data=dataclasses.replace(config.data, dir=str(directory.absolute())),
    )
    return config, manifest


def _check_new_tokens(directory: Path, new_tokens: Path) -> None:
    """Refuse given shards that were prepared without the new tokens that a run asks for."""
    pieces = set(load_tokenizer(directory / "tokenizer").pieces)
    lacking = [piece for piece in read_vocab(new_tokens) if piece not in pieces]
    if lacking:
        raise UserError(
            f"{directory}: its vocabulary lacks {lacking[0]!r} of config.corpus.new_tokens="
            f"{new_tokens}; prepare the text again with --new_tokens={new_tokens}"
        )


def _tokenizer(directory: Path, manifest: Manifest) -> Tokenizer:
    """The tokenizer that the token shards in `directory` were made with."""
    tokenizer = load_tokenizer(directory / "tokenizer")
    if tokenizer.digest != manifest.tokenizer_digest:
        raise UserError(
            f"{directory / 'tokenizer'}: not the tokenizer that its token shards were made with "
            f"(hash {manifest.tokenizer_digest}, found {tokenizer.digest}); put that one back, or "
            "prepare the shards again"
        )
    return tokenizer


def _train_phase(
    run: Run,
    config: Config,
    index: int,
    state: TrainState,
    eval_step: Callable[..., Any],
    tokenizer: Tokenizer,
    cluster: Cluster,
) -> TrainState:
    """Train from the state's step to the end of phase `index`, or until the run is to stop."""
    phase = config.phases[index]
    start = sum(earlier.steps for earlier in config.phases[:index])
    done = int(state.step) - start
    # A phase that is done may lack its last evaluation.
    if done > phase.steps or run.window.evaluated == start + phase.steps or run.stop_due():
        return state

    def examples(split: str) -> PairExamples:
        return phase_examples(config, index, split, tokenizer)

    opened: list[PairExamples] = []
    with run.clock("pipeline"):
        # The first to open them makes the plan of their pairs, and need not open them again.
        if not cluster.by_first(
            f"plan of phase {index}", lambda: opened.extend(map(examples, SPLITS))
        ):
            return state
        training, heldout = opened or map(examples, SPLITS)
        size = phase.batch_size // config.optimizer.accumulate

        def heldout_batches(rows: Rows) -> Iterator[dict[str, np.ndarray]]:
            """Batches as large as a training micro-batch."""
            return heldout.evaluation_batches(size, config.eval_examples, rows)

        baseline = majority_baseline(heldout_batches(ALL_ROWS))
        rows = process_rows(run.mesh, phase.batch_size)
        packed = _packed(training, config, phase, tokenizer, run.mesh)
        batches = train_dataset(
            packed, done, phase.steps, phase.batch_size, rows, config.data.workers
        )
    if done == 0:
        run.writer.write({"kind": "baseline", "phase": index, "step": start} | baseline)

    def evaluation(step: int, params: Any) -> dict[str, float]:
        batches = heldout_batches(process_rows(run.mesh, size))
        count = heldout.evaluation_examples(config.eval_examples)
        return evaluate(eval_step, params, _until_stopped(run, batches, size, count), run.mesh)

    predictions = row_predictions(phase, config.data)
    per_token = training_flops_per_token(config.model, phase.seq_len, predictions)
    stretch = Stretch(phase=index, end=start + phase.steps, flops=per_token)
    text = functools.partial(evaluation_line, baseline=baseline)
    return train_steps(run, stretch, state, batches, evaluation, text)


def _packed(
    examples: PairExamples, config: Config, phase: Phase, tokenizer: Tokenizer, mesh: Mesh
) -> Examples:
    """The training examples of a phase, packed where the config says so."""
    if not config.data.packing:
        return examples
    multiple = batch_parts(mesh) * config.optimizer.accumulate
    return PackedExamples(examples, phase, config.data, pad_id=tokenizer.pad_id, multiple=multiple)


def _until_stopped(
    run: Run, batches: Iterable[dict[str, np.ndarray]], size: int, count: int
) -> Iterator[dict[str, np.ndarray]]:
    for number, batch in enumerate(batches):
        told = f"scoring: {number * size:,} of {count:,} held-out sequences"
        before_scoring(run, "step" if number else "compile", told)
        yield batch


def _predictions(
    config: Config, tokenizer: Tokenizer, objective: Objective, state: TrainState
) -> dict[str, Any] | None:
    """What the model puts in the place of words in held-out sentences. All processes take part."""

    @functools.partial(jax.jit, out_shardings=replicated(jax.sharding.get_mesh()))
    def logits(params: Any, inputs: Mapping[str, jax.Array]) -> jax.Array:
        return objective.forward(params, inputs, None)["mlm_logits"]

    sentences = choose_sentences(
        open_shards(config.data.dir, "heldout"), _SENTENCES, config.model.max_position_embeddings
    )
    if not sentences:
        return None
    return predict_masks(functools.partial(logits, state.params), sentences, tokenizer)


def _report(directory: Path, predictions: dict[str, Any] | None, *, enabled: bool) -> None:
    if not enabled:
        return
    if predictions:
        write_json(directory / "predictions.json", predictions)
    write_report(directory)


def _closing_summary(directory: Path, finished: bool) -> str:
    records = read_metrics(directory)
    seconds = account(of_kind(records, "time"))
    evaluation = (of_kind(records, "eval") or [None])[-1]
    baseline = baseline_of(records, evaluation or {})
    command = None if finished else how_to_continue("bert_jax.train")
    return summary(directory, evaluation, baseline, seconds, command)
