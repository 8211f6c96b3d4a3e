"""python -m bert_jax.batch: the batch that a step of a run was made of, rebuilt and printed."""

import argparse
import sys
from pathlib import Path

import numpy as np

from bert_jax.config import Config
from bert_jax.data.pipeline import Batch, phase_examples
from bert_jax.data.shards import read_manifest
from bert_jax.data.tokenization import Tokenizer, load_tokenizer
from bert_jax.errors import UserError, drop_output, run_main
from bert_jax.flags import Parser
from bert_jax.training.run_directory import read_config, read_fingerprint

_EXAMPLES = """examples:
  python -m bert_jax.batch runs/books --step=120000
      the first eight rows of the batch that made step 120,000
  python -m bert_jax.batch runs/books --step=120000 --rows=17:18
      row 17 alone
"""


def main() -> None:
    """Parse the command line and print the batch."""
    parser = Parser(prog="python -m bert_jax.batch", description=__doc__, epilog=_EXAMPLES)
    parser.add_argument("run", type=Path, help="directory of the run (--workdir of train)")
    parser.add_argument(
        "--step", type=int, required=True, help="step, counted from 1 as metrics.jsonl counts them"
    )
    parser.add_argument(
        "--rows", type=_rows, default=slice(0, 8), metavar="FIRST:END", help="default: 0:8"
    )
    arguments = parser.parse_args()
    told = describe_step(arguments.run, arguments.step, arguments.rows)
    try:
        print(told, flush=True)
    except BrokenPipeError:  # `| head` has seen enough
        drop_output(sys.stdout.fileno())


def describe_step(run: Path, step: int, rows: slice) -> str:
    """Some rows of the global batch of a step, as text; all of its ids are checked.

    A packed batch is shown as its sequences, before they share rows.

    Args:
      run: directory of the run; the token shards it was trained on must still be there.
      step: from 1.
      rows: of the global batch.

    Raises:
      UserError: no such run or step, or its token shards or tokenizer are gone or others.
    """
    config = read_config(run)
    tokenizer = _tokenizer(run, config)
    index, place = _find_phase(config, step)
    phase = config.phases[index]
    examples = phase_examples(config, index, "train", tokenizer)
    batch = examples.batch(place, phase.batch_size)
    lines = [
        f"step {step:,} of {config.total_steps:,}: phase {index + 1}, batch {place:,} of it, "
        f"{phase.batch_size:,} x {phase.seq_len} pieces"
        + (", before packing" if config.data.packing else ""),
        *_check_ids(batch, tokenizer.vocab_size),
    ]
    shown = range(phase.batch_size)[rows]
    for row in shown:
        lines += ["", *_describe_row(batch, row, tokenizer)]
    if len(shown) < phase.batch_size:
        lines += ["", f"{len(shown)} of {phase.batch_size:,} rows; --rows=FIRST:END shows others"]
    return "\n".join(lines)


def _rows(text: str) -> slice:
    first, colon, end = text.partition(":")
    if not (colon and first.isdecimal() and end.isdecimal() and int(first) < int(end)):
        raise argparse.ArgumentTypeError(f"{text!r} is not FIRST:END, such as 0:8")
    return slice(int(first), int(end))


def _tokenizer(run: Path, config: Config) -> Tokenizer:
    """The run's tokenizer, once its token shards are known to be those that it was trained on."""
    manifest = read_manifest(config.data.dir)
    trained_on = read_fingerprint(run)
    if manifest.fingerprint != trained_on:
        raise UserError(
            f"{config.data.dir}: not the token shards that {run} was trained on (fingerprint "
            f"{trained_on}, found {manifest.fingerprint}); put those back"
        )
    tokenizer = load_tokenizer(run / "tokenizer")
    if tokenizer.digest != manifest.tokenizer_digest:
        raise UserError(
            f"{run / 'tokenizer'}: not the tokenizer of its token shards (hash "
            f"{manifest.tokenizer_digest}, found {tokenizer.digest}); copy that of "
            f"{config.data.dir} there"
        )
    return tokenizer


def _find_phase(config: Config, step: int) -> tuple[int, int]:
    """The phase that a step (from 1) stands in, and which of its steps it is, from 0."""
    place = step - 1
    for index, phase in enumerate(config.phases):
        if 0 <= place < phase.steps:
            return index, place
        place -= phase.steps
    raise UserError(f"--step={step}: the run has steps 1 to {config.total_steps}")


def _check_ids(batch: Batch, vocab_size: int) -> list[str]:
    """What is wrong with the ids of a batch, a line each; or one line that says they are sound."""
    wrong = [
        f"{name}: {batch[name][tuple(at)]} in row {at[0]}, place {at[1]}, is outside the vocabulary"
        for name in ("input_ids", "masked_lm_ids")
        for at in np.argwhere((batch[name] < 0) | (batch[name] >= vocab_size))
    ]
    ids = batch["input_ids"]
    return wrong or [f"ids {ids.min()} to {ids.max()}, all in the vocabulary of {vocab_size:,}"]


def _describe_row(batch: Batch, row: int, tokenizer: Tokenizer) -> list[str]:
    ids = batch["input_ids"][row][: batch["attention_mask"][row].sum()]
    title = f"row {row}, {len(ids)} pieces"
    if "next_sentence_labels" in batch:
        title += ", B is random" if batch["next_sentence_labels"][row] else ", B is next"
    masks = batch["masked_lm_weights"][row] > 0
    answers = [
        f"{position}: {_piece(answer, tokenizer)}"
        for position, answer in zip(
            batch["masked_lm_positions"][row][masks],
            batch["masked_lm_ids"][row][masks],
            strict=True,
        )
    ]
    text = " ".join(_piece(piece, tokenizer) for piece in ids)
    return [title, f"  {text}", f"  to predict: {', '.join(answers)}"]


def _piece(index: int, tokenizer: Tokenizer) -> str:
    return tokenizer.pieces[index] if 0 <= index < tokenizer.vocab_size else f"<{index}?>"


if __name__ == "__main__":
    run_main(main)
