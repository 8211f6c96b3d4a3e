"""What a model puts in the place of masked words, for the report of a run."""

from collections.abc import Callable
from typing import Any

import numpy as np

from bert_jax.data.keyed import key, words
from bert_jax.data.shards import Shard
from bert_jax.data.tokenization import Tokenizer
from bert_jax.tasks.losses import softmax

# Sentences of a length that a reader takes in at a glance, in pieces.
_SHORTEST, _LONGEST = 6, 40
_MASKS = 2
_TOP = 5


def choose_sentences(shards: list[Shard], count: int, positions: int) -> list[np.ndarray]:
    """Ids of `count` held-out sentences of moderate length, evenly spread over the documents.

    With [CLS] and [SEP] none has more pieces than the model has `positions`.
    """
    longest = min(_LONGEST, positions - 2)
    found: list[np.ndarray] = []
    for shard in shards:
        lengths = np.diff(shard.sentences.astype(np.int64))
        fit = np.flatnonzero((lengths >= _SHORTEST) & (lengths <= longest))
        spread = fit[np.linspace(0, len(fit) - 1, min(count, len(fit))).astype(int)]
        starts = shard.sentences[spread].astype(np.int64)
        found += [
            np.asarray(shard.tokens[start : start + size], np.int32)
            for start, size in zip(starts, lengths[spread], strict=True)
        ]
    return [found[i] for i in np.linspace(0, len(found) - 1, min(count, len(found))).astype(int)]


def mask_sentences(sentences: list[np.ndarray], tokenizer: Tokenizer) -> dict[str, np.ndarray]:
    """The sentences as a batch of the model's inputs, with `_MASKS` words masked in each.

    Only words of a single piece are masked, so that the answer can be read; which ones follows
    from the sentence's place in the list.

    Returns:
      input_ids, token_type_ids, attention_mask int32 [B, L], masked_lm_positions and
      masked_lm_ids int32 [B, P]; repeated positions where a sentence has fewer such words.
    """
    length = max(map(len, sentences)) + 2
    batch = np.full((len(sentences), length), tokenizer.pad_id, np.int32)
    positions = np.zeros((len(sentences), _MASKS), np.int32)
    for row, ids in enumerate(sentences):
        batch[row, : len(ids) + 2] = [tokenizer.cls_id, *ids, tokenizer.sep_id]
        starts = tokenizer.starts_word[ids]
        alone = np.flatnonzero(starts & np.append(starts[1:], True) & _is_word(ids, tokenizer))
        order = np.argsort(words(key(row), max(len(alone), 1)).ravel()[: len(alone)])
        chosen = alone[order][:_MASKS] if len(alone) else np.array([0])
        positions[row] = np.sort(np.resize(chosen, _MASKS)) + 1
    answers = np.take_along_axis(batch, positions, axis=1)
    attention_mask = (batch != tokenizer.pad_id).astype(np.int32)
    np.put_along_axis(batch, positions, np.int32(tokenizer.mask_id), axis=1)
    return {
        "input_ids": batch,
        "token_type_ids": np.zeros_like(batch),
        "attention_mask": attention_mask,
        "masked_lm_positions": positions,
        "masked_lm_ids": answers,
    }


def predict_masks(
    logits_fn: Callable[[dict[str, np.ndarray]], Any],
    sentences: list[np.ndarray],
    tokenizer: Tokenizer,
) -> dict[str, Any]:
    """The report's table: each sentence with its masks, the truth and the likeliest pieces.

    Args:
      logits_fn: model inputs to logits, float32 [B, P, V].
      sentences: ids of each, as `choose_sentences` gives them.
      tokenizer: of those ids.

    Returns:
      {"examples": [{"text_with_mask": ..., "targets": [{"truth": ..., "predictions":
      [[piece, probability], ...]}, ...]}, ...]}
    """
    batch = mask_sentences(sentences, tokenizer)
    inputs = {name: value for name, value in batch.items() if name != "masked_lm_ids"}
    logits = np.asarray(logits_fn(inputs), np.float64)
    examples = []
    for row, ids in enumerate(batch["input_ids"]):
        targets = []
        columns = np.unique(batch["masked_lm_positions"][row], return_index=True)[1]
        for column in columns:
            probabilities = softmax(logits[row, column])
            best = np.argsort(-probabilities)[:_TOP]
            targets.append(
                {
                    "truth": tokenizer.pieces[batch["masked_lm_ids"][row, column]],
                    "predictions": [[tokenizer.pieces[i], float(probabilities[i])] for i in best],
                }
            )
        text = _text_with_masks(ids[batch["attention_mask"][row] == 1][1:-1], tokenizer)
        examples.append({"text_with_mask": text, "targets": targets})
    return {"examples": examples}


def _is_word(ids: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    return np.array([any(letter.isalnum() for letter in tokenizer.pieces[i]) for i in ids])


def _text_with_masks(ids: np.ndarray, tokenizer: Tokenizer) -> str:
    cuts = np.flatnonzero(ids == tokenizer.mask_id)
    parts = np.split(ids, np.sort(np.concatenate([cuts, cuts + 1])))
    texts = [
        "[MASK]" if len(p) and p[0] == tokenizer.mask_id else tokenizer.decode(p) for p in parts
    ]
    return " ".join(text for text in texts if text)
