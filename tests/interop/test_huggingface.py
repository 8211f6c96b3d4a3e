"""Hugging Face directories in and out, against transformers and safetensors themselves."""

import json
import logging
import os
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from peer_models import ARCHITECTURES, PIECES, peer, save_peer
from safetensors.torch import load_file, save_file

from bert_jax.config import Config
from bert_jax.convert import convert
from bert_jax.errors import UserError
from bert_jax.interop import load_weights
from bert_jax.interop.load import reduced
from bert_jax.interop.weights import DTYPES

TORCH_DTYPES = {name: getattr(torch, name) for name in DTYPES}


def raw_bytes(directory: Path) -> dict[str, tuple[str, bytes]]:
    """Every tensor as its dtype, shape and bytes."""
    tensors = load_file(directory / "model.safetensors")
    return {
        name: (f"{t.dtype}{list(t.shape)}", t.contiguous().view(torch.uint8).numpy().tobytes())
        for name, t in tensors.items()
    }


@pytest.fixture
def pretraining(tmp_path: Path) -> Path:
    return save_peer(peer("BertForPreTraining"), tmp_path / "theirs")


def rewrite(directory: Path, tensors: dict[str, Any], **fields: Any) -> Path:
    """The same directory with other tensors, and fields of its config changed (None: without)."""
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((directory / "config.json").read_text()) | fields
    config = {name: value for name, value in config.items() if value is not None}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_round_trip_gives_back_every_byte(architecture, dtype, tmp_path):
    source = save_peer(peer(architecture), tmp_path / "theirs", TORCH_DTYPES[dtype])
    weights = load_weights(source)
    assert weights.architecture == architecture
    assert weights.missing == weights.left_over == ()
    convert(weights, tmp_path / "ours", "hf", dtype)
    assert raw_bytes(tmp_path / "ours") == raw_bytes(source)
    theirs, ours = (
        getattr(transformers, architecture).from_pretrained(path).config.to_dict()
        for path in (source, tmp_path / "ours")
    )
    ignored = {"_name_or_path", "transformers_version"}
    assert {n: v for n, v in ours.items() if n not in ignored} == {
        n: v for n, v in theirs.items() if n not in ignored
    }


def test_half_precision_comes_back_through_float32(tmp_path):
    source = save_peer(peer("BertForPreTraining"), tmp_path / "theirs", torch.float16)
    weights = load_weights(source)
    assert {(t.dtype, t.read().dtype) for t in weights.tensors.values()} == {
        (DTYPES["float16"],) * 2
    }
    convert(weights, tmp_path / "wide", "hf")
    convert(load_weights(tmp_path / "wide"), tmp_path / "narrow", "hf", "float16")
    assert raw_bytes(tmp_path / "narrow") == raw_bytes(source)
    assert next(iter(raw_bytes(tmp_path / "wide").values()))[0].startswith("torch.float32")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_transformers_loads_what_is_written_without_a_word(architecture, tmp_path, caplog):
    convert(
        load_weights(save_peer(peer(architecture), tmp_path / "theirs")), tmp_path / "ours", "hf"
    )
    caplog.set_level(logging.WARNING)
    logging.getLogger("transformers").propagate = True
    auto = {
        "BertModel": transformers.AutoModel,
        "BertForPreTraining": transformers.AutoModelForPreTraining,
        "BertForMaskedLM": transformers.AutoModelForMaskedLM,
        "BertForNextSentencePrediction": transformers.AutoModelForNextSentencePrediction,
        "BertForSequenceClassification": transformers.AutoModelForSequenceClassification,
        "BertForTokenClassification": transformers.AutoModelForTokenClassification,
        "BertForQuestionAnswering": transformers.AutoModelForQuestionAnswering,
        "BertForMultipleChoice": transformers.AutoModelForMultipleChoice,
    }[architecture]
    model, report = auto.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert type(model).__name__ == architecture
    assert not any(report.values())
    assert not caplog.records


@pytest.mark.parametrize(
    ("architecture", "auto"),
    [
        ("BertModel", transformers.AutoModel),
        ("BertForMaskedLM", transformers.AutoModelForMaskedLM),
        ("BertForNextSentencePrediction", transformers.AutoModelForNextSentencePrediction),
    ],
)
def test_heads_are_left_out_on_demand(pretraining, tmp_path, caplog, architecture, auto):
    caplog.set_level(logging.WARNING)
    logging.getLogger("transformers").propagate = True
    weights = reduced(load_weights(pretraining), architecture)
    assert any(f"(not of a {architecture})" in line for line in weights.dropped)
    convert(weights, tmp_path / "ours", "hf")
    model, report = auto.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values())
    assert not caplog.records
    whole = auto.from_pretrained(pretraining).state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, whole[name]), name


