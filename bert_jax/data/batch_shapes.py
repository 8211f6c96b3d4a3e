"""What a pretraining batch is made of, for those who need to know before there is one."""

import math

import numpy as np

from bert_jax.config import DataConfig, Phase

# Most sequences in a packed row. English Wikipedia and novels at 512, 256 sequences a step: four
# leave 4.2 % of the positions empty, eight 1.0 %, sixteen 0.9 % (docs/data.md, "Packing").
SEQUENCES_A_ROW = 8


def batch_shapes(phase: Phase, data: DataConfig) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Shape and dtype of each array of a training batch, by its name.

    Those of `pipeline.PairExamples.batch`; with `data.packing` those of
    `packing.PackedExamples.batch` where it takes the most rows that it can: one a sequence.
    """
    rows = phase.batch_size
    int32, float32 = np.dtype(np.int32), np.dtype(np.float32)
    of_tokens = ["input_ids", "token_type_ids"]
    of_tokens += ["segment_ids", "position_ids"] if data.packing else ["attention_mask"]
    shapes: dict[str, tuple[tuple[int, ...], np.dtype]] = {}
    shapes |= dict.fromkeys(of_tokens, ((rows, phase.seq_len), int32))
    predictions = (rows, row_predictions(phase, data))
    shapes |= {
        "masked_lm_positions": (predictions, int32),
        "masked_lm_ids": (predictions, int32),
        "masked_lm_weights": (predictions, float32),
    }
    if data.next_sentence:
        sequences = (rows, SEQUENCES_A_ROW) if data.packing else (rows,)
        if data.packing:
            shapes["cls_positions"] = (sequences, int32)
        shapes["next_sentence_labels"] = (sequences, int32)
        shapes["next_sentence_weights"] = (sequences, float32)
    return shapes


def row_predictions(phase: Phase, data: DataConfig) -> int:
    """Places for masked positions in a row.

    A sequence of n >= 3 pieces has min(max_predictions, max(1, round(mask_prob * n))): at most 0.5
    more than mask_prob * n by rounding, and 1 - 3 * mask_prob more where that is less than 1. The
    sequences of a packed row have `seq_len` pieces together.
    """
    if not data.packing:
        return phase.max_predictions
    added = max(0.5, 1 - 3 * data.mask_prob)
    bound = math.ceil(data.mask_prob * phase.seq_len + SEQUENCES_A_ROW * added)
    return min(bound, SEQUENCES_A_ROW * phase.max_predictions, phase.seq_len)
