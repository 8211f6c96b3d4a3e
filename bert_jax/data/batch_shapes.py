"""What a pretraining batch is made of, for those who need to know before there is one."""

import numpy as np

from bert_jax.config import Phase


def batch_shapes(
    phase: Phase, *, next_sentence: bool
) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Shape and dtype of each array of `pipeline.PairExamples.batch`, by its name."""
    sequences = (phase.batch_size, phase.seq_len)
    predictions = (phase.batch_size, phase.max_predictions)
    int32, float32 = np.dtype(np.int32), np.dtype(np.float32)
    shapes = {
        "input_ids": (sequences, int32),
        "token_type_ids": (sequences, int32),
        "attention_mask": (sequences, int32),
        "masked_lm_positions": (predictions, int32),
        "masked_lm_ids": (predictions, int32),
        "masked_lm_weights": (predictions, float32),
    }
    if next_sentence:
        shapes["next_sentence_labels"] = ((phase.batch_size,), int32)
        shapes["next_sentence_weights"] = ((phase.batch_size,), float32)
    return shapes
