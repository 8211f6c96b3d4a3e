"""The examples of a fine-tuning run, their features, and the batches of its epochs."""

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_jax.data.buckets import cheapest_sizes, collate, epoch_batches, padded_length
from bert_jax.data.packed_features import piece_places
from bert_jax.data.tokenization import Tokenizer
from bert_jax.errors import UserError
from bert_jax.finetune_config import FinetuneConfig
from bert_jax.models.devices import device_platform
from bert_jax.tasks.inference import Inference
from bert_jax.tasks.splits import held_out, set_name
from bert_jax.tasks.task import Feature, Task

# Positions that are trained on in a third of the time, or less, that one more length is compiled
# in: what was compiled is kept, and takes the next run no time. Of `mini`, two cores of an Intel
# Xeon compile a length in 8 to 15 s and train on some 5,000 positions a second; of `base`, an H100
# had the first step done after 19 s, imports included, and trains on 780,000 (docs/gpu_path.md).
_PROGRAM = {"cpu": 15_000}
_PROGRAM_ELSEWHERE = 4_000_000


# Of a model, for each feature of each example.
Outputs = list[list[dict[str, np.ndarray]]]


class Scored(NamedTuple):
    """Examples to predict, and the features of each."""

    examples: Sequence[Any]
    features: Sequence[list[Feature]]

    def outputs(self, inference: Inference, params: Any, between: Callable[[int], None]) -> Outputs:
        """The outputs of each feature of each example; see `Inference.outputs`."""
        flat = [feature for of_example in self.features for feature in of_example]
        outputs = iter(inference.outputs(params, flat, between))
        return [[next(outputs) for _ in of_example] for of_example in self.features]

    def predictions(self, task: Task, outputs: Sequence[Any]) -> list[dict[str, Any]]:
        """What a model with these outputs says of each example; see `Task.predictions`."""
        return task.predictions(self.examples, self.features, outputs)


class Computed(NamedTuple):
    """What batches of similar length, or packed ones, come to.

    sizes: lengths that batches are padded to, before the encoder packs them if it does.
    length: of a row, in the mean.
    padding: share of the positions that is padding.
    saved: share of the positions that padding to the longest length would compute in addition.
    full: training sequences of the longest length.
    """

    sizes: tuple[int, ...]
    length: float
    padding: float
    saved: float
    full: int


class Data(NamedTuple):
    """All examples of a run.

    task: with what it learnt of the training examples.
    train: features, those of one example after those of another.
    training_examples: that `train` is of; fewer where some have several windows.
    dev: what picks the best model.
    others: the test file and more, by their paths; scored where they have labels.
    fingerprint: of `train` and `dev`, a hex digest.
    """

    task: Task
    train: Sequence[Feature]
    training_examples: int
    dev: Scored
    others: dict[str, Scored]
    computed: Computed
    fingerprint: str

    def all_fingerprint(self) -> str:
        """Of all examples: what processes that train and score together have in common."""
        others = [_fingerprint([], scored) for scored in self.others.values()]
        return "-".join([self.fingerprint, *others])

    def scored_sizes(self, config: FinetuneConfig) -> tuple[int, ...]:
        """Lengths to pad to where examples are scored: dev after each epoch, and all at the end."""
        sets = [self.dev] * (config.epochs + 1) + list(self.others.values())
        features = [f for scored in sets for of_example in scored.features for f in of_example]
        rows = config.batch_size // config.optimizer.accumulate
        return _cheapest_sizes(features, rows, 1)


def read_data(config: FinetuneConfig, tokenizer: Tokenizer, parts: int) -> Data:
    """Read the files of the task, learn what it learns, and make features.

    Args:
      parts: that the mesh cuts a batch into.

    Raises:
      UserError: a file or an example is not what the task reads; there are none; two sets have the
        same name.
    """
    task = config.task
    paths = [path for path in (task.test, *task.also) if path]
    _check_names(task, paths)
    whole = _read(task, task.train)
    if task.dev:
        training, heldout = whole, _read(task, task.dev)
    else:
        training, heldout = held_out(whole, task.dev_fraction)
    # The labels are those of the whole file: it is no mistake of the file's that all examples of a
    # label are held out. What is counted, as weights of labels are, is then of training alone.
    task = task.learn(whole).learn(training)
    for examples in (training, heldout):
        task.check(examples)
    others = {path: _read(task, path, labelled=False) for path in paths}

    def scored(examples: Sequence[Any]) -> Scored:
        return Scored(examples, task.features(examples, tokenizer))

    train = [f for features in task.features(training, tokenizer) for f in features]
    dev = scored(heldout)
    return Data(
        task=task,
        train=train,
        training_examples=len(training),
        dev=dev,
        others={path: scored(examples) for path, examples in others.items()},
        computed=_computed(train, config, parts),
        fingerprint=_fingerprint(train, dev),
    )


