"""BERT-small on the embedded corpus or one's own text: for a GPU, or a patient CPU.

    python -m bert_jax.train --config=small --config.data.dir=data/books --workdir=runs/books

4 layers of width 512 (Turc et al., 2019), 290 million tokens at length 128 and 33 million at 512.
"""

from bert_jax.config import Config, OptimizerConfig, Phase, model_size


def get_config() -> Config:
    """AdamW with new masks each epoch, in both sequence-length phases."""
    config = Config(model=model_size("small"))
    config.model.vocab_size = 30_522
    config.model.dtype = "bfloat16"
    config.model.hidden_dropout_prob = 0.0
    config.model.attention_probs_dropout_prob = 0.0
    config.data.masking = "dynamic"
    config.phases = (
        Phase(seq_len=128, steps=18_000, batch_size=128, max_predictions=20),
        Phase(seq_len=512, steps=2_000, batch_size=32, max_predictions=76),
    )
    config.optimizer = OptimizerConfig(
        name="adamw", learning_rate=5e-4, warmup_steps=1_000, b2=0.98
    )
    config.eval_every = 1_000
    config.eval_examples = 2_000
    config.checkpoint_every = 1_000
    return config
