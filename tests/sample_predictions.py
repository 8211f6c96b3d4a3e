"""Predictions of every kind, as runs write them: of made-up examples, by a middling model."""

from typing import Any

import numpy as np

WORDS = ("the", "film", "is", "not", "as", "good", "a", "story", "as", "I", "had", "hoped")
TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


def text(rng: np.random.Generator) -> str:
    return " ".join(rng.choice(WORDS, rng.integers(3, 40)))


def class_rows(labels=("bad", "good", "mixed"), n=200, **more: Any) -> list[dict[str, Any]]:
    """Predictions of a classifier that is right about half of the time."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(n):
        shares = rng.dirichlet(np.ones(len(labels)))
        label = labels[rng.choice(len(labels), p=0.5 * shares + 0.5 / len(labels))]
        said = labels[int(shares.argmax())]
        row = {"text": text(rng), "label": label, "predicted": said}
        by_label = dict(zip(labels, shares.tolist(), strict=True))
        rows.append(row | more | {"probability": max(by_label.values()), "probabilities": by_label})
    return rows


def value_rows(n=80) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    true = rng.uniform(0, 5, n)
    said = true + rng.normal(0, 0.7, n)
    pairs = zip(true.tolist(), said.tolist(), strict=True)
    return [{"text": text(rng), "pair": text(rng), "label": t, "predicted": s} for t, s in pairs]


def label_rows(n=60, soft=False) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    names = ["joy", "anger", "fear", "calm"]
    rows = []
    for _ in range(n):
        true = rng.uniform(0, 1, 4)
        said = np.clip(true + rng.normal(0, 0.3, 4), 0, 1).tolist()
        present = [name for name, share in zip(names, true, strict=True) if share >= 0.5]
        rows.append(
            {
                "text": text(rng),
                "label": true.tolist() if soft else present,
                "predicted": [name for name, s in zip(names, said, strict=True) if s >= 0.5],
                "probabilities": dict(zip(names, said, strict=True)),
            }
        )
    return rows


def tag_rows(n=40, tags=TAGS) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(n):
        tokens = list(rng.choice(WORDS, rng.integers(3, 20)))
        true = [str(tag) for tag in rng.choice(tags, len(tokens), p=(0.6, 0.1, 0.1, 0.1, 0.1))]
        said = [t if rng.random() < 0.8 else str(rng.choice(tags)) for t in true]
        sure = [None, *rng.uniform(0.3, 1, len(tokens) - 1).tolist()]
        row = {"text": " ".join(tokens), "tokens": list(map(str, tokens)), "label": true}
        rows.append(row | {"predicted": said, "probabilities": sure})
    return rows


def answer_rows() -> list[dict[str, Any]]:
    told = [
        (["the river Rhine"], "Rhine", 0.6),
        (["1915"], "1915", 0.9),
        (["1915"], "in Munich", 0.8),
        ([], "", 0.7),
        ([], "Bonn", 0.4),
        (["a very long answer of more than eight words indeed"], "", 0.3),
    ]
    return [
        {
            "id": f"q{number}",
            "text": f"What is it, {number}?",
            "label": label,
            "predicted": said,
            "around": ["It was ", " as they say."],
            "probability": sure,
        }
        for number, (label, said, sure) in enumerate(told)
    ]


ROWS = {
    "classification": class_rows(),
    "multiple_choice": class_rows(("0", "1"), choices=["It rains.", "It <shines>."]),
    "regression": value_rows(),
    "multilabel": label_rows(),
    "soft_multilabel": label_rows(soft=True),
    "tagging": tag_rows(),
    "parts_of_speech": tag_rows(tags=("NOUN", "VERB", "ADJ", "DET", "ADP")),
    "question_answering": answer_rows(),
}
