"""Our encoder over sequences, as `predict` runs it."""

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.config import model_size
from bert_jax.models import BertModel
from bert_jax.models.encoder import nothing_but_cls
from bert_jax.prediction.predictor import encoder_inputs, kernels_as, unrolled
from bert_jax.tasks.inference import Inference


def prepare(size: str, lengths: list[int], batch_size: int, dtype: str) -> Callable[[], Any]:
    """A function that encodes all sequences."""
    config = unrolled(model_size(size))
    config.dtype = dtype
    model = BertModel(config)
    ids = jnp.zeros((1, 8), jnp.int32)

    def init(key: jax.Array) -> Any:
        return kernels_as(dtype, nn.unbox(model.init(key, ids, ids, ids)["params"]))

    params = jax.jit(init)(jax.random.key(0))

    def forward(params: Any, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        inputs = encoder_inputs(batch)
        outputs: Any = model.apply({"params": params}, *inputs, wanted=nothing_but_cls(inputs[0]))
        return {"pooled": outputs[1].astype(jnp.float32)}

    draw = np.random.default_rng(0)
    features = [
        {
            "input_ids": draw.integers(1000, config.vocab_size, length).astype(np.int32),
            "token_type_ids": np.zeros(length, np.int32),
            "attention_mask": np.ones(length, np.int32),
        }
        for length in lengths
    ]
    inference = Inference(forward, config.pad_token_id, batch_size)
    return lambda: inference.outputs(params, features)
