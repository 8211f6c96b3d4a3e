"""python -m bert_jax.predict: what a trained model says of text.

Text comes as arguments, from a file, from standard input, or is typed. Sequences of similar length
are computed together, and answers come in the order of the texts; memory does not grow with their
number.
"""

import argparse
import dataclasses
import itertools
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from bert_jax.errors import INTERRUPTED_EXIT_CODE, UserError, print_error, run_main
from bert_jax.flags import Parser
from bert_jax.interop import Weights, load_weights
from bert_jax.prediction.embedding import COMBINATIONS, POOLINGS, Embed, Recipe
from bert_jax.prediction.fill_mask import FillMask
from bert_jax.prediction.next_sentence import NextSentence
from bert_jax.prediction.predictor import Predictor
from bert_jax.prediction.sinks import JsonLines, Sink, Table, Vectors
from bert_jax.prediction.sources import (
    from_arguments,
    from_file,
    from_person,
    from_stdin,
)
from bert_jax.prediction.task_head import COMMANDS, TaskHead, command_of
from bert_jax.tasks.multiple_choice import MultipleChoice
from bert_jax.tasks.registry import load_task
from bert_jax.tasks.task import Task
from bert_jax.tasks.texts import TextTask
from bert_jax.training.compilation import keep_compiled_programs

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
_TOP = 5
_SHORTEST = 8  # pieces of a sequence: room for special ones and for a text


def main() -> None:
    """Parse the command line and predict."""
    arguments = _parser().parse_args()
    keep_compiled_programs()
    try:
        _predict(arguments)
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        sys.exit(INTERRUPTED_EXIT_CODE)
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> Parser:
    parser = Parser(prog="python -m bert_jax.predict", description=__doc__, epilog=_EXAMPLES)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, told in _COMMANDS.items():
        command = commands.add_parser(name, help=told, description=f"{name}: {told}")
        _add_common(command, formats=("table", "jsonl", *(("npy",) if name == "embed" else ())))
        _ADD[name](command)
    return parser


def _add_common(command: argparse.ArgumentParser, formats: tuple[str, ...]) -> None:
    add = command.add_argument
    add(
        "model",
        metavar="MODEL",
        help="a run, a directory of Hugging Face's or Google's, or a name of the hub",
    )
    add("texts", metavar="TEXT", nargs="*", help="texts, as many an item as the command takes")
    add(
        "--input",
        type=Path,
        metavar="FILE",
        help="a text a line; or .tsv, .csv, .jsonl by columns; each with .gz too",
    )
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
        help="of activations and products (default: the model's; float32 for those of others)",
    )
    command.set_defaults(second=None, top=_TOP)


def _add_top(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--top",
        type=_count,
        metavar="K",
        default=_TOP,
        help="how many to tell, the likeliest first (default: %(default)s)",
    )


def _add_pair(command: argparse.ArgumentParser) -> None:
    command.add_argument("--pair", dest="second", metavar="TEXT", help="second text of each item")


