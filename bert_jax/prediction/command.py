"""A command of `predict`, from its command line to its answers."""

import argparse
import dataclasses
import itertools
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from bert_jax.data.compressed import ENDINGS
from bert_jax.errors import UserError, full_memory_told, print_error
from bert_jax.interop import Weights, load_weights
from bert_jax.prediction.embedding import Embed
from bert_jax.prediction.fill_mask import FillMask
from bert_jax.prediction.next_sentence import NextSentence
from bert_jax.prediction.predictor import Predictor
from bert_jax.prediction.recipe import Recipe
from bert_jax.prediction.sinks import JsonLines, Sink, Table, Vectors
from bert_jax.prediction.sources import from_arguments, from_file, from_person, from_stdin
from bert_jax.prediction.task_head import COMMANDS, TaskHead, command_of
from bert_jax.settings import SHORTEST
from bert_jax.tasks.multiple_choice import MultipleChoice
from bert_jax.tasks.registry import load_task
from bert_jax.tasks.task import Task
from bert_jax.tasks.texts import TextTask
from bert_jax.training.compilation import keep_compiled_programs

_LESS_MEMORY = "take fewer sequences together, by --batch_size, or shorter ones, by --max_length"


def answer(arguments: argparse.Namespace) -> None:
    """Read the model, and answer what is asked, wherever it comes from.

    Args:
      arguments: of the command line of `predict`.

    Raises:
      UserError: what is asked cannot be answered, or not by this model.
    """
    keep_compiled_programs()
    nothing = not arguments.texts and not arguments.input
    asks = nothing and sys.stdin.isatty() and sys.stdout.isatty()
    if asks:
        arguments.batch_size = 1
    elif arguments.texts:  # no more rows than there is work for
        fitting = 1 << (len(arguments.texts) - 1).bit_length()
        arguments.batch_size = min(arguments.batch_size, fitting)
    _check_output(arguments)
    weights = load_weights(arguments.model)
    config = dataclasses.replace(weights.config, dtype=arguments.dtype)
    predictor = _predictor(arguments, dataclasses.replace(weights, config=config))
    for note in weights.notes:
        print(f"{arguments.model}: {note}", file=sys.stderr)
    with full_memory_told(_LESS_MEMORY):
        if asks:
            _converse(arguments, predictor)
        else:
            _stream(arguments, predictor, _items(arguments, predictor))


def _check_output(arguments: argparse.Namespace) -> None:
    """Refuse to write where the texts are read from, or in a form that is not written."""
    given, output = arguments.input, arguments.output
    if output and output.suffix == ".npy" and arguments.command != "embed":
        raise UserError(f"--output={output}: only embed writes arrays; name a .jsonl")
    if output and output.suffix in ENDINGS:
        raise UserError(f"--output={output}: answers are not compressed; leave {output.suffix} out")
    if given and output and given.exists() and output.exists() and output.samefile(given):
        raise UserError(f"--output={output}: is the file of --input; name another")


def _predictor(arguments: argparse.Namespace, weights: Weights) -> Predictor:
    """What answers the command, with the model in memory."""
    command, size = arguments.command, arguments.batch_size
    longest = weights.config.max_position_embeddings
    length = arguments.max_length or longest
    if not SHORTEST <= length <= longest:
        raise UserError(
            f"--max_length={length}: {weights.source} takes {SHORTEST} to {longest} pieces"
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
    task = load_task(Path(weights.source), weights)
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
        if task.pair_column and not pair:
            raise UserError(
                f"--columns={text}: {weights.source} was fine-tuned on pairs of texts; name the "
                "column of the second ones too, or give one for all by --pair"
            )
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
        # Columns that are named stand in a first line.
        header = () if arguments.columns else predictor.file_header
        source = from_file(path, columns, header)
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
    chunks = _chunks(items, predictor.chunk)
    # What cannot be read is told before an earlier file of answers is written over.
    first = list(itertools.islice(chunks, 1))
    with (
        _sink(arguments, predictor) as sink,
        tqdm(unit=" texts", disable=not shown, file=sys.stderr) as bar,
    ):
        for chunk in itertools.chain(first, chunks):
            predictions = predictor.predict(chunk)
            sink.write(predictions)
            done += len(chunk)
            cut += sum(bool(prediction.get("cut")) for prediction in predictions)
            bar.update(len(chunk))
    seconds = time.monotonic() - begun
    if not arguments.texts:
        rate = f"{done / seconds * 60:,.0f} a minute"
        print(f"{done:,} texts in {seconds:.1f} s ({rate})", file=sys.stderr)
    if cut:
        told = f"{cut:,} of {done:,} {predictor.cuttable} were longer than"
        print(f"{told} {predictor.max_length} pieces and {predictor.cut_text}", file=sys.stderr)


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
