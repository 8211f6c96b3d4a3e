"""A fine-tuning run by `transformers`' Trainer, with its defaults but for what the task gives.

python -m benchmarks.finetuning_torch '{"model": ..., "train": ..., "dev": ..., ...}'
"""

import csv
import json
import sys
from typing import Any

import numpy as np
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)


def examples(file: str, tokenizer: Any) -> list[dict[str, Any]]:
    """The rows of a table as the model takes them."""
    with open(file, encoding="utf-8") as table:
        rows = list(csv.DictReader(table, delimiter="\t", quoting=csv.QUOTE_NONE))
    texts = [[row[name] for row in rows] for name in ("text", "pair") if name in rows[0]]
    encoded = tokenizer(*texts, truncation=True, max_length=128)
    columns = {**encoded, "labels": [int(row["label"]) for row in rows]}
    return [{name: column[i] for name, column in columns.items()} for i in range(len(rows))]


def accuracy(predictions: Any) -> dict[str, float]:
    """Of the logits and labels of an evaluation."""
    logits, labels = predictions
    return {"accuracy": float(np.mean(logits.argmax(-1) == labels))}


def main() -> None:
    given = json.loads(sys.argv[1])
    tokenizer = AutoTokenizer.from_pretrained(given["model"])
    trainer = Trainer(
        model=AutoModelForSequenceClassification.from_pretrained(given["model"], num_labels=2),
        args=TrainingArguments(
            output_dir=given["output"],
            per_device_train_batch_size=32,
            per_device_eval_batch_size=32,
            num_train_epochs=given["epochs"],
            learning_rate=5e-5,
            warmup_steps=0.1,
            eval_strategy="epoch",
            save_strategy="epoch",
            load_best_model_at_end=True,
            metric_for_best_model="accuracy",
            use_cpu=True,
            bf16=given["dtype"] == "bfloat16",
            report_to="none",
        ),
        train_dataset=examples(given["train"], tokenizer),
        eval_dataset=examples(given["dev"], tokenizer),
        data_collator=DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
        compute_metrics=accuracy,
    )
    trainer.train()
    trainer.save_model(given["output"])


if __name__ == "__main__":
    main()
