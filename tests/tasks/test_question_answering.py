"""Question answering: files to features to answers, their scores and the threshold of none."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from peer_models import PIECES
from torch.nn.functional import cross_entropy

from bert_jax.data.buckets import collate
from bert_jax.data.tokenization import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.tasks.question_answering import QuestionAnswering
from bert_jax.tasks.registry import task_from_json, task_to_json, tasks
from bert_jax.tasks.splits import held_out
from bert_jax.tasks.squad import Answer, Question

CONTEXT = "A river, a stone; small birds walk under the Green house? 단 light."
SMALL = QuestionAnswering(max_length=18, stride=4, query=4, answer=5, n_best=8)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join(PIECES) + "\n")
    return load_tokenizer(path)


def question(*texts, text="which bird?", context=CONTEXT, id="q"):
    answers = tuple(Answer(answer, context.index(answer)) for answer in texts)
    return Question(where="a", text=text, context=context, id=id, answers=answers)


def unlabelled(**fields):
    return dataclasses.replace(question(**fields), answers=None)


def squad_file(path, *starts, text="Blue"):
    """A file with a question for each start of its answer."""
    qas = [
        {"id": f"q{n}", "question": "?", "answers": [{"text": text, "answer_start": start}]}
        for n, start in enumerate(starts)
    ]
    paragraphs = [{"context": "Blue is Blue.", "qas": qas}]
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    return path


def outputs_of(feature, start, end, score=5.0, null=0.0):
    """Logits by which a span of a window, and no answer, have these scores, and all else -9."""
    starts, ends = (np.full(len(feature["input_ids"]), -9, np.float32) for _ in range(2))
    starts[0], ends[0] = null, 0
    starts[start], ends[end] = score, 0
    return {"token_starts": starts, "token_ends": ends}


def answered(task, tokenizer, example, score, null):
    """The prediction of a model that is for the example's first answer by `score`."""
    (features,) = task.features([example], tokenizer)
    outputs = [outputs_of(f, int(f["start"]), int(f["end"]), score, null) for f in features]
    # A window without the answer says even more that there is none.
    outputs = [
        o if f["start"] else outputs_of(f, 0, 0, null + 1)
        for f, o in zip(features, outputs, strict=True)
    ]
    return task.predictions([example], [features], [outputs])[0]


def test_questions_of_other_answers_are_counted_and_named_or_refused(tmp_path, capsys):
    path = squad_file(tmp_path / "a.json", 0, 3, 8, 9)
    assert [q.id for q in QuestionAnswering().read(path)] == ["q0", "q2"]
    told = capsys.readouterr().err.splitlines()
    assert [f"qas[{n}] (q{n})" in line for n, line in zip((1, 3), told, strict=False)] == [True] * 2
    assert told[-1] == f"{path}: 2 of 4 questions are so and are left out"
    with pytest.raises(UserError, match=r"\(q1\).* 2 of 4 questions are so"):
        QuestionAnswering(mismatched="refuse").read(path)
    assert len(QuestionAnswering(mismatched="refuse").read(path, labelled=False)) == 4


def test_of_many_only_the_first_are_named(tmp_path, capsys):
    QuestionAnswering().read(squad_file(tmp_path / "a.json", 0, *[1] * 50))
    assert len(capsys.readouterr().err.splitlines()) == 6


def test_a_file_without_a_usable_question_is_refused(tmp_path):
    with pytest.raises(UserError, match="1 of 1 questions are so"):
        QuestionAnswering().read(squad_file(tmp_path / "a.json", 5))
    with pytest.raises(UserError, match="has no questions"):
        QuestionAnswering().read(squad_file(tmp_path / "b.json"))


def test_a_question_that_someone_types():
    typed = SMALL.example("line 1", ["Who?", CONTEXT])
    assert SMALL.columns == ("question", "context")
    assert typed == Question(where="line 1", text="Who?", context=CONTEXT, id="line 1")


def test_that_contexts_may_have_no_answer_is_learnt():
    assert not SMALL.learn([question("river"), unlabelled()]).unanswerable
    assert SMALL.learn([question("river"), question()]).unanswerable
    kept = dataclasses.replace(SMALL, unanswerable=True)
    assert kept.learn([question("river")]).unanswerable


def test_questions_of_a_context_are_on_one_side_of_the_split():
    questions = [question(text=f"which of {n}?", context=f"stone {n // 5}") for n in range(500)]
    train, dev = held_out(questions, 0.2)
    assert len(dev) > 30
    assert {q.context for q in train}.isdisjoint(q.context for q in dev)


