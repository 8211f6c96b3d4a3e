"""fill-mask against the pipeline of transformers, and the windows of long texts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from peer_models import peer, save_peer
from tokenizers import decoders, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from bert_jax.data.tokenization import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.interop import load_weights
from bert_jax.prediction.fill_mask import FillMask, filled, windows
from bert_jax.prediction.predictor import Item

TEXTS = [
    "the river [MASK] under small stones.",
    "Green [MASK] walks, [MASK] light?",
    "[MASK]",
    "a bird, a [MASK]. " * 3 + "[MASK] house [MASK] stone [MASK][MASK] walk",
]


@pytest.fixture(scope="module", params=["BertForPreTraining", "BertForMaskedLM"])
def source(request, tmp_path_factory) -> Path:
    return save_peer(peer(request.param), tmp_path_factory.mktemp("model"))


def asked(predictor: FillMask, texts: list[str]) -> list[dict]:
    return predictor.predict([predictor.item(f"text {i}", (t,)) for i, t in enumerate(texts)])


def test_pieces_and_probabilities_are_those_of_transformers(source):
    pipeline: Any = transformers.pipeline("fill-mask", str(source), top_k=4)
    predictions = asked(FillMask(load_weights(source), 3, 40, top=4), TEXTS)
    for text, prediction in zip(TEXTS, predictions, strict=True):
        said = pipeline(text)
        theirs = said if isinstance(said[0], list) else [said]  # one mask has no list of its own
        assert prediction["text"] == text
        assert len(prediction["masks"]) == text.count("[MASK]")
        for ours, expected in zip(prediction["masks"], theirs, strict=True):
            assert [p["piece"] for p in ours] == [p["token_str"] for p in expected]
            scores = [p["score"] for p in expected]
            np.testing.assert_allclose([p["probability"] for p in ours], scores, atol=2e-6)


def test_the_likeliest_pieces_fill_the_text(source):
    [prediction] = asked(FillMask(load_weights(source), 1, 40, top=1), ["Small [MASK], [MASK]!"])
    first, second = (mask[0]["piece"] for mask in prediction["masks"])
    assert prediction["filled"] == f"Small {first}, {second}!"


def test_pieces_that_continue_a_word_join_it(source):
    tokenizer = load_weights(source).tokenizer
    assert tokenizer is not None
    ids = [tokenizer.pieces.index(piece) for piece in ("##s", "bird")]
    assert filled(["the stone ", ", a ", "."], np.array(ids), tokenizer) == "the stones, a bird."


def test_pieces_of_bytes_are_filled_in_as_text(tmp_path):
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=300, special_tokens=names, initial_alphabet=alphabet)
    backend.train_from_iterator(["a café, 서울 서울 café"] * 9, trainer)
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    ids = np.array([tokenizer.encode_batch([text])[0][0] for text in (" café", " 서울")])
    assert [tokenizer.pieces[index] for index in ids] == ["ĠcafÃ©", "ĠìĦľìļ¸"]
    assert filled(["a ", " in ", "."], ids, tokenizer) == "a café in 서울."


def test_of_a_long_text_what_is_around_its_masks_is_read(source):
    words = ["river", "stone", "light", "bird", "house", "green", "small"] * 20
    words[3], words[70], words[74] = ["[MASK]"] * 3
    [prediction] = asked(FillMask(load_weights(source), 2, 40, top=2), [" ".join(words)])
    assert prediction["cut"] is True
    pipeline: Any = transformers.pipeline("fill-mask", str(source), top_k=2)
    around = [pipeline(" ".join(words[:38]))[0], *pipeline(" ".join(words[53:91]))]
    found = [[p["probability"] for p in mask] for mask in prediction["masks"]]
    expected = [found[0]] + [[p["score"] for p in mask] for mask in around[1:]]
    np.testing.assert_allclose(found, expected, atol=2e-6)


def test_a_text_that_just_fits_is_not_cut(source):
    texts = ["[MASK]" + " river" * more for more in (36, 37, 38)]
    predictions = asked(FillMask(load_weights(source), 1, 40, top=1), texts)
    assert [prediction.get("cut", False) for prediction in predictions] == [False, False, True]


@given(st.data())
def test_every_mask_is_in_one_window(data):
    length = data.draw(st.integers(1, 200))
    masks = sorted(data.draw(st.sets(st.integers(0, length - 1), min_size=1)))
    room = data.draw(st.integers(1, 100))
    found = windows(length, masks, room)
    assert [mask for _, inside in found for mask in inside] == masks
    for start, inside in found:
        assert 0 <= start <= max(0, length - room)
        assert all(start <= mask < start + room for mask in inside)
        assert len(inside) <= 8  # whose logits are in memory together
        for mask in inside:  # a quarter of what is read on both sides, where there is as much
            before, after = mask - start, start + room - 1 - mask
            assert start == 0 or before >= room // 4 - 1
            assert start + room >= length or after >= room // 4 - 1


def test_a_text_without_a_mask_and_a_model_without_the_head_are_told(source, tmp_path):
    with pytest.raises(UserError, match=r"a.txt:3: no \[MASK\] in the text"):
        FillMask(load_weights(source), 1, 40, top=1).item("a.txt:3", ("the river",))
    other = save_peer(peer("BertForNextSentencePrediction"), tmp_path / "other")
    with pytest.raises(UserError, match="is a BertForNextSentencePrediction and has no masked-LM"):
        FillMask(load_weights(other), 1, 40, top=1)


def test_rows_that_no_piece_stands_for_are_not_told(tmp_path):
    model = peer("BertForMaskedLM", vocab_size=60)
    with torch.no_grad():
        model.cls.predictions.bias[44:] += 100
    source = save_peer(model, tmp_path / "wide")
    [prediction] = FillMask(load_weights(source), 1, 40, top=99).predict([Item("", ("a [MASK]",))])
    assert len(prediction["masks"][0]) == 44
