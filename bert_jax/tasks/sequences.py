"""Texts and pairs of texts as sequences: [CLS] A [SEP], [CLS] A [SEP] B [SEP]."""

from collections.abc import Sequence

import numpy as np

from bert_jax.data.tokenization import Tokenizer
from bert_jax.tasks.task import Feature


def encode(
    texts: Sequence[str], pairs: Sequence[str] | None, tokenizer: Tokenizer, max_length: int
) -> list[Feature]:
    """What a model reads of each text, or of each text and its pair: without label or weight.

    Args:
      texts: the first texts.
      pairs: the second ones, if there are any.
      max_length: of a sequence; where it is too short, pieces leave the end of the longer text (of
        the second, where both are as long), as in run_classifier.py.
    """
    first = tokenizer.encode_batch(list(texts))
    if pairs is None:
        return [sequence([ids[: max_length - 2]], tokenizer) for ids in first]
    second = tokenizer.encode_batch(list(pairs))
    room = max_length - 3
    return [
        sequence(
            [a[: max(room - room // 2, room - len(b))], b[: max(room // 2, room - len(a))]],
            tokenizer,
        )
        for a, b in zip(first, second, strict=True)
    ]


def sequence(parts: list[np.ndarray], tokenizer: Tokenizer) -> Feature:
    """[CLS], then each part, int32 [its pieces], and [SEP]; parts are the token types 0 and 1."""
    ends = [np.append(part, tokenizer.sep_id) for part in parts]
    types = [np.full(len(end), number) for number, end in enumerate(ends)]
    input_ids = np.concatenate([[tokenizer.cls_id], *ends])
    return {
        "input_ids": input_ids.astype(np.int32),
        "token_type_ids": np.concatenate([[0], *types]).astype(np.int32),
        "attention_mask": np.ones(len(input_ids), np.int32),
    }