def test_a_model_directory_tells_the_task_again():
    task = dataclasses.replace(SMALL, unanswerable=True, null_threshold=-1.25)
    assert tasks()["question_answering"] is QuestionAnswering
    assert task_from_json(json.loads(json.dumps(task_to_json(task))), "task.json") == task


def test_features_are_windows_with_the_first_answer_or_cls(tokenizer):
    examples = [question("small birds", "river"), question(), unlabelled()]
    features = SMALL.features(examples, tokenizer)
    assert len(features[0]) > 2
    for answer, none, unknown in zip(*features, strict=True):
        assert len(answer["input_ids"]) <= 18
        assert np.array_equal(answer["input_ids"], none["input_ids"])
        assert (int(none["start"]), int(none["end"]), float(none["weight"])) == (0, 0, 1)
        assert not {"start", "end", "weight"} & set(unknown)
        if answer["start"]:
            pieces = answer["input_ids"][answer["start"] : answer["end"] + 1]
            assert tokenizer.decode(pieces) == "small birds"
    assert [bool(f["start"]) for f in features[0]][:2] == [True, True]
    assert not features[0][-1]["start"]


def test_the_figures_of_run_squad_are_the_defaults():
    task = QuestionAnswering()
    # max_seq_length, doc_stride, max_query_length, max_answer_length, n_best_size
    figures = (task.max_length, task.stride, task.query, task.answer, task.n_best)
    assert figures == (384, 128, 64, 30, 20)


def test_a_long_question_is_cut_and_needs_room_beside_it(tokenizer):
    (features,) = SMALL.features([unlabelled(text="small birds " + "river " * 50)], tokenizer)
    assert features[0]["token_type_ids"].argmax() == 6
    assert tokenizer.decode(features[0]["input_ids"][1:5]) == "small birds river"
    task = QuestionAnswering(max_length=64)
    with pytest.raises(UserError, match=r"a: a question of 64 pieces .* lower config.task.query"):
        task.features([unlabelled(text="river " * 70)], tokenizer)
    assert task.features([unlabelled(text="river " * 60)], tokenizer)


def test_the_loss_is_the_mean_of_both_ends_and_padding_rows_count_nothing(tokenizer):
    examples = [question("small birds"), question("light"), question()]
    features = [f for of_example in SMALL.features(examples, tokenizer) for f in of_example]
    batch = collate(features, len(features) + 3, tokenizer.pad_id)
    shape = batch["input_ids"].shape
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, *shape)).astype(np.float32)
    logits[:, len(features) :, 0] = 9  # all right, if it counted
    outputs = {"token_starts": jnp.array(logits[0]), "token_ends": jnp.array(logits[1])}
    metrics = SMALL.metrics(outputs, {name: jnp.array(x) for name, x in batch.items()})

    rows = len(features)
    expected = np.mean(
        [
            float(
                cross_entropy(
                    torch.tensor(logits[n, :rows]), torch.tensor(batch[end][:rows]).long()
                )
            )
            for n, end in enumerate(("start", "end"))
        ]
    )
    assert float(metrics["loss"][0] / metrics["loss"][1]) == pytest.approx(expected, 1e-6)
    assert float(metrics["loss"][1]) == float(
        SMALL.loss_weight({"weight": jnp.array(batch["weight"])})
    )
    exact = [
        logits[0, r].argmax() == batch["start"][r] and logits[1, r].argmax() == batch["end"][r]
        for r in range(rows)
    ]
    assert [float(x) for x in metrics["exact_spans"]] == [sum(exact), rows]


def test_the_answer_is_cut_from_the_context_as_it_is_written(tokenizer):
    for text in ("Green house", "A river, a", "단", "단 light."):
        prediction = answered(SMALL, tokenizer, question(text), score=8, null=0)
        assert prediction["predicted"] == text
        assert CONTEXT[prediction["start"] : prediction["end"]] == text
        assert prediction["label"] == [text]
        best = prediction["n_best"][0]
        assert (best["predicted"], best["probability"]) == (text, prediction["probability"])
        assert sum(told["probability"] for told in prediction["n_best"]) == pytest.approx(1)
        assert prediction["null_margin"] == -8