def test_heads_that_are_not_there_cannot_be_chosen(pretraining):
    with pytest.raises(UserError, match="is a BertForPreTraining and has no classifier"):
        reduced(load_weights(pretraining), "BertForTokenClassification")


def test_smaller_classes_lack_nothing(pretraining, tmp_path):
    # That the file holds more heads than the class is told by transformers of its own files too.
    convert(load_weights(pretraining), tmp_path / "ours", "hf")
    for auto in (transformers.AutoModel, transformers.AutoModelForMaskedLM):
        reports = [
            auto.from_pretrained(path, output_loading_info=True)[1]
            for path in (pretraining, tmp_path / "ours")
        ]
        assert reports[0] == reports[1]
        assert not reports[1]["missing_keys"]
        assert not reports[1]["mismatched_keys"]


def test_the_tokenizer_gives_the_same_ids(pretraining, tmp_path):
    convert(load_weights(pretraining), tmp_path / "ours", "hf")
    theirs, ours = (
        transformers.AutoTokenizer.from_pretrained(path)
        for path in (pretraining, tmp_path / "ours")
    )
    texts = ["The river walks under small stones.", "GREEN bird, [MASK]?", "naïve 東京 house", ""]
    pairs = list(zip(texts, texts[::-1], strict=True))
    assert ours(texts)["input_ids"] == theirs(texts)["input_ids"]
    assert dict(ours(pairs)) == dict(theirs(pairs))
    # The model's 40 positions.
    assert len(ours("a " * 100, truncation=True)["input_ids"]) == 40


def test_padding_is_what_the_vocabulary_says(pretraining, tmp_path):
    pieces = [*PIECES[1:8], "[PAD]", *PIECES[8:]]
    (pretraining / "vocab.txt").write_text("\n".join(pieces) + "\n")
    convert(load_weights(pretraining), tmp_path / "ours", "hf")
    model = transformers.AutoModel.from_pretrained(tmp_path / "ours")
    assert model.get_input_embeddings().padding_idx == 7


def test_a_tokenizer_is_read_in_each_of_its_forms(pretraining, tmp_path):
    texts = ["The river walks under small stones.", "GREEN bird, [SEP]?", ""]
    loaded = load_weights(pretraining).tokenizer
    assert loaded
    expected = [list(ids) for ids in loaded.encode_batch(texts)]
    transformers.AutoTokenizer.from_pretrained(pretraining).save_pretrained(tmp_path / "saved")
    (pretraining / "vocab.txt").unlink()
    assert load_weights(pretraining).tokenizer is None
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tmp_path / "saved" / name, pretraining)
    fast = load_weights(pretraining).tokenizer
    assert fast
    assert [list(ids) for ids in fast.encode_batch(texts)] == expected


