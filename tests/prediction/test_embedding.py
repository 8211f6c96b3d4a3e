"""embed against the hidden states of transformers, pooled by NumPy."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from peer_models import peer, save_peer

from bert_jax import predict
from bert_jax.errors import UserError
from bert_jax.interop import load_weights
from bert_jax.prediction.embedding import Embed
from bert_jax.prediction.predictor import Item
from bert_jax.prediction.recipe import Recipe

TEXTS = ["The river walks.", "a", "under small stones, a green bird walks? " * 2, "light house"]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return save_peer(peer("BertForMaskedLM"), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def states(source) -> list[np.ndarray]:
    """What transformers gives for each text: [layers + 1, its pieces, D]."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    model = transformers.BertModel.from_pretrained(source, add_pooling_layer=False)
    found = []
    for text in TEXTS:
        inputs = tokenizer(text, return_tensors="pt", truncation=True, max_length=40)
        with torch.no_grad():
            hidden = model(**inputs, output_hidden_states=True).hidden_states
        found.append(torch.cat(hidden).numpy())
    return found


def embedded(source, texts=tuple(TEXTS), **recipe) -> list[dict]:
    return Embed(load_weights(source), 3, 40, Recipe(**recipe)).predict(
        [Item("", (text,)) for text in texts]
    )


@pytest.mark.parametrize(
    ("layers", "chosen"),
    [("last", [3]), ("-2", [2]), ("0", [0]), ("all", [1, 2, 3]), ("1,-1", [1, 3])],
)
def test_every_layer_is_that_of_transformers(source, states, layers, chosen):
    predictions = embedded(source, layers=layers, pooling="none")
    for prediction, state in zip(predictions, states, strict=True):
        expected = np.concatenate(state[chosen], axis=-1)
        np.testing.assert_allclose(prediction["vectors"], expected, atol=1e-5)
        assert len(prediction["tokens"]) == len(expected)
        assert (prediction["tokens"][0], prediction["tokens"][-1]) == ("[CLS]", "[SEP]")


@pytest.mark.parametrize(
    ("pooling", "pool"),
    [
        ("cls", lambda pieces: pieces[0]),
        ("mean", lambda pieces: pieces.mean(axis=0)),
        ("max", lambda pieces: pieces.max(axis=0)),
    ],
)
@pytest.mark.parametrize(
    ("combine", "weights", "join"),
    [
        ("concat", (), lambda s: np.concatenate(s, axis=-1)),
        ("sum", (), lambda s: s.sum(axis=0)),
        ("mean", (), lambda s: s.mean(axis=0)),
        ("weighted", (0.5, -2.0), lambda s: 0.5 * s[0] - 2.0 * s[1]),
    ],
)
def test_vectors_are_combined_and_pooled(source, states, combine, weights, join, pooling, pool):
    predictions = embedded(source, layers="-1,1", combine=combine, weights=weights, pooling=pooling)
    for prediction, state in zip(predictions, states, strict=True):
        np.testing.assert_allclose(prediction["vector"], pool(join(state[[3, 1]])), atol=1e-5)


def test_the_last_four_layers():
    assert Recipe(layers="last4").layer_numbers(12) == [9, 10, 11, 12]
    with pytest.raises(UserError, match="--layers=last4: the model has 3 layers"):
        Recipe(layers="last4").layer_numbers(3)


def test_longer_texts_are_cut(source):
    short, long = embedded(source, texts=("a " * 38, "a " * 39))
    assert "cut" not in short
    assert long["cut"] is True
    np.testing.assert_allclose(short["vector"], long["vector"], atol=1e-6)


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ({"layers": "4"}, "there is no layer 4; the model has 3"),
        ({"layers": "-5"}, "there is no layer -5"),
        ({"layers": "first"}, "--layers=first: last, last4, all or numbers"),
        ({"layers": "1,2", "combine": "weighted", "weights": (1.0,)}, "takes 2 weights"),
        ({"weights": (1.0,)}, "--combine=concat of 1 layers takes 0 weights"),
    ],
)
def test_mistakes_are_told(source, recipe, said):
    with pytest.raises(UserError, match=said):
        embedded(source, **recipe)


def test_a_memory_that_is_full_is_told_in_a_line_with_what_takes_less(source, monkeypatch):
    def too_much(*_: object) -> None:
        jax.block_until_ready(jnp.zeros((1 << 47,), jnp.uint8))  # more than can be addressed

    monkeypatch.setattr(Embed, "predict", too_much)
    monkeypatch.setattr(sys, "argv", ["predict", "embed", str(source), "the river"])
    with pytest.raises(UserError, match=r"Out of memory .*\d bytes; .* by --batch_size"):
        predict.main()
