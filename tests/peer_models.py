"""Models of transformers with random weights, and the files that people have of such models."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers

WORDS = ("river", "stone", "light", "walk", "##s", "under", "small", "green", "bird", "house")
PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *"abcdefghijklmnopqrstuvwxyz,.?")
ARCHITECTURES = (
    "BertModel",
    "BertForPreTraining",
    "BertForMaskedLM",
    "BertForNextSentencePrediction",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertForQuestionAnswering",
    "BertForMultipleChoice",
)


def peer(architecture: str, seed: int = 0, **fields: Any) -> Any:
    """A model in which no weight is idle: biases and LayerNorm are random too."""
    sizes: dict[str, Any] = {
        "vocab_size": len(PIECES),
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 40,
    }
    if architecture in ("BertForSequenceClassification", "BertForTokenClassification"):
        sizes["num_labels"] = 3
    model = getattr(transformers, architecture)(transformers.BertConfig(**(sizes | fields)))
    model.set_attn_implementation("eager")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(0.1 * noise + (1.0 if "LayerNorm.weight" in name else 0.0))
    return model.eval()


def save_peer(model: Any, directory: Path, dtype: torch.dtype = torch.float32) -> Path:
    """What `save_pretrained` writes, with a vocabulary beside it."""
    model.to(dtype).save_pretrained(directory)
    (directory / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": True})
    )
    return directory
