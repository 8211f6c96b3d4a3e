"""python -m bert_jax.prepare: text to a vocabulary and token shards.

The corpus is read once, by all cores, into clean text; a vocabulary is trained on the training
side of it (or one is given); and the text is encoded into shards that training maps into memory.
Work in progress lies in OUTPUT.partial, in units of about 1 MiB: whatever ends a run, the same
command goes on from there. OUTPUT appears when it is complete, and its bytes depend on the text
and the settings alone, not on the number of workers or on interruptions.
"""

import argparse
import errno
import hashlib
import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from bert_jax.config import BertConfig, Config, CorpusConfig
from bert_jax.data import shards
from bert_jax.data.corpus import BETWEEN_SOURCES, FILE_KINDS, named_sources, open_source
from bert_jax.data.corpus_vocabulary import digest, given_vocabulary, make_vocabulary, new_pieces
from bert_jax.data.preparation import (
    Workspace,
    check_documents,
    choose_sides,
    encode_corpus,
    read_corpus,
    read_json,
    write_json,
)
from bert_jax.data.shards import Manifest
from bert_jax.data.workers import core_count, worker_pool
from bert_jax.errors import INTERRUPTED_EXIT_CODE, UserError, run_main
from bert_jax.files import held
from bert_jax.flags import Parser
from bert_jax.terminal import outlive_terminal
from bert_jax.user_cache import user_cache

# The manifest's settings tell by it what the words in `new_tokens` were: the file may change.
_NEW_PIECES = "new_tokens_digest"


def prepare(
    corpus: CorpusConfig,
    vocab_size: int,
    output: str | Path,
    *,
    workers: int | None = None,
    progress: bool = True,
    seconds: dict[str, float] | None = None,
) -> Manifest:
    """Make token shards of a corpus in the directory `output`, or go on making them.

    Args:
      corpus: what to read, and how.
      vocab_size: pieces of the vocabulary to train, `corpus.new_tokens` among them; not used where
        `corpus.vocab` gives one.
      output: a directory that does not exist yet, or that these settings made: then it is kept.
      workers: processes; None is one a core.
      progress: show progress bars and a summary.
      seconds: takes the wall time of each stage.

    Raises:
      UserError: a bad setting, source or vocabulary, too few documents, a full disk, an `output`
        that holds something else.
      KeyboardInterrupt: what was done so far is kept.
    """
    Config(corpus=corpus, model=BertConfig(vocab_size=vocab_size)).validate()
    output = Path(output)
    root = Path(f"{output}.partial")
    settings = asdict(corpus) | {"vocab_size": vocab_size}
    if _is_there(output):
        manifest = _already_there(output, settings, corpus, progress)
        shutil.rmtree(root, ignore_errors=True)  # a run may have ended just before it did this
        return manifest
    _check_replaceable(output)
    new = new_pieces(corpus, vocab_size)
    source = open_source(corpus)
    given = given_vocabulary(corpus, new) if corpus.vocab else None
    seconds = {} if seconds is None else seconds
    space = Workspace(root, workers or core_count(), progress, seconds)
    with _explained(root), _locked(root), worker_pool(space.workers) as pool:
        if _is_there(output):  # by another process, since this one looked
            shutil.rmtree(root)
            return _already_there(output, settings, corpus, progress)
        _keep_if_same_settings(space, settings)
        with space.timed("reading"):
            inventory = read_corpus(space, source, corpus.heldout_fraction, pool)
            sides = choose_sides(inventory.hashes, inventory.heldout)
        _keep_if_same_inputs(space, [inventory.inputs, given.digest if given else digest(new)])
        with space.timed("vocabulary"):
            tokenizer = make_vocabulary(space, corpus, vocab_size, new, inventory, sides, given)
        with space.timed("encoding"):
            splits, counts = encode_corpus(space, inventory, sides, tokenizer, pool)
        train, heldout = (splits[split].documents for split in shards.SPLITS)
        check_documents(train, heldout)
        manifest = Manifest(
            source=corpus.source,
            corpus=settings | ({_NEW_PIECES: digest(new)} if new else {}),
            inputs=inventory.inputs,
            tokenizer_digest=tokenizer.digest,
            vocab_size=tokenizer.vocab_size,
            splits=splits,
            counts=dict(counts),
        )
        shards.write_manifest(space.done, manifest)
        os.replace(space.done, output)
        shutil.rmtree(root)
    if progress:
        print(_summary(manifest, sum(inventory.text_bytes), seconds, output))
    return manifest


