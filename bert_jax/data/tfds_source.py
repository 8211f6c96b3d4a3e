"""Data sets of TensorFlow Datasets (TFDS): text to pretrain on, and rows of examples.

Of text only the train split is read: the others are there to be scored on. A data set is named as
TFDS names it, NAME, NAME/CONFIG or NAME/CONFIG:VERSION, or by the directory that holds it. One that
is not on disk is fetched where there is a network: the prepared copy that TFDS keeps in its public
bucket, or failing that what the data set's own code downloads and prepares.
"""

import base64
import hashlib
import importlib.util
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from tqdm import tqdm

from bert_jax.data.documents import Piece, Pieces
from bert_jax.data.quiet_tensorflow import load_tensorflow
from bert_jax.errors import UserError

BUCKET = "https://storage.googleapis.com"  # its JSON API, at storage/v1/b/, and its files
TIMEOUT = 10  # seconds for an answer; TFDS itself would try for minutes


def open_tfds(name: str, text_field: str, data_dir: str) -> tuple[int, Pieces]:
    """The size of the train split, in bytes on disk, and what starts a pass over its texts.

    Args:
      name: the data set, or a directory that holds one.
      text_field: the feature that is the text.
      data_dir: where TFDS keeps its data; empty is TFDS's own default.

    Raises:
      UserError: no such data set, split or feature, or one that cannot be fetched.
    """
    builder = _prepared(name, data_dir)
    _check_split(name, builder, "train")
    _check_feature(name, builder, text_field)
    return builder.info.splits["train"].num_bytes, lambda: _pieces(builder, text_field)


def tfds_rows(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The examples of a split, in order: the place of each, and its values by feature.

    A text is a str, a class its name (None where it is not known), a number an int or a float.
    Features that are no single value are left out.

    Args:
      name: NAME/SPLIT, NAME a data set or the directory that holds one.

    Raises:
      UserError: no such data set or split, or one that cannot be fetched.
    """
    name, _, split = name.rpartition("/")
    builder = _prepared(name, "")
    _check_split(name, builder, split)
    features = {key: value for key, value in builder.info.features.items() if value.shape == ()}
    for index, example in enumerate(_examples(builder, split, list(features))):
        row = {key: _value(feature, example[key]) for key, feature in features.items()}
        yield f"{builder.info.full_name}/{split}[{index}]", row


def _value(feature: Any, value: Any) -> Any:
    """A value of a feature as JSON has it."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if hasattr(feature, "int2str"):
        return feature.int2str(int(value)) if value >= 0 else None
    return value.item()


def _examples(builder: Any, split: str, features: list[str]) -> Iterator[dict[str, Any]]:
    """The named features of the examples of a split, in order."""
    load_tensorflow()  # TFDS would load it here, with Keras; what comes before does without
    import tensorflow_datasets as tfds

    dataset = builder.as_dataset(
        split=split,
        shuffle_files=False,
        decoders=tfds.decode.PartialDecoding(dict.fromkeys(features, True)),
        read_config=tfds.ReadConfig(try_autocache=False, interleave_cycle_length=1),
    )
    yield from tfds.as_numpy(dataset)


def _pieces(builder: Any, text_field: str) -> Iterator[tuple[Piece, int]]:
    split = builder.info.splits["train"]
    for index, example in enumerate(_examples(builder, "train", [text_field])):
        position = split.num_bytes * (index + 1) // split.num_examples
        yield Piece(f"{builder.info.full_name}[{index}]", example[text_field]), position


def _check_split(name: str, builder: Any, split: str) -> None:
    if split not in builder.info.splits:
        raise UserError(
            f"tfds:{name}: no split {split!r}; there are {', '.join(builder.info.splits) or 'none'}"
        )


def _check_feature(name: str, builder: Any, text_field: str) -> None:
    import tensorflow_datasets as tfds

    features = builder.info.features
    texts = [key for key in features if isinstance(features[key], tfds.features.Text)]
    if text_field not in texts:
        raise UserError(
            f"tfds:{name}: no text in a field {text_field!r}; there is text in "
            f"{', '.join(map(repr, texts)) or 'none'}: choose one with text_field"
        )


def _prepared(name: str, data_dir: str) -> Any:
    """The builder of a data set that is on disk, fetched if it was not."""
    import tensorflow_datasets as tfds

    directory = Path(os.path.expanduser(name))
    if (directory / "dataset_info.json").is_file():
        return tfds.builder_from_directory(directory)
    where = os.path.expanduser(data_dir) if data_dir else None
    try:
        builder = tfds.builder(name, data_dir=where)
    except (ValueError, AssertionError, TypeError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"tfds:{name}: neither a data set of TFDS nor on disk: {reason}") from error
    if not builder.is_prepared():
        _fetch(builder, name)
    return tfds.builder_from_directory(builder.data_dir)


def _fetch(builder: Any, name: str) -> None:
    """Put a data set on disk, or say quickly why not."""
    target = Path(builder.data_dir)
    how = (
        f"run `tfds build {name}` where there is a network, and set tfds_data_dir if its data is "
        f"not to lie in {target.parents[len(PurePosixPath(builder.info.full_name).parts) - 1]}"
    )
    try:
        files = _bucket_files(builder.info.full_name)
        if files:
            _copy(files, target)
            return
    except (OSError, ValueError) as error:
        raise UserError(
            f"tfds:{name} is not on disk and cannot be fetched from {BUCKET} ({error}): {how}"
        ) from error
    _build(builder, name, how)


def _build(builder: Any, name: str, how: str) -> None:
    """Let the data set's own code download and prepare it."""
    import tensorflow_datasets as tfds

    beam = importlib.util.find_spec("apache_beam")
    if isinstance(builder, tfds.core.BeamBasedBuilder) and beam is None:
        extra = f"tensorflow-datasets[{builder.name}]"
        raise UserError(
            f"tfds:{name} is not on disk, has no prepared copy at {BUCKET}, and is prepared with "
            f"Apache Beam, which is not installed: pip install '{extra}', then {how}"
        )
    try:
        builder.download_and_prepare()
    except Exception as error:  # a data set's code may raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"tfds:{name} cannot be downloaded and prepared ({reason}): {how}"
        ) from error


