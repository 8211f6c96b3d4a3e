"""Regression: numbers from columns, the loss of torch, the correlations of the field."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.errors import UserError
from bert_jax.models import BertConfig
from bert_jax.tasks.regression import Regression
from bert_jax.tasks.texts import Labelled


def scored(true, said):
    examples = [Labelled(where="a:1", text="x", label=number) for number in true]
    return Regression().scores(examples, [{"predicted": number} for number in said])


def test_the_loss_is_that_of_torch_and_padding_counts_nothing():
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, (6, 1)).astype(np.float32)
    labels = rng.uniform(0, 5, 6).astype(np.float32)
    batch = {"label": jnp.array(labels), "weight": jnp.array([1.0] * 4 + [0.0] * 2)}
    total, weight = Regression().metrics({"logits": jnp.array(logits)}, batch)["loss"]
    expected = torch.nn.MSELoss()(torch.tensor(logits[:4, 0]), torch.tensor(labels[:4]))
    assert float(total / weight) == pytest.approx(float(expected), rel=1e-6)


def test_a_label_is_a_float32_scalar():
    target = Regression().target(3.8)
    assert {name: (value.shape, value.dtype) for name, value in target.items()} == {
        "label": ((), np.float32),
        "weight": ((), np.float32),
    }
    assert target["label"] == np.float32(3.8)


NUMBERS = st.lists(st.tuples(st.integers(0, 20), st.integers(-50, 50)), min_size=2, max_size=40)


@given(NUMBERS)
def test_correlations_are_those_written_out(pairs):
    true, said = np.array(pairs, np.float64).T
    scores = scored(true, said)
    if np.ptp(true) == 0 or np.ptp(said) == 0:
        assert scores["pearson"] == scores["spearman"] == scores["pearson_spearman"] == 0.0
        return
    ranks = [(a[:, None] > a).sum(1) + ((a[:, None] == a).sum(1) - 1) / 2 for a in (true, said)]
    assert scores["pearson"] == pytest.approx(np.corrcoef(true, said)[0, 1], abs=1e-9)
    assert scores["spearman"] == pytest.approx(np.corrcoef(*ranks)[0, 1], abs=1e-9)
    mean = (scores["pearson"] + scores["spearman"]) / 2
    assert scores["pearson_spearman"] == pytest.approx(mean)


def test_errors_are_in_the_labels_unit():
    scores = scored([1.0, 2.0, 3.0], [1.0, 4.0, 2.0])
    assert scores["mean_squared_error"] == pytest.approx(5 / 3)
    assert scores["mean_absolute_error"] == pytest.approx(1.0)


def test_predictions_and_what_transformers_is_told():
    task = Regression()
    example = Labelled(where="a:1", text="x", pair="y", label=2.5, id="7")
    outputs = [[{"logits": np.array([1.5], np.float32)}]]
    (prediction,) = task.predictions([example], [[{}]], outputs)
    assert prediction == {"id": "7", "text": "x", "pair": "y", "label": 2.5, "predicted": 1.5}
    fields = task.head_fields()
    assert fields["problem_type"] == "regression"
    assert fields["id2label"] == {"0": "score"}
    assert task.model(BertConfig()).labels == 1


@pytest.mark.parametrize(
    "value", ["high", "nan", "inf", "1e999", 1e39, -1e39, 10**400, True, [1], {}]
)
def test_what_is_no_number_is_told(tmp_path, value):
    with pytest.raises(UserError, match=r"here: column 'score' holds .*: a number is expected"):
        Regression().parse_label(value, "here")


def test_numbers_are_read_of_strings_and_json():
    assert [Regression().parse_label(value, "") for value in ("3.8", 3, 0.5)] == [3.8, 3.0, 0.5]


def test_a_column_of_strings_is_told_with_its_line(tmp_path):
    (tmp_path / "a.tsv").write_text("text\tscore\nx\t1\ny\thigh\n")
    with pytest.raises(UserError, match=r"a\.tsv:3: column 'score' holds 'high'"):
        Regression().read(tmp_path / "a.tsv")
