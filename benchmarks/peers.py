"""What the peers in PyTorch are made of.

python -m benchmarks.peers SIZE DIRECTORY writes random weights of a size, as `transformers` does.
"""

import argparse

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
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("size", metavar="SIZE", help="tiny, mini, small, base or large")
    parser.add_argument("directory", metavar="DIRECTORY", help="to write")
    given = parser.parse_args()
    transformers.BertForPreTraining(peer_config(given.size)).save_pretrained(given.directory)
