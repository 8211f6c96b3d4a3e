"""BertConfig reads and writes transformers' config.json."""

import json

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.config import BertConfig, model_size
from bert_jax.errors import UserError
from bert_jax.models.config_json import bert_config_from_json, bert_config_to_json

CONFIGS = st.builds(
    lambda heads, width, **rest: BertConfig(
        num_attention_heads=heads, hidden_size=heads * width, **rest
    ),
    heads=st.integers(1, 16),
    width=st.integers(1, 128),
    vocab_size=st.integers(1, 10**6),
    num_hidden_layers=st.integers(1, 100),
    intermediate_size=st.integers(1, 10**5),
    hidden_act=st.sampled_from(["gelu", "gelu_new", "relu"]),
    hidden_dropout_prob=st.floats(0, 0.99),
    attention_probs_dropout_prob=st.floats(0, 0.99),
    max_position_embeddings=st.integers(1, 10**5),
    type_vocab_size=st.integers(1, 10),
    initializer_range=st.floats(0, 0.99),
    layer_norm_eps=st.floats(0, 0.1),
)


@given(CONFIGS)
def test_round_trip(config):
    assert bert_config_from_json(json.loads(json.dumps(bert_config_to_json(config)))) == config


@pytest.mark.parametrize("name", ["tiny", "base", "large"])
def test_transformers_reads_ours_and_we_read_theirs(name, tmp_path):
    ours = model_size(name)
    fields = bert_config_to_json(ours)
    (tmp_path / "config.json").write_text(json.dumps(fields))
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    assert isinstance(theirs, transformers.BertConfig)
    for field, value in fields.items():
        assert getattr(theirs, field) == value, field
    theirs.save_pretrained(tmp_path)
    assert bert_config_from_json(json.loads((tmp_path / "config.json").read_text())) == ours


def test_absent_fields_have_the_defaults_of_transformers():
    theirs = transformers.BertConfig()
    ours = bert_config_to_json(bert_config_from_json({}))
    assert {f: v for f, v in ours.items() if f != "architectures" and getattr(theirs, f) != v} == {}


def test_no_padding_is_no_mistake():
    """transformers writes null where it is told of none; the vocabulary says what pads."""
    assert bert_config_from_json({"pad_token_id": None}) == bert_config_from_json({})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "roberta"}, "model_type is 'roberta'"),
        ({"architectures": ["RobertaForMaskedLM"]}, "'RobertaForMaskedLM' is not supported"),
        ({"architectures": 5}, "must be a list"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"is_decoder": True}, "is_decoder"),
        ({"hidden_act": "silu"}, "gelu_new, gelu, relu"),
        ({"hidden_size": "768"}, "hidden_size is '768'"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"hidden_size": 768.0}, "hidden_size"),
        ({"vocab_size": None}, "vocab_size is None"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"hidden_dropout_prob": 1.5}, "hidden_dropout_prob"),
        ({"layer_norm_eps": float("nan")}, "layer_norm_eps"),
        ({"layer_norm_eps": 10**400}, "layer_norm_eps"),
        ({"hidden_size": 100}, "does not divide"),
    ],
)
def test_what_the_encoder_cannot_be_is_named(fields, message):
    with pytest.raises(UserError, match=message) as error:
        bert_config_from_json(fields, "some/config.json")
    assert "some/config.json" in str(error.value)
