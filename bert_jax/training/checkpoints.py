"""A run's checkpoints: written in the background, complete or absent, the newest few kept."""

import logging
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp

from bert_jax.errors import UserError
from bert_jax.training.state import TrainState

_STATE, _WINDOW = "state", "window"


class Checkpoints:
    """The `checkpoints` folder of a run directory, one numbered folder a step."""

    def __init__(self, run_directory: Path, keep: int) -> None:
        """Open the folder, making it where it is missing; `keep` newest checkpoints stay."""
        # Orbax tells each of its stages at level INFO and warns of its own defaults.
        logging.getLogger("absl").setLevel(logging.ERROR)
        self._folder = run_directory / "checkpoints"
        options = ocp.CheckpointManagerOptions(max_to_keep=keep)
        self._manager = ocp.CheckpointManager(self._folder.absolute(), options=options)

    @property
    def latest_step(self) -> int | None:
        """The step of the newest checkpoint, or None."""
        return self._manager.latest_step()

    def save(self, state: TrainState, step: int, window: dict[str, Any]) -> None:
        """Begin to save the state of `step`; it is written while training goes on.

        Args:
          state: all of it is copied to the host before this returns.
          step: the step that it is the state of.
          window: JSON values, under 1 KB: what was measured since the last "train" record.

        Raises:
          UserError: this save, or the one before it, could not be written.
        """
        if self._manager.latest_step() == step:
            return
        try:
            items = {_STATE: ocp.args.StandardSave(state), _WINDOW: ocp.args.JsonSave(window)}
            saved = self._manager.save(step, args=ocp.args.Composite(**items))
        except Exception as error:
            raise self._failure(error) from error
        if not saved:
            raise UserError(f"{self._folder}: the checkpoint of step {step} was not saved")

    def restore(self, abstract_state: TrainState) -> tuple[TrainState, dict[str, Any]]:
        """The newest checkpoint, read straight into the shardings of `abstract_state`.

        Returns:
          The state, and the `window` that was saved with it.

        Raises:
          UserError: it cannot be read, or does not fit the model.
        """
        step = self._manager.latest_step()
        try:
            items = {
                _STATE: ocp.args.StandardRestore(abstract_state),
                _WINDOW: ocp.args.JsonRestore(),
            }
            restored: Any = self._manager.restore(step, args=ocp.args.Composite(**items))
        except Exception as error:
            raise UserError(
                f"{self._folder / str(step)}: cannot be restored ({_first_line(error)}); move it "
                "away to go on from the one before it"
            ) from error
        return restored[_STATE], restored[_WINDOW]

    def close(self) -> None:
        """Wait until all is written.

        Raises:
          UserError: the last save could not be written.
        """
        try:
            self._manager.wait_until_finished()
        except Exception as error:
            raise self._failure(error) from error
        finally:
            self._manager.close()

    def _failure(self, error: Exception) -> UserError:
        kept = self._manager.all_steps()
        held = f"the newest one that is whole is step {max(kept)}" if kept else "there is none yet"
        return UserError(
            f"{self._folder}: a checkpoint could not be written ({_first_line(error)}); {held}; "
            "free some disk space and start the same command again"
        )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:300]
