"""Model FLOPs of a training step, and the peaks they are measured against (MFU)."""

from bert_jax.config import BertConfig, Phase

# Dense bfloat16 peaks in FLOP/s, by `jax.Device.device_kind`, from the vendors' data sheets. Exact
# names only: a MIG slice, a PCIe H100 or an H200 NVL is slower than its namesake here. An MFU is
# a share of this bfloat16 peak in a float32 run too, as is usual.
_PEAK_FLOPS = {
    "NVIDIA H200": 989e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA A100-PCIE-40GB": 312e12,
    "NVIDIA A100 80GB PCIe": 312e12,
    "TPU v2": 23e12,  # of a core, as JAX counts devices; so for v3
    "TPU v3": 61.5e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
}


def peak_flops(device_kind: str) -> float | None:
    """Dense bfloat16 peak of one device in FLOP/s; None where it is not known (a CPU, say)."""
    return _PEAK_FLOPS.get(device_kind)


def training_flops_per_token(model: BertConfig, seq_len: int, max_predictions: float) -> float:
    """FLOPs of the forward and backward pass for one position of a sequence.

    6 L (4 H^2 + 2 H I) + 12 L H S + 6 m (H V + H^2): six for each weight of a matrix product (two
    forward, four backward; Kaplan et al., 2020, section 2.1), the two products of attention, and
    the MLM head at the share m = max_predictions / seq_len of positions it is computed at. At
    those the last layer is computed too, but for its keys and values (2 H^2 of it): it counts as m
    of a layer there. Padding counts as computed; [CLS] of that layer, pooler and NSP head (one
    position a sequence), elementwise work, the padded rows of the vocabulary and what `remat`
    computes again do not.
    """
    hidden, read = model.hidden_size, max_predictions / seq_len
    whole, last = (_layer_flops(model, seq_len, share) for share in (1, read))
    head = 2 * read * (hidden * model.vocab_size + hidden**2)
    return 3 * ((model.num_hidden_layers - 1) * whole + last + head)


def finetuning_flops_per_token(
    model: BertConfig, seq_len: int, *, of_pieces: bool, frozen_layers: int = 0
) -> float:
    """The same of fine-tuning, whose head counts as nothing.

    Args:
      model: the encoder.
      seq_len: of what is computed.
      of_pieces: whether the head reads all of the last layer, and not [CLS] alone.
      frozen_layers: of this many first layers, -1 for all, there is no backward pass.
    """
    layers = model.num_hidden_layers
    frozen = layers if frozen_layers == -1 else frozen_layers
    forward = [_layer_flops(model, seq_len, 1)] * (layers - 1)
    forward.append(_layer_flops(model, seq_len, int(of_pieces)))
    return sum(forward[:frozen]) + 3 * sum(forward[frozen:])


def _layer_flops(model: BertConfig, seq_len: int, queried: float) -> float:
    """Of a layer's forward pass, for one position, where a share of positions is queried."""
    hidden = model.hidden_size
    keys_and_values = 2 * 2 * hidden**2
    others = 2 * (2 * hidden**2 + 2 * hidden * model.intermediate_size)
    attention = 4 * hidden * seq_len
    return keys_and_values + queried * (others + attention)


def step_flops(model: BertConfig, phase: Phase) -> float:
    """FLOPs of one optimizer step of `phase`, over all devices; a packed one has fewer rows."""
    per_token = training_flops_per_token(model, phase.seq_len, phase.max_predictions)
    return per_token * phase.seq_len * phase.batch_size


def run_flops(model: BertConfig, phases: tuple[Phase, ...], start_step: int = 0) -> float:
    """FLOPs of all phases' steps from `start_step` (counted over all phases), over all devices."""
    flops = 0.0
    for phase in phases:
        done = min(start_step, phase.steps)
        flops += (phase.steps - done) * step_flops(model, phase)
        start_step -= done
    return flops
