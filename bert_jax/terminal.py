"""Output of long work, which goes on where its terminal is closed or nobody reads on."""

import errno
import io
import sys
from typing import Any

from bert_jax.errors import drop_output


class _Unread(io.FileIO):
    """Standard output or error; once nobody can read it any more, what is written goes nowhere."""

    def write(self, data: Any) -> int | None:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in (errno.EIO, errno.EPIPE):
                raise
        drop_output(self.fileno())
        return super().write(data)


def outlive_terminal() -> None:
    """Let a terminal that is closed, or a pipe (`| tee`) that ends, be no error of what prints."""
    for name, stream in (("stdout", sys.__stdout__), ("stderr", sys.__stderr__)):
        if stream is None or getattr(sys, name) is not stream:
            continue  # closed from the start, or somebody collects what is printed
        stream.flush()
        output = io.BufferedWriter(_Unread(stream.fileno(), "w", closefd=False))
        text = io.TextIOWrapper(output, stream.encoding, stream.errors, line_buffering=True)
        setattr(sys, name, text)
