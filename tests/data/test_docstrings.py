"""The embedded corpus: what counts as prose, what is left out, and that no text is in it twice."""

import re
from collections import Counter
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from bert_jax.config import CorpusConfig
from bert_jax.data import docstrings
from bert_jax.data.corpus import open_source
from bert_jax.data.docstrings import (
    REQUIREMENTS,
    dependencies,
    document_pieces,
    is_prose,
    prose_paragraphs,
    read_prose,
    source_files,
)
from bert_jax.data.heldout import LONG_SENTENCE, near_duplicate, normalise, signature

PROSE = "The cat that lives in this house is asleep on the mat, as it is on most days."
OTHER = "A dog would not have been able to sleep there, for it is too large for the mat."


def paragraphs(string: str) -> list[str]:
    return list(prose_paragraphs(string))


@pytest.mark.parametrize(
    "text",
    [
        PROSE,
        "Return whether all of the elements in the given array are equal to one another.",
        "If this is None, the value that was given to the constructor is used instead.",
        "There are two ways to do this in a module:",
    ],
)
def test_whole_sentences_are_prose(text: str) -> None:
    assert is_prose(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Too short.",
        "the first letter is small, so this may be the rest of something.",
        "This one stops in the middle of a sentence, as if it had been",
        ">>> The value of this is what the function gives for it.",
        "The result = f(x) + g(y) = {1: 2} is what this line of code is about to give.",
        "Matrix vector tensor array scalar gradient kernel stride padding window output.",
        "See https://example.org for what there is to know about all of this.",
        "Expected the value of this to be a list, but got a %s in its place.",
        "Das ist ein Satz auf Deutsch, und er soll nicht in diesem Korpus stehen.",
    ],
)
def test_code_fragments_and_lists_are_not_prose(text: str) -> None:
    assert not is_prose(text)


def test_prose_is_taken_from_among_code() -> None:
    assert paragraphs(f"""{PROSE}

    Example::

        The = code(that, looks)

    >>> from module import the, function, that, does, it
    Notes
    -----
    {OTHER}

    ```
    # It ends with a comment on the code, which is what this is:

    {PROSE.replace("cat", "code")}

    ```
    ====  ====
    The   table of all that there is in this and in that.
    ====  ====
    """) == [PROSE, OTHER]


def test_items_keep_their_text_and_lose_their_names() -> None:
    first, rest = OTHER.split(", ")
    assert paragraphs(f"""
    Args:
      mat (str, optional): {PROSE}
      dog: {first},
        {rest}
      cat: of the house
    - {PROSE}
    2. {OTHER}
    :param dog: {PROSE}
    """) == [PROSE, OTHER, PROSE, OTHER, PROSE]


def test_markup_is_taken_off() -> None:
    marked = (
        PROSE.replace("cat", "`cat`")
        .replace("house", ":class:`~a.house`")
        .replace("mat", "**mat**")
    )
    assert paragraphs(marked) == [PROSE.replace("house", "a.house")]


def test_a_file_is_read_in_order_and_never_run(tmp_path: Path) -> None:
    sentences = [PROSE.replace("cat", word) for word in ("ant", "bee", "cow", "doe", "eel")]
    path = tmp_path / "module.py"
    path.write_text(f'''"""{sentences[0]}"""
raise SystemExit
class A:
    """{sentences[1]}"""
    async def f(self):
        """{sentences[2]}"""
        text = """
        {OTHER}
        """
if True:
    add_documentation("name", """
    {sentences[3]}
    """)
def g(): "{sentences[4]}"
''')
    assert read_prose(path) == [[sentence] for sentence in sentences]


@pytest.mark.parametrize("source", [b"def broken(:", b"\xff\xfe\x00", b"x = " + b"(" * 5000, b"\0"])
def test_files_that_do_not_parse_are_passed_over(source: bytes, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_bytes(source)
    assert read_prose(path) == []


def test_no_long_sentence_comes_twice(tmp_path: Path) -> None:
    files = []
    for name in "abc":
        files.append(tmp_path / f"{name}.py")
        own = [PROSE.replace("cat", f"{name} {n}") for n in ("one", "two")]
        files[-1].write_text(
            f'"""{own[0]}\n\n{OTHER.upper() if name == "b" else OTHER} {own[1]}\n\n{own[1]}"""'
        )
    found = [piece.data.decode().split("\n") for piece, _ in document_pieces(files)]
    # In b and c the second paragraph repeats a sentence of a; its own one still comes third.
    assert [len(document) for document in found] == [3, 2, 2]
    counts = Counter(normalise(sentence) for document in found for sentence in document)
    assert set(counts.values()) == {1}


def test_dependencies_are_those_that_setup_declares() -> None:
    setup = (Path(docstrings.__file__).parents[2] / "setup.py").read_text()
    declared = re.search(r"REQUIRES = \[(.*?)\n\]", setup, re.DOTALL)
    assert declared
    names = re.findall(r'^ +f?"([\w-]+)>', declared[1], re.MULTILINE)
    assert set(names) - {"scikit-learn"} == set(REQUIREMENTS)


def test_dependencies_of_dependencies_are_found_and_extras_are_not() -> None:
    names = {found.metadata["Name"].lower() for found in dependencies(("flax", "no-such-package"))}
    assert {"flax", "jax", "numpy", "scipy"} <= names
    assert not {"torch", "transformers", "pytest", "hypothesis"} & names


def test_installed_corpus_is_prose_and_its_heldout_part_is_new() -> None:
    """On a part of the real corpus, of two packages and a part of the standard library."""
    try:
        distribution("optax")
    except PackageNotFoundError:
        pytest.skip("optax is not installed as a package")
    files = [file for file in source_files() if {"optax", "email"} & set(file.parts)]
    pieces = list(document_pieces(files))
    documents = [piece.data.decode().split("\n") for piece, _ in pieces]
    assert sum(len(piece.data) for piece, _ in pieces) > 100_000
    assert 0 <= sum(file.stat().st_size for file in files) - pieces[-1][1] < 50_000
    heldout = signature([sentence for document in documents[::10] for sentence in document])
    for index, document in enumerate(documents):
        hashes = signature(document)
        assert near_duplicate(hashes, heldout) == (index % 10 == 0 and len(hashes) > 0)
    long = [s for document in documents for s in document if len(normalise(s)) >= LONG_SENTENCE]
    assert len(long) == len(set(map(normalise, long)))


@pytest.mark.slow
def test_whole_corpus_is_megabytes_whatever_the_settings() -> None:
    source = open_source(CorpusConfig(source="docstrings:", sentences="split"))
    documents = [document for unit in source.units() for document in source.documents(unit)[0]]
    assert sum(len(sentence) for document in documents for sentence in document) > 5_000_000
    assert len(documents) > 2000
