"""next-sentence: whether a text follows another."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from bert_jax.interop.weights import Weights
from bert_jax.models import BertForPreTraining
from bert_jax.prediction.predictor import (
    Item,
    Predictor,
    encode_noting_cuts,
    encoder_inputs,
    needed_params,
    share,
    unrolled,
)
from bert_jax.tasks.inference import Inference
from bert_jax.tasks.sequences import encode
from bert_jax.tasks.task import Feature


class NextSentence(Predictor):
    """The probability that the second text follows the first one."""

    columns = ("text", "pair")
    header = ("next", "probability", "text", "pair")

    def __init__(self, weights: Weights, batch_size: int, max_length: int):
        """Reads the model, as `FillMask` does; longer pairs are cut.

        Raises:
          UserError: the model has no next-sentence head, no vocabulary or one token type.
        """
        weights.check_pairs()
        model = BertForPreTraining(unrolled(weights.config))
        self._tokenizer = weights.needed_tokenizer()
        self._params = needed_params(weights, model, None)
        self.max_length = max_length

        def forward(params: Any, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
            outputs: Any = model.apply({"params": params}, *encoder_inputs(batch), None)
            return {"probabilities": jax.nn.softmax(outputs["nsp_logits"])}

        self._inference = Inference(
            forward,
            self._tokenizer.pad_id,
            batch_size,
            longest=weights.config.max_position_embeddings,
        )

    def predict(self, items: Sequence[Item]) -> list[dict[str, Any]]:
        """See `Predictor.predict`."""
        texts, pairs = (list(column) for column in zip(*(i.texts for i in items), strict=True))

        def encoded(rows: Sequence[int], max_length: int) -> list[list[Feature]]:
            first, second = [texts[row] for row in rows], [pairs[row] for row in rows]
            return [[f] for f in encode(first, second, self._tokenizer, max_length)]

        features, cut = encode_noting_cuts(len(items), encoded, self.max_length)
        outputs = self._inference.outputs(self._params, [feature for [feature] in features])
        found = []
        for number, output in enumerate(outputs):
            probability = float(output["probabilities"][0])  # 0 = is next, 1 = random
            said = {"is_next": probability >= 0.5, "probability": probability}
            found.append({"text": texts[number], "pair": pairs[number], **said, **cut[number]})
        return found

    def rows(self, prediction: Mapping[str, Any]) -> list[tuple[str, ...]]:
        """See `Predictor.rows`."""
        said = "yes" if prediction["is_next"] else "no"
        probability = share(prediction["probability"])
        return [(said, probability, prediction["text"], prediction["pair"])]
