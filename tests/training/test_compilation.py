"""Where compiled programs are kept, and that a machine without such a place trains all the same."""

import subprocess
import sys
from pathlib import Path

import pytest

from bert_jax.errors import UserError
from bert_jax.user_cache import user_cache

SETTING = "import jax; print(jax.config.jax_compilation_cache_dir)"
KEEP = (
    "from bert_jax.training.compilation import keep_compiled_programs; keep_compiled_programs(); "
)


def without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a user whose number has no name, which containers are often started with."""
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda number: {}[number])


def kept_in(environment: dict[str, str], before: str = "") -> str:
    """What JAX is told in a process with that environment alone."""
    code = before + KEEP + SETTING
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
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


def test_and_compiled_each_time_where_there_is_none(tmp_path):
    nameless = "import pwd; pwd.getpwuid = lambda number: {}[number]; "
    assert kept_in({}, nameless) == "None"
    (tmp_path / "file").touch()
    assert kept_in({"XDG_CACHE_HOME": str(tmp_path / "file")}) == "None"
