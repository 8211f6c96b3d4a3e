"""Batches: any step's batch from the step alone, in O(1), each host building only its rows.

Position p = step * batch_size + row counts examples from the start of a phase, after those of
earlier phases of its length. One epoch is one variant of the plan in a keyed order, and
`duplicates` epochs are a cycle; so p gives the epoch and the place in it by arithmetic, and no
iterator has a state to save.

Dimensions: B rows, L pieces a sequence, P predictions a sequence.
"""

import atexit
import dataclasses
import weakref
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Protocol

import numpy as np

from bert_jax.config import Config, DataConfig
from bert_jax.data.keyed import below, key, permute, words
from bert_jax.data.masking import Vocabulary, count_predictions, mask_tokens
from bert_jax.data.pairs import Plan, max_pieces, open_plan
from bert_jax.data.quiet_tensorflow import load_tensorflow
from bert_jax.data.shards import Shard, open_shards, read_manifest
from bert_jax.data.spans import Cuts, Spans, truncate

Batch = dict[str, np.ndarray]
Rows = slice | np.ndarray  # of a global batch
ALL_ROWS = slice(None)
_ORDER, _EXAMPLE = 2, 3  # consumers of the seed (1 is the plan's)
_RANDOM_B, _TRUNCATION, _MASK = 1, 2, 3  # consumers of an example's key


