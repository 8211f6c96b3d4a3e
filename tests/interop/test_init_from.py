"""Training that begins with given weights and a vocabulary that is theirs, or longer."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from peer_models import PIECES, peer, save_peer
from small_run import (
    LONG,
    ROOT,
    Processes,
    command,
    get_config,
    history,
    parameters,
    write_books,
)

from bert_jax.data.tokenization import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.interop import Weights, load_params, load_weights
from bert_jax.interop.init_from import adopt, start_params
from bert_jax.models import BertConfig, BertForPreTraining
from bert_jax.prepare import prepare


@pytest.fixture
def source(tmp_path: Path) -> Path:
    model = peer("BertForPreTraining", max_position_embeddings=64, layer_norm_eps=1e-6)
    return save_peer(model, tmp_path / "theirs")


@pytest.fixture
def weights(source: Path) -> Weights:
    return load_weights(source)


def initial(config: BertConfig) -> Any:
    """A tree of zeros."""
    ids = jnp.zeros((1, 8), jnp.int32)
    model = BertForPreTraining(config)
    tree = jax.eval_shape(model.init, jax.random.key(0), ids, ids, ids, ids)["params"]
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), nn.unbox(tree))


def test_what_the_model_is_comes_from_the_weights(weights, source):
    config = get_config()
    config.model.scan_layers, config.model.dtype = True, "bfloat16"
    config.model.hidden_dropout_prob, config.model.gradient_dtype = 0.2, "bfloat16"
    adopted = adopt(config, weights)
    expected = {"hidden_size": 32, "num_hidden_layers": 3, "hidden_act": "gelu"}
    expected |= {"layer_norm_eps": 1e-6, "scan_layers": True, "dtype": "bfloat16"}
    expected |= {"gradient_dtype": "bfloat16"}
    expected |= {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.1}
    assert {name: getattr(adopted.model, name) for name in expected} == expected
    assert adopted.corpus.vocab == str(source)
    assert load_tokenizer(adopted.corpus.vocab).pieces == list(PIECES)


def test_weights_that_do_not_serve_are_refused(weights):
    with pytest.raises(
        UserError, match=r"takes sequences of 40 pieces, and a phase has seq_len=64; extend it"
    ):
        adopt(
            get_config(),
            replace(weights, config=replace(weights.config, max_position_embeddings=40)),
        )
    with pytest.raises(UserError, match=r"theirs: has no vocabulary"):
        adopt(get_config(), replace(weights, tokenizer=None))


def test_another_vocabulary_is_refused(weights, tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join([*PIECES[:-2], "?", "."]) + "\n")
    other = load_tokenizer(tmp_path / "vocab.txt")
    with pytest.raises(UserError, match=r"not that of the token shards; prepare them with --vocab"):
        start_params(weights, other, initial(weights.config))


def test_a_new_word_begins_as_the_mean_of_its_pieces(weights):
    assert weights.tokenizer
    tokenizer = weights.tokenizer.extended(["walkstone", "birds", "##walk"])
    config = replace(weights.config, vocab_size=tokenizer.vocab_size, vocab_multiple=8)
    params, missing = start_params(weights, tokenizer, initial(config))
    assert missing == []
    old, _ = load_params(weights, initial(weights.config))
    for path in (("bert", "embeddings", "word_embeddings"), ("cls", "predictions", "output_bias")):
        table, before = params, old
        for name in path:
            table, before = table[name], before[name]
        table, before = np.asarray(table), np.asarray(before)
        place = PIECES.index
        assert np.array_equal(table[:44], before[:44])
        # As WordPiece cuts them: no piece continues "walk" with "stone", so that is one [UNK].
        assert np.array_equal(table[44], before[place("[UNK]")])
        both = [before[place("bird")], before[place("##s")]]
        np.testing.assert_allclose(table[45], np.mean(both, axis=0), rtol=1e-6)
        assert np.array_equal(table[46], before[place("walk")])
        assert not table[47:].any()
        assert len(table) == 48


def test_heads_that_the_weights_lack_begin_at_random(tmp_path):
    weights = load_weights(save_peer(peer("BertForMaskedLM"), tmp_path / "theirs"))
    assert weights.tokenizer
    fresh = initial(weights.config)
    params, missing = start_params(weights, weights.tokenizer, fresh)
    assert [name.split("/")[-1] for name in missing] == ["bias", "kernel"] * 2
    assert params["bert"]["pooler"]["dense"]["kernel"] is fresh["bert"]["pooler"]["dense"]["kernel"]


def train(source: Path, books: Path, run: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Continue on books of one's own, in a cache of its own."""
    command = [
        *(sys.executable, "-m", "bert_jax.train", "--config=tests/small_run.py"),
        *(f"--init_from={source}", f"--config.corpus.source=text:{books}/*.txt"),
        *("--config.corpus.heldout_fraction=0.15", f"--workdir={run}", *flags),
    ]
    environment = os.environ | {"XDG_CACHE_HOME": str(run.parent / "cache")}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_pretraining_goes_on_from_a_published_checkpoint(source, tmp_path):
    write_books(tmp_path / "books")
    (tmp_path / "words.txt").write_text("walks\nsees\n")
    new = f"--config.corpus.new_tokens={tmp_path / 'words.txt'}"
    still = ("--config.optimizer.learning_rate=1e-12", "--config.optimizer.weight_decay=1e-9")

    # Where nothing is learnt, the weights are those that were given, and scored before any step.
    short = ("--config.phases[0].steps=1", "--config.phases[1].steps=1")
    result = train(source, tmp_path / "books", tmp_path / "still", new, *still, *short)
    assert result.returncode == 0, result.stderr
    evals = [record for record in history(tmp_path / "still") if record["kind"] == "eval"]
    assert [(record["step"], record["phase"]) for record in evals] == [(0, 0), (1, 0), (2, 1)]
    assert evals[0]["mlm_loss"] == pytest.approx(evals[1]["mlm_loss"], rel=1e-6)
    assert evals[0]["mlm_loss"] != pytest.approx(evals[2]["mlm_loss"], rel=1e-6)
    weights = load_weights(source)
    tokenizer = load_tokenizer(tmp_path / "still" / "tokenizer")
    assert tokenizer.pieces == [*PIECES, "walks", "sees"]
    config = json.loads((tmp_path / "still" / "config.json").read_text())
    assert config["model"]["num_hidden_layers"] == 3
    assert config["model"]["vocab_size"] == 46
    like = initial(replace(weights.config, vocab_size=46, vocab_multiple=8))
    expected, _ = start_params(weights, tokenizer, like)
    found = dict(flatten_dict(parameters(tmp_path / "still", 2), sep="/"))
    for name, leaf in flatten_dict(expected, sep="/").items():
        np.testing.assert_allclose(np.asarray(found[name]), np.asarray(leaf), atol=1e-6)

    run = tmp_path / "run"
    result = train(source, tmp_path / "books", run, new)
    assert result.returncode == 0, result.stderr
    losses = [record["mlm_loss"] for record in history(run) if record["kind"] == "eval"]
    assert losses[-1] < losses[0]

    # The same command goes on with the run, which is done; other weights are refused.
    before = history(run)
    again = train(source, tmp_path / "books", run, new)
    assert again.returncode == 0, again.stderr
    assert "begun with" not in again.stdout
    assert history(run) == before
    other = peer("BertForPreTraining", seed=5, max_position_embeddings=64)
    refused = train(save_peer(other, tmp_path / "others"), tmp_path / "books", run, new)
    assert refused.returncode == 2
    assert "config.init_from=" in refused.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_hosts_may_have_the_weights_in_other_places(source, tmp_path):
    """As in caches of their own: what they hold is compared, and not where it lies."""
    write_books(tmp_path / "books")
    corpus = get_config().corpus
    corpus.source, corpus.vocab = f"text:{tmp_path}/books/*.txt", str(source)
    corpus.sentences, corpus.heldout_fraction = "lines", 0.15
    prepare(corpus, 44, tmp_path / "shards", workers=1, progress=False)
    flags = ["--init_from=model", *(f"--config.phases[{index}].steps=1" for index in (0, 1))]
    run = command(tmp_path / "shards", tmp_path / "run", *flags)
    there = f'cd "$0" && PYTHONPATH={ROOT} exec "$@"'
    commands = []
    for host in (tmp_path / "host0", tmp_path / "host1"):
        shutil.copytree(source, host / "model")
        commands.append(["bash", "-c", there, str(host), *run])
    with Processes(tmp_path / "logs", commands) as processes:
        assert processes.wait(LONG) == [0, 0], processes.output(0)
        assert "begun with model" in processes.output(0)
