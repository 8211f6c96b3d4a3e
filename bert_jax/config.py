"""The schema of every setting: its default, its meaning and its check.

A recipe is a short file in `configs/` whose `get_config(arg=None)` returns a `Config`. On the
command line, `--config=base` names the recipe and `--config.optimizer.learning_rate=3e-4`
changes a field of it. Overrides mutate the dataclasses; `Config.validate` then checks across
fields, and nothing changes after that.

Defaults are those of the paper (Devlin et al., 2019, "BERT: Pre-training of Deep Bidirectional
Transformers for Language Understanding") and of its original code
(github.com/google-research/bert); docs/fidelity.md gives the source of each.
"""

from abc import abstractmethod
from dataclasses import dataclass, field, fields
from typing import ClassVar

from bert_jax.errors import UserError
from bert_jax.settings import check_values, group, setting


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class BertConfig:
    """The encoder and its pretraining heads; fields named as in a Hugging Face `config.json`.

    Hashable, so that a Flax module can hold it; it is not changed once a module does.
    """

    vocab_size: int = setting(30522, "pieces in the vocabulary, special ones included")
    hidden_size: int = setting(768, "width of the encoder")
    num_hidden_layers: int = setting(12, "number of encoder layers")
    num_attention_heads: int = setting(12, "attention heads a layer; divides hidden_size")
    intermediate_size: int = setting(3072, "width of the feed-forward layer")
    hidden_act: str = setting(
        "gelu_new",
        "activation: gelu_new is the tanh form of the original code, gelu the erf form",
        ("gelu_new", "gelu", "relu"),
    )
    hidden_dropout_prob: float = setting(0.1, "dropout on embeddings and before each residual")
    attention_probs_dropout_prob: float = setting(0.1, "dropout on attention probabilities")
    max_position_embeddings: int = setting(512, "longest sequence the model can take")
    type_vocab_size: int = setting(2, "number of token types (segments)")
    initializer_range: float = setting(0.02, "deviation of the truncated normal initialiser")
    layer_norm_eps: float = setting(1e-12, "epsilon of LayerNorm")
    pad_token_id: int = setting(0, "id of [PAD]")
    # What follows is how the model is computed, not what it is: config.json has no such fields.
    vocab_multiple: int = setting(
        128, "the embedding table is padded to a multiple of this many rows; ids are not"
    )
    dtype: str = setting(
        "float32",
        "dtype of activations and matrix products; parameters, softmax, LayerNorm statistics "
        "and losses are float32",
        ("float32", "bfloat16"),
    )
    gradient_dtype: str = setting(
        "float32",
        "dtype in which devices add up their gradients of weights; bfloat16 halves what they send",
        ("float32", "bfloat16"),
    )
    scan_layers: bool = setting(False, "layers in a loop, not a row: compile sooner, run slower")
    remat: str = setting(
        "none",
        "what the backward pass computes again: none, dots (all but products with weights), full",
        ("none", "dots", "full"),
    )
    attention: str = setting(
        "auto",
        "what computes attention: xla, pallas (TPU, GPU) or, without dropout, cudnn (GPU)",
        ("auto", "xla", "pallas", "cudnn"),
    )
    dropout_bits: str = setting(
        "hash",
        "random bits of dropout: hash, the same on any mesh, or of a TPU's hardware",
        ("hash", "hardware"),
    )

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the embedding table: vocab_size rounded up to vocab_multiple."""
        return -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple


# How the model is computed; config.json's own `dtype` is that of the stored weights.
COMPUTATION = {
    "vocab_multiple",
    "dtype",
    "gradient_dtype",
    "scan_layers",
    "remat",
    "attention",
    "dropout_bits",
}
# What given weights determine; how they are computed and regularised is a recipe's.
ARCHITECTURE = tuple(
    spec.name
    for spec in fields(BertConfig)
    if spec.name not in COMPUTATION | {"hidden_dropout_prob", "attention_probs_dropout_prob"}
)


@dataclass(slots=True, kw_only=True)
class CorpusConfig:
    """What `prepare` reads and how it turns text into token shards."""

    source: str = setting(
        "docstrings:",
        "KIND:WHERE, of text:GLOB, jsonl:GLOB, parquet:GLOB, tfds:NAME, docstrings:; several with "
        "' + ' between them",
    )
    sentences: str = setting(
        "split",
        "lines: a sentence a line and a blank line between documents, as the original reads; "
        "split: paragraphs of prose, split into sentences",
        ("split", "lines"),
    )
    language: str = setting("en", "code of the language by whose rules sentences are split")
    text_field: str = setting("text", "field that holds the text (jsonl:, parquet: and tfds:)")
    tfds_data_dir: str = setting("", "where TFDS keeps its data; empty is TFDS's own default")
    strict: bool = setting(False, "refuse invalid UTF-8 and broken lines, not count and mend them")
    heldout_fraction: float = setting(0.01, "share of documents held out, by a hash of content")
    tokenizer: str = setting(
        "wordpiece",
        "vocabulary to train: wordpiece (by tokenizers), unigram or bpe (by sentencepiece)",
        ("wordpiece", "unigram", "bpe"),
    )
    lowercase: bool = setting(True, "uncased vocabulary: lower case, accents stripped")
    vocab: str = setting(
        "", "a vocab.txt, tokenizer.json, .model or directory to use; empty trains a vocabulary"
    )
    new_tokens: str = setting(
        "", "a file with words, one a line, that are added to the vocabulary as pieces of their own"
    )


@dataclass(slots=True, kw_only=True)
class DataConfig:
    """How token shards become batches."""

    dir: str = setting(
        "", "directory of token shards; empty is a folder of the user's cache, made on first use"
    )
    next_sentence: bool = setting(True, "segment pairs and next-sentence prediction; else spans")
    short_seq_prob: float = setting(0.1, "share of documents cut to a random shorter target")
    mask_prob: float = setting(0.15, "share of pieces that are predicted")
    whole_word: bool = setting(False, "mask all pieces of a word together")
    masking: str = setting(
        "static",
        "static: `duplicates` fixed copies of the corpus, as the original; dynamic: new masks "
        "each epoch",
        ("static", "dynamic"),
    )
    duplicates: int = setting(10, "different cuts of the corpus into pairs (dupe_factor)")
    packing: bool = setting(
        False, "several sequences in a row of a training batch, for speed; the training is the same"
    )
    workers: int = setting(2, "batches built at once on the host")


@dataclass(slots=True, kw_only=True)
class Phase:
    """A stretch of a run at one sequence length."""

    seq_len: int = setting(128, "pieces a sequence")
    steps: int = setting(900_000, "optimizer steps")
    batch_size: int = setting(256, "sequences a step, over all devices")
    max_predictions: int = setting(20, "most masked positions a sequence")


@dataclass(slots=True, kw_only=True)
class OptimizerConfig:
    """The update rule and its learning-rate schedule over all phases."""

    name: str = setting(
        "adam_original",
        "adam_original: no bias correction, decoupled decay; adamw: with bias correction; "
        "lamb: for large batches; muon: orthogonalised momentum for matrices, adamw for the rest",
        ("adam_original", "adamw", "lamb", "muon"),
    )
    learning_rate: float = setting(1e-4, "peak learning rate")
    warmup_steps: int = setting(10_000, "steps of linear warm-up from 0")
    schedule: str = setting(
        "linear", "what follows the warm-up, over all steps", ("linear", "cosine", "constant")
    )
    b1: float = setting(0.9, "decay of the first moment")
    b2: float = setting(0.999, "decay of the second moment")
    eps: float = setting(1e-6, "added to the root of the second moment")
    weight_decay: float = setting(0.01, "decay, none on biases and LayerNorm")
    clip_norm: float = setting(1.0, "largest global gradient norm; 0 is no clipping")
    spike_sigmas: float = setting(
        0.0,
        "skip a step whose gradient norm is so many deviations above the mean of the last 128; "
        "0 skips only what is not finite",
    )
    max_skipped: int = setting(10, "steps skipped in a row that stop the run")
    accumulate: int = setting(1, "micro-batches a step; the update is that of the whole batch")


@dataclass(slots=True, kw_only=True)
class MeshConfig:
    """Devices along each axis of the mesh; -1 is whatever the other axes leave."""

    data: int = setting(-1, "devices of data parallelism; -1 is all that the others leave")
    fsdp: int = setting(1, "the same, among which parameters and optimizer state are sharded")
    tensor: int = setting(1, "devices among which heads, feed-forward and vocabulary are sharded")
    shard_optimizer: bool = setting(
        False, "shard the optimizer state along data too (ZeRO-1); the training is the same"
    )


@dataclass(slots=True, kw_only=True)
class LimitsConfig:
    """Seconds after which a process that waits gives up, to be started again."""

    start: int = setting(300, "seconds for all processes to come together, at the start")
    heartbeat: int = setting(100, "seconds without a sign of life from another process")
    compile: int = setting(3600, "seconds to compile a step, make the state, or for others to read")
    step: int = setting(600, "seconds for a step of training or evaluation, its batch included")
    save: int = setting(1800, "seconds for a checkpoint, or at the end the model, to be written")


@dataclass(slots=True, kw_only=True)
class RunConfig:
    """What any training run has, pretraining or fine-tuning.

    Class attributes:
      derived: settings that a run finds from the others and its data.
    """

    derived: ClassVar[frozenset[str]] = frozenset()

    seed: int = setting(0, "seed of initialisation, data order, masks and dropout")
    init_from: str = setting(
        "",
        "weights to begin with: a directory of Hugging Face's, of Google's or of a run, or a name "
        "of the Hugging Face hub; its architecture and vocabulary go before those of the recipe",
    )
    model: BertConfig = group(BertConfig, "the model")
    optimizer: OptimizerConfig = group(OptimizerConfig, "update rule and schedule")
    mesh: MeshConfig = group(MeshConfig, "device mesh")
    xla_options: str = setting(
        "", "compiler options of the step: NAME=VALUE,...; NAME= drops a default"
    )
    limits: LimitsConfig = group(LimitsConfig, "how long to wait, in seconds")
    log_every: int = setting(100, "steps between lines of metrics")
    eval_every: int = setting(10_000, "steps between evaluations on held-out examples")
    checkpoint_every: int = setting(10_000, "steps between checkpoints")
    keep_checkpoints: int = setting(3, "newest checkpoints kept")

    @property
    @abstractmethod
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""

    def validate(self) -> None:
        """Check every value and what must hold across fields.

        Raises:
          UserError: naming the field, its value and what it may be.
        """
        check_values(self, "config.", self.derived)
        if [self.mesh.data, self.mesh.fsdp, self.mesh.tensor].count(-1) > 1:
            raise UserError("config.mesh: at most one axis may be -1")
        _check_model(self.model)


@dataclass(slots=True, kw_only=True)
class Config(RunConfig):
    """Everything a pretraining run is made of."""

    corpus: CorpusConfig = group(CorpusConfig, "text, vocabulary and token shards")
    data: DataConfig = group(DataConfig, "segment pairs, masks and batches")
    phases: tuple[Phase, ...] = field(
        default_factory=lambda: (
            Phase(),
            Phase(seq_len=512, steps=100_000, batch_size=256, max_predictions=76),
        ),
        metadata={"help": "sequence-length phases, in order", "choices": ()},
    )
    eval_examples: int = setting(10_000, "most held-out examples an evaluation scores")

    @property
    def total_steps(self) -> int:
        """Optimizer steps of all phases."""
        return sum(phase.steps for phase in self.phases)

    def validate(self) -> None:
        """Check every value and what must hold across fields, as `RunConfig.validate`."""
        RunConfig.validate(self)
        _check_phases(self)
        if self.data.next_sentence and self.model.type_vocab_size < 2:
            raise UserError(
                f"config.model.type_vocab_size={self.model.type_vocab_size}: pairs have two token "
                "types; set --config.data.next_sentence=False, or from scratch "
                "--config.model.type_vocab_size=2"
            )


def model_size(name: str) -> BertConfig:
    """A `BertConfig` of a published size: tiny, mini, small, medium, base or large.

    The four small ones are Turc et al., 2019 ("Well-Read Students Learn Better"), table 1;
    base and large the BERT paper's section 3. Feed-forward is 4 H and a head 64 wide throughout.
    """
    layers, hidden = {
        "tiny": (2, 128),
        "mini": (4, 256),
        "small": (4, 512),
        "medium": (8, 512),
        "base": (12, 768),
        "large": (24, 1024),
    }[name]
    return BertConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        intermediate_size=4 * hidden,
    )


def _check_model(model: BertConfig) -> None:
    if model.hidden_size % model.num_attention_heads:
        raise UserError(
            f"config.model.num_attention_heads={model.num_attention_heads} does not divide "
            f"config.model.hidden_size={model.hidden_size}"
        )
    if model.pad_token_id >= model.vocab_size:
        raise UserError(
            f"config.model.pad_token_id={model.pad_token_id} is outside the vocabulary of "
            f"{model.vocab_size}"
        )


def _check_phases(config: Config) -> None:
    if not config.phases:
        raise UserError("config.phases is empty: give at least one phase")
    for index, phase in enumerate(config.phases):
        where = f"config.phases[{index}]"
        if phase.seq_len > config.model.max_position_embeddings:
            raise UserError(
                f"{where}.seq_len={phase.seq_len} is longer than "
                f"config.model.max_position_embeddings={config.model.max_position_embeddings}"
            )
        if phase.max_predictions > phase.seq_len:
            raise UserError(
                f"{where}.max_predictions={phase.max_predictions} is more than its "
                f"seq_len={phase.seq_len}"
            )
        if phase.batch_size % config.optimizer.accumulate:
            raise UserError(
                f"{where}.batch_size={phase.batch_size} does not divide into "
                f"config.optimizer.accumulate={config.optimizer.accumulate} micro-batches"
            )
