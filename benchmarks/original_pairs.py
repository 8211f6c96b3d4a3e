"""Training instances by the algorithm of the original's create_pretraining_data.py, one at a time.

Written out anew from its published description (`create_instances_from_document`,
`truncate_seq_pair`, `create_masked_lm_predictions`): plain Python over lists of ids.
"""

import random
from collections.abc import Iterator

from benchmarks.batches import PIECES, VOCAB

Sentence = list[int]


def instances(
    documents: list[list[Sentence]], seq_len: int, predictions: int, rng: random.Random
) -> Iterator[dict[str, list[int]]]:
    """Padded instances of all documents, pass after pass."""
    while True:
        for index in range(len(documents)):
            for a, b, label in pairs(documents, index, seq_len - 3, rng):
                yield instance(a, b, label, seq_len, predictions, rng)


def pairs(
    documents: list[list[Sentence]], index: int, most: int, rng: random.Random
) -> Iterator[tuple[Sentence, Sentence, int]]:
    """The segments of a document's instances, and whether the second is a random one."""
    document = documents[index]
    target = rng.randint(2, most) if rng.random() < 0.1 else most
    chunk: list[Sentence] = []
    size = position = 0
    while position < len(document):
        chunk.append(document[position])
        size += len(document[position])
        if position == len(document) - 1 or size >= target:
            split = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
            a = [piece for sentence in chunk[:split] for piece in sentence]
            b = [piece for sentence in chunk[split:] for piece in sentence]
            label = int(len(chunk) == 1 or rng.random() < 0.5)
            if label:
                b = random_segment(documents, index, target - len(a), rng)
                position -= len(chunk) - split
            truncate(a, b, most, rng)
            yield a, b, label
            chunk, size = [], 0
        position += 1


def random_segment(
    documents: list[list[Sentence]], index: int, target: int, rng: random.Random
) -> Sentence:
    """Sentences of another document, from a random one on."""
    for _ in range(10):
        other = rng.randint(0, len(documents) - 1)
        if other != index:
            break
    segment: Sentence = []
    for sentence in documents[other][rng.randint(0, len(documents[other]) - 1) :]:
        segment.extend(sentence)
        if len(segment) >= target:
            break
    return segment


def truncate(a: Sentence, b: Sentence, most: int, rng: random.Random) -> None:
    """Take pieces from a random end of the longer one until both fit."""
    while len(a) + len(b) > most:
        longer = a if len(a) > len(b) else b
        if rng.random() < 0.5:
            del longer[0]
        else:
            longer.pop()


def instance(
    a: Sentence, b: Sentence, label: int, seq_len: int, predictions: int, rng: random.Random
) -> dict[str, list[int]]:
    """Special pieces, masks and padding."""
    ids = [PIECES.cls_id, *a, PIECES.sep_id, *b, PIECES.sep_id]
    segments = [0] * (len(a) + 2) + [1] * (len(b) + 1)
    candidates = [
        position
        for position, piece in enumerate(ids)
        if piece not in (PIECES.cls_id, PIECES.sep_id)
    ]
    rng.shuffle(candidates)
    count = min(predictions, max(1, round(len(ids) * 0.15)))
    positions = sorted(candidates[:count])
    labels = [ids[position] for position in positions]
    for position in positions:
        if rng.random() < 0.8:
            ids[position] = PIECES.mask_id
        elif rng.random() >= 0.5:
            ids[position] = rng.randint(0, VOCAB - 1)
    empty, unused = [0] * (seq_len - len(ids)), [0] * (predictions - len(positions))
    return {
        "input_ids": ids + empty,
        "attention_mask": [1] * len(ids) + empty,
        "token_type_ids": segments + empty,
        "masked_lm_positions": positions + unused,
        "masked_lm_ids": labels + unused,
        "masked_lm_weights": [1] * len(positions) + unused,
        "next_sentence_labels": [label],
    }
