"""What figures depend on."""

import importlib.metadata
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

from bert_jax.data.workers import core_count

LIBRARIES = ("jax", "flax", "torch", "transformers", "tokenizers", "numpy")


def gpus(*fields: str) -> list[str]:
    """Of each GPU that NVIDIA's tool knows, these fields of it."""
    if not shutil.which("nvidia-smi"):
        return []
    query = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True).stdout.splitlines()


def machine() -> dict[str, Any]:
    """Processor, cores, GPUs, versions, commit."""
    cpuinfo = Path("/proc/cpuinfo")
    # Of the first core. A family and a model tell generations of one name apart.
    first = (cpuinfo.read_text() if cpuinfo.exists() else "").partition("\n\n")[0]
    fields = (line.partition(":") for line in first.splitlines())
    facts = {name.strip(): value.strip() for name, _, value in fields}
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
    )
    return {
        "processor": facts.get("model name", platform.processor()),
        "family and model": [facts.get(name) for name in ("cpu family", "model")],
        "cores": core_count(),
        "GPUs": gpus("name", "driver_version"),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in LIBRARIES},
        "commit": commit.stdout.strip(),
    }
