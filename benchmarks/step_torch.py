"""The same step in PyTorch: BertForPreTraining of `transformers`, and a fairer variant of it.

`head="full"` is the model as it comes, whose masked-LM head works on every position, trained with
AdamW as it comes. `head="masked"` is the same model with the head on the predicted positions alone,
as the original code has it, the fused AdamW, and on a CPU in bfloat16 attention written out: with
dropout PyTorch's SDPA casts it to float32 there, which takes up to 1.3 times as long.
"""

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch.nn.functional import cross_entropy

from benchmarks.batches import read_batch
from benchmarks.peers import peer_config


def prepare(
    size: str, batch: str, dtype: str, head: str, mode: str, device: str
) -> Callable[[], torch.Tensor]:
    """A function that has the device take one step.

    Args:
      mode: of `torch.compile`; or "eager".
    """
    arrays = {name: torch.from_numpy(a).to(device) for name, a in read_batch(batch).items()}
    written_out = head == "masked" and (device, dtype) == ("cpu", "bfloat16")
    model: Any = transformers.AutoModelForPreTraining.from_config(
        peer_config(size), attn_implementation="eager" if written_out else "sdpa"
    )
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=head == "masked" or None)
    loss_of = _full_head(model, arrays) if head == "full" else _masked_head(model, arrays)
    if mode != "eager":
        loss_of = torch.compile(loss_of, mode=mode)

    def work() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=dtype == "bfloat16"):
            loss = loss_of()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return work


def wait(loss: torch.Tensor) -> None:
    """Until the step that gave this loss is done, and those before it."""
    if loss.is_cuda:
        torch.cuda.synchronize()


def _inputs(arrays: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: arrays[name].long() for name in ("input_ids", "token_type_ids", "attention_mask")}


def _full_head(model: Any, arrays: dict[str, torch.Tensor]) -> Callable[[], torch.Tensor]:
    inputs = _inputs(arrays)
    labels = torch.full_like(inputs["input_ids"], -100)
    real = arrays["masked_lm_weights"] > 0
    rows = torch.arange(len(labels), device=labels.device)[:, None].expand_as(real)
    labels[rows[real], arrays["masked_lm_positions"].long()[real]] = arrays["masked_lm_ids"].long()[
        real
    ]
    next_sentence = arrays["next_sentence_labels"].long()
    return lambda: model(**inputs, labels=labels, next_sentence_label=next_sentence).loss


def _masked_head(model: Any, arrays: dict[str, torch.Tensor]) -> Callable[[], torch.Tensor]:
    weights = arrays["masked_lm_weights"].flatten()
    targets = arrays["masked_lm_ids"].long().flatten()
    next_sentence = arrays["next_sentence_labels"].long()

    def loss() -> torch.Tensor:
        logits, pair_logits = predicted(model, arrays)
        nll = cross_entropy(logits.flatten(0, 1).float(), targets, reduction="none")
        pair = cross_entropy(pair_logits.float(), next_sentence)
        return (nll * weights).sum() / weights.sum() + pair

    return loss


def predicted(model: Any, arrays: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of the predicted positions [B, P, V], and of the pair [B, 2]."""
    hidden, pooled = model.bert(**_inputs(arrays), return_dict=False)[:2]
    positions = arrays["masked_lm_positions"].long()[..., None]
    gathered = hidden.gather(1, positions.expand(-1, -1, hidden.shape[-1]))
    return model.cls.predictions(gathered), model.cls.seq_relationship(pooled)
