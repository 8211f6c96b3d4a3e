"""What a person sees of a run: a header, a progress bar, evaluations and a summary.

The texts are pure functions; `Progress` alone prints, and only where it is told to.
"""

from pathlib import Path
from typing import Any, Self, TextIO

from bert_jax.config import Config


def header(
    config: Config,
    parameters: int,
    mesh: dict[str, int],
    device_kind: str,
    flops_per_second: float | None = None,
) -> str:
    """The run before it starts: model, mesh, phases, tokens and FLOPs to do, expected time.

    Args:
      config: the resolved config.
      parameters: number of trained parameters.
      mesh: devices along each axis, as `dict(mesh.shape)`.
      device_kind: `jax.devices()[0].device_kind`.
      flops_per_second: expected training speed over all devices, for the expected time; None
        (not known) leaves that out.
    """
    raise NotImplementedError


def evaluation_line(record: dict[str, Any], baseline: dict[str, Any]) -> str:
    """An "eval" record on one line, each accuracy beside the trivial one of `baseline`."""
    raise NotImplementedError


def summary(
    run_directory: Path,
    evaluation: dict[str, Any] | None,
    baseline: dict[str, Any],
    seconds: dict[str, float],
    resume_command: str | None = None,
) -> str:
    """The run after its end: figures, where the time went, and the next commands.

    Args:
      run_directory: where the run lies.
      evaluation: the last "eval" record, None if there was none.
      baseline: the "baseline" record, or {}.
      seconds: wall time by cause, as in the "time" record.
      resume_command: what continues a run that was stopped early; None for a finished one.
    """
    raise NotImplementedError


class Progress:
    """A progress bar on a terminal; elsewhere a plain line every ten seconds at most."""

    def __init__(
        self,
        config: Config,
        start_step: int = 0,
        *,
        enabled: bool = True,
        stream: TextIO | None = None,
    ):
        """Starts at `start_step`; not `enabled` (any process but the first) prints nothing."""
        raise NotImplementedError

    def update(self, step: int, record: dict[str, Any] | None = None) -> None:
        """Move to `step` (done steps); `record` is a new "train" record, if there is one."""
        raise NotImplementedError

    def print(self, text: str) -> None:
        """Print text above the bar."""
        raise NotImplementedError

    def close(self) -> None:
        """End the bar, leaving its last state on the screen."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
