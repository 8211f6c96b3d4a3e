"""What every test runs under: eight virtual CPU devices, no network, a fixed order of examples."""

import atexit
import contextlib
import importlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

# Set before JAX or TensorFlow is imported: they read the environment once.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    # Programs that run for a moment: the compiler's own optimising was a third of all time.
    " --xla_backend_optimization_level=0"
).strip()
if version("jaxlib").startswith("0.10."):
    # The compiler before its rewriting, which needs half of the time; newer ones know no such flag.
    os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"
# Fewer threads than twice the devices, and a collective on few cores waits for itself.
os.environ["PJRT_NPROC"] = "32"
# A process that starts itself again costs tests their time.
os.environ["BERT_JAX_ALLOCATOR"] = "default"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# The TPU's compiler is no TPU that two processes could fight for, or ask the network about.
os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
os.environ["TPU_SKIP_MDS_QUERY"] = "1"

# PyTorch's wheels for GPUs, PyPI's, bring Triton along, which ends the process where TensorFlow was
# loaded before it, and does not where it comes first (triton 3.7.1, tensorflow-cpu 2.21).
with contextlib.suppress(ModuleNotFoundError):
    importlib.import_module("triton")

import pytest
from fake_cloud import Cloud
from hypothesis import settings

settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# Tests, the processes that they start and other workers compile the same programs: once is enough.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    COMPILED = tempfile.mkdtemp(prefix="bert_jax_compiled_")
    atexit.register(shutil.rmtree, COMPILED, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = COMPILED
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"

# A shell starts what it is to run in the background with SIGINT ignored, and nohup with SIGHUP: all
# that tests start would ignore them too.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
KEPT = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SIGNALS = {number: signal.getsignal(number) for number in KEPT}


@pytest.fixture(autouse=True)
def signals_kept() -> Iterator[None]:
    """A run takes the signals over for good; tests want them back."""
    yield
    for number, handler in SIGNALS.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder of real text and vocabularies that BERT_JAX_TEST_DATA names; skips without it."""
    folder = os.environ.get("BERT_JAX_TEST_DATA")
    if not folder:
        pytest.skip("BERT_JAX_TEST_DATA is not set: it names a folder of real text")
    return Path(folder)


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Token shards of a corpus of minutes' reading, as `small_run` trains on; not to be changed."""
    from small_run import write_shards

    return write_shards(tmp_path_factory.mktemp("corpus"))


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    """Google Cloud as the launch scripts see it, on this machine."""
    cloud = Cloud(tmp_path)
    yield cloud
    cloud.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A function from a size ("2m") to a disk of that size, a real one that can run full."""
    disks: list[Path] = []

    def mount(size: str) -> Path:
        disk = tmp_path / f"disk{len(disks)}"
        disk.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("mounting a small disk needs root")
        disks.append(disk)
        return disk

    yield mount
    for disk in disks:
        subprocess.run(["umount", "-l", str(disk)], check=True)