def test_old_names_buffers_and_tied_copies_are_known(pretraining):
    tensors = load_file(pretraining / "model.safetensors")
    plain = {name: t.read() for name, t in load_weights(pretraining).tensors.items()}
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in tensors.items()
    }
    old["bert.embeddings.position_ids"] = torch.arange(40)[None]
    old["cls.predictions.decoder.weight"] = tensors[
        "bert.embeddings.word_embeddings.weight"
    ].clone()
    old["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].clone()
    weights = load_weights(rewrite(pretraining, old))
    assert {name.split(" ")[0] for name in weights.dropped} == old.keys() - {
        name.replace("weight", "gamma").replace("bias", "beta") if "LayerNorm" in name else name
        for name in tensors
    }
    assert weights.missing == weights.left_over == ()
    for name, array in plain.items():
        assert np.array_equal(weights.tensors[name].read(), array)
    # The copy alone is as good.
    del old["cls.predictions.bias"], old["bert.embeddings.word_embeddings.weight"]
    weights = load_weights(rewrite(pretraining, old))
    assert len(weights.dropped) == 1
    for name, array in plain.items():
        assert np.array_equal(weights.tensors[name].read(), array)


def test_names_without_prefix_are_those_with_it(pretraining):
    tensors = load_file(pretraining / "model.safetensors")
    plain = load_weights(pretraining)
    bare = {name.removeprefix("bert."): tensor for name, tensor in tensors.items()}
    bare |= {f"embeddings.{n}_ids": torch.arange(40)[None] for n in ("position", "token_type")}
    weights = load_weights(rewrite(pretraining, bare))
    assert weights.tensors.keys() == plain.tensors.keys()
    assert (len(weights.dropped), weights.left_over) == (2, ())


def test_what_is_missing_or_left_over_is_listed(pretraining):
    tensors = load_file(pretraining / "model.safetensors")
    fewer = {n: t for n, t in tensors.items() if "pooler" not in n and "relationship" not in n}
    weights = load_weights(rewrite(pretraining, fewer | {"adapter.weight": torch.ones(3)}))
    assert weights.architecture == "BertForMaskedLM"
    assert set(weights.missing) == tensors.keys() - fewer.keys()
    assert weights.left_over == ("adapter.weight",)
    within = "bert.encoder.layer.0.attention.self.extra"
    weights = load_weights(rewrite(pretraining, tensors | {within: torch.ones(3)}))
    assert weights.left_over == (within,)


def test_heads_that_no_architecture_has_together_are_left_over(pretraining):
    """Those of the architecture that the config names are kept."""
    tensors = load_file(pretraining / "model.safetensors")
    answers = {"qa_outputs.weight": torch.ones(2, 32), "qa_outputs.bias": torch.ones(2)}
    plain = load_weights(pretraining)
    weights = load_weights(rewrite(pretraining, tensors | answers))
    assert weights.architecture == "BertForPreTraining"
    assert weights.left_over == ("qa_outputs.bias", "qa_outputs.weight")
    assert weights.tensors.keys() == plain.tensors.keys()
    fewer = {n: t for n, t in tensors.items() if "pooler" not in n and "relationship" not in n}
    weights = load_weights(rewrite(pretraining, fewer | answers))
    assert weights.architecture == "BertForMaskedLM"
    assert weights.left_over == ("qa_outputs.bias", "qa_outputs.weight")


def test_a_model_without_named_architecture_is_told_by_its_heads(pretraining):
    tensors = load_file(pretraining / "model.safetensors")
    directory = rewrite(pretraining, tensors, architectures=None)
    assert load_weights(directory).architecture == "BertForPreTraining"
    encoder = {name: tensor for name, tensor in tensors.items() if not name.startswith("cls.")}
    weights = load_weights(rewrite(pretraining, encoder))
    assert (weights.architecture, weights.missing) == ("BertModel", ())
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"architectures": None}))
    assert load_weights(directory).architecture == "BertModel"
    # The hub's bert-base-uncased calls itself so, and has all heads.
    directory = rewrite(pretraining, tensors, architectures=["BertForMaskedLM"])
    assert load_weights(directory).architecture == "BertForPreTraining"


def test_labels_and_what_else_is_said_of_a_head_are_kept(tmp_path):
    names = {0: "person", 1: "place", 2: "other"}
    fields: Any = {"classifier_dropout": 0.25, "problem_type": "single_label_classification"}
    model = peer("BertForTokenClassification", id2label=names, num_labels=3, **fields)
    convert(load_weights(save_peer(model, tmp_path / "theirs")), tmp_path / "ours", "hf")
    loaded = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "ours")
    assert loaded.config.id2label == names
    assert {name: getattr(loaded.config, name) for name in fields} == fields


def test_a_card_tells_of_a_path_that_is_not_utf8(pretraining, tmp_path):
    facts = {"config": asdict(Config()), "text": "text:\udcb1\udcb9/*.txt", "step": 1, "scores": {}}
    convert(replace(load_weights(pretraining), facts=facts), tmp_path / "ours", "hf")
    assert "text:??/*.txt" in (tmp_path / "ours/README.md").read_text(encoding="utf-8")


def test_a_model_of_one_label_needs_no_names(tmp_path):
    source = save_peer(peer("BertForSequenceClassification", num_labels=1), tmp_path / "theirs")
    config = json.loads((source / "config.json").read_text())
    assert config.pop("id2label")
    weights = replace(load_weights(source), head_fields={})  # as from a checkpoint of Google's
    convert(weights, tmp_path / "ours", "hf")
    _, report = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert not any(report.values())


def test_a_pooler_that_the_class_has_not_is_told(pretraining, tmp_path):
    tensors = load_file(pretraining / "model.safetensors")
    tensors = {name: tensor for name, tensor in tensors.items() if "relationship" not in name}
    weights = load_weights(rewrite(pretraining, tensors, architectures=["BertForMaskedLM"]))
    [note] = convert(weights, tmp_path / "kept", "hf").notes
    assert "pooler" in note
    auto = transformers.AutoModelForMaskedLM
    for folder, expected in (("kept", 2), ("without", 0)):
        if folder == "without":
            assert not convert(reduced(weights, "BertForMaskedLM"), tmp_path / folder, "hf").notes
        _, report = auto.from_pretrained(tmp_path / folder, output_loading_info=True)
        assert len(report["unexpected_keys"]) == expected


