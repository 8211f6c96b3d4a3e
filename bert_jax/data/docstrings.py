"""The embedded corpus: English documentation that is on every machine that can run the project.

It is what documentation strings say in Python's standard library and in the packages that the
project depends on, directly or not: real prose of several megabytes with nothing to download. It
is technical and templated, and changes with the versions installed: a demonstration, not general
English.

A source file makes a document. Files are read with `ast`, never imported. Of each documentation
string only paragraphs of prose are kept: whole sentences with the function words of English. Code,
doctests, signatures, tables and markup are not.

What keeps held-out figures honest: a paragraph with a long sentence that the corpus already has is
left out, so no long sentence of a held-out file, in whatever copy of it, is trained on. What stays
is that other files of the same package are trained on: a held-out figure tells how well the model
knows the documentation of these packages, not how well it would do on those it has never seen.
"""

import ast
import importlib.metadata
import re
import sysconfig
import warnings
from collections.abc import Iterator
from functools import partial
from inspect import cleandoc
from itertools import chain
from pathlib import Path

from bert_jax.data.documents import Document, Piece, Pieces, split_sentences
from bert_jax.data.heldout import LONG_SENTENCE, normalise
from bert_jax.data.workers import core_count, ordered, worker_pool

# What the project itself needs, but for scikit-learn: the figures of the tiny recipe are of the
# corpus without its 16 MB of source. What these need in turn is found from their metadata.
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
    "pyarrow",
    "importlib_resources",
    "tokenizers",
    "sentencepiece",
    "protobuf",
    "sentencex",
    "tqdm",
    "matplotlib",
    "tensorboardX",
    "scipy",
)
MIN_WORDS = 8  # of a paragraph
FUNCTION_WORDS = 0.2  # least share of a paragraph's words; edited English has 0.4 to 0.5
LETTERS = 0.9  # least share of letters and spaces; prose has about 0.96
CHUNK = 32  # files read at once
MIN_SENTENCES = 2  # of a document: it takes two for a pair

_FUNCTION_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
        a about after all also an and any are as at be because been before between both but by
        can could do does each either for from had has have how if in into is it its may might
        more most must neither no not of on only or other over same should since so some such
        than that the their them then there these they this those through to under until used
        was we were what when where whether which while who will with within without would you
        your
        """,
    )
)
_SKIPPED_FOLDERS = {"test", "tests", "testing", "site-packages", "dist-packages", "_vendor"}
_WORD = re.compile(r"[A-Za-z]+(?:'[a-z]+)?")
_NOT_PROSE = re.compile(r">>>|\.\. |[|{}\\$]|[=<>_*~^+-]{3}|\w\(.*=|http|%[sdr]|^[-*+#@:.]")
# What starts an item of a list: a bullet, a number, or the name and type of a parameter.
_ITEM = re.compile(r"^(?:[-*+•] +|\(?\d+[.)] +|:\w+[^:]*: +|[\w*`.]+(?: \([^()]*\))?: +)")
_UNDERLINED = re.compile(r"^.*\n *([-=~^])\1{2,} *$", re.MULTILINE)
_ROLE = re.compile(r":[\w:+-]+:`[~!]?([^`<]*)(?:<[^`]*>)?`_{0,2}")
_MARKUP = re.compile(r"`+~?([^`<]*?)(?: ?<[^`]*>)?`+_{0,2}|\*{1,2}(\w[^*]*)\*{1,2}")
_FENCE = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)


def open_docstrings() -> tuple[int, Pieces]:
    """The size of all files, in bytes, and what starts a pass over their documents."""
    files = source_files()
    total = sum(file.stat().st_size for file in files)
    return total, partial(document_pieces, files)


def source_files() -> list[Path]:
    """Python files of the standard library and of the installed dependencies, sorted; no tests."""
    stdlib = Path(sysconfig.get_path("stdlib"))
    files = {file.relative_to(stdlib): file for file in stdlib.rglob("*.py")}
    for distribution in dependencies(REQUIREMENTS):
        for name in distribution.files or []:
            files[Path(name)] = Path(str(distribution.locate_file(name)))
    return [files[name] for name in sorted(files) if _is_source(name) and files[name].is_file()]


def _is_source(name: Path) -> bool:
    a_test = name.stem.startswith("test_") or name.stem.endswith("_test")
    return name.suffix == ".py" and not a_test and not _SKIPPED_FOLDERS & set(name.parts)


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
    chunks = [files[start : start + CHUNK] for start in range(0, len(files), CHUNK)]
    workers = core_count()
    with worker_pool(workers) as pool:
        results = ordered(pool, read_chunk, chunks, 4 * workers)
        for file, paragraphs in zip(files, chain.from_iterable(results), strict=True):
            done += file.stat().st_size
            document = [line for part in paragraphs if _is_new(part, seen) for line in part]
            if len(document) >= MIN_SENTENCES:
                yield Piece(str(file), "\n".join(document).encode()), done


def _is_new(paragraph: list[str], seen: set[str]) -> bool:
    """Whether none of the paragraph's long sentences is in `seen`; if so, they are put there."""
    normalised = [normalise(sentence) for sentence in paragraph]
    keys = {text for text in normalised if len(text) >= LONG_SENTENCE} or {" ".join(normalised)}
    if not keys.isdisjoint(seen):
        return False
    seen |= keys
    return True


def read_chunk(files: list[Path]) -> list[list[Document]]:
    """`read_prose` of some files: one alone is hardly worth a message to another process."""
    return list(map(read_prose, files))


def read_prose(file: Path) -> list[Document]:
    """The paragraphs of prose in a source file's strings, in order, as sentences."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a package's invalid escapes are not ours to tell
            tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError, OSError):
        return []
    return [
        split_sentences(paragraph, "en")
        for string in _strings(tree.body)
        for paragraph in prose_paragraphs(string)
    ]


def _strings(body: list[ast.stmt]) -> Iterator[str]:
    """Documentation strings, and strings of several lines in other statements of a module or
    class: NumPy passes the documentation of its compiled functions to a call."""
    for node in body:
        match node:
            case ast.Expr(ast.Constant(str(string))):
                yield string
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield ast.get_docstring(node) or ""
            case ast.ClassDef():
                yield from _strings(node.body)
            case ast.If() | ast.Try():
                yield from _strings([*node.body, *node.orelse])
            case ast.Expr() | ast.Assign():
                for part in ast.walk(node):
                    match part:
                        case ast.Constant(str(string)) if "\n" in string:
                            yield string


def prose_paragraphs(string: str) -> Iterator[str]:
    """The paragraphs of prose in a documentation string, without its markup."""
    for lines in _paragraphs(_UNDERLINED.sub("", _FENCE.sub("", cleandoc(string)))):
        paragraph = " ".join([_ITEM.sub("", lines[0], count=1), *lines[1:]])
        plain = _MARKUP.sub(r"\1\2", _ROLE.sub(r"\1", " ".join(paragraph.split())))
        if is_prose(plain):
            yield plain


def _paragraphs(text: str) -> Iterator[list[str]]:
    """Lines that belong together: alike in indentation, or an item and what hangs from it."""
    lines, indent, item = [], 0, False
    for line in [*text.split("\n"), ""]:
        words = line.strip()
        depth = len(line) - len(line.lstrip())
        starts_item = bool(_ITEM.match(words))
        goes_on = depth > indent if item else depth == indent
        if lines and (starts_item or not words or not goes_on):
            yield lines
            lines = []
        if words:
            if not lines:
                indent, item = depth, starts_item
            lines.append(words)


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
