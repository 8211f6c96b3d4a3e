"""embed: vectors of texts or of their pieces, from any layers (BERT paper, section 5.3)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.interop.weights import Weights
from bert_jax.models import BertModel
from bert_jax.prediction.predictor import (
    Item,
    Predictor,
    encode_noting_cuts,
    encoder_inputs,
    needed_params,
    unrolled,
)
from bert_jax.prediction.recipe import Recipe
from bert_jax.tasks.inference import Inference
from bert_jax.tasks.sequences import encode
from bert_jax.tasks.task import Feature

_SHOWN = 4


class Embed(Predictor):
    """A vector a text, or a vector a piece."""

    columns = ("text",)
    header = ("size", "vector", "text")

    def __init__(self, weights: Weights, batch_size: int, max_length: int, recipe: Recipe):
        """Reads the encoder, as `NextSentence` reads its model; longer texts are cut.

        Raises:
          UserError: the model has no vocabulary or not those layers.
        """
        config = unrolled(weights.config)
        layers = recipe.layer_numbers(config.num_hidden_layers)
        recipe.check(len(layers))
        # No layer after the last one that is wanted is computed, or read.
        config = dataclasses.replace(config, num_hidden_layers=max(layers))
        model = BertModel(config, pooling=False)
        self._tokenizer = weights.needed_tokenizer()
        self._params = needed_params(weights, model, scope="bert")
        self.max_length = max_length
        self._pooled = recipe.pooling != "none"
        if not self._pooled:
            self.chunk = 64  # vectors of pieces are large

        def forward(params: Any, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
            states_SBLD: Any = model.apply(
                {"params": params}, *encoder_inputs(batch), hidden_states=True
            )
            chosen = states_SBLD[0][jnp.array(layers)].astype(jnp.float32)
            vectors_BLE = combined(chosen, recipe.combine, recipe.weights)
            if not self._pooled:
                return {"token_vectors": vectors_BLE}
            return {"vector": pooled(vectors_BLE, batch["attention_mask"], recipe.pooling)}

        self._inference = Inference(
            forward,
            self._tokenizer.pad_id,
            batch_size,
            longest=weights.config.max_position_embeddings,
        )

    def predict(self, items: Sequence[Item]) -> list[dict[str, Any]]:
        """See `Predictor.predict`: "vector" [E], or "tokens" and "vectors" [their number, E]."""
        texts = [item.texts[0] for item in items]

        def encoded(rows: Sequence[int], max_length: int) -> list[list[Feature]]:
            chosen = [texts[row] for row in rows]
            return [[f] for f in encode(chosen, None, self._tokenizer, max_length)]

        features, cut = encode_noting_cuts(len(items), encoded, self.max_length)
        outputs = self._inference.outputs(self._params, [feature for [feature] in features])
        found = []
        for text, [feature], output, marks in zip(texts, features, outputs, cut, strict=True):
            said: dict[str, Any] = {"text": text}
            if self._pooled:
                said["vector"] = output["vector"]
            else:
                said["tokens"] = [self._tokenizer.pieces[i] for i in feature["input_ids"]]
                said["vectors"] = output["token_vectors"]
            found.append(said | marks)
        return found

    def rows(self, prediction: Mapping[str, Any]) -> list[tuple[str, ...]]:
        """See `Predictor.rows`: the first values of each vector."""
        if self._pooled:
            return [_row(prediction["vector"], prediction["text"])]
        pieces = zip(prediction["vectors"], prediction["tokens"], strict=True)
        return [_row(vector, token) for vector, token in pieces]


def combined(states: jax.Array, how: str, weights: Sequence[float] = ()) -> jax.Array:
    """What some layers say, [S, B, L, D], as one: [B, L, S * D] of "concat", else [B, L, D]."""
    if how == "concat":
        return jnp.concatenate(list(states), axis=-1)
    if how == "weighted":
        return jnp.einsum("SBLD,S->BLD", states, jnp.array(weights, states.dtype))
    return states.sum(axis=0) if how == "sum" else states.mean(axis=0)


def pooled(vectors: jax.Array, attention_mask: jax.Array, how: str) -> jax.Array:
    """The vectors of pieces, [B, L, E], as one of each text, [B, E]; padding counts nothing."""
    real = attention_mask[..., None] > 0
    if how == "cls":
        return vectors[:, 0]
    if how == "max":
        return jnp.where(real, vectors, -jnp.inf).max(axis=1)
    return jnp.where(real, vectors, 0).sum(axis=1) / jnp.maximum(real.sum(axis=1), 1)


def _row(vector: Any, text: str) -> tuple[str, ...]:
    values = " ".join(f"{value:.3f}" for value in vector[:_SHOWN])
    return str(len(vector)), f"{values} ...", text
