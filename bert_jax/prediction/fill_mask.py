"""fill-mask: what stands in the place of [MASK]."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from bert_jax.data.tokenization import Tokenizer
from bert_jax.errors import UserError
from bert_jax.interop.weights import Weights
from bert_jax.models import BertForPreTraining
from bert_jax.prediction.predictor import (
    Item,
    Predictor,
    encoder_inputs,
    needed_params,
    share,
    unrolled,
)
from bert_jax.tasks.inference import Inference
from bert_jax.tasks.sequences import sequence
from bert_jax.tasks.task import Feature

# Masks that one pass over a text fills: they bound the memory of the logits.
_MASKS = 8


class FillMask(Predictor):
    """The likeliest pieces of each mask, and the text with the likeliest of all in their places."""

    columns = ("text",)
    header = ("mask", "pieces", "text")
    cut_text = "were read around their masks only"

    def __init__(self, weights: Weights, batch_size: int, max_length: int, top: int):
        """Reads the model.

        Args:
          weights: of a model with a masked-LM head and a vocabulary.
          batch_size: sequences that are computed together.
          max_length: of a sequence, in pieces; of a longer text the model reads what is around
            its masks.
          top: pieces to tell of each mask.

        Raises:
          UserError: the model has no such head or no vocabulary.
        """
        model = BertForPreTraining(unrolled(weights.config), next_sentence=False)
        self._tokenizer = weights.needed_tokenizer()
        self._params = needed_params(weights, model, np.zeros((1, 1), np.int32))
        self.max_length = max_length
        self._room = max_length - 2
        known = self._tokenizer.vocab_size
        self.mask = self._tokenizer.pieces[self._tokenizer.mask_id]

        def forward(params: Any, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
            outputs: Any = model.apply(
                {"params": params}, *encoder_inputs(batch), batch["masked_lm_positions"]
            )
            # Rows of the embedding that no piece stands for cannot be told.
            probabilities = jax.nn.softmax(outputs["mlm_logits"])[..., :known]
            best, pieces = jax.lax.top_k(probabilities, min(top, known))
            return {"probabilities": best, "pieces": pieces}

        self._inference = Inference(
            forward,
            self._tokenizer.pad_id,
            batch_size,
            longest=weights.config.max_position_embeddings,
        )

    def item(self, where: str, texts: tuple[str, ...]) -> Item:
        """See `Predictor.item`."""
        if self.mask not in texts[0]:
            raise UserError(
                f"{where}: no {self.mask} in the text; write one where a word is to be filled in"
            )
        return Item(where, texts)

    def predict(self, items: Sequence[Item]) -> list[dict[str, Any]]:
        """See `Predictor.predict`."""
        parts = [item.texts[0].split(self.mask) for item in items]
        encoded = iter(self._tokenizer.encode_batch([part for text in parts for part in text]))
        ids = [_joined([next(encoded) for _ in text], self._tokenizer.mask_id) for text in parts]
        features = [self._features(of_text) for of_text in ids]
        flat = [feature for of_text in features for feature in of_text]
        outputs = iter(self._inference.outputs(self._params, _same_width(flat)))
        return [
            self._prediction(
                text, [(feature, next(outputs)) for feature in of_text], len(of_ids) > self._room
            )
            for text, of_text, of_ids in zip(parts, features, ids, strict=True)
        ]

    def rows(self, prediction: Mapping[str, Any]) -> list[tuple[str, ...]]:
        """See `Predictor.rows`: a row a mask."""
        pieces = [
            "  ".join(f"{p['piece']} {share(p['probability'])}" for p in mask)
            for mask in prediction["masks"]
        ]
        texts = [prediction["filled"]] + [""] * (len(pieces) - 1)
        numbers = map(str, range(1, len(pieces) + 1))
        return list(zip(numbers, pieces, texts, strict=True))

    def _features(self, ids: np.ndarray) -> list[Feature]:
        masks = np.flatnonzero(ids == self._tokenizer.mask_id).tolist()
        features = []
        for start, inside in windows(len(ids), masks, self._room):
            feature = sequence([ids[start : start + self._room]], self._tokenizer)
            positions = np.array(inside, np.int32) - start + 1  # [CLS] stands before
            features.append(feature | {"masked_lm_positions": positions})
        return features

    def _prediction(
        self,
        parts: list[str],
        answered: list[tuple[Feature, dict[str, np.ndarray]]],
        cut: bool,
    ) -> dict[str, Any]:
        ids, probabilities = (
            np.concatenate([o[name][: len(f["masked_lm_positions"])] for f, o in answered])
            for name in ("pieces", "probabilities")
        )
        masks = [
            [
                {"piece": self._tokenizer.pieces[index], "probability": float(probability)}
                for index, probability in zip(*of_mask, strict=True)
            ]
            for of_mask in zip(ids, probabilities, strict=True)
        ]
        prediction = {
            "text": self.mask.join(parts),
            "filled": filled(parts, ids[:, 0], self._tokenizer),
            "masks": masks,
        }
        return prediction | ({"cut": True} if cut else {})


def windows(length: int, masks: list[int], room: int) -> list[tuple[int, list[int]]]:
    """Stretches of a text to read, with the masks to fill in each, which stand in its middle.

    Args:
      length: pieces of the text.
      masks: where its masks are, ascending.
      room: pieces that are read together.

    Returns:
      (start, masks from start to start + room) of each; every mask is in one.
    """
    reach = room if length <= room else max(1, room // 2)
    found = []
    while masks:
        inside = [mask for mask in masks[:_MASKS] if mask < masks[0] + reach]
        middle = (inside[0] + inside[-1] + 1) // 2
        found.append((max(0, min(middle - room // 2, length - room)), inside))
        masks = masks[len(inside) :]
    return found


def filled(parts: list[str], ids: np.ndarray, tokenizer: Tokenizer) -> str:
    """The parts of a text with a piece between each; one that continues a word joins it."""
    text = parts[0]
    for index, part in zip(ids, parts[1:], strict=True):
        before = text if tokenizer.starts_word[index] else text.rstrip()
        # Pieces of bytes are no text until they are decoded; special ones are left out by that.
        piece = tokenizer.decode([index]) or tokenizer.pieces[index]
        text = before + piece.removeprefix("##").lstrip("▁ ") + part
    return text


def _joined(parts: list[np.ndarray], mask_id: int) -> np.ndarray:
    mask = np.array([mask_id], np.int32)
    return np.concatenate([array for part in parts for array in (mask, part)][1:])


def _same_width(features: list[Feature]) -> list[Feature]:
    """The features with as many masked positions each: their last one is repeated."""
    most = max(len(feature["masked_lm_positions"]) for feature in features)
    width = 1 << (most - 1).bit_length()  # of few widths, programs are few
    return [
        feature
        | {
            "masked_lm_positions": np.pad(
                feature["masked_lm_positions"],
                (0, width - len(feature["masked_lm_positions"])),
                mode="edge",
            )
        }
        for feature in features
    ]
