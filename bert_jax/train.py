"""python -m bert_jax.train: pretrain BERT, from text or token shards to a model and its report.

A run lives in its directory, --workdir: config, tokenizer, checkpoints, metrics, report. The same
command on the same directory goes on from its newest checkpoint.
"""

import dataclasses
import errno
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax.config import Config, Phase
from bert_jax.data.pipeline import PairExamples, majority_baseline, open_examples, train_dataset
from bert_jax.data.shards import Manifest, open_shards, read_manifest
from bert_jax.data.tokenization import Tokenizer, load_tokenizer
from bert_jax.errors import UserError, run_main
from bert_jax.fill_mask import choose_sentences, predict_masks
from bert_jax.flags import Parser, parse
from bert_jax.models import BertForPreTraining
from bert_jax.prepare import default_directory, prepare
from bert_jax.report import write_report
from bert_jax.training.checkpoints import Checkpoints
from bert_jax.training.clock import Clock
from bert_jax.training.console import Progress, header, summary
from bert_jax.training.evaluation import evaluate
from bert_jax.training.flops import step_flops
from bert_jax.training.loop import Run, Stretch, train_steps
from bert_jax.training.metrics import MetricsWriter, read_metrics, write_environment
from bert_jax.training.optimizer import make_optimizer
from bert_jax.training.probe import expected_speed
from bert_jax.training.run_directory import open_run_directory
from bert_jax.training.run_files import write_json
from bert_jax.training.sharding import check_mesh, make_mesh, process_rows
from bert_jax.training.state import TrainState, create_state, parameter_count
from bert_jax.training.steps import compile_eval_step, compile_train_step, forward
from bert_jax.training.stopping import RESUME_EXIT_CODE, StopRequest

_SENTENCES = 12
# A disk that is full, or that may not be written: the user's to mend.
_NO_ROOM_OR_RIGHT = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS)

_EXAMPLES = """examples:
  python -m bert_jax.train --config=tiny
      the embedded corpus, minutes on a laptop CPU
  python -m bert_jax.train --config=base --config.data.dir=data/books --workdir=runs/books
      the paper's recipe on one's own text, prepared by python -m bert_jax.prepare
  python -m bert_jax.train --config=tiny --config.phases[0].steps=500 --config.mesh.fsdp=2
      a recipe with fields changed
"""


def main() -> None:
    """Parse the command line and pretrain."""
    parser = Parser(prog="python -m bert_jax.train", description=__doc__, epilog=_EXAMPLES)
    parser.add_argument(
        "--workdir", metavar="DIR", help="the run's directory; runs/RECIPE where it is not given"
    )
    arguments, config = parse(parser)
    recipe = Path(arguments.config.partition(":")[0]).stem
    directory = Path(arguments.workdir or f"runs/{recipe}")
    try:
        finished = train(config, directory)
    except KeyboardInterrupt:  # before the first step, where there is no state to save
        print("\nstopped; the same command goes on from here", file=sys.stderr)
        finished = False
    except OSError as error:
        if error.errno not in _NO_ROOM_OR_RIGHT:
            raise
        where = error.filename or directory
        raise UserError(f"{where}: {error.strerror}; then start the same command again") from error
    if not finished:
        sys.exit(RESUME_EXIT_CODE)


def train(config: Config, directory: Path) -> bool:
    """Pretrain by `config` in `directory`, or go on with the run that is there.

    Returns:
      Whether the run is finished; False where a signal stopped it and it can be resumed.

    Raises:
      UserError: a bad setting, corpus or run directory; a disk that is full.
    """
    clock = Clock()

    # 1. The devices. What the mesh cannot divide is told before hours of other work.
    mesh = make_mesh(config.mesh)
    check_mesh(config, mesh)

    # 2. Text to token shards, on first use.
    config, manifest = _token_shards(config, clock.seconds)
    tokenizer = _tokenizer(Path(config.data.dir), manifest)

    # 3. The run directory: this run's, or one that matches.
    open_run_directory(directory, config, manifest.fingerprint)
    tokenizer.save(directory / "tokenizer")
    write_environment(directory)

    # 4. The state: of the newest checkpoint, else from scratch.
    with jax.set_mesh(mesh), clock("start"):
        model = BertForPreTraining(config.model, next_sentence=config.data.next_sentence)
        optimizer = make_optimizer(config.optimizer, config.total_steps)
        state, abstract = create_state(model, optimizer, mesh, config.seed)
        checkpoints = Checkpoints(directory, config.keep_checkpoints)
        if restored := checkpoints.restore(abstract):
            state, _ = restored
        train_step = compile_train_step(
            abstract, model, optimizer, seed=config.seed, accumulate=config.optimizer.accumulate
        )
        step = int(state.step)
    print(_header(config, mesh, state, step))

    # 5. Train through the phases.
    with (
        jax.set_mesh(mesh),
        MetricsWriter(directory, step) as writer,
        Progress(config, step) as progress,
    ):
        run = Run(
            config=config,
            mesh=mesh,
            train_step=train_step,
            clock=clock,
            writer=writer,
            progress=progress,
            checkpoints=checkpoints,
            stop=StopRequest(),
        )
        eval_step = compile_eval_step(model)
        for index in range(len(config.phases)):
            state = _train_phase(run, index, state, eval_step, tokenizer)
        step = int(state.step)
        with clock("checkpoint"):
            checkpoints.save(state, step, {})
            checkpoints.close()
        finished = step == config.total_steps
        if finished:
            _write_predictions(config, tokenizer, model, state, directory)
        writer.write({"kind": "time", "step": step, "seconds": dict(clock.seconds)})

    # 6. What a person wants to see.
    write_report(directory)
    print(_closing_summary(directory, clock.seconds, finished))
    return finished