class PairExamples:
    """The examples of one split at one sequence length.

    An example is a function of (seed, seq_len, copy, index): its index in the plan, and its copy,
    which is the variant with static masking (`duplicates` fixed copies, as the original makes
    them) and the epoch with dynamic masking.
    """

    def __init__(
        self,
        shards: list[Shard],
        plan: Plan,
        vocabulary: Vocabulary,
        data: DataConfig,
        *,
        seq_len: int,
        max_predictions: int,
        seed: int,
        first: int = 0,
    ) -> None:
        """See `open_examples`, which finds shards and plan on disk."""
        # Plain views: indexing a memmap object makes memmap objects, at a cost each.
        self._tokens = [np.asarray(shard.tokens) for shard in shards]
        self._sentences = [np.asarray(shard.sentences) for shard in shards]
        self._documents = [np.asarray(shard.documents) for shard in shards]
        self._first_document = np.cumsum([0] + [len(d) - 1 for d in self._documents])
        self._records = plan.records
        self._ends = np.cumsum(plan.counts)
        self._counts = np.array(plan.counts)
        self._vocabulary = vocabulary
        self._data = data
        self._seq_len = seq_len
        self._max_predictions = max_predictions
        self._first = first
        self._order_key = key(_ORDER, seed, seq_len)
        self._example_key = key(_EXAMPLE, seed, seq_len)

    def batch(self, step: int, batch_size: int, rows: Rows = ALL_ROWS) -> Batch:
        """`rows` of the global training batch of `step`, counted from the start of the phase.

        Returns:
          input_ids, token_type_ids, attention_mask: int32 [B, L];
          masked_lm_positions, masked_lm_ids: int32 [B, P];
          masked_lm_weights: float32 [B, P], 1 a prediction and 0 padding;
          and with next-sentence prediction next_sentence_labels: int32 [B], 0 is next, 1 random;
          next_sentence_weights: float32 [B], 1.
        """
        return self.read(self.cut(step, batch_size, rows))

    def cut(self, step: int, batch_size: int, rows: Rows = ALL_ROWS) -> Cuts:
        """What `read` makes the same `batch` of; cheap, and tells the lengths."""
        cycle, place = divmod(self._first + step * batch_size, int(self._ends[-1]))
        return self._cut(cycle, place + np.arange(batch_size)[rows])

    def evaluation_examples(self, max_examples: int) -> int:
        """How many examples `evaluation_batches` has."""
        return min(max_examples, int(self._counts[0]))

    def evaluation_batches(
        self, batch_size: int, max_examples: int, rows: Rows = ALL_ROWS
    ) -> Iterator[Batch]:
        """`rows` of each global batch of the first `max_examples` of epoch 0.

        The same each time. The last batch is filled up with copies of its first row, whose
        weights are 0.
        """
        count = self.evaluation_examples(max_examples)
        for first in range(0, count, batch_size):
            places = first + np.arange(batch_size)[rows]
            real = places < count
            batch = self.read(self._cut(0, np.where(real, places, first)))
            batch["masked_lm_weights"] *= real[:, None]
            if self._data.next_sentence:
                batch["next_sentence_weights"] *= real
            yield batch

    def _cut(self, cycle: int, places: np.ndarray) -> Cuts:
        """The examples at `places` (int64 [B]) after the start of a cycle over the variants."""
        total = self._ends[-1]
        cycles, places = cycle + places // total, places % total
        variant = np.searchsorted(self._ends, places, side="right")
        epoch = cycles * len(self._ends) + variant
        size = self._counts[variant]
        first = self._ends[variant] - size
        index = permute(places - first, size, key(self._order_key, epoch))
        copy = epoch if self._data.masking == "dynamic" else variant
        records, keys = self._records[first + index], key(self._example_key, copy, index)
        pieces = max_pieces(self._seq_len, self._data.next_sentence)
        a, b = truncate(*self._segments(records, keys), pieces, key(keys, _TRUNCATION))
        lengths = a.length + b.length + self._seq_len - pieces
        return Cuts(a, b, records["b"] == 0, lengths, keys)

    def read(self, cuts: Cuts) -> Batch:
        """The batch of these examples; see `batch`."""
        ids, types, attention, maskable = self._lay_out(cuts)
        masked = mask_tokens(
            ids,
            maskable,
            key(cuts.keys, _MASK),
            self._vocabulary,
            wanted=count_predictions(cuts.lengths, self._data.mask_prob, self._max_predictions),
            max_predictions=self._max_predictions,
            whole_word=self._data.whole_word,
        )
        batch = {
            "input_ids": masked.input_ids,
            "token_type_ids": types.astype(np.int32),
            "attention_mask": attention.astype(np.int32),
            "masked_lm_positions": masked.positions,
            "masked_lm_ids": masked.ids,
            "masked_lm_weights": masked.weights,
        }
        if self._data.next_sentence:
            batch["next_sentence_labels"] = cuts.random_b.astype(np.int32)
            batch["next_sentence_weights"] = np.ones(len(cuts.keys), np.float32)
        return batch

    def _segments(self, records: np.ndarray, keys: np.ndarray) -> tuple[Spans, Spans]:
        """A and B of each row, before truncation; without NSP, B is empty."""
        shard = records["shard"].astype(np.int64)
        first = records["sentence"].astype(np.int64)
        middle = first + records["a"]
        start, split, end, document = np.zeros((4, len(records)), np.int64)
        for number in np.unique(shard):
            at = np.flatnonzero(shard == number)
            offsets = self._sentences[number]
            start[at], split[at] = offsets[first[at]], offsets[middle[at]]
            end[at] = offsets[middle[at] + records["b"][at]]
            document[at] = self._first_document[number] + (
                np.searchsorted(self._documents[number], records["sentence"][at], side="right") - 1
            )
        a = Spans(shard, start, split - start)
        b = Spans(shard.copy(), split, end - split)
        if self._data.next_sentence:
            at = np.flatnonzero(records["b"] == 0)
            # The original fills the random B to the target too, with at least one sentence.
            wanted = np.maximum(records["target"][at].astype(np.int64) - a.length[at], 1)
            random = self._random_segments(document[at], wanted, key(keys[at], _RANDOM_B))
            b.shard[at], b.start[at], b.length[at] = random.shard, random.start, random.length
        return a, b

    def _random_segments(self, document: np.ndarray, wanted: np.ndarray, keys: np.ndarray) -> Spans:
        """Sentences of another document, from a random one on, of at least `wanted` pieces.

        Shorter where that document ends first. The original draws documents until one is
        another, ten times at most; one draw among the others is the same, and cannot fail.
        """
        uniform = words(keys, 2)
        documents = int(self._first_document[-1])
        other = (document + 1 + below(uniform[:, 0], documents - 1)) % documents
        shard = np.searchsorted(self._first_document, other, side="right") - 1
        start, length = np.zeros((2, len(other)), np.int64)
        for number in np.unique(shard):
            at = np.flatnonzero(shard == number)
            bounds, offsets = self._documents[number], self._sentences[number]
            local = other[at] - self._first_document[number]
            first_sentence, end = bounds[local].astype(np.int64), bounds[local + 1]
            sentence = first_sentence + below(uniform[at, 1], end - first_sentence)
            start[at] = offsets[sentence]
            # uint32 as the offsets are: a search by another type would first convert them all.
            full = np.searchsorted(offsets, (start[at] + wanted[at]).astype(np.uint32))
            length[at] = offsets[np.minimum(full, end)] - start[at]
        return Spans(shard, start, length)

    def _lay_out(self, cuts: Cuts) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """[CLS] A [SEP] B [SEP], or [CLS] A [SEP] without NSP.

        Returns:
          ids: int32 [B, L], token types: bool [B, L], attention: bool [B, L],
          and what is text, neither special nor padding: bool [B, L].
        """
        shape = (len(cuts.lengths), self._seq_len)
        rows, columns = np.arange(shape[0]), np.arange(shape[1])
        first_sep = 1 + cuts.a.length
        last = cuts.lengths - 1
        attention = columns <= last[:, None]
        types = attention & (columns > first_sep[:, None])
        text = attention.copy()
        text[:, 0] = text[rows, first_sep] = text[rows, last] = False

        ids = np.full(shape, self._vocabulary.pad_id, np.int32)
        ids[:, 0] = self._vocabulary.cls_id
        ids[rows, first_sep] = ids[rows, last] = self._vocabulary.sep_id
        self._copy_tokens(cuts.a, ids, rows * shape[1] + 1)
        self._copy_tokens(cuts.b, ids, rows * shape[1] + first_sep + 1)
        return ids, types, attention, text

    def _copy_tokens(self, spans: Spans, ids: np.ndarray, to: np.ndarray) -> None:
        """Copy each span into the flattened `ids` from offset `to` on."""
        if not len(to):  # the part of a packed batch that holds no sequence
            return
        order = np.argsort(spans.shard, kind="stable")
        shard, length = spans.shard[order], spans.length[order]
        ends = np.cumsum(length)
        within = np.arange(ends[-1])
        source = within + np.repeat(spans.start[order] - (ends - length), length)
        target = within + np.repeat(to[order] - (ends - length), length)
        flat = ids.reshape(-1)
        for number in np.unique(shard):
            low, high = np.searchsorted(shard, [number, number + 1])
            part = slice(ends[low] - length[low], ends[high - 1])
            flat[target[part]] = self._tokens[number][source[part]]


