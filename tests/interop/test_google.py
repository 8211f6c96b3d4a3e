"""Google's TF1 checkpoints in and out, against TensorFlow and against hand-made files."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from peer_models import PIECES, peer, save_peer

from bert_jax.convert import convert
from bert_jax.errors import UserError
from bert_jax.interop import Weights, load_weights
from bert_jax.interop.names import table_rows


def huggingface(
    directory: Path, architecture: str = "BertForPreTraining", **fields: Any
) -> Weights:
    fields = {"hidden_act": "gelu_new"} | fields
    return load_weights(save_peer(peer(architecture, **fields), directory))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A directory as Google published them, with the slots that training leaves."""
    weights = huggingface(tmp_path / "peer")
    convert(weights, tmp_path / "written", "google")
    reader = tf.train.load_checkpoint(str(tmp_path / "written" / "bert_model.ckpt"))
    arrays = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    slots = {f"{name}/adam_{slot}": array for name, array in arrays.items() for slot in "mv"}
    google = tmp_path / "google"
    google.mkdir()
    save(google / "bert_model.ckpt", arrays | slots | {"global_step": np.int64(7)})
    for file in ("bert_config.json", "vocab.txt"):
        (google / file).write_bytes((tmp_path / "written" / file).read_bytes())
    return google


def save(prefix: Path, arrays: dict) -> None:
    """By TF1's own saver, in three data files."""
    graph = tf.Graph()
    with graph.as_default(), tf.compat.v1.Session(graph=graph) as session:
        variables = [tf.compat.v1.Variable(array, name=name) for name, array in arrays.items()]
        session.run(tf.compat.v1.global_variables_initializer())
        saver = tf.compat.v1.train.Saver(variables, sharded=False)
        saver.save(session, str(prefix))


def same(left: Weights, right: Weights) -> bool:
    assert left.tensors.keys() == right.tensors.keys()
    return all(
        left.tensors[name].read().tobytes() == right.tensors[name].read().tobytes()
        for name in left.tensors
    )


def test_what_is_written_has_the_originals_names_and_shapes(tmp_path):
    weights = huggingface(tmp_path / "peer")
    convert(weights, tmp_path / "google", "google")
    reader = tf.train.load_checkpoint(str(tmp_path / "google" / "bert_model.ckpt"))
    shapes = reader.get_variable_to_shape_map()
    heads = ("classifier", "qa_outputs")
    rows = [row for row in table_rows(3) if row.scope not in heads]
    assert shapes.keys() == {row.google.name for row in rows}
    assert shapes["cls/seq_relationship/output_weights"] == [2, 32]
    assert shapes["bert/encoder/layer_2/intermediate/dense/kernel"] == [32, 48]
    assert set(reader.get_variable_to_dtype_map().values()) == {tf.float32}
    theirs = peer("BertForPreTraining").state_dict()
    name = "encoder.layer.1.output.dense"
    assert np.array_equal(
        reader.get_tensor("bert/encoder/layer_1/output/dense/kernel"),
        theirs[f"bert.{name}.weight"].T,
    )
    assert (tmp_path / "google" / "vocab.txt").read_text().split("\n")[:-1] == list(PIECES)
    assert json.loads((tmp_path / "google" / "bert_config.json").read_text()) == {
        "attention_probs_dropout_prob": 0.1,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": 32,
        "initializer_range": 0.02,
        "intermediate_size": 48,
        "max_position_embeddings": 40,
        "num_attention_heads": 4,
        "num_hidden_layers": 3,
        "type_vocab_size": 2,
        "vocab_size": 44,
    }