def _header(config: Config, mesh: Mesh, state: TrainState, step: int) -> str:
    return header(
        config,
        parameter_count(state.params),
        mesh.shape,
        jax.devices()[0].device_kind,
        step,
        expected_speed(config.model.dtype),
    )


def _token_shards(config: Config, seconds: dict[str, float]) -> tuple[Config, Manifest]:
    """Token shards for `config`, made where there are none, and the config that fits them."""
    model, given = config.model, config.data.dir
    directory = Path(given or default_directory(config.corpus, model.vocab_size))
    if given:
        manifest = read_manifest(directory)
    else:
        print(f"token shards of {config.corpus.source} in {directory}")
        manifest = prepare(config.corpus, model.vocab_size, directory, seconds=seconds)
    if manifest.vocab_size > model.vocab_size:
        raise UserError(
            f"{directory}: its vocabulary has {manifest.vocab_size} pieces, more than "
            f"config.model.vocab_size={model.vocab_size}; set "
            f"--config.model.vocab_size={manifest.vocab_size}"
        )
    config = dataclasses.replace(
        config,
        # A small corpus gives a smaller vocabulary than was asked for.
        model=dataclasses.replace(model, vocab_size=manifest.vocab_size),
        data=dataclasses.replace(config.data, dir=str(directory.absolute())),
    )
    return config, manifest


def _tokenizer(directory: Path, manifest: Manifest) -> Tokenizer:
    """The tokenizer that the token shards in `directory` were made with."""
    tokenizer = load_tokenizer(directory / "tokenizer")
    if tokenizer.digest != manifest.tokenizer_digest:
        raise UserError(
            f"{directory / 'tokenizer'}: not the tokenizer that its token shards were made with; "
            "put that one back, or prepare the shards again"
        )
    return tokenizer


def _train_phase(
    run: Run, index: int, state: TrainState, eval_step: Callable[..., Any], tokenizer: Tokenizer
) -> TrainState:
    """Train from the state's step to the end of phase `index`, or until the run is to stop."""
    config, phase = run.config, run.config.phases[index]
    start = sum(earlier.steps for earlier in config.phases[:index])
    done = int(state.step) - start
    if done >= phase.steps or run.stop.pending:
        return state
    with run.clock("pipeline"):
        training, heldout = (
            _examples(config, phase, split, tokenizer) for split in ("train", "heldout")
        )
        baseline = majority_baseline(_evaluation_batches(heldout, config, phase))
        rows = process_rows(phase.batch_size)
        batches = train_dataset(
            training, done, phase.steps, phase.batch_size, rows, config.data.workers
        )
    run.writer.write({"kind": "baseline", "phase": index} | baseline)

    def evaluation(params: Any) -> dict[str, float]:
        return evaluate(eval_step, params, _evaluation_batches(heldout, config, phase), run.mesh)

    stretch = Stretch(
        phase=index,
        end=start + phase.steps,
        tokens=phase.batch_size * phase.seq_len,
        flops=step_flops(config.model, phase),
    )
    return train_steps(run, stretch, state, batches, evaluation, baseline)


def _examples(config: Config, phase: Phase, split: str, tokenizer: Tokenizer) -> PairExamples:
    return open_examples(
        config.data.dir,
        split,
        tokenizer,
        config.data,
        seq_len=phase.seq_len,
        max_predictions=phase.max_predictions,
        seed=config.seed,
    )


def _evaluation_batches(
    heldout: PairExamples, config: Config, phase: Phase
) -> Iterator[dict[str, np.ndarray]]:
    """This process's rows of the held-out batches, which are as large as a training micro-batch."""
    batch_size = phase.batch_size // config.optimizer.accumulate
    return heldout.evaluation_batches(batch_size, config.eval_examples, process_rows(batch_size))


def _write_predictions(
    config: Config,
    tokenizer: Tokenizer,
    model: BertForPreTraining,
    state: TrainState,
    directory: Path,
) -> None:
    """Write predictions.json: what the model puts in the place of words in held-out sentences."""

    def logits(inputs: Mapping[str, jax.Array]) -> jax.Array:
        return forward(model, state.params, inputs)["mlm_logits"]

    sentences = choose_sentences(open_shards(config.data.dir, "heldout"), _SENTENCES)
    if sentences:
        predictions = predict_masks(jax.jit(logits), sentences, tokenizer)
        write_json(directory / "predictions.json", predictions)


def _closing_summary(directory: Path, seconds: Mapping[str, float], finished: bool) -> str:
    records = read_metrics(directory)
    last = {record["kind"]: record for record in records}
    command = None if finished else "python -m bert_jax.train " + shlex.join(sys.argv[1:])
    return summary(directory, last.get("eval"), last.get("baseline", {}), seconds, command)


if __name__ == "__main__":
    run_main(main)