def shard(directory: Path) -> Path:
    """The weights of a directory in two files with an index."""
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    names = sorted(tensors)
    halves = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, half in halves.items():
        save_file({name: tensors[name] for name in half}, directory / file)
    places = {name: file for file, half in halves.items() for name in half}
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def test_sharded_files_are_one_model(pretraining, tmp_path):
    plain = tmp_path / "plain"
    shutil.copytree(pretraining, plain)
    convert(load_weights(shard(pretraining)), tmp_path / "ours", "hf")
    assert raw_bytes(tmp_path / "ours") == raw_bytes(plain)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"a": "../model-1.safetensors"}, "not the name of a safetensors file beside it"),
        ({"a": "/etc/passwd"}, "not the name of a safetensors file beside it"),
        ({"a": "model-9.safetensors"}, "model-9.safetensors, which it names, is missing"),
        ({"a": "model-1.safetensors"}, "a is not in model-1.safetensors"),
        ({"a": "pipe.safetensors"}, "not a regular file"),
        (
            {"bert.embeddings.LayerNorm.bias": "model-2.safetensors"},
            "LayerNorm.bias is in model-1.safetensors, and the index doesn't say so",
        ),
        ({"a": 3}, "weight_map must give the file of each tensor"),
    ],
)
def test_an_index_that_does_not_fit_is_refused(change, said, pretraining):
    os.mkfifo(pretraining / "pipe.safetensors")
    path = shard(pretraining) / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"] |= change
    path.write_text(json.dumps(index))
    with pytest.raises(UserError, match=said):
        load_weights(pretraining)


def test_bad_directories_are_told_in_a_line(pretraining):
    tensors = load_file(pretraining / "model.safetensors")
    query = "bert.encoder.layer.1.attention.self.query.weight"

    def refused(tensors: dict[str, Any], said: str, **fields: Any) -> None:
        original = (pretraining / "config.json").read_text()
        with pytest.raises(UserError, match=said) as caught:
            load_weights(rewrite(pretraining, tensors, **fields))
        assert "\n" not in str(caught.value)
        (pretraining / "config.json").write_text(original)

    refused(tensors, "model_type is 'gpt2'.*BertForPreTraining", model_type="gpt2")
    other = {"architectures": ["BertLMHeadModel"]}
    refused(tensors, "'BertLMHeadModel' is not supported: use one of BertModel", **other)
    refused(tensors, r"word_embeddings.weight is \[44, 32\] and not \[45, 32\]", vocab_size=45)
    ten = r"(bert\.encoder\.layer\.3\.\S+ ?){10}"
    refused(tensors, rf"tensors are missing: {ten}and 6 more$", num_hidden_layers=4)
    refused(tensors, "num_hidden_layers=1000000000, and the file has", num_hidden_layers=10**9)
    refused(tensors, "tensors of other layers: bert.encoder.layer.2", num_hidden_layers=2)
    refused({n: t for n, t in tensors.items() if n != query}, f"missing: {query}")
    refused({n: t for n, t in tensors.items() if n != "cls.predictions.bias"}, "missing: cls.pred")
    refused(tensors | {query: tensors[query].to(torch.int32)}, f"{query} is int32")
    apart = {"cls.predictions.decoder.weight": tensors[query].clone()}
    refused(tensors | apart, "decoder.weight differs from bert.embeddings.word_embeddings")
    twice = {"embeddings.LayerNorm.gamma": torch.ones(32)}
    refused(tensors | twice, "bert.embeddings.LayerNorm.weight under two names")

    wrong = tensors | {query: torch.ones(8, 8), "cls.predictions.bias": torch.ones(3)}
    refused(wrong, f"cls.predictions.bias is .*{query} is|{query} is .*cls.predictions.bias is")


@pytest.mark.parametrize("architecture", ["BertModel", "BertForSequenceClassification"])
def test_what_a_pickle_is_to_be_read_by_keeps_its_head(architecture, tmp_path):
    """Another class would leave it out, and save heads at random in its place."""
    source = save_peer(peer(architecture), tmp_path / "theirs")
    (source / "model.safetensors").rename(source / "pytorch_model.bin")
    with pytest.raises(UserError, match=rf"transformers: {architecture}\.from_pretrained\(DIR\)"):
        load_weights(source)


