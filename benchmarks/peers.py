"""What the peers in PyTorch are made of.

python -m benchmarks.peers SIZE DIRECTORY writes random weights of a size, as `transformers` does.
"""

import sys

import transformers

from bert_jax.config import model_size


def peer_config(size: str) -> transformers.BertConfig:
    """The model of `transformers` that has our size."""
    sizes = model_size(size)
    return transformers.BertConfig(
        hidden_size=sizes.hidden_size,
        num_hidden_layers=sizes.num_hidden_layers,
        num_attention_heads=sizes.num_attention_heads,
        intermediate_size=sizes.intermediate_size,
    )


if __name__ == "__main__":
    transformers.BertForPreTraining(peer_config(sys.argv[1])).save_pretrained(sys.argv[2])