def open_examples(
    directory: str | Path,
    split: str,
    vocabulary: Vocabulary,
    data: DataConfig,
    *,
    seq_len: int,
    max_predictions: int,
    seed: int,
    first: int = 0,
) -> PairExamples:
    """The examples of the shards in `directory`, one side of the split: "train" or "heldout".

    Training batches begin after the `first` examples. Held-out examples are of epoch 0 only, so
    their plan has one variant.

    Raises:
      UserError: shards missing or damaged, too few documents, a directory that cannot be written.
    """
    if split == "heldout":
        data = dataclasses.replace(data, duplicates=1)
    shards = open_shards(directory, split)
    fingerprint = f"{read_manifest(directory).fingerprint}/{split}"
    plan = open_plan(directory, fingerprint, shards, data, seq_len, seed)
    return PairExamples(
        shards,
        plan,
        vocabulary,
        data,
        seq_len=seq_len,
        max_predictions=max_predictions,
        seed=seed,
        first=first,
    )


def phase_examples(config: Config, index: int, split: str, vocabulary: Vocabulary) -> PairExamples:
    """The examples of phase `index`, which goes on where an earlier one of its length ended.

    Raises:
      UserError: as `open_examples`.
    """
    phase = config.phases[index]
    earlier = (other for other in config.phases[:index] if other.seq_len == phase.seq_len)
    return open_examples(
        config.data.dir,
        split,
        vocabulary,
        config.data,
        seq_len=phase.seq_len,
        max_predictions=phase.max_predictions,
        seed=config.seed,
        first=sum(other.steps * other.batch_size for other in earlier),
    )


