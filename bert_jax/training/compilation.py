"""What was compiled once is not compiled again: by a run that is resumed, say."""

import hashlib
import os
import platform
from contextlib import suppress
from pathlib import Path

import jax

from bert_jax.errors import UserError
from bert_jax.user_cache import user_cache

_MAX_BYTES = 2 << 30
# Below this a lookup gains little.
_MIN_SECONDS = 0.1


def keep_compiled_programs() -> None:
    """Let JAX keep compiled programs in the user's cache folder, the newest 2 GiB of them.

    One that the user has chosen (JAX_COMPILATION_CACHE_DIR) stays; where there is no such folder,
    or none that can be written, programs are compiled each time. JAX names them by what they are
    compiled from, its own version and the devices, but not by what the host's processor can do, for
    which programs of the CPU are made: each kind of processor has a folder of its own. Where files
    belong to a number without a name, JAX cannot tell how large they are, and all are kept.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    try:
        folder = user_cache() / f"compiled-{_processor()}"
        folder.mkdir(parents=True, exist_ok=True)
    except (UserError, OSError):
        return
    if os.access(folder, os.W_OK):
        jax.config.update("jax_compilation_cache_dir", str(folder))
        limit = _MAX_BYTES if _owner_has_name(folder) else -1
        jax.config.update("jax_compilation_cache_max_size", limit)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", _MIN_SECONDS)


def _owner_has_name(folder: Path) -> bool:
    """Whether user and group have names, which etils, by which JAX asks for sizes, looks up."""
    try:
        return bool(folder.owner() and folder.group())
    except KeyError:
        return False


def _processor() -> str:
    """A hash of what the host's processor is and can do."""
    facts = [platform.machine(), platform.processor()]
    with suppress(OSError):
        lines = set(Path("/proc/cpuinfo").read_text(errors="replace").splitlines())
        facts += sorted(line for line in lines if line.startswith(("model name", "flags", "Feat")))
    return hashlib.blake2b("\n".join(facts).encode(), digest_size=6).hexdigest()
