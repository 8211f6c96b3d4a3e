"""The schema of a fine-tuning run; the defaults are the paper's (Devlin et al., 2019, A.3)."""

from dataclasses import dataclass, field
from typing import ClassVar

from bert_jax.config import ARCHITECTURE, BertConfig, OptimizerConfig, RunConfig
from bert_jax.errors import UserError
from bert_jax.settings import group, setting
from bert_jax.tasks.classification import Classification
from bert_jax.tasks.task import Task


@dataclass(slots=True, kw_only=True)
class FinetuneConfig(RunConfig):
    """Everything a fine-tuning run is made of.

    `init_from` gives the architecture and the vocabulary; of `model`, only how it is computed and
    its dropout are the recipe's.
    """

    derived: ClassVar[frozenset[str]] = frozenset({"steps", "optimizer.warmup_steps"})

    task: Task = group(Classification, "the task, its files and its settings")
    scratch: bool = setting(
        False,
        "begin with random weights in the architecture of init_from: shows what pretraining is for",
    )
    epochs: int = setting(3, "passes over the training examples")
    batch_size: int = setting(32, "examples a step, over all devices")
    packing: bool = setting(
        False,
        "lay several sequences into a row of task.max_length, in the encoder: batches are drawn at "
        "random, not of similar lengths, and hardly any padding is computed",
    )
    steps: int = setting(0, "optimizer steps of the whole run: what `epochs` come to")
    warmup_fraction: float = setting(0.1, "share of the steps in which the learning rate rises")
    layer_decay: float = setting(
        1.0, "learning rate of a layer over that of the layer above it; 1 is the same for all"
    )
    head_rate: float = setting(1.0, "learning rate of the head over that of the topmost layer")
    freeze_embeddings: bool = setting(False, "leave the embeddings as they are")
    freeze_layers: int = setting(
        0, "leave the embeddings and so many layers, the first ones, as they are; -1 is all layers"
    )
    patience: int = setting(
        0, "epochs without a better score on dev after which training ends; 0 trains all epochs"
    )
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(learning_rate=5e-5),
        metadata={"help": "update rule and schedule; warmup_steps follows warmup_fraction"},
    )
    log_every: int = setting(20, "steps between lines of metrics")

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the run, 0 before the training examples are counted."""
        return self.steps

    def validate(self) -> None:
        """Check every value and what must hold across fields, as `RunConfig.validate`."""
        _check_model(self.model)
        RunConfig.validate(self)
        if self.steps:
            raise UserError(f"config.steps={self.steps}: follows from the examples; set epochs")
        if self.optimizer.warmup_steps != OptimizerConfig().warmup_steps:
            raise UserError(
                f"config.optimizer.warmup_steps={self.optimizer.warmup_steps}: follows from the "
                "steps; set config.warmup_fraction"
            )
        if not self.init_from:
            raise UserError(
                "config.init_from is empty: give the model to fine-tune, a run, a directory of "
                "Hugging Face's or of Google's, or a name of the hub"
            )
        if not self.task.train:
            raise UserError("config.task.train is empty: give the file of the training examples")
        if self.task.frozen_encoder and self.freeze_layers != -1:
            # Without a gradient, weight decay would still move it.
            raise UserError(
                f"config.freeze_layers={self.freeze_layers}: must be -1, as {self.task.kind} is "
                "over an encoder that stays as it is"
            )
        if self.packing and not self.task.packable:
            raise UserError(f"config.packing=True: {self.task.kind} cannot be packed; leave it out")
        if self.batch_size % self.optimizer.accumulate:
            raise UserError(
                f"config.batch_size={self.batch_size} does not divide into "
                f"config.optimizer.accumulate={self.optimizer.accumulate} micro-batches"
            )


def _check_model(model: BertConfig) -> None:
    default = BertConfig()
    for name in ARCHITECTURE:
        value = getattr(model, name)
        if value != getattr(default, name):
            raise UserError(
                f"config.model.{name}={value!r}: the architecture is that of init_from; leave it "
                "out"
            )
    if model.scan_layers:
        raise UserError(
            "config.model.scan_layers=True: layers that are frozen or have rates of their own are "
            "arrays of their own; leave it out"
        )
