"""The encoder of `transformers` in PyTorch over sequences, in batches padded to their longest."""

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch.nn.utils.rnn import pad_sequence

from benchmarks.peers import peer_config


def prepare(
    size: str,
    lengths: list[int],
    batch_size: int,
    dtype: str,
    device: str,
    mode: str = "eager",
) -> Callable[[], Any]:
    """A function that encodes all sequences.

    Args:
      mode: of `torch.compile`; or "eager".
    """
    config = peer_config(size)
    model: Any = transformers.BertModel(config)
    model.eval().to(device, getattr(torch, dtype))
    torch.manual_seed(0)
    if mode != "eager":
        model = torch.compile(model, mode=mode)
    sequences = [torch.randint(1000, config.vocab_size, (length,)) for length in lengths]

    def work() -> None:
        with torch.inference_mode():
            for start in range(0, len(sequences), batch_size):
                rows = sequences[start : start + batch_size]
                ids = pad_sequence(rows, batch_first=True).to(device)
                outputs = model(input_ids=ids, attention_mask=(ids > 0).long())
                outputs.pooler_output.float().cpu().numpy()

    return work