def _add_context(command: argparse.ArgumentParser) -> None:
    _add_top(command)
    command.add_argument(
        "--context", dest="second", metavar="TEXT", help="text that all questions are about"
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


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(map(float, text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} are not numbers with commas") from None


def _predict(arguments: argparse.Namespace) -> None:
    """Read the model, and answer what is asked, wherever it comes from."""
    if arguments.texts and arguments.input:
        raise UserError("give texts or --input, not both")
    nothing = not arguments.texts and not arguments.input
    asks = nothing and sys.stdin.isatty() and sys.stdout.isatty()
    if asks:
        arguments.batch_size = 1
    elif arguments.texts:  # no more rows than there is work for
        fitting = 1 << (len(arguments.texts) - 1).bit_length()
        arguments.batch_size = min(arguments.batch_size, fitting)
    weights = load_weights(arguments.model)
    if arguments.dtype:
        config = dataclasses.replace(weights.config, dtype=arguments.dtype)
        weights = dataclasses.replace(weights, config=config)
    predictor = _predictor(arguments, weights)
    if asks:
        _converse(arguments, predictor)
    else:
        _stream(arguments, predictor, _items(arguments, predictor))


def _predictor(arguments: argparse.Namespace, weights: Weights) -> Predictor:
    """What answers the command, with the model in memory."""
    command, size = arguments.command, arguments.batch_size
    longest = weights.config.max_position_embeddings
    length = arguments.max_length or longest
    if not _SHORTEST <= length <= longest:
        raise UserError(
            f"--max_length={length}: {weights.source} takes {_SHORTEST} to {longest} pieces"
        )
    if command in COMMANDS:
        return TaskHead(weights, _task(arguments, weights), size, arguments.top)
    if command == "fill-mask":
        return FillMask(weights, size, length, arguments.top)
    if command == "next-sentence":
        return NextSentence(weights, size, length)
    recipe = Recipe(
        layers=arguments.layers,
        combine=arguments.combine,
        weights=arguments.weights,
        pooling=arguments.pooling,
    )
    return Embed(weights, size, length, recipe)


def _task(arguments: argparse.Namespace, weights: Weights) -> Task:
    """The task of the model, which `command` must be for."""
    task = load_task(Path(arguments.model), weights)
    wanted = command_of(task)
    if wanted != arguments.command:
        raise UserError(
            f"{weights.source}: is a {weights.architecture}, which {wanted!r} is for, and not "
            f"{arguments.command!r}"
        )
    longest = min(task.max_length, weights.config.max_position_embeddings)
    task = dataclasses.replace(task, max_length=arguments.max_length or longest)
    if isinstance(task, TextTask) and (arguments.columns or arguments.second):
        given = arguments.columns or (task.text_column,)
        text, *pair = (*given, "pair") if arguments.second else given
        if len(pair) > 1:
            raise UserError(f"--columns={','.join(given)}: classify takes a text, maybe a pair")
        task = dataclasses.replace(task, text_column=text, pair_column="".join(pair))
    if isinstance(task, MultipleChoice):
        choices = len(arguments.columns) - 1 if arguments.columns else task.choices
        if choices < 2:
            raise UserError(
                f"{weights.source}: does not say how many choices there are; name their columns: "
                "--columns=context,ending0,ending1"
            )
        task = dataclasses.replace(task, choices=choices)
    return task


def _items(arguments: argparse.Namespace, predictor: Predictor) -> Iterator[Any]:
    """What is asked, from arguments, a file or standard input, as it is read."""
    path = arguments.input
    # Columns that are named are those of a table, whatever other forms the command knows.
    own = predictor.read(path) if path and not arguments.columns else None
    if own is not None:
        yield from own
        return
    columns, same = _columns(arguments, predictor)
    if path:
        source = from_file(path, columns)
    elif arguments.texts:
        source = from_arguments(arguments.texts, columns)
    else:
        source = from_stdin(columns)
    for where, texts in source:
        yield predictor.item(where, texts + same)


def _columns(
    arguments: argparse.Namespace, predictor: Predictor
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The columns that each item has a text for, and the text that all share, if one is given."""
    same = () if arguments.second is None else (arguments.second,)
    columns = predictor.columns[: len(predictor.columns) - len(same)]
    given = arguments.columns or columns
    if len(given) != len(columns):
        raise UserError(
            f"--columns={','.join(given)}: {arguments.command} takes {len(columns)}: "
            f"{', '.join(columns)}"
        )
    return given, same


def _converse(arguments: argparse.Namespace, predictor: Predictor) -> None:
    """Answer what a person types; a mistake is told, and the next text asked for."""
    columns, same = _columns(arguments, predictor)
    with _sink(arguments, predictor) as sink:
        for where, texts in from_person(columns):
            try:
                sink.write(predictor.predict([predictor.item(where, texts + same)]))
            except UserError as error:
                print_error(error)


def _stream(arguments: argparse.Namespace, predictor: Predictor, items: Iterable[Any]) -> None:
    """Answer items chunk by chunk, in their order, and tell how fast."""
    begun, done, cut = time.monotonic(), 0, 0
    shown = not arguments.texts and sys.stderr.isatty()
    with (
        _sink(arguments, predictor) as sink,
        tqdm(unit=" texts", disable=not shown, file=sys.stderr) as bar,
    ):
        for chunk in _chunks(items, predictor.chunk):
            predictions = predictor.predict(chunk)
            sink.write(predictions)
            done += len(chunk)
            cut += sum(prediction.get("cut", False) for prediction in predictions)
            bar.update(len(chunk))
    seconds = time.monotonic() - begun
    if not arguments.texts:
        rate = f"{done / seconds * 60:,.0f} a minute"
        print(f"{done:,} texts in {seconds:.1f} s ({rate})", file=sys.stderr)
    if cut:
        told = f"{cut:,} of {done:,} texts were longer than {predictor.max_length} pieces"
        print(f"{told} and {predictor.cut_text}", file=sys.stderr)


def _sink(arguments: argparse.Namespace, predictor: Predictor) -> Sink:
    """Where predictions go, as --format and --output say."""
    output: Path | None = arguments.output
    form = arguments.format or _default_form(output)
    if form == "npy":
        if output is None or output.suffix != ".npy":
            raise UserError("--format=npy: give --output=NAME.npy")
        return Vectors(output)
    return Table(output, predictor) if form == "table" else JsonLines(output)


def _default_form(output: Path | None) -> str:
    if output is not None:
        return "npy" if output.suffix == ".npy" else "jsonl"
    return "table" if sys.stdout.isatty() else "jsonl"


def _chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """`size` items at a time, the last time fewer."""
    rest = iter(items)
    while chunk := list(itertools.islice(rest, size)):
        yield chunk


if __name__ == "__main__":
    run_main(main)
