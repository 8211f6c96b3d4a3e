"""Training that goes on from given weights: their model, their vocabulary, and new words in it."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.config import ARCHITECTURE, BertConfig, Config
from bert_jax.data.tokenization import Tokenizer
from bert_jax.data.vocabulary_files import read_vocab
from bert_jax.errors import UserError
from bert_jax.interop.params import VOCABULARY, load_params
from bert_jax.interop.weights import Tensor, Weights
from bert_jax.training.cluster import SAME_FILES, Cluster


def adopt(config: Config, weights: Weights) -> Config:
    """`config` for a run that begins with `weights`: their architecture and their vocabulary.

    Raises:
      UserError: the weights have no vocabulary; a phase is longer than they allow.
    """
    weights.needed_tokenizer()  # refused here, before any text is read
    longest = max(phase.seq_len for phase in config.phases)
    if longest > weights.config.max_position_embeddings:
        raise UserError(
            f"{weights.source}: it takes sequences of {weights.config.max_position_embeddings} "
            f"pieces, and a phase has seq_len={longest}; extend it by python -m bert_jax.convert "
            f"--max_position_embeddings={longest}"
        )
    added = len(read_vocab(Path(config.corpus.new_tokens))) if config.corpus.new_tokens else 0
    # The token shards say how many pieces there are; this is the most there may be.
    pieces = max(config.model.vocab_size, weights.config.vocab_size) + added
    corpus = config.corpus
    adopted = replace(
        config,
        model=replace(adopted_model(config.model, weights), vocab_size=pieces),
        corpus=replace(corpus, vocab=corpus.vocab or str(weights.vocab.absolute())),
    )
    adopted.validate()
    return adopted


def adopted_model(model: BertConfig, weights: Weights) -> BertConfig:
    """The architecture of `weights`, computed and regularised as `model` is."""
    return replace(model, **{name: getattr(weights.config, name) for name in ARCHITECTURE})


def check_same_weights(weights: Weights, cluster: Cluster) -> None:
    """Check that all processes of a run begin with the same weights.

    Each reads its own: what is called the same may be another file on another host, and parameters
    that lie on several devices would never again be the same on all.

    Raises:
      SharedFailure: in all of them, naming those whose weights are not process 0's.
    """
    cluster.check_same("model in --init_from", weights.fingerprint, SAME_FILES)


def start_params(weights: Weights, tokenizer: Tokenizer, params: Any) -> tuple[Any, list[str]]:
    """The parameters that a run begins with.

    A piece that `tokenizer` has beyond those of the weights gets the mean of the rows of the pieces
    that the weights' own tokenizer cuts it into: its word is then, to the encoder, about what it
    was before.

    Args:
      tokenizer: of the token shards.
      params: of the model, as `load_params` takes them; what the weights lack stays as it is there.

    Returns:
      The parameters in the shardings of `params`, and the names of those that stay.

    Raises:
      UserError: the vocabulary is not that of the weights, or not followed by new pieces.
    """
    return load_params(_with_new_pieces(weights, tokenizer), params)


def told_start(source: str, weights: Weights, at_random: Iterable[str]) -> str:
    """What a run says of the weights that it begins with: their place, and what is odd of them.

    Args:
      source: as it was given.
      weights: read from there.
      at_random: what they lack.
    """
    names = ", ".join(at_random)
    fresh = f"; at random: {names}" if names else ""
    return "\n".join([f"begun with {source}{fresh}", *(f"  note: {n}" for n in weights.notes)])


def _with_new_pieces(weights: Weights, tokenizer: Tokenizer) -> Weights:
    old = weights.tokenizer
    assert old
    if tokenizer.pieces[: old.vocab_size] != old.pieces:
        raise UserError(
            f"{weights.source}: its vocabulary is not that of the token shards; prepare them with "
            f"--vocab={weights.vocab}"
        )
    words = [piece.removeprefix("##") for piece in tokenizer.pieces[old.vocab_size :]]
    cut = old.encode_batch(words)

    def extended(tensor: Tensor) -> Tensor:
        shape = (tokenizer.vocab_size, *tensor.shape[1:])

        def read() -> np.ndarray:
            rows = np.zeros(shape, np.float32)
            rows[: old.vocab_size] = tensor.read()[: old.vocab_size]
            for row, ids in enumerate(cut, old.vocab_size):
                rows[row] = rows[ids].mean(axis=0)
            return rows

        return Tensor(shape, np.dtype(np.float32), read)

    changed = {
        name: extended(weights.tensors[name]) for name in VOCABULARY if name in weights.tensors
    }
    return replace(weights, tensors={**weights.tensors, **changed})
