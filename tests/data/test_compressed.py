"""Compressed files against the bytes that were compressed."""

from pathlib import Path

import pytest
from compressing import COMPRESS

from bert_jax.data.compressed import ENDINGS, kind, opened
from bert_jax.errors import UserError

DATA = b"".join(b"%d bottles\n" % number for number in range(100_000))


def lines(path: Path) -> list[bytes]:
    with opened(path) as (stream, _):
        return list(iter(stream.readline, b""))


def test_every_ending_is_tried() -> None:
    assert {*COMPRESS} == {*ENDINGS}


@pytest.mark.parametrize("ending", COMPRESS)
def test_what_was_compressed_is_read(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(COMPRESS[ending](DATA))
    assert lines(path) == DATA.splitlines(keepends=True)
    with opened(path) as (stream, raw):
        assert stream.read(7) == DATA[:7]
        assert 0 < raw.tell() <= path.stat().st_size
        assert stream.read() == DATA[7:]
        assert raw.tell() == path.stat().st_size


@pytest.mark.parametrize("ending", COMPRESS)
def test_files_that_were_appended_are_one(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.txt{ending.upper()}"
    path.write_bytes(COMPRESS[ending](b"One\ntw") + COMPRESS[ending](b"o\nthree"))
    assert lines(path) == [b"One\n", b"two\n", b"three"]


@pytest.mark.parametrize("ending", COMPRESS)
def test_a_file_that_is_cut_short_is_told(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(COMPRESS[ending](DATA)[:-20])
    with pytest.raises(UserError, match=rf"a\.txt\{ending}: .*(cut short|Truncated)"):
        lines(path)


@pytest.mark.parametrize("ending", COMPRESS)
def test_a_file_that_is_not_compressed_so_is_told(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.txt{ending}"
    for data in (DATA, COMPRESS[".xz" if ending == ".gz" else ".gz"](DATA)):
        path.write_bytes(data)
        with pytest.raises(
            UserError, match=rf"a\.txt\{ending}: not a \{ending} file, or a"
        ) as told:
            lines(path)
        assert "\n" not in str(told.value)


@pytest.mark.parametrize("name", ["none.txt", "none.txt.zst"])
def test_a_file_that_is_not_there_is_told(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=rf"{name}: cannot be read: No such file or directory"):
        lines(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("a.csv", ".csv"),
        ("A.CSV.GZ", ".csv"),
        ("a.b.jsonl.zst", ".jsonl"),
        ("a.txt.xz", ".txt"),
        ("a.bz2", ""),
        ("a", ""),
    ],
)
def test_the_kind_of_a_file_is_what_it_is_uncompressed(name: str, ending: str) -> None:
    assert kind(Path("x.y") / name) == ending
