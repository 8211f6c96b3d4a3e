"""Where text comes from: `KIND:WHERE` to a stream of documents.

A source works in two halves. `Source.units`, in the main process, cuts the raw bytes into units of
about 1 MiB: cheap, in bounded memory, the same units whatever the number of workers.
`Source.documents`, in any process, turns one unit into documents.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bert_jax.config import CorpusConfig
from bert_jax.data.documents import Counts, Document, Unit


@dataclass(frozen=True)
class Source:
    """A corpus that is ready to be read, as often as one likes.

    Attributes:
      total_bytes: the sum of `Unit.progress` over all units, for a progress bar: bytes on disk,
        compressed where files are compressed.
      units: starts a pass over the raw text, in the main process; always the same units in the
        same order. Raises UserError naming the file: unreadable, not a gzip file, truncated.
      documents: the documents of a unit and what was counted on the way. Picklable, pure and
        free of TensorFlow and JAX, for worker processes. Raises UserError in strict mode.
    """

    total_bytes: int
    units: Callable[[], Iterator[Unit]]
    documents: Callable[[Unit], tuple[list[Document], Counts]]


def open_source(corpus: CorpusConfig) -> Source:
    """The source that `corpus.source` names, checked as far as can be done at once.

    Raises:
      UserError: unknown kind, no such file, a glob without a match, a directory, a missing
        field, a TFDS data set that is neither on disk nor within reach.
    """
    raise NotImplementedError