class Examples(Protocol):
    """What has training batches, as `PairExamples` has; packed ones have it too."""

    def batch(self, step: int, batch_size: int, rows: Rows = ALL_ROWS) -> Batch: ...


def train_dataset(
    examples: Examples,
    first_step: int,
    last_step: int,
    batch_size: int,
    rows: Rows = ALL_ROWS,
    workers: int = 2,
) -> Generator[Batch]:
    """Batches of steps first_step .. last_step - 1 in order, built ahead by tf.data.

    Whatever `examples.batch` raises is raised here, at its step. The arrays are read-only.
    """
    batches = _build_ahead(examples, range(first_step, last_step), batch_size, rows, workers)
    # A process that ends while tf.data's threads run Python code hangs.
    atexit.register(_close, weakref.ref(batches))
    return batches


def _close(batches: weakref.ref[Generator[Batch]]) -> None:
    if (generator := batches()) is not None:
        generator.close()


def _build_ahead(
    examples: Examples, steps: range, batch_size: int, rows: Rows, workers: int
) -> Generator[Batch]:
    tf = load_tensorflow()
    tf.config.set_visible_devices([], "GPU")  # or TensorFlow takes the memory of all of them
    like = examples.batch(steps.start, 1)
    failures: dict[int, Exception] = {}

    def build(step: np.ndarray) -> list[np.ndarray]:
        try:
            return list(examples.batch(int(step), batch_size, rows).values())
        except Exception as error:  # TensorFlow would print a traceback, and raise its own
            failures[int(step)] = error
            return [np.zeros(0, array.dtype) for array in like.values()]

    options = tf.data.Options()
    options.autotune.enabled = False
    options.threading.private_threadpool_size = workers
    options.threading.max_intra_op_parallelism = 1
    dtypes = [tf.as_dtype(array.dtype) for array in like.values()]
    # By itself TensorFlow rewrites a function, into a file that a killed run leaves in /tmp.
    built = tf.autograph.experimental.do_not_convert(
        lambda step: tf.numpy_function(build, [step], dtypes, stateful=False)
    )
    dataset = (
        tf.data.Dataset.range(steps.start, steps.stop)
        .map(built, num_parallel_calls=workers, deterministic=True)
        .prefetch(2 * workers)
        .with_options(options)
    )
    for step, arrays in zip(steps, dataset.as_numpy_iterator(), strict=True):
        if not arrays[0].size:
            raise failures[step]
        yield dict(zip(like, arrays, strict=True))


def majority_baseline(batches: Iterable[Batch]) -> dict[str, float]:
    """Accuracies of one answer for all: the most frequent masked piece, the more frequent label.

    Returns:
      mlm_accuracy and, with next-sentence prediction, nsp_accuracy; each between 0 and 1.
    """
    pieces, labels = np.zeros(0), np.zeros(0)
    for batch in batches:
        pieces = _add_counts(pieces, batch["masked_lm_ids"], batch["masked_lm_weights"])
        if "next_sentence_labels" in batch:
            labels = _add_counts(
                labels, batch["next_sentence_labels"], batch["next_sentence_weights"]
            )
    counts = {"mlm_accuracy": pieces, "nsp_accuracy": labels}
    return {name: float(c.max() / c.sum()) for name, c in counts.items() if len(c)}


def _add_counts(counts: np.ndarray, ids: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """`counts` of each id plus those of `ids`, lengthened where an id is beyond its end."""
    more = np.bincount(ids.ravel(), weights.ravel(), minlength=len(counts))
    more[: len(counts)] += counts
    return more