def test_what_stands_around_an_answer_is_whole_words(tokenizer):
    def around(context, answer):
        return answered(SMALL, tokenizer, question(answer, context=context), 8, 0)["around"]

    assert around("a river walks", "river") == ["a ", " walks"]
    words = [f"stone{number}" for number in range(30)]
    before, after = around(" ".join([*words, "river", *words]), "river")
    assert before[0] == after[-1] == "\u2026"
    assert before[1:].split() == words[-len(before.split()) :]
    assert after[:-1].split() == words[: len(after.split())]
    assert len(before) > 70 < len(after)
    # Where nothing parts words, the text is cut at a character.
    assert around("\u77f3" * 100 + "river" + "\u77f3" * 100, "river") == [
        "\u2026" + "\u77f3" * 80,
        "\u77f3" * 80 + "\u2026",
    ]


def test_a_question_without_known_answers_has_no_label(tokenizer):
    (features,) = SMALL.features([unlabelled()], tokenizer)
    outputs = [outputs_of(feature, 9, 9) for feature in features]
    (prediction,) = SMALL.predictions([unlabelled()], [features], [outputs])
    assert "label" not in prediction
    assert prediction["predicted"]


def test_no_answer_is_said_beyond_the_threshold_where_there_may_be_none(tokenizer):
    example = question("river")
    for null, threshold, said in [(7, 1.5, ""), (7, 2.5, "river"), (7, 2, "river"), (2, -4, "")]:
        task = dataclasses.replace(SMALL, unanswerable=True, null_threshold=threshold)
        prediction = answered(task, tokenizer, example, score=5, null=null)
        assert (prediction["predicted"], prediction["null_margin"]) == (said, null - 5)
        told = next(c for c in prediction["n_best"] if c["predicted"] == said)
        assert prediction["probability"] == told["probability"]
        order = [c["predicted"] for c in prediction["n_best"][:2]]
        assert order == (["river", ""] if said else ["", "river"])
    prediction = answered(SMALL, tokenizer, example, score=5, null=90)
    assert prediction["predicted"] == "river"
    assert "" not in [c["predicted"] for c in prediction["n_best"]]


@pytest.mark.parametrize("unanswerable", [False, True])
def test_a_context_without_text_has_no_answer(tokenizer, unanswerable):
    task = dataclasses.replace(SMALL, unanswerable=unanswerable, null_threshold=100.0)
    example = unlabelled(context=" \n ")
    (features,) = task.features([example], tokenizer)
    outputs = [outputs_of(features[0], 1, 1)]
    (prediction,) = task.predictions([example], [features], [outputs])
    assert (prediction["predicted"], prediction["start"]) == ("", None)
    assert json.loads(json.dumps(prediction, allow_nan=False))["null_margin"] is None


@pytest.mark.parametrize("score", ["f1", "exact_match"])
def test_the_tuned_threshold_gives_the_best_score_of_all(tokenizer, score):
    rng = np.random.default_rng(1)
    task = dataclasses.replace(SMALL, unanswerable=True, score=score)
    examples, nulls = [], rng.normal(5, 2, 40).round(1)
    for n in range(40):
        truth = [(), (), ("small birds",), ("stone; small",)][rng.integers(4)]
        examples.append(question(*truth, id=str(n)))

    def predicted(task):
        # The model is for a span of its own, which is sometimes the true one.
        said = question("small birds")
        found = [answered(task, tokenizer, said, 5, float(null)) for null in nulls]
        return [prediction | {"label": []} for prediction in found]

    tuned = task.tuned(examples, predicted(task))
    best = task.scores(examples, predicted(tuned))[score]
    for threshold in [-100.0, *nulls - 5]:
        other = dataclasses.replace(task, null_threshold=threshold)
        assert task.scores(examples, predicted(other))[score] <= best
    assert (
        best
        > task.scores(examples, predicted(dataclasses.replace(task, null_threshold=-9.0)))[score]
    )
    only_answerable = [example for example in examples if example.answers]
    assert task.tuned(only_answerable, predicted(task)) == task
    assert SMALL.tuned(examples, predicted(task)) == SMALL


def test_the_answers_are_written_as_the_official_scripts_read_them(tokenizer, tmp_path):
    predictions = [answered(SMALL, tokenizer, question(x, id=x), 9, 0) for x in ("단", "river")]
    ((name, content),) = SMALL.exports(tmp_path / "dev-v1.1.json", predictions).items()
    assert name == "dev-v1.1_answers.json"
    assert json.loads(content) == {"단": "단", "river": "river"}
