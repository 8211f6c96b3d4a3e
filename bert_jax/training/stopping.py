"""A run that is asked to stop saves its state first, and tells that it can be resumed."""

import signal
from types import FrameType

# EX_TEMPFAIL of sysexits.h: try again later, unlike a failure (1) or bad usage (2).
RESUME_EXIT_CODE = 75


class StopRequest:
    """Whether SIGINT (Ctrl-C) or SIGTERM (a machine that is taken away) has come."""

    def __init__(self) -> None:
        """From now on these signals no longer end the process; `pending` tells of them."""
        self.pending = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.pending = True
