"""What a fine-tuning run asks its model, and how often."""

import dataclasses

from small_finetune import small_config, write_model, write_table

from bert_jax.finetuning import finetune
from bert_jax.tasks.inference import Inference


def test_dev_is_asked_once_an_epoch(tmp_path, monkeypatch):
    """What the best state said of it is kept for the end."""
    tables = write_table(tmp_path / "train.tsv", 100), write_table(tmp_path / "dev.tsv", 40)
    config = small_config(write_model(tmp_path / "model"), *tables)
    asked, outputs = [], Inference.outputs

    def counted(self, params, features, between=None):
        asked.append(len(features))
        return outputs(self, params, features, between)

    monkeypatch.setattr(Inference, "outputs", counted)
    assert finetune(dataclasses.replace(config, epochs=3), tmp_path / "run")
    assert asked == [40, 40, 40]
