"""Packaging of bert_jax: what is installed, what it needs, and why.

The lower bounds are versions that the test suite has passed with; constraints.txt names the
whole set that it passes with today.
"""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (ROOT / "bert_jax/__init__.py").read_text())
assert VERSION

# tensorflow-cpu has wheels for x86-64 only; elsewhere `tensorflow` itself is CPU-only.
X86_LINUX = 'platform_system == "Linux" and platform_machine == "x86_64"'
OTHER = 'platform_system != "Linux" or platform_machine != "x86_64"'

REQUIRES = [
    "jax>=0.10.2",  # arrays, autodiff, compilation, meshes; Python 3.11 stops at 0.10.2
    "flax>=0.12.8",  # the linen modules of bert_jax.models
    "optax>=0.2.8",  # gradient transformations and schedules
    "orbax-checkpoint>=0.12.8",  # checkpoints that restore onto another mesh
    "numpy>=2.4",  # token shards, examples, masks
    "ml_collections>=1.1.0",  # --config=NAME --config.field=value
    f"tensorflow-cpu>=2.21; {X86_LINUX}",  # tf.data feeds the batches; no accelerator use
    f"tensorflow>=2.21; {OTHER}",
    "tensorflow-datasets>=4.9.10",  # tfds: corpora, Wikipedia among them
    "pyarrow>=26.0",  # Parquet, in which the Hugging Face hub keeps data sets; of TFDS's needs, too
    "importlib_resources>=7.1",  # tensorflow-datasets imports it without declaring it
    "tokenizers>=0.23.3",  # WordPiece
    "sentencepiece>=0.2.3",  # unigram and BPE vocabularies
    "protobuf>=7.36",  # reads SentencePiece's .model files
    "sentencex>=1.0.32",  # prose into sentences
    "tqdm>=4.70",  # progress bars
    "matplotlib>=3.11",  # curves in report.html
    "tensorboardX>=2.6.5",  # TensorBoard events without loading TensorFlow
    "scikit-learn>=1.9",  # scores of classifications: F1, Matthews' correlation, precision
    "scipy>=1.17",  # scores of regressions: Pearson's and Spearman's correlation
]
PEERS = [
    "torch>=2.13.0",  # runs the peer model that parity and speed are measured against
    "transformers>=5.23.0",  # that model, and the tokenizers that ours must equal
    "accelerate>=1.15",  # its Trainer, whose fine-tuning runs ours are timed beside
]
EXTRAS = {
    "tpu": ["jax[tpu]>=0.10.2"],  # libtpu
    "gpu": ["jax[cuda13]>=0.10.2"],  # CUDA 13 and cuDNN from wheels; needs a driver of 580 or later
    "bench": PEERS,
    "test": [
        *PEERS,
        "pytest>=9.2",
        "pytest-timeout>=2.4",  # a hung collective ends the run and shows every thread's stack
        "pytest-xdist>=3.8",  # two workers run the suite in little more than half of the time
        "hypothesis>=6.170",  # property tests
        f"libtpu>=0.0.42; {X86_LINUX}",  # compiles for TPUs that are not here
        "safetensors>=0.8",  # peers' weights in files
        "pyyaml>=6.0.3",  # the manifest for a cluster is read back
        "ruff>=0.17.5",  # lint and format
        "pyright>=1.1.414",  # type check
        "build>=1.6",  # the wheel that CI installs
    ],
}

# The recipes lie beside the package in a checkout and inside it once installed.
RECIPES = {"bert_jax.configs": "configs", "bert_jax.configs.finetune": "configs/finetune"}

setup(
    name="bert_jax",
    version=VERSION[1],
    description="BERT in JAX: from raw text to a pretrained encoder, on a CPU, a GPU or a TPU pod",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=[*find_packages(include=["bert_jax", "bert_jax.*"]), *RECIPES],
    package_dir={"bert_jax": "bert_jax", **RECIPES},
    install_requires=REQUIRES,
    extras_require=EXTRAS,
    classifiers=[
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
