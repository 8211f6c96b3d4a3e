"""TensorBoard's event files, written in the thread that asks for it.

tensorboardX's own writer hands events to a thread of its own, which a full disk ends: the run would
then wait for room in its queue for ever.
"""

import importlib
import os
import platform
import re
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_jax.imports import without


class EventWriter:
    """Appends events to a new file in a folder, as one more session of its run."""

    def __init__(self, folder: Path, purge_step: int):
        """Makes the folder where it is missing; earlier sessions' steps from `purge_step` on hide.

        Raises:
          OSError: the disk is full, or may not be written.
        """
        with without("torch"):  # tensorboardX would load it, for seconds, where it is installed
            from tensorboardX.record_writer import masked_crc32c

        # Messages that are made as the module loads: type checkers see none of them.
        proto: Any = importlib.import_module("tensorboardX.proto.event_pb2")
        summary: Any = importlib.import_module("tensorboardX.proto.summary_pb2")
        self._event, self._summary = proto.Event, summary.Summary
        self._checksum = masked_crc32c
        folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        # Two writers of one second must not share a file.
        stamp = max(int(now), _newest_stamp(folder) + 1)
        name = f"events.out.tfevents.{stamp}.{platform.node()}.{time.time_ns()}"
        self._file = (folder / name).open("wb")
        self._append(self._event(wall_time=now, file_version="brain.Event:2"))
        start = proto.SessionLog(status=proto.SessionLog.START)
        self._append(self._event(wall_time=now, step=purge_step, session_log=start))
        self._file.flush()

    def write(self, values: Mapping[str, float], step: int, wall_time: float) -> None:
        """Append the values of a step by their tags; they are then with the operating system.

        Raises:
          OSError: the disk is full.
        """
        points = [self._summary.Value(tag=tag, simple_value=values[tag]) for tag in values]
        summary = self._summary(value=points)
        self._append(self._event(wall_time=wall_time, step=step, summary=summary))
        self._file.flush()

    def sync(self) -> None:
        """Wait until all is on the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _append(self, event: Any) -> None:
        """A TFRecord: length and data, each with its checksum."""
        data = event.SerializeToString()
        length = struct.pack("<Q", len(data))
        for part in (length, data):
            self._file.write(part + struct.pack("<I", self._checksum(part)))


def _newest_stamp(folder: Path) -> int:
    """The seconds that the last of the files there is named by; 0 where there is none.

    TensorBoard reads files in the order of their names. A session that was named before an earlier
    one, by a clock that is behind (another host's, or one that was set), would be hidden by it.
    """
    found = (
        re.match(r"events\.out\.tfevents\.(\d{1,15})\.", path.name) for path in folder.iterdir()
    )
    return max((int(match[1]) for match in found if match), default=0)
