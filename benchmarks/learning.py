"""A learner's curve: how well it does on held-out text after so many seconds of training.

The seconds are those of training steps, batches included; compilation and evaluation are not in
them. Schedules run over all steps that fit, which a few steps before the clock starts tell.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from benchmarks.batches import PREDICTIONS
from bert_jax.config import DataConfig
from bert_jax.data.pipeline import PairExamples, open_examples
from bert_jax.data.tokenization import load_tokenizer

SEQ_LEN = 128
_WARM, _TIMED = 3, 20


@dataclass(frozen=True)
class Spec:
    """What a learner is asked for: a JSON file.

    Attributes:
      shards: directory of token shards.
      vocab_size: of their vocabulary.
      seconds: of training.
      points: evaluations, evenly spaced, the last one at the end.
      batch_size: sequences a step.
      eval_examples: held-out examples to score.
      answer: file for the curve.
      options: of the learner itself.
    """

    shards: str
    vocab_size: int
    seconds: float
    points: int
    batch_size: int
    eval_examples: int
    answer: str
    options: dict[str, Any]

    @classmethod
    def parse(cls, file: Path) -> Self:
        """Read the file."""
        return cls(**json.loads(file.read_text()))


class Learner(NamedTuple):
    """A model at the start of its training.

    step: trains on the batch of that number, and waits.
    evaluate: mlm_loss, mlm_accuracy, nsp_loss and nsp_accuracy on held-out examples.
    """

    step: Callable[[int], None]
    evaluate: Callable[[], dict[str, float]]


def open_split(spec: Spec, split: str) -> PairExamples:
    """The examples that all learners read."""
    data = DataConfig(masking="dynamic")
    tokenizer = load_tokenizer(Path(spec.shards) / "tokenizer")
    sizes = {"seq_len": SEQ_LEN, "max_predictions": PREDICTIONS[SEQ_LEN]}
    return open_examples(spec.shards, split, tokenizer, data, **sizes, seed=0)


def learn(begin: Callable[[Spec, int], Learner], spec: Spec) -> None:
    """Train for the seconds of the spec, and write the curve."""
    trial = begin(spec, 1000)
    for number in range(_WARM):
        trial.step(number)
    started = time.perf_counter()
    for number in range(_TIMED):
        trial.step(number)
    total = max(spec.points, round(spec.seconds * _TIMED / (time.perf_counter() - started)))
    learner, spent, curve = begin(spec, total), 0.0, []
    due = {total * point // spec.points for point in range(1, spec.points + 1)}
    for number in range(total):
        started = time.perf_counter()
        learner.step(number)
        if number:  # the first compiles
            spent += time.perf_counter() - started
        if number + 1 in due:
            curve.append({"step": number + 1, "seconds": spent, **learner.evaluate()})
            Path(spec.answer).write_text(json.dumps(curve))
