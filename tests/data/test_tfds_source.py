"""TFDS data sets: one that the test builds on disk, and one that a local server offers."""

import base64
import hashlib
import json
import shutil
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np
import pytest
from small_corpus import read as read_source

from bert_jax.data import tfds_source
from bert_jax.data.documents import Document
from bert_jax.errors import UserError

ARTICLES = [f"Article {n} begins here. It goes on.\n\nIt ends with {n} é." for n in range(50)]


@pytest.fixture(scope="session")  # TFDS takes a name once in a process
def tfds_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A `data_dir` of TFDS with the data set `tiny_prose`, prepared by TFDS itself."""
    tfds = pytest.importorskip("tensorflow_datasets")

    class TinyProse(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> Any:
            features = {"text": tfds.features.Text(), "n": tfds.features.Scalar(np.int32)}
            return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

        def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
            return {
                "train": self._generate_examples(ARTICLES),
                "test": self._generate_examples(["Never."]),
            }

        def _generate_examples(self, texts: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
            for n, text in enumerate(texts):
                yield n, {"text": text, "n": n}

    folder = tmp_path_factory.mktemp("tfds")
    TinyProse(data_dir=str(folder)).download_and_prepare()
    return folder


def read(name: str, **settings: Any) -> list[Document]:
    return read_source(f"tfds:{name}", **settings)[0]


def test_train_split_is_read_whole_and_in_order(tfds_folder: Path) -> None:
    by_name = read("tiny_prose", tfds_data_dir=str(tfds_folder))
    expected = [[*text.split("\n")[0].split(". ", 1), text.split("\n")[2]] for text in ARTICLES]
    expected = [[f"{first}.", *rest] for first, *rest in expected]
    assert sorted(by_name) == sorted(expected)
    assert read("tiny_prose:1.0.0", tfds_data_dir=str(tfds_folder)) == by_name
    assert read(str(tfds_folder / "tiny_prose/1.0.0")) == by_name


def test_wrong_field_is_named(tfds_folder: Path) -> None:
    with pytest.raises(UserError, match=r"'n'; there is text in 'text'"):
        read("tiny_prose", tfds_data_dir=str(tfds_folder), text_field="n")


@pytest.mark.parametrize(
    "name", ["no_such_set", "wikipedia/no_such", "lm1b:9.9.9", "", "/no/folder"]
)
def test_unknown_data_sets_are_one_line(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="tfds:") as caught:
        read(name, tfds_data_dir=str(tmp_path))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


class Bucket(BaseHTTPRequestHandler):
    """Answers as the bucket does, out of `folder`; with nothing in it, as one that lacks it."""

    folder: Path
    damage = False

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        if address.path == "/storage/v1/b/tfds-data/o":
            query = parse_qs(address.query)
            files = sorted(file for file in self.folder.rglob("*") if file.is_file())
            start = int(query.get("pageToken", ["0"])[0])
            page: dict[str, Any] = {
                "items": [self.describe(file) for file in files[start : start + 2]]
            }
            if start + 2 < len(files):
                page["nextPageToken"] = str(start + 2)
            self.answer(json.dumps(page).encode())
        else:
            name = unquote(address.path).removeprefix("/tfds-data/datasets/")
            self.answer((self.folder / name).read_bytes())

    def describe(self, file: Path) -> dict[str, str]:
        digest = hashlib.md5(file.read_bytes() + b"!" * self.damage).digest()
        name = f"datasets/{file.relative_to(self.folder)}"
        size = str(file.stat().st_size)
        return {"name": name, "size": size, "md5Hash": base64.b64encode(digest).decode()}

    def answer(self, body: bytes) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Bucket]]:
    """A local server in the bucket's place, empty at first."""
    handler = type("Handler", (Bucket,), {"folder": tmp_path / "bucket"})
    server = HTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(tfds_source, "BUCKET", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield handler
    server.shutdown()
    server.server_close()


def test_prepared_copy_is_fetched_once(
    tfds_folder: Path, tmp_path: Path, bucket: type[Bucket]
) -> None:
    shutil.copytree(tfds_folder / "tiny_prose", bucket.folder / "tiny_prose")
    home = str(tmp_path / "home")
    first = read("tiny_prose", tfds_data_dir=home)
    shutil.rmtree(bucket.folder)
    assert read("tiny_prose", tfds_data_dir=home) == first
    assert first == read("tiny_prose", tfds_data_dir=str(tfds_folder))


def test_damaged_copy_is_refused(tfds_folder: Path, tmp_path: Path, bucket: type[Bucket]) -> None:
    shutil.copytree(tfds_folder / "tiny_prose", bucket.folder / "tiny_prose")
    bucket.damage = True
    with pytest.raises(UserError, match="damaged"):
        read("tiny_prose", tfds_data_dir=str(tmp_path / "home"))
    assert not (tmp_path / "home/tiny_prose/1.0.0").exists()


def test_without_a_copy_the_data_set_builds_itself(
    tfds_folder: Path, tmp_path: Path, bucket: type[Bucket]
) -> None:
    built = read("tiny_prose", tfds_data_dir=str(tmp_path / "home"))
    assert built == read("tiny_prose", tfds_data_dir=str(tfds_folder))


def test_without_a_copy_wikipedia_says_what_it_needs(tmp_path: Path, bucket: type[Bucket]) -> None:
    with pytest.raises(UserError, match=r"pip install 'tensorflow-datasets\[wikipedia\]'"):
        read("wikipedia/20230601.en", tfds_data_dir=str(tmp_path))


def test_without_a_network_the_error_comes_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorflow_datasets")
    monkeypatch.setattr(tfds_source, "BUCKET", "http://127.0.0.1:9")  # nothing listens there
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    start = time.monotonic()
    with pytest.raises(UserError, match=rf"tfds build wikipedia/20230601\.en.*{tmp_path}"):
        read("wikipedia/20230601.en", tfds_data_dir=str(tmp_path))
    assert time.monotonic() - start < 60
