"""The README.md of a model that is given away: what it is, how it was trained, how it scored."""

import re
from collections.abc import Mapping
from typing import Any

from bert_jax.interop.weights import Weights, parameter_count

_ACTIVATIONS = {
    "gelu": "gelu (the erf form)",
    "gelu_new": "gelu_new (the tanh form of the original code)",
    "relu": "relu",
}
_TAGS = {
    "BertForPreTraining": "fill-mask",
    "BertForMaskedLM": "fill-mask",
    "BertForSequenceClassification": "text-classification",
    "BertForTokenClassification": "token-classification",
    "BertForQuestionAnswering": "question-answering",
    "BertForMultipleChoice": "multiple-choice",
}


def model_card(weights: Weights) -> str:
    """The card, in Markdown with the YAML head that the hub reads."""
    config = weights.config
    tag = _TAGS.get(weights.architecture, "feature-extraction")
    pieces = weights.tokenizer.vocab_size if weights.tokenizer else config.vocab_size
    return f"""---
library_name: transformers
pipeline_tag: {tag}
tags:
- bert
- bert_jax
---

# {weights.architecture}

A BERT encoder, converted by `bert_jax` (source: {weights.form}).

## Model

| | |
|---|---|
| architecture | {weights.architecture} |
| parameters | {parameter_count(weights):,} |
| layers | {config.num_hidden_layers} of width {config.hidden_size} |
| attention heads | {config.num_attention_heads} |
| feed-forward width | {config.intermediate_size} |
| longest sequence | {config.max_position_embeddings} pieces |
| vocabulary | {pieces:,} pieces |
| activation | {_ACTIVATIONS[config.hidden_act]} |

## How it was trained

{_training(weights.facts)}

## How it scored

{_scores(weights.facts)}

## How to load it

```python
from transformers import AutoModel, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("DIRECTORY")
model = AutoModel.from_pretrained("DIRECTORY")
```
"""


def _training(facts: Mapping[str, Any]) -> str:
    config = facts.get("config")
    if not config:
        return "The source does not say: weights alone were converted."
    optimizer, data = config["optimizer"], config["data"]
    phases = [
        f"- {phase['steps']:,} steps of {phase['batch_size']} sequences of {phase['seq_len']} "
        f"pieces, at most {phase['max_predictions']} of them predicted"
        for phase in config["phases"]
    ]
    objective = "masked words" + (" and next sentences" if data["next_sentence"] else "")
    start = config.get("init_from")
    return "\n".join(
        [
            f"By `bert_jax`, to predict {objective}; step {facts['step']:,} of "
            f"{sum(phase['steps'] for phase in config['phases']):,}.",
            "",
            f"- started from {f'`{_plain(start)}`' if start else 'random weights'}",
            f"- text: `{_plain(facts['text'])}`",
            *phases,
            f"- masks: {data['mask_prob']:.0%} of the pieces"
            + (", by whole words" if data["whole_word"] else "")
            + f", {data['masking']}",
            f"- optimizer: {optimizer['name']}, learning rate {optimizer['learning_rate']:g}, "
            f"{optimizer['warmup_steps']:,} steps of warm-up, then {optimizer['schedule']}, "
            f"decay {optimizer['weight_decay']:g}",
            f"- computed in {config['model']['dtype']}, seed {config['seed']}",
        ]
    )


def _scores(facts: Mapping[str, Any]) -> str:
    scores = {
        name: value
        for name, value in facts.get("scores", {}).items()
        if isinstance(value, float) and name not in ("time", "step", "phase")
    }
    if not scores:
        return "The source does not say."
    rows = [f"| {name.replace('_', ' ')} | {value:.4f} |" for name, value in scores.items()]
    return "\n".join(["On held-out documents of the same source:", "", "| | |", "|---|---|", *rows])


def _plain(text: str) -> str:
    """Text from a setting, without what would end a code span or a line."""
    return re.sub(r"[`\s]+", " ", text)
