"""next-sentence against transformers."""

import numpy as np
import pytest
import torch
import transformers
from peer_models import peer, save_peer

from bert_jax.errors import UserError
from bert_jax.interop import load_weights
from bert_jax.prediction.next_sentence import NextSentence
from bert_jax.prediction.predictor import Item

PAIRS = [
    ("The river walks.", "Small stones, a green bird?"),
    ("a house", "light"),
    ("under the small green light " * 8, "a bird walks " * 9),  # longer than the model
]


@pytest.mark.parametrize("architecture", ["BertForPreTraining", "BertForNextSentencePrediction"])
def test_probabilities_are_those_of_transformers(architecture, tmp_path):
    source = save_peer(peer(architecture), tmp_path / "model")
    items = [Item("", pair) for pair in PAIRS]
    predictions = NextSentence(load_weights(source), 2, 40).predict(items)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    model = transformers.BertForNextSentencePrediction.from_pretrained(source)
    for (text, pair), prediction in zip(PAIRS, predictions, strict=True):
        inputs = tokenizer(text, pair, truncation=True, max_length=40, return_tensors="pt")
        with torch.no_grad():
            expected = float(model(**inputs).logits.softmax(-1)[0, 0])  # label 0: is next
        np.testing.assert_allclose(prediction["probability"], expected, atol=2e-6)
        assert prediction["is_next"] == (expected >= 0.5)
    assert [prediction.get("cut", False) for prediction in predictions] == [False, False, True]


def test_a_model_without_the_head_is_told(tmp_path):
    source = save_peer(peer("BertForMaskedLM"), tmp_path / "model")
    with pytest.raises(UserError, match="has no pooler and no next-sentence head"):
        NextSentence(load_weights(source), 2, 40)


def test_a_model_of_one_token_type_is_told(tmp_path):
    source = save_peer(peer("BertForPreTraining", type_vocab_size=1), tmp_path / "model")
    with pytest.raises(UserError, match="type_vocab_size is 1"):
        NextSentence(load_weights(source), 2, 40)
