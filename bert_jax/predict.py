"""python -m bert_jax.predict: what a trained model says of text.

Text comes as arguments, from a file, from standard input, or is typed. Sequences of similar length
are computed together, and answers come in the order of the texts; memory does not grow with their
number.
"""

import argparse
import errno
import sys
from pathlib import Path

from bert_jax.allocator import restart_with_allocator
from bert_jax.errors import INTERRUPTED_EXIT_CODE, UserError, drop_output, run_main
from bert_jax.flags import Parser
from bert_jax.prediction.recipe import COMBINATIONS, POOLINGS, Recipe

_EXAMPLES = """examples:
  python -m bert_jax.predict fill-mask runs/books "the [MASK] sat on the mat."
  python -m bert_jax.predict classify runs/sst2/model --input=reviews.txt --output=said.jsonl
  python -m bert_jax.predict classify runs/rte/model "it rains." --pair="it is wet."
  python -m bert_jax.predict tag runs/ner/model < sentences.txt
  python -m bert_jax.predict answer runs/squad/model "who wrote it?" --context="Ada wrote it."
  python -m bert_jax.predict next-sentence runs/books "he sat down." "then he ate."
  python -m bert_jax.predict embed runs/books --layers=last4 --input=lines.txt --output=out.npy
  python -m bert_jax.predict fill-mask runs/books
      asks for text, line by line, until Ctrl-D
"""
_COMMANDS = {
    "fill-mask": "the likeliest pieces for each [MASK] of a text",
    "classify": "the label, labels or value of a text or a pair of texts",
    "tag": "the tag of each word of a text",
    "answer": "the part of a context that answers a question",
    "next-sentence": "whether a text follows another",
    "embed": "vectors of texts or of their pieces, from any layers",
}
# What --input of a command takes, where it is not what most take.
_INPUT = "a text a line; or .tsv, .csv, .jsonl, .json, .parquet by columns; compressed or not"
_INPUTS = {
    "tag": "a text a line where it ends in .txt or in nothing, a table of texts where --columns is "
    "given; else sentences as in fine-tuning: lists of tokens in .jsonl, .json or .parquet, or a "
    "word a line and a blank line between sentences (.conll, .tsv, ...), with tags or without",
    "answer": "a question, a tab and its context a line; or .tsv, .csv, .jsonl, .parquet by "
    "columns; or SQuAD's .json",
}
_TOP = 5


def main() -> None:
    """Parse the command line and predict."""
    parser = _parser()
    # argparse lets no text follow an option that stands between it and MODEL.
    arguments, later = parser.parse_known_args()
    unknown = [item for item in later if item.startswith("-")]
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    arguments.texts += later
    if arguments.texts and arguments.input:
        raise UserError("give texts or --input, not both")
    try:
        if not arguments.texts:  # which are few
            restart_with_allocator()
        # Only now, for it takes seconds: --help and mistakes are answered at once.
        from bert_jax.prediction.command import answer

        answer(arguments)
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        sys.exit(INTERRUPTED_EXIT_CODE)
    except BrokenPipeError:  # `| head` has seen enough
        drop_output(sys.stdout.fileno())
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        where = arguments.output or "standard output"
        raise UserError(f"{where}: {error.strerror}; make room and ask again") from error


def _parser() -> Parser:
    parser = Parser(prog="python -m bert_jax.predict", description=__doc__, epilog=_EXAMPLES)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, told in _COMMANDS.items():
        command = commands.add_parser(name, help=told, description=f"{name}: {told}")
        formats = ("table", "jsonl", *(("npy",) if name == "embed" else ()))
        _add_common(command, formats, _INPUTS.get(name, _INPUT))
        _ADD[name](command)
    return parser


def _add_common(command: argparse.ArgumentParser, formats: tuple[str, ...], given: str) -> None:
    add = command.add_argument
    add(
        "model",
        metavar="MODEL",
        help="a run, a directory of Hugging Face's or Google's, or a name of the hub",
    )
    add("texts", metavar="TEXT", nargs="*", help="texts; two by two where the command takes pairs")
    add("--input", type=Path, metavar="FILE", help=given)
    add("--columns", type=_names, metavar="NAME,...", help="columns of the texts in such a file")
    add("--output", type=Path, metavar="FILE", help="where to write; standard output by default")
    add(
        "--format",
        choices=formats,
        help="table on a terminal, jsonl elsewhere, by default",
    )
    add("--max_length", type=_count, metavar="N", help="longest sequence, in pieces")
    add(
        "--batch_size",
        type=_count,
        default=32,
        metavar="N",
        help="sequences computed together (default: %(default)s)",
    )
    add(
        "--dtype",
        choices=("float32", "bfloat16"),
        default="float32",
        help="of activations and products (default: %(default)s)",
    )
    command.set_defaults(second=None, top=_TOP)


def _add_top(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--top",
        type=_count,
        metavar="K",
        default=_TOP,
        help="how many to tell, the likeliest first, if there are as many (default: %(default)s)",
    )


def _add_pair(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--pair", dest="second", type=_text, metavar="TEXT", help="second text of each item"
    )


def _add_context(command: argparse.ArgumentParser) -> None:
    _add_top(command)
    command.add_argument(
        "--context",
        dest="second",
        type=_text,
        metavar="TEXT",
        help="text that all questions are about",
    )


def _add_recipe(command: argparse.ArgumentParser) -> None:
    default = Recipe()
    add = command.add_argument
    add(
        "--layers",
        default=default.layers,
        help="last, last4, all, or numbers: 0 for the embeddings, -1,-2 from the last one "
        "(default: %(default)s)",
    )
    add(
        "--combine",
        choices=COMBINATIONS,
        default=default.combine,
        help="of several layers (default: %(default)s)",
    )
    add("--weights", type=_numbers, default=(), metavar="W,...", help="of --combine=weighted")
    add(
        "--pooling",
        choices=POOLINGS,
        default=default.pooling,
        help="of the pieces of a text; none: a vector for each (default: %(default)s)",
    )


def _nothing_more(command: argparse.ArgumentParser) -> None:
    del command


_ADD = {
    "fill-mask": _add_top,
    "classify": _add_pair,
    "tag": _nothing_more,
    "answer": _add_context,
    "next-sentence": _add_pair,
    "embed": _add_recipe,
}


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def _text(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty")
    return text


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(map(float, text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} are not numbers with commas") from None


if __name__ == "__main__":
    run_main(main)
