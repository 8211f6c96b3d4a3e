"""Where compiled programs are kept, and that a machine without such a place trains all the same."""

import subprocess
import sys
from pathlib import Path

import pytest

from bert_jax.errors import UserError
from bert_jax.user_cache import user_cache

NAMELESS = "import pwd; pwd.getpwuid = lambda number: {}[number]; "
SETTING = "import jax; print(jax.config.jax_compilation_cache_dir)"
KEEP = (
    "from bert_jax.training.compilation import keep_compiled_programs; keep_compiled_programs(); "
)


def without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a user whose number has no name, which containers are often started with."""
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda number: {}[number])


def run(code: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A process with that environment alone."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def kept_in(environment: dict[str, str], before: str = "") -> str:
    """What JAX is told in a process with that environment alone."""
    done = run(before + KEEP + SETTING, environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_cache_is_the_users(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert user_cache() == tmp_path / ".cache/bert_jax"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    assert user_cache() == tmp_path / "elsewhere/bert_jax"


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch):
    without_a_home(monkeypatch)
    with pytest.raises(UserError, match="set XDG_CACHE_HOME"):
        user_cache()


def test_programs_are_kept_where_there_is_a_place(tmp_path):
    folder = kept_in({"XDG_CACHE_HOME": str(tmp_path)})
    assert Path(folder).parent == tmp_path / "bert_jax"


def test_all_programs_of_a_user_without_a_name_are_kept(tmp_path):
    """Where their size is limited JAX keeps the first, and warns of each other."""
    compile_two = (
        "jax.config.update('jax_persistent_cache_min_compile_time_secs', 0); "
        "import jax.numpy as jnp; one = jnp.ones(3); jax.jit(jnp.sin)(one); jax.jit(jnp.cos)(one); "
    )
    environment = {"XDG_CACHE_HOME": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    done = run(NAMELESS + KEEP + "import jax; " + compile_two, environment)
    assert (done.returncode, done.stderr) == (0, "")
    kept = {path.name.partition("-")[0] for path in tmp_path.glob("bert_jax/*/*-cache")}
    assert {"jit_sin", "jit_cos"} <= kept


def test_and_compiled_each_time_where_there_is_none(tmp_path):
    assert kept_in({}, NAMELESS) == "None"
    (tmp_path / "file").touch()
    assert kept_in({"XDG_CACHE_HOME": str(tmp_path / "file")}) == "None"