def test_a_round_trip_gives_back_every_byte_and_skips_the_slots(checkpoint, tmp_path):
    weights = load_weights(checkpoint)
    slots = 2 * len(weights.tensors) + 1
    assert weights.dropped == (f"{slots} optimizer slots (adam_m, adam_v, global_step)",)
    assert weights.left_over == weights.missing == ()
    assert weights.config.hidden_act == "gelu_new"
    assert weights.architecture == "BertForPreTraining"
    assert same(weights, load_weights(tmp_path / "peer"))
    convert(weights, tmp_path / "hf", "hf")
    convert(load_weights(tmp_path / "hf"), tmp_path / "again", "google")
    assert same(load_weights(tmp_path / "again"), weights)
    fields = json.loads((checkpoint / "bert_config.json").read_text())
    del fields["hidden_act"]  # the original has a default
    (checkpoint / "bert_config.json").write_text(json.dumps(fields))
    assert load_weights(checkpoint).config.hidden_act == "gelu_new"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_comes_back(dtype, tmp_path):
    weights = huggingface(tmp_path / "peer")
    convert(weights, tmp_path / "hf", "hf", dtype)
    convert(load_weights(tmp_path / "hf"), tmp_path / "google", "google", dtype)
    assert same(load_weights(tmp_path / "google"), load_weights(tmp_path / "hf"))


@pytest.mark.parametrize(
    "architecture", ["BertForSequenceClassification", "BertForQuestionAnswering"]
)
def test_heads_have_the_names_of_the_originals_scripts(architecture, tmp_path):
    weights = huggingface(tmp_path / "peer", architecture)
    convert(weights, tmp_path / "google", "google")
    found = load_weights(tmp_path / "google" / "bert_model.ckpt")
    assert found.architecture == architecture
    assert same(found, weights)


def test_heads_that_the_original_does_not_have_are_refused(tmp_path):
    weights = huggingface(tmp_path / "peer", "BertForTokenClassification")
    with pytest.raises(UserError, match="Google's code has no BertForTokenClassification"):
        convert(weights, tmp_path / "google", "google")
    assert not (tmp_path / "google").exists()


def test_what_the_format_cannot_say_is_told(tmp_path):
    weights = huggingface(tmp_path / "peer", hidden_act="gelu", layer_norm_eps=1e-5)
    notes = convert(weights, tmp_path / "google", "google").notes
    assert ["erf" in notes[0], "1e-05" in notes[1]] == [True, True]
    labels = {"id2label": {0: "bad", 1: "good"}, "label2id": {"bad": 0, "good": 1}}
    weights = huggingface(tmp_path / "named", "BertForSequenceClassification", **labels)
    [note] = convert(weights, tmp_path / "nameless", "google").notes
    assert "id2label" in note
    assert "labels lose their names" in note
    # transformers writes `"classifier_dropout": null` to every config.
    weights = huggingface(tmp_path / "dropout", classifier_dropout=0.3)
    [note] = convert(weights, tmp_path / "without", "google").notes
    assert note == "Google's files have no place for classifier_dropout"
    assert convert(huggingface(tmp_path / "plain"), tmp_path / "all", "google").notes == ()


@pytest.mark.parametrize(
    ("settings", "told"),
    [({"do_lower_case": True}, 0), ({"do_lower_case": False}, 1), ({"strip_accents": False}, 1)],
)
def test_a_vocabulary_that_is_read_otherwise_there_is_told(settings, told, tmp_path):
    huggingface(tmp_path / "peer")
    (tmp_path / "peer" / "tokenizer_config.json").write_text(json.dumps(settings))
    weights = load_weights(tmp_path / "peer")
    notes = convert(weights, tmp_path / "google", "google").notes
    assert [("lower case" in note) for note in notes] == [True] * told
    again = load_weights(tmp_path / "google")
    assert weights.tokenizer
    assert again.tokenizer
    cut = [
        tokenizer.encode_batch(["The r\u00edver"])[0]
        for tokenizer in (weights.tokenizer, again.tokenizer)
    ]
    assert (cut[0].tolist() == cut[1].tolist()) == (not told)


def test_left_over_variables_are_listed(checkpoint, tmp_path):
    reader = tf.train.load_checkpoint(str(checkpoint / "bert_model.ckpt"))
    names = reader.get_variable_to_shape_map()
    arrays = {name: reader.get_tensor(name) for name in names if "adam" not in name}
    save(checkpoint / "bert_model.ckpt", arrays | {"loss_scale": np.float32(1)})
    assert load_weights(checkpoint).left_over == ("loss_scale",)


