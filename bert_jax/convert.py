"""python -m bert_jax.convert: weights from and to Hugging Face, Google and this package.

Every value is kept exactly, but for what --dtype and --max_position_embeddings ask for. What was
missing, left over or dropped is listed.
"""

import dataclasses
import shutil
import sys
import tempfile
from pathlib import Path

from bert_jax.errors import INTERRUPTED_EXIT_CODE, UserError, run_main
from bert_jax.flags import Parser
from bert_jax.interop.google import write_google
from bert_jax.interop.huggingface import write_huggingface
from bert_jax.interop.load import load_weights, reduced, resized
from bert_jax.interop.names import PARTS
from bert_jax.interop.runs import write_run
from bert_jax.interop.weights import DTYPES, Weights, parameter_count
from bert_jax.tasks.registry import TASK_FILE, stated_task
from bert_jax.terminal import outlive_terminal
from bert_jax.training.stopping import interrupt_at_signals

_EXAMPLES = """examples:
  python -m bert_jax.convert runs/books books-bert --to=hf
      a run of this package, for transformers: AutoModel.from_pretrained("books-bert")
  python -m bert_jax.convert runs/books books-encoder --to=hf --architecture=BertModel
      without the pretraining heads, which AutoModel would say that it leaves aside
  python -m bert_jax.convert uncased_L-12_H-768_A-12 bert-base --to=hf
      a checkpoint of Google's (bert_config.json, vocab.txt, bert_model.ckpt.*)
  python -m bert_jax.convert google-bert/bert-base-uncased bert-base --to=bert_jax
      a model of the Hugging Face hub, fetched where there is a network
  python -m bert_jax.convert bert-base bert-long --to=hf --max_position_embeddings=1024
      room for longer sequences: the position table is repeated; train before use
"""
_FORMS = {"hf": write_huggingface, "google": write_google, "bert_jax": write_run}


def main() -> None:
    """Parse the command line and convert."""
    parser = Parser(prog="python -m bert_jax.convert", description=__doc__, epilog=_EXAMPLES)
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="a directory (Hugging Face's, Google's or a run's), the prefix of a TF1 checkpoint, "
        "or the name of a model of the Hugging Face hub",
    )
    parser.add_argument(
        "destination", metavar="DESTINATION", help="the directory to write; new or empty"
    )
    parser.add_argument("--to", required=True, choices=tuple(_FORMS), help="the form to write")
    parser.add_argument(
        "--dtype",
        choices=tuple(DTYPES),
        default="float32",
        help="of the written tensors (default: %(default)s)",
    )
    parser.add_argument(
        "--max_position_embeddings",
        type=int,
        metavar="N",
        help="longest sequence: the position table is cut, or repeated from its start",
    )
    parser.add_argument(
        "--architecture",
        choices=tuple(PARTS),
        help="leave out all heads but those of this one: BertModel is the encoder alone",
    )
    arguments = parser.parse_args()
    outlive_terminal()
    length = arguments.max_position_embeddings
    if length is not None and length < 1:
        raise UserError(f"--max_position_embeddings={length}: must be at least 1")
    destination = Path(arguments.destination)
    _check_destination(destination)
    # What is half written beside the destination, as large as the model, goes.
    interrupt_at_signals()
    try:
        weights = load_weights(arguments.source)
        if length is not None:
            weights = resized(weights, length)
        if arguments.architecture:
            weights = reduced(weights, arguments.architecture)
        weights = convert(weights, destination, arguments.to, arguments.dtype)
    except KeyboardInterrupt:
        print("\nstopped; nothing was written", file=sys.stderr)
        sys.exit(INTERRUPTED_EXIT_CODE)
    print(_summary(weights))
    print(f"wrote {destination}")


def convert(weights: Weights, destination: Path, form: str, dtype: str = "float32") -> Weights:
    """Write `weights` as `form`: the directory appears when it is complete.

    Args:
      destination: does not exist, or is empty.
      form: "hf", "google" or "bert_jax".
      dtype: of the written tensors, a key of `DTYPES`.

    Returns:
      `weights`, with notes of what the form cannot say.

    Raises:
      UserError: it holds something, or cannot be written; the form cannot hold the model.
    """
    _check_destination(destination)
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        prefix = f".{destination.name}."
        with tempfile.TemporaryDirectory(prefix=prefix, dir=destination.parent) as folder:
            written = Path(folder, destination.name)
            written.mkdir()
            weights = _with_task(_FORMS[form](weights, written, dtype), written, form)
            written.replace(destination)
    except OSError as error:
        raise UserError(f"{error.filename or destination}: {error.strerror or error}") from error
    return weights


def _with_task(weights: Weights, written: Path, form: str) -> Weights:
    """Copy what a fine-tuned model says of its task to a Hugging Face directory with its head.

    Returns:
      `weights`, with a note where it is left behind.
    """
    path = Path(weights.source, TASK_FILE)
    task = stated_task(path)
    if task is None:
        return weights
    head = bool(weights.own) if task.frozen_encoder else task.architecture == weights.architecture
    if form == "hf" and head:
        shutil.copyfile(path, written / TASK_FILE)
        return weights
    lost = f"{TASK_FILE} (settings of the task, which go with its head, by --to=hf)"
    return dataclasses.replace(weights, dropped=(*weights.dropped, lost))


def _check_destination(destination: Path) -> None:
    if destination.is_symlink() or destination.absolute().is_mount():
        raise UserError(
            f"{destination}: is a link or a mount point; give the name of a directory to make, "
            "such as one inside it"
        )
    if not destination.exists():
        return
    # The directory where one stands would be another after it was replaced.
    if not destination.is_dir() or any(destination.iterdir()) or destination.samefile(Path.cwd()):
        raise UserError(f"{destination}: exists already; give a new directory")


def _summary(weights: Weights) -> str:
    config = weights.config
    pieces = f"{weights.tokenizer.vocab_size:,} pieces" if weights.tokenizer else "no vocabulary"
    dtypes = sorted({str(tensor.dtype) for tensor in weights.tensors.values()})
    return "\n".join(
        [
            f"{weights.source}: {weights.form}, {weights.architecture}, "
            f"{config.num_hidden_layers} layers of width {config.hidden_size}, "
            f"{config.hidden_act}, {pieces}",
            f"  converted: {len(weights.tensors)} tensors of {', '.join(dtypes)}, "
            f"{parameter_count(weights):,} parameters",
            *_listed("missing", weights.missing),
            *_listed("left over", weights.left_over),
            *_listed("dropped", weights.dropped),
            *_listed("note", weights.notes),
        ]
    )


def _listed(title: str, items: tuple[str, ...]) -> list[str]:
    if not items:
        return [] if title == "note" else [f"  {title}: none"]
    return [f"  {title}: {item}" for item in items]


if __name__ == "__main__":
    run_main(main)
