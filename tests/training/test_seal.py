"""The seal: every bit of it and of what it seals counts, and reading it is bounded."""

import os

import pytest

from bert_jax.training.seal import SEAL_FILE, Damage, check_files, read_seal, write_seal

CONTENT = {"window": {"mlm_loss": 0.1 + 0.2, "steps": 3}, "arrays": {}}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d/data").write_bytes(os.urandom(100))
    (tmp_path / "empty").touch()
    write_seal(tmp_path, CONTENT, later=("marker",))
    (tmp_path / "marker").write_text("written after the seal")
    return tmp_path


def test_what_was_sealed_is_read(folder):
    seal = read_seal(folder)
    assert {name: seal[name] for name in CONTENT} == CONTENT
    check_files(folder, seal["files"])


def test_a_file_that_nobody_sealed_does_no_harm(folder):
    (folder / ".DS_Store").touch()
    check_files(folder, read_seal(folder)["files"])


def test_every_bit_of_the_seal_counts(folder):
    path = folder / SEAL_FILE
    whole = path.read_bytes()
    for bit in range(len(whole) * 8):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        with pytest.raises(Damage, match=SEAL_FILE):
            read_seal(folder)


def test_every_cut_of_the_seal_counts(folder):
    whole = (folder / SEAL_FILE).read_bytes()
    for size in range(len(whole)):
        (folder / SEAL_FILE).write_bytes(whole[:size])
        with pytest.raises(Damage, match=SEAL_FILE):
            read_seal(folder)


@pytest.mark.parametrize("name", ["d/data", "empty", SEAL_FILE])
def test_a_file_that_has_grown_is_not_read(folder, name):
    """To a terabyte, of a sparse file: reading it would take an hour."""
    os.truncate(folder / name, 1 << 40)
    with pytest.raises(Damage, match=name):
        check_files(folder, read_seal(folder)["files"])


@pytest.mark.parametrize("content", ["[]", "3", "{}", '{"crc32": 3}', "[" * 100_000])
def test_other_json_is_no_seal(folder, content):
    (folder / SEAL_FILE).write_text(content)
    with pytest.raises(Damage, match=SEAL_FILE):
        read_seal(folder)


def test_every_bit_of_a_sealed_file_counts(folder):
    path, files = folder / "d/data", read_seal(folder)["files"]
    whole = path.read_bytes()
    for bit in range(len(whole) * 8):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        with pytest.raises(Damage, match="d/data is not what was written"):
            check_files(folder, files)


@pytest.mark.parametrize("name", ["d/data", "empty", SEAL_FILE])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(folder, name):
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(Damage, match=name):
        check_files(folder, read_seal(folder)["files"])
