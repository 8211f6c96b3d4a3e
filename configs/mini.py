"""BERT-mini on the embedded corpus or one's own text: for a GPU, or a patient CPU.

    python -m bert_jax.train --config=mini --config.data.dir=data/books --workdir=runs/books

4 layers of width 256 (Turc et al., 2019), 290 million tokens at length 128 and 33 million at 512.

In an hour of two CPU cores it learns something already. On 41 MB of English Wikipedia, with
16,000 pieces:

    python -m bert_jax.train --config=mini --config.data.dir=data/wiki --workdir=runs/wiki \\
        --config.optimizer.name=muon --config.optimizer.learning_rate=2e-3 \\
        --config.optimizer.warmup_steps=300 \\
        '--config.phases[0].steps=3000' '--config.phases[0].batch_size=32' \\
        '--config.phases[1].steps=300' '--config.phases[1].batch_size=8'

Held-out there, after 1,000, 2,000 and 3,000 steps (12 million tokens) at length 128: MLM accuracy
14.1, 15.4 and 20.2 % (the most frequent token: 4.8 %), perplexity 653, 534 and 320, NSP accuracy
73.4, 80.8 and 85.9 % (the more frequent label: 53.6 %); after 300 steps more at 512: 16.5 %, 449
and 86.1 %.
"""

from bert_jax.config import Config, OptimizerConfig, Phase, model_size


def get_config() -> Config:
    """AdamW with new masks each epoch, in both sequence-length phases."""
    config = Config(model=model_size("mini"))
    config.model.vocab_size = 16_000
    config.model.dtype = "bfloat16"
    config.model.hidden_dropout_prob = 0.0
    config.model.attention_probs_dropout_prob = 0.0
    config.data.masking = "dynamic"
    config.phases = (
        Phase(seq_len=128, steps=18_000, batch_size=128, max_predictions=20),
        Phase(seq_len=512, steps=2_000, batch_size=32, max_predictions=76),
    )
    config.optimizer = OptimizerConfig(name="adamw", learning_rate=1e-3, warmup_steps=500, b2=0.98)
    config.eval_every = 1_000
    config.eval_examples = 2_000
    config.checkpoint_every = 1_000
    return config