def default_directory(corpus: CorpusConfig, vocab_size: int) -> Path:
    """Where `train` keeps the shards of a corpus by itself: in the user's cache folder.

    The name holds a hash of the settings, and of the full paths of the sources and other files.

    Raises:
      UserError: as `named_sources` and `user_cache`.
    """
    sources = named_sources(corpus.source)
    places = [os.path.abspath(where) if kind in FILE_KINDS else where for kind, where in sources]
    files = [os.path.abspath(path) for path in (corpus.vocab, corpus.new_tokens) if path]
    settings = [shards.VERSION, asdict(corpus), vocab_size, *places, *files]
    digest = hashlib.blake2b(json.dumps(settings).encode(), digest_size=6).hexdigest()
    return user_cache() / "-".join([*dict(sources), digest])


def _check_replaceable(output: Path) -> None:
    """Check that a finished directory can take the place of `output`."""
    if output.is_symlink() or output.is_mount() or output.resolve() == Path.cwd():
        raise UserError(
            f"{output}: is a link, a mount point or the directory you are in; give the name of a "
            "directory to make, such as one inside it"
        )


def _is_there(output: Path) -> bool:
    return output.is_file() or (output.is_dir() and any(output.iterdir()))


def _already_there(
    output: Path, settings: dict[str, Any], corpus: CorpusConfig, progress: bool
) -> Manifest:
    """The manifest of finished shards, if these settings made them."""
    if not (output / shards.MANIFEST).is_file():
        raise UserError(f"{output}: exists and holds no token shards; give another --output")
    manifest = shards.read_manifest(output)
    for name, value in settings.items():
        if manifest.corpus.get(name) != value:
            raise UserError(
                f"{output}: prepared with {name}={manifest.corpus.get(name)!r}, not {value!r}; "
                "give another --output, or delete it to prepare it again"
            )
    # Shards outlive the files of their vocabulary; where these are there, they may differ by now.
    files = [path for path in (corpus.vocab, corpus.new_tokens) if path]
    there = all(Path(path).exists() for path in files)
    if there and not _has_vocabulary(manifest, corpus, settings["vocab_size"]):
        raise UserError(
            f"{output}: prepared with another vocabulary than {' and '.join(files)} holds now; "
            "give another --output, or delete it to prepare it again"
        )
    if progress:
        print(f"{output} is prepared already with these settings; delete it to prepare it again")
    return manifest


def _has_vocabulary(manifest: Manifest, corpus: CorpusConfig, vocab_size: int) -> bool:
    """Whether shards were made with what the files that `corpus` names hold now."""
    new = new_pieces(corpus, vocab_size)
    if corpus.vocab:
        return given_vocabulary(corpus, new).digest == manifest.tokenizer_digest
    return manifest.corpus.get(_NEW_PIECES) == digest(new)


