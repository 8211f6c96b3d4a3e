"""A model's outputs for features of any number and length."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax.data.buckets import LENGTHS, batches_by_length, collate
from bert_jax.tasks.task import Feature
from bert_jax.training.sharding import process_rows, replicated, shard_batch
from bert_jax.training.steps import with_rules

# What a model reads; labels and weights stay behind.
_READ = ("input_ids", "token_type_ids", "attention_mask", "masked_lm_positions")
_IN_FLIGHT = 2  # batches that the device has while the host makes the next

Forward = Callable[[Any, Mapping[str, jax.Array]], Mapping[str, jax.Array]]


class Inference:
    """Batches of one size and of similar length, so that few programs are compiled."""

    def __init__(
        self,
        forward: Forward,
        pad_id: int,
        batch_size: int,
        mesh: Mesh | None = None,
        longest: int | None = None,
        sizes: Sequence[int] = LENGTHS,
    ):
        """Compiles nothing yet.

        Args:
          forward: parameters and a batch to outputs, whose first axis is the batch's; those whose
            names begin with "token_" have the sequence as second axis.
          pad_id: pads input_ids.
          batch_size: rows of a batch; under a mesh a multiple of its data-parallel devices.
          mesh: that the parameters lie on, where there is one; all its processes take part with the
            same features, and each gets all outputs.
          longest: sequence that the model takes, where padding could go beyond it.
          sizes: lengths that batches are padded to, ascending.
        """
        self._pad_id = pad_id
        self._batch_size = batch_size
        self._mesh = mesh
        self._longest = longest
        self._sizes = sizes
        shardings = replicated(mesh) if mesh else None
        self._forward = jax.jit(with_rules(forward), out_shardings=shardings)

    def outputs(
        self,
        params: Any,
        features: Sequence[Feature],
        between: Callable[[int], None] | None = None,
    ) -> list[dict[str, np.ndarray]]:
        """The outputs of each feature, in their order, without the axis of the batch.

        Outputs whose names begin with "token_" have the feature's length as first axis.

        Args:
          params: of the model.
          features: any number.
          between: called before each batch with the number of features that are done; what it
            raises ends the work.
        """
        found: list[dict[str, np.ndarray]] = [{} for _ in features]
        lengths = [feature["input_ids"].shape[-1] for feature in features]
        done = 0
        for rows, outputs in self._batches(params, features, lengths):
            if between:
                between(done)
            done += len(rows)
            for name, values in jax.device_get(dict(outputs)).items():
                for row, value in zip(rows, values, strict=False):  # rows beyond pad the batch
                    # A copy does not keep the whole batch in memory.
                    kept = value[: lengths[row]] if name.startswith("token_") else value
                    found[row][name] = np.array(kept)
        return found

    def _batches(
        self, params: Any, features: Sequence[Feature], lengths: Sequence[int]
    ) -> Iterator[tuple[np.ndarray, Mapping[str, jax.Array]]]:
        """The features of each batch and its outputs, some batches after it was begun."""
        begun: deque[tuple[np.ndarray, Mapping[str, jax.Array]]] = deque()
        for rows in batches_by_length(lengths, self._batch_size):
            read = [
                {name: features[row][name] for name in _READ if name in features[row]}
                for row in rows
            ]
            batch = collate(read, self._batch_size, self._pad_id, self._longest, sizes=self._sizes)
            begun.append((rows, self._forward(params, self._placed(batch))))
            if len(begun) > _IN_FLIGHT:
                yield begun.popleft()
        yield from begun

    def _placed(self, batch: dict[str, np.ndarray]) -> Mapping[str, Any]:
        if self._mesh is None:
            return batch
        own = process_rows(self._mesh, self._batch_size)
        return shard_batch(self._mesh, {name: value[own] for name, value in batch.items()})