def _bucket_files(full_name: str) -> list[dict[str, str]]:
    """What TFDS's public bucket says of each file of a prepared data set: name, size, md5Hash.

    Raises:
      OSError: the bucket cannot be reached.
    """
    query = {"prefix": f"datasets/{full_name}/", "fields": "nextPageToken,items(name,size,md5Hash)"}
    files = []
    while True:
        try:
            address = f"{BUCKET}/storage/v1/b/tfds-data/o?{urllib.parse.urlencode(query)}"
            with urllib.request.urlopen(address, timeout=TIMEOUT) as answer:
                page = json.load(answer)
        except urllib.error.HTTPError:
            return []  # reached, but it does not offer this
        files += page.get("items", [])
        if "nextPageToken" not in page:
            return files
        query["pageToken"] = page["nextPageToken"]


def _copy(files: list[dict[str, str]], target: Path) -> None:
    """Download the files of a data set; `target` is complete or absent.

    What an interrupted call has downloaded is kept for the next.

    Raises:
      OSError: the network or the disk failed, or a file came damaged.
    """
    partial = target.with_name(target.name + ".partial")
    partial.mkdir(parents=True, exist_ok=True)
    total = sum(int(file["size"]) for file in files)
    bar = tqdm(total=total, unit="B", unit_scale=True, desc=f"downloading to {target}")
    with bar:
        for file in files:
            path = partial / PurePosixPath(file["name"]).name
            if not (path.is_file() and path.stat().st_size == int(file["size"])):
                _download(file, path)
            bar.update(int(file["size"]))
    os.replace(partial, target)


def _download(file: dict[str, str], path: Path) -> None:
    """Download one file of the bucket under a temporary name, check it, and give it its name."""
    digest, temporary = hashlib.md5(usedforsecurity=False), path.with_name(path.name + ".download")
    address = f"{BUCKET}/tfds-data/{urllib.parse.quote(file['name'])}"
    with (
        urllib.request.urlopen(address, timeout=TIMEOUT) as answer,
        temporary.open("wb") as out,
    ):
        while block := answer.read(2**20):
            digest.update(block)
            out.write(block)
    if base64.b64encode(digest.digest()).decode() != file["md5Hash"]:
        raise OSError(f"{address} came damaged; run this again")
    os.replace(temporary, path)