@contextmanager
def _explained(root: Path) -> Iterator[None]:
    """Say in one line what a full disk or a lost worker means."""
    try:
        yield
    except BrokenProcessPool:
        raise UserError(
            "a worker process was killed, perhaps for lack of memory; run the same command "
            "with fewer --workers: it goes on from there"
        ) from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise UserError(
                f"{root}: no space left to write ({error.strerror}); make room and run the same "
                "command: it goes on from there"
            ) from error
        raise UserError(f"{error.filename or root}: {error.strerror or error}") from error


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Keep a second process from preparing the same output at the same time."""
    root.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(held(root))
        except BlockingIOError:
            raise UserError(f"{root}: another process is at work there; wait for it") from None
        yield


def _keep_if_same_settings(space: Workspace, settings: dict[str, Any]) -> None:
    """Clear what an earlier run with other settings left."""
    path = space.root / "settings.json"
    if read_json(path) != settings:
        if any(space.root.iterdir()):
            space.tell(f"{space.root} was made with other settings: starting over")
        _clear(space.root)
        write_json(path, settings)
    space.text(0).parent.mkdir(exist_ok=True)
    space.done.mkdir(exist_ok=True)


def _keep_if_same_inputs(space: Workspace, inputs: list[str | None]) -> None:
    """Clear the vocabulary and the shards that an earlier run made of another text or vocabulary.

    Args:
      inputs: digests of the text and of the vocabulary, or the new pieces, that are given.
    """
    path = space.root / "inputs.json"
    if read_json(path) != inputs:
        if path.exists():
            space.tell("the source or its vocabulary has changed: making the shards again")
        _clear(space.done)
        for group in space.root.glob("group-*.json"):
            group.unlink()
        write_json(path, inputs)


def _clear(folder: Path) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _summary(manifest: Manifest, text_bytes: int, seconds: dict[str, float], output: Path) -> str:
    sides = [
        f"  {name}: {split.documents:,} documents, {split.sentences:,} sentences, "
        f"{split.tokens:,} tokens"
        for name, split in manifest.splits.items()
    ]
    counts = [f"{count:,} {name.replace('_', ' ')}" for name, count in manifest.counts.items()]
    times = [f"{stage} {duration:.1f} s" for stage, duration in seconds.items()]
    rate = text_bytes / 1e6 / sum(seconds.values())
    return "\n".join(
        [
            f"{output}: {text_bytes / 1e6:,.1f} MB of clean text",
            *sides,
            f"  vocabulary: {manifest.vocab_size:,} pieces",
            f"  counted: {', '.join(counts) or 'nothing to mend'}",
            f"  time: {', '.join(times)}; {rate:.1f} MB/s of clean text over all",
        ]
    )


def _parser() -> Parser:
    parser = Parser(
        prog="python -m bert_jax.prepare",
        description="Turn text into a vocabulary and token shards, ready to pretrain on.",
        epilog=_EXAMPLES,
    )
    for spec in fields(CorpusConfig):
        takes: dict[str, Any] = {"default": spec.default, "help": _help(spec)}
        if isinstance(spec.default, bool):
            takes["action"] = argparse.BooleanOptionalAction
        else:
            takes |= {"type": type(spec.default), "metavar": spec.name.upper()}
        if spec.metadata["choices"]:
            takes |= {"choices": spec.metadata["choices"], "metavar": None}
        if spec.name == "source":
            takes |= {"action": "append", "default": []}  # given twice, both are meant
        parser.add_argument(f"--{spec.name}", **takes)
    parser.add_argument(
        "--vocab_size",
        type=int,
        default=BertConfig().vocab_size,
        help="pieces of the vocabulary to train, --new_tokens among them (default: %(default)s); "
        "--vocab has its own",
    )
    parser.add_argument(
        "--output",
        help="directory to make; without it, a folder of the user's cache, where `train` looks",
    )
    parser.add_argument("--workers", type=int, help="processes (default: one a core)")
    return parser


def _help(spec: Any) -> str:
    shown = "none" if spec.default == "" else spec.default
    return f"{spec.metadata['help']} (default: {shown})".replace("%", "%%")


_EXAMPLES = """
examples:
  books of plain prose, a vocabulary of the paper's size:
    python -m bert_jax.prepare --source='text:books/*.txt' --output=data/books

  a sentence a line, a blank line between documents, as the original code reads:
    python -m bert_jax.prepare --source='text:corpus.txt' --sentences=lines --output=data/corpus

  JSON lines with the text in the field "body", compressed, and a vocabulary that exists:
    python -m bert_jax.prepare --source='jsonl:*.jsonl.gz' --text_field=body \\
        --vocab=vocab.txt --output=data/mine

  several sources with one vocabulary, as the paper has books and Wikipedia:
    python -m bert_jax.prepare --source='text:books/*.txt + jsonl:wikipedia/*.jsonl.gz' \\
        --output=data/both

  a data set of the Hugging Face hub, whose Parquet files were downloaded:
    python -m bert_jax.prepare --source='parquet:wikipedia/20231101.ko/*.parquet' --language=ko \\
        --output=data/kowiki

then train on it:
    python -m bert_jax.train --config=base --config.data.dir=data/books

Interrupted, for whatever reason? The same command goes on from where it was.
"""


def main() -> None:
    """Parse the command line, prepare, and say what to type next."""
    outlive_terminal()
    options = vars(_parser().parse_args())
    output, workers = options.pop("output"), options.pop("workers")
    vocab_size = options.pop("vocab_size")
    if workers is not None and workers < 1:
        raise UserError(f"--workers={workers}: must be at least 1")
    options["source"] = BETWEEN_SOURCES.join(options["source"] or [CorpusConfig().source])
    corpus = CorpusConfig(**options)
    output = output or default_directory(corpus, vocab_size)
    try:
        manifest = prepare(corpus, vocab_size, output, workers=workers)
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on from here", file=sys.stderr)
        sys.exit(INTERRUPTED_EXIT_CODE)
    size = manifest.vocab_size
    flag = "" if size == BertConfig().vocab_size else f" --config.model.vocab_size={size}"
    folder = shlex.quote(str(output))
    print(f"next: python -m bert_jax.train --config=base --config.data.dir={folder}{flag}")


if __name__ == "__main__":
    run_main(main)