def test_a_directory_without_config_or_weights_says_so(pretraining):
    (pretraining / "model.safetensors").rename(pretraining / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"a pickle.*save_pretrained"):
        load_weights(pretraining)
    (pretraining / "pytorch_model.bin").unlink()
    with pytest.raises(UserError, match=r"has no model.safetensors"):
        load_weights(pretraining)
    (pretraining / "config.json").unlink()
    with pytest.raises(UserError, match=r"has no config.json"):
        load_weights(pretraining)


def test_a_vocabulary_that_disagrees_with_the_embedding(pretraining):
    vocab = pretraining / "vocab.txt"
    vocab.write_text("\n".join([*PIECES, "more"]) + "\n")
    with pytest.raises(UserError, match="vocabulary has 45 pieces and its embedding 44 rows"):
        load_weights(pretraining)
    vocab.write_text("\n".join(PIECES[:-2]) + "\n")
    assert load_weights(pretraining).notes == (
        "2 rows of the embedding have no piece in the vocabulary",
    )


def test_pairs_of_another_form_are_told(pretraining, tmp_path):
    convert(load_weights(pretraining), tmp_path / "ours", "hf")
    path = tmp_path / "ours" / "tokenizer.json"
    document = json.loads(path.read_text())
    pair = document["post_processor"]["pair"]
    document["post_processor"]["pair"] = [*pair[:3], pair[2], *pair[3:]]
    path.write_text(json.dumps(document))
    [note] = load_weights(tmp_path / "ours").notes
    assert "between [CLS]:0 [SEP]:0 [SEP]:0 [SEP]:1; here" in note


def test_labels_that_disagree_with_the_classifier(tmp_path):
    source = save_peer(peer("BertForSequenceClassification"), tmp_path / "theirs")
    tensors = load_file(source / "model.safetensors")
    with pytest.raises(UserError, match="id2label must name the 3 labels"):
        load_weights(rewrite(source, tensors, id2label={"0": "a", "1": "b"}))
    for last in ("3", "c"):
        names = {"0": "a", "1": "b", last: "c"}
        with pytest.raises(UserError, match="the 3 labels of the classifier by 0 to 2, and is"):
            load_weights(rewrite(source, tensors, id2label=names))
    tensors["classifier.bias"] = torch.tensor(1.0)
    with pytest.raises(UserError, match=r"classifier.bias is \[\] and not \[2\]"):
        load_weights(rewrite(source, tensors))


def test_choices_have_one_output_whatever_their_labels(tmp_path):
    source = save_peer(peer("BertForMultipleChoice", num_labels=4), tmp_path / "theirs")
    assert len(json.loads((source / "config.json").read_text())["id2label"]) == 4
    assert load_weights(source).labels == 1


def test_names_of_labels_are_not_joined_by_others(tmp_path):
    """Where a config has them one way round alone, LABEL_0 the other way would be of no label."""
    source = save_peer(peer("BertForSequenceClassification"), tmp_path / "theirs")
    tensors, names = load_file(source / "model.safetensors"), {"0": "a", "1": "b", "2": "c"}
    weights = load_weights(rewrite(source, tensors, id2label=names, label2id=None))
    convert(weights, tmp_path / "ours", "hf")
    written = json.loads((tmp_path / "ours/config.json").read_text())
    assert (written["id2label"], written.get("label2id")) == (names, None)
    convert(replace(weights, head_fields={}), tmp_path / "plain", "hf")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "plain")
    assert config.id2label == {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}
    assert config.label2id == {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2}


def test_values_beyond_half_precision_are_told(pretraining, tmp_path):
    tensors = load_file(pretraining / "model.safetensors")
    tensors["cls.predictions.bias"][3] = 1e6
    weights = load_weights(rewrite(pretraining, tensors))
    with pytest.raises(UserError, match=r"cls.predictions.bias: a value is too large for float16"):
        convert(weights, tmp_path / "ours", "hf", "float16")
    assert not (tmp_path / "ours").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["theirs"]
    # What was none before is not too large.
    tensors["cls.predictions.bias"][3:5] = torch.tensor([torch.nan, torch.inf])
    convert(load_weights(rewrite(pretraining, tensors)), tmp_path / "ours", "hf", "float16")
    written = load_file(tmp_path / "ours" / "model.safetensors")["cls.predictions.bias"]
    assert torch.equal(written.isfinite(), tensors["cls.predictions.bias"].isfinite())