def test_missing_and_damaged_files_are_told_in_a_line(checkpoint):
    prefix = checkpoint / "bert_model.ckpt"
    data = prefix.with_name("bert_model.ckpt.data-00000-of-00001")

    def refused(said: str, source: Path = checkpoint) -> None:
        with pytest.raises(UserError, match=said) as caught:
            [tensor.read() for tensor in load_weights(source).tensors.values()]
        assert "\n" not in str(caught.value)

    whole = data.read_bytes()
    data.rename(prefix.with_name("bert_model.ckpt.data-00000-of-00002"))
    refused("1 of its 2 data files missing: bert_model.ckpt.data-00001-of-00002")
    prefix.with_name("bert_model.ckpt.data-00000-of-00002").unlink()
    refused("its data is missing: there is no bert_model.ckpt.data-00000-of-00001")
    data.write_bytes(whole[: len(whole) // 2])
    refused("cannot be read")
    data.write_bytes(whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:])
    refused("cannot be read")
    data.write_bytes(whole)
    index = prefix.with_name("bert_model.ckpt.index")
    listed = index.read_bytes()
    index.write_bytes(listed[: len(listed) // 2])
    refused("cannot be read")
    index.write_bytes(listed)
    index.with_name("model.ckpt-1000.index").write_bytes(listed)
    refused("2 checkpoints; give the name of one")
    index.with_name("model.ckpt-1000.index").unlink()
    config = checkpoint / "bert_config.json"
    fields = json.loads(config.read_text())
    config.write_text(json.dumps(fields | {"intermediate_size": 64}))
    refused(r"intermediate/dense/kernel is \[32, 48\] and not \[32, 64\]")
    config.write_text(json.dumps(fields | {"vocab_size": 43}))
    refused(r"word_embeddings is \[44, 32\] and not \[43, 32\]")
    config.write_text(json.dumps(fields | {"num_hidden_layers": 2}))
    refused("tensors of other layers: bert/encoder/layer_2/")
    config.unlink()
    refused(r"has no bert_config.json")
    index.unlink()
    refused("no such file|no such directory", prefix)
    config.write_text(json.dumps(fields))
    refused("has no checkpoint: bert_model.ckpt.index is not there")


@pytest.mark.parametrize("name", ["a[1]", "a\\b"])
def test_a_path_that_tensorflow_takes_for_a_pattern_is_told(checkpoint, name):
    with pytest.raises(UserError, match="takes its path for a pattern; move it"):
        load_weights(checkpoint.rename(checkpoint.with_name(name)))


@pytest.mark.parametrize("name", ["a*b", "a?b", "{a,b}", "]% '\"$한"])
def test_under_any_other_path_it_is_read(checkpoint, name):
    weights = load_weights(checkpoint)
    moved = load_weights(checkpoint.rename(checkpoint.with_name(name)))
    assert weights.tensors.keys() == moved.tensors.keys()


def test_a_checkpoint_of_tf2_is_told(checkpoint):
    for path in checkpoint.glob("bert_model.ckpt*"):
        path.unlink()
    table = tf.Variable(tf.zeros([44, 32]))
    tf.train.Checkpoint(table=table).write(str(checkpoint / "bert_model.ckpt"))
    with pytest.raises(UserError, match=r"a checkpoint of TF2, .* fetch the TF1 one of the model"):
        load_weights(checkpoint)


def test_a_sentencepiece_vocabulary_is_refused(tmp_path):
    from bert_jax.data.tokenization import train_tokenizer

    sentences = ["the river walks under small stones"] * 50
    tokenizer = train_tokenizer("unigram", sentences, 32, lowercase=True)
    weights = replace(huggingface(tmp_path / "peer"), tokenizer=tokenizer)
    with pytest.raises(UserError, match="Google's code reads WordPiece vocabularies"):
        convert(weights, tmp_path / "google", "google")
