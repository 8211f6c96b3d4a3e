"""Random examples of three tasks, of words whose label or tag can be learnt."""

import random

import numpy as np

from bert_jax.tasks.classification import Classification
from bert_jax.tasks.question_answering import QuestionAnswering
from bert_jax.tasks.squad import Answer, Question
from bert_jax.tasks.tagging import Tagged, Tagging
from bert_jax.tasks.texts import Labelled

LABELS = ("bird", "stone", "walk")


def pair(draw: random.Random, first: list[str], second: list[str]) -> Labelled:
    label = draw.choice(LABELS)
    return Labelled(where="a", text=" ".join([label, *first]), pair=" ".join(second), label=label)


def sentence(draw: random.Random, first: list[str], second: list[str]) -> Tagged:
    words = [*first, *second]
    starts = np.cumsum([0, *(len(word) + 1 for word in words[:-1])])
    tags = tuple(word if word in LABELS else draw.choice(LABELS) for word in words)
    return Tagged(
        where="a",
        text=" ".join(words),
        units=tuple(words),
        starts=tuple(starts.tolist()),
        tags=tags,
    )


def question(draw: random.Random, first: list[str], second: list[str]) -> Question:
    # Longer than a sequence: windows, some of which lack the answer.
    context = " ".join(second * 3)
    start = context.index(second[0], draw.choice([0, len(context) // 2]))
    answers = draw.choice([(Answer(second[0], start),), ()])
    return Question(where="a", text=" ".join(first), context=context, answers=answers)


MAKERS = {
    Classification: pair,
    Tagging: sentence,
    QuestionAnswering: question,
}
