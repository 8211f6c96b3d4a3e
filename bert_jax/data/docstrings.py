"""The embedded corpus: English documentation that is on every machine that can run the project.

It is what documentation strings say in Python's standard library and in the packages that the
project depends on, directly or not: real prose of several megabytes with nothing to download. It
is technical and templated, and changes with the versions installed: a demonstration, not general
English.

A source file makes a document. Files are read with `ast`, never imported. Of each string that
stands alone or is long enough to be documentation, only paragraphs of prose are kept: whole
sentences with the function words of English; code, doctests, signatures, tables and lists of
parameters are not.

What keeps held-out figures honest: a paragraph with a long sentence that the corpus already has is
left out, so no long sentence of a held-out file, in whatever copy of it, is trained on. What stays
is that other files of the same package are trained on: a held-out figure tells how well the model
knows the documentation of these packages, not how well it would do on those it has never seen.
"""

import ast
import importlib.metadata
import os
import re
import sysconfig
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from inspect import cleandoc
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path

from bert_jax.data.documents import Document, Piece, split_sentences
from bert_jax.data.heldout import LONG_SENTENCE, normalise

# What the project itself needs; what those need in turn is found from their metadata.
REQUIREMENTS = (
    "jax",
    "flax",
    "optax",
    "orbax-checkpoint",
    "numpy",
    "ml_collections",
    "tensorflow-cpu",
    "tensorflow",
    "tensorflow-datasets",
    "importlib_resources",
    "tokenizers",
    "sentencepiece",
    "sentencex",
    "tqdm",
    "matplotlib",
    "tensorboardX",
)
MIN_WORDS = 8  # of a paragraph
FUNCTION_WORDS = 0.2  # least share of a paragraph's words; edited English has 0.4 to 0.5
LETTERS = 0.9  # least share of letters and spaces; prose has about 0.96
MIN_SENTENCES = 2  # of a document: it takes two for a pair

_FUNCTION_WORDS = frozenset(
    """
    a about after all also an and any are as at be because been before between both but by can
    could do does each either for from had has have how if in into is it its may might more most
    must neither no not of on only or other over same should since so some such than that the
    their them then there these they this those through to under until used was we were what
    when where whether which while who will with within without would you your
    """.split()
)
_SKIPPED_FOLDERS = {"test", "tests", "testing", "site-packages", "dist-packages", "_vendor"}
_WORD = re.compile(r"[A-Za-z]+(?:'[a-z]+)?")
_NOT_PROSE = re.compile(r">>>|\.\. |[|{}\\$]|[=<>_*~^+-]{3}|\w\(.*=|http|^[-*+#@:.]|^\d+[.)]")
_ROLE = re.compile(r":[\w:+-]+:`[~!]?([^`<]*)(?:<[^`]*>)?`_{0,2}")
_MARKUP = re.compile(r"`+~?([^`<]*?)(?: ?<[^`]*>)?`+_{0,2}|\*{1,2}(\w[^*]*)\*{1,2}")
_FENCE = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)


def open_docstrings():
    """The size of all files, and what starts a pass over their documents."""
    files = source_files()
    total = sum(file.stat().st_size for file in files)
    return total, partial(document_pieces, files)


def source_files() -> list[Path]:
    """Python files of the standard library and of the installed dependencies, sorted."""
    stdlib = Path(sysconfig.get_path("stdlib"))
    files = {file.relative_to(stdlib): file for file in stdlib.rglob("*.py")}
    for distribution in dependencies(REQUIREMENTS):
        for name in distribution.files or []:
            files[Path(name)] = Path(str(distribution.locate_file(name)))
    return [
        files[name]
        for name in sorted(files)
        if name.suffix == ".py" and not _SKIPPED_FOLDERS & set(name.parts) and files[name].is_file()
    ]


def dependencies(roots: tuple[str, ...]) -> list[importlib.metadata.Distribution]:
    """The installed distributions among some names, and those they need; extras left out."""
    found, names = {}, list(roots)
    while names:
        name = re.sub(r"[-_.]+", "-", names.pop()).lower()
        if name in found:
            continue
        try:
            found[name] = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        for requirement in found[name].requires or []:
            if "extra ==" not in requirement:
                names += re.findall(r"^[\w.-]+", requirement)
    return [found[name] for name in sorted(found)]


def document_pieces(files: list[Path]) -> Iterator[tuple[Piece, int]]:
    """A piece a file that has prose: a sentence a line, as in `text:` with `lines`."""
    seen, done = set(), 0
    workers = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for file, paragraphs in zip(files, pool.map(read_prose, files, chunksize=32), strict=True):
            done += file.stat().st_size
            document = [line for part in paragraphs if _is_new(part, seen) for line in part]
            if len(document) >= MIN_SENTENCES:
                yield Piece(str(file), "\n".join(document).encode()), done


def _is_new(paragraph: list[str], seen: set[str]) -> bool:
    """Whether none of the paragraph's long sentences is in `seen`, where they are then put."""
    normalised = [normalise(sentence) for sentence in paragraph]
    keys = {text for text in normalised if len(text) >= LONG_SENTENCE} or {" ".join(normalised)}
    new = keys.isdisjoint(seen)
    seen |= keys
    return new


def read_prose(file: Path) -> list[Document]:
    """The paragraphs of prose in a source file's strings, in order, as sentences."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a package's invalid escapes are not ours to tell
            tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError, OSError):
        return []
    strings = (
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    return [
        split_sentences(paragraph, "en")
        for string in strings
        for paragraph in prose_paragraphs(string)
    ]


def prose_paragraphs(string: str) -> Iterator[str]:
    """The paragraphs of prose in a documentation string, without its markup."""
    lines = _FENCE.sub("", cleandoc(string)).split("\n")
    # A change of indentation ends a paragraph too: a parameter and its description.
    for indent, block in groupby(lines, key=lambda line: len(line) - len(line.lstrip())):
        del indent
        for filled, run in groupby(block, key=lambda line: bool(line.strip())):
            if filled:
                paragraph = " ".join(" ".join(run).split())
                plain = _MARKUP.sub(r"\1\2", _ROLE.sub(r"\1", paragraph))
                if is_prose(plain):
                    yield plain


def is_prose(paragraph: str) -> bool:
    """Whether it reads as whole sentences of English."""
    if not (paragraph[:1].isupper() and paragraph.endswith((".", "!", "?", ":", ".)", '."'))):
        return False
    if _NOT_PROSE.search(paragraph) or not paragraph.isascii():
        return False
    words = _WORD.findall(paragraph.lower())
    letters = sum(character.isalpha() or character == " " for character in paragraph)
    return (
        len(words) >= MIN_WORDS
        and sum(word in _FUNCTION_WORDS for word in words) >= FUNCTION_WORDS * len(words)
        and letters >= LETTERS * len(paragraph)
    )