def _check_names(task: Task, paths: Sequence[str]) -> None:
    """Refuse two sets of the same name: the one's predictions and scores would replace the other's.

    The dev set is called so whatever its file. A file that is given twice is the same set.
    """
    named = {"dev": task.dev or f"what is held out of {task.train}"}
    for path in paths:
        name = set_name(path)
        if named.setdefault(name, path) != path:
            raise UserError(
                f"{named[name]} and {path} would both be {name!r} in predictions and scores: "
                f"rename {path}"
            )


def _read(task: Task, path: str, labelled: bool = True) -> Sequence[Any]:
    examples = task.read(Path(path), labelled)
    if not examples:
        raise UserError(f"{path}: holds no example")
    return examples


def epoch_plan(train: Sequence[Feature], config: FinetuneConfig, epoch: int) -> list[np.ndarray]:
    """The features of each batch of an epoch; of similar lengths where they are not packed."""
    lengths = np.zeros(len(train), int) if config.packing else _lengths(train)
    return epoch_batches(lengths, config.batch_size, config.seed, epoch)


def host_batches(
    train: Sequence[Feature],
    plan: Sequence[np.ndarray],
    config: FinetuneConfig,
    sizes: Sequence[int],
    rows: np.ndarray,
    parts: int,
    pad_id: int,
) -> Iterator[dict[str, np.ndarray]]:
    """This process's rows of the batches of `plan`, and where packed its groups of `places`.

    Args:
      sizes: as `Computed.sizes`.
    """
    accumulate = config.optimizer.accumulate
    own_parts = np.unique(rows * parts // config.batch_size)
    groups = np.add.outer(own_parts * accumulate, np.arange(accumulate)).ravel()
    for chosen in plan:
        features = [train[index] for index in chosen]
        length = config.task.max_length
        batch = collate(features, config.batch_size, pad_id, length, sizes=sizes)
        own = {name: array[rows] for name, array in batch.items()}
        if config.packing:
            own["places"] = _places(batch["attention_mask"], config, parts)[groups]
        yield own


def _places(attention_mask: np.ndarray, config: FinetuneConfig, parts: int) -> np.ndarray:
    """See `piece_places`; int32 [G, R, M]."""
    padded = attention_mask.shape[-1]
    lengths = attention_mask.sum(axis=-1)
    accumulate = config.optimizer.accumulate
    return piece_places(lengths, padded, config.task.max_length, parts, accumulate)


def _lengths(train: Sequence[Feature]) -> np.ndarray:
    return np.array([feature["input_ids"].shape[-1] for feature in train])


def _cheapest_sizes(features: Sequence[Feature], batch_size: int, passes: int) -> tuple[int, ...]:
    """See `cheapest_sizes`; a feature of several sequences is as many."""
    sequences = features[0]["input_ids"].size // features[0]["input_ids"].shape[-1]
    program = _PROGRAM.get(device_platform(), _PROGRAM_ELSEWHERE)
    return cheapest_sizes(_lengths(features), batch_size, passes * sequences, program)


def _computed(train: Sequence[Feature], config: FinetuneConfig, parts: int) -> Computed:
    lengths = _lengths(train)
    of_feature = np.array([feature["input_ids"].size for feature in train]) // lengths
    batches = epoch_plan(train, config, 0)
    most = config.task.max_length
    sequences = np.array([of_feature[batch].sum() for batch in batches])
    if config.packing:
        sizes = (most,)
        packed = host_batches(train, batches, config, sizes, np.arange(config.batch_size), parts, 0)
        positions = float(sum(batch["places"].size for batch in packed))
        length = float(most)
    else:
        sizes = _cheapest_sizes(train, config.batch_size, config.epochs)
        padded = np.array([min(padded_length(int(lengths[b].max()), sizes), most) for b in batches])
        positions = float((padded * sequences).sum())
        length = positions / float(sequences.sum())
    longest = float(most * sequences.sum())
    return Computed(
        sizes=sizes,
        length=length,
        padding=1 - sum(int(feature["attention_mask"].sum()) for feature in train) / positions,
        saved=1 - positions / longest,
        full=int((lengths == most).sum()),
    )


def _fingerprint(train: Sequence[Feature], dev: Scored) -> str:
    """A digest of what is learnt of, and of what picks the best epoch.

    Not all that dev is scored by is in its features: of SQuAD, the other true answers are not.
    """
    digest = hashlib.blake2b(digest_size=8)
    for feature in itertools.chain(train, *dev.features):
        for name, array in sorted(feature.items()):
            digest.update(f"{name}{array.shape}".encode() + array.tobytes())
    for example in dev.examples:
        anywhere = dataclasses.replace(example, where="")  # the same rows in another folder
        digest.update(ascii(anywhere).encode())
    return digest.hexdigest()
