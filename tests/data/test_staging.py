import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bert_jax.data.shards import SPLITS, checksum, open_shards
from bert_jax.data.staging import stage
from bert_jax.errors import UserError


def contents(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}


def test_the_copy_is_the_original_and_is_made_once(shards, tmp_path):
    staged = tmp_path / "deep/staged"
    first = stage(shards, staged)
    assert first.copied == first.files == len(list(shards.glob("*.npy")))
    assert first.copied_bytes == sum(path.stat().st_size for path in shards.glob("*.npy"))
    assert contents(staged) == contents(shards)
    for split in SPLITS:
        assert open_shards(staged, split)
    times = {path: path.stat().st_mtime_ns for path in staged.rglob("*") if path.is_file()}
    assert stage(shards, staged) == (first.files, 0, 0)
    again = {path: path.stat().st_mtime_ns for path in times}
    manifest = staged / "manifest.json"  # written last, each time
    assert again | {manifest: 0} == times | {manifest: 0}


def test_those_that_stage_to_one_directory_at_a_time_wait_for_each_other(shards, tmp_path):
    for number in range(10):
        staged = tmp_path / f"{number}"
        with ThreadPoolExecutor(4) as pool:
            each = list(pool.map(lambda _, staged=staged: stage(shards, staged), range(4)))
        assert sorted(one.copied for one in each) == [0, 0, 0, each[0].files]
        assert contents(staged) == contents(shards)


@pytest.mark.parametrize("damage", ["cut", "flip", "remove"])
def test_what_is_damaged_at_the_destination_is_copied_again(shards, tmp_path, damage):
    stage(shards, tmp_path / "staged")
    victim = tmp_path / "staged/train-00000.tokens.npy"
    data = victim.read_bytes()
    if damage == "cut":
        victim.write_bytes(data[:-1])
    elif damage == "flip":
        victim.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    else:
        victim.unlink()
    assert stage(shards, tmp_path / "staged").copied == 1
    assert contents(tmp_path / "staged") == contents(shards)


def test_damage_at_the_source_is_named_and_leaves_no_manifest(shards, tmp_path):
    source = shutil.copytree(shards, tmp_path / "source")
    victim = source / "heldout-00000.tokens.npy"
    victim.write_bytes(victim.read_bytes()[:-2])
    with pytest.raises(UserError, match=r"source/heldout-00000.tokens.npy: truncated, edited"):
        stage(source, tmp_path / "staged")
    assert not (tmp_path / "staged/manifest.json").exists()
    assert not (tmp_path / "staged/heldout-00000.tokens.npy").exists()
    victim.unlink()
    with pytest.raises(UserError, match=r"heldout-00000.tokens.npy: No such file"):
        stage(source, tmp_path / "staged")


def test_what_is_copied_over_other_shards_has_no_manifest_until_it_is_whole(shards, tmp_path):
    staged = shutil.copytree(shards, tmp_path / "staged")
    (staged / "manifest.json").write_text("{}")
    (staged / "train-00000.tokens.npy").unlink()
    source = shutil.copytree(shards, tmp_path / "source")
    (source / "train-00000.tokens.npy").write_text("damaged")
    with pytest.raises(UserError, match="damaged"):
        stage(source, staged)
    assert not (staged / "manifest.json").exists()


def test_what_is_whole_has_its_manifest_while_it_is_staged_again(shards, tmp_path, monkeypatch):
    staged = tmp_path / "staged"
    stage(shards, staged)

    def checked(path: Path) -> str:
        assert (staged / "manifest.json").exists()
        return checksum(path)

    monkeypatch.setattr("bert_jax.data.staging.checksum", checked)
    assert stage(shards, staged).copied == 0


def test_other_shards_in_the_same_place_are_replaced(shards, tmp_path):
    staged = shutil.copytree(shards, tmp_path / "staged")
    (staged / "manifest.json").write_text("{}")
    stage(shards, staged)
    assert contents(staged) == contents(shards)


def test_files_that_a_plan_is_being_written_to_are_left_alone(shards, tmp_path, monkeypatch):
    """They may be gone at any moment, and a killed run leaves them behind."""
    source = shutil.copytree(shards, tmp_path / "source")
    (source / "pairs").mkdir(exist_ok=True)
    (source / "pairs/aa.json").write_text("{}")
    (source / "tokenizer/folder").mkdir()
    left = [source / "pairs/bb.npy.0123.tmp", source / "tokenizer/tokenizer.json.tmp"]
    for path in left:
        path.write_text("half")

    def gone(path: Path) -> str:
        if path in left:
            path.unlink()
        return checksum(path)

    monkeypatch.setattr("bert_jax.data.staging.checksum", gone)
    stage(source, tmp_path / "staged")
    assert all(path.exists() for path in left)
    expected = {name: data for name, data in contents(source).items() if not name.endswith(".tmp")}
    assert contents(tmp_path / "staged") == expected


def test_the_command(shards, tmp_path):
    def run(*arguments: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "bert_jax.stage", *map(os.fspath, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = run(shards, tmp_path / "staged")
    assert done.returncode == 0, done.stderr
    assert "files, each checked;" in done.stdout
    failed = run(tmp_path, tmp_path / "other")
    assert failed.returncode == 2
    assert failed.stderr.count("\n") == 1
    assert "no token shards there" in failed.stderr
