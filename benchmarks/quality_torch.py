"""BertForPreTraining of transformers as a learner: predicted positions alone, AdamW, bfloat16."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch.nn.functional import cross_entropy

from benchmarks.learning import Learner, Spec, learn, open_split
from benchmarks.peers import peer_config
from benchmarks.step_torch import predicted


def begin(spec: Spec, total_steps: int) -> Learner:
    """See `Learner`; the learning rate is `options["learning_rate"]`."""
    torch.manual_seed(0)
    config = peer_config("tiny")
    config.vocab_size = spec.vocab_size
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0  # as in our recipe
    model: Any = transformers.BertForPreTraining(config)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=spec.options["learning_rate"], betas=(0.9, 0.98), fused=True
    )
    warmup = min(300, max(1, total_steps // 10))
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, warmup, total_steps)
    train, heldout = open_split(spec, "train"), open_split(spec, "heldout")
    outputs = torch.compile(lambda arrays: predicted(model, arrays))

    def forward(batch: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
        arrays = {name: torch.from_numpy(array) for name, array in batch.items()}
        with torch.autocast("cpu", torch.bfloat16):
            logits, pair_logits = outputs(arrays)
        labels, weights = arrays["masked_lm_ids"].long(), arrays["masked_lm_weights"]
        pairs, counted = arrays["next_sentence_labels"].long(), arrays["next_sentence_weights"]
        return {
            "mlm": sums(logits.float(), labels, weights),
            "nsp": sums(pair_logits.float(), pairs, counted),
        }

    def step(number: int) -> None:
        model.train()
        optimizer.zero_grad(set_to_none=True)
        found = forward(train.batch(number, spec.batch_size)).values()
        torch.stack([total[0] / total[2] for total in found]).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()

    def evaluate() -> dict[str, float]:
        model.eval()
        with torch.no_grad():
            batches = heldout.evaluation_batches(spec.batch_size, spec.eval_examples)
            found = [forward(batch) for batch in batches]
        means = {}
        for name in ("mlm", "nsp"):
            loss, right, weight = torch.stack([batch[name] for batch in found]).sum(0).tolist()
            means |= {f"{name}_loss": loss / weight, f"{name}_accuracy": right / weight}
        return means

    return Learner(step, evaluate)


def sums(logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Loss, right answers and weight, float32 [3]."""
    losses = cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none")
    right = (logits.argmax(-1) == labels) * weights
    return torch.stack([(losses * weights.flatten()).sum(), right.sum(), weights.sum()])


if __name__ == "__main__":
    learn(begin, Spec.parse(Path(sys.argv[1])))
