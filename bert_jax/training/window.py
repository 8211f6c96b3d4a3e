"""What is measured between two "train" records, and the steps that were skipped."""

import math
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from bert_jax.training.clock import TRAIN, Clock
from bert_jax.training.flops import peak_flops
from bert_jax.training.objective import Metrics
from bert_jax.training.steps import Outcome

# Steps that the host may have started and not seen the end of.
_STEPS_AHEAD = 2
# Causes of time that a step of training is made of.
_STEP_CAUSES = (TRAIN, "input")


class Stretch(NamedTuple):
    """Steps whose batches have rows of one kind: a phase."""

    phase: int  # its number, from 0
    end: int  # the run's step at which it ends
    flops: float  # of a position, padding or not


class Window:
    """Sums of the metrics since the last "train" record, and what a resumed run must know.

    Metrics are added in float64 in the order of the steps, and the sums go with each checkpoint, so
    that a record whose window straddles a stop is, bit for bit, that of a run without one.

    Attributes:
      skipped: steps of the run that were skipped.
      in_row: those among them that came last, one after the other.
      evaluated: the step of the last evaluation. What begins at random counts as evaluated at
        step 0, of which there is nothing to say.
      best: the step of the best evaluation and its score, where evaluations have one.
    """

    def __init__(self, clock: Clock, stored: Mapping[str, Any]) -> None:
        """`stored` is what `state` gave with the checkpoint to go on from; {} for a new run."""
        self._clock = clock
        peak = peak_flops(jax.devices()[0].device_kind)
        self._peak = peak and peak * jax.device_count()
        self._pending: deque[tuple[int, int, Metrics, Outcome]] = deque()
        self._news: list[dict[str, Any]] = []
        self._restart()
        self._sums |= stored.get("sums", {})
        self._steps, self._skips = stored.get("steps", 0), stored.get("skips", 0)
        self.skipped: int = stored.get("skipped", 0)
        self.in_row: int = stored.get("in_row", 0)
        self.evaluated: int = stored.get("evaluated", 0)
        best = stored.get("best")
        self.best: tuple[int, float] | None = (best[0], best[1]) if best else None

    def _restart(self) -> None:
        self._sums: dict[str, list[float]] = {}
        self._steps = self._skips = self._steps_here = self._positions_here = 0
        self._began = {cause: self._clock.seconds[cause] for cause in _STEP_CAUSES}

    def add(self, step: int, positions: int, metrics: Metrics, outcome: Outcome) -> None:
        """Add a step over a batch of so many positions, padding included.

        Waits for the step two before it, so that the host does not run ahead.
        """
        self._pending.append((step, positions, metrics, outcome))
        if len(self._pending) > _STEPS_AHEAD:
            self._count(*self._pending.popleft())

    def settle(self) -> None:
        """Wait for all steps that were added."""
        while self._pending:
            self._count(*self._pending.popleft())

    def would_be_best(self, score: float) -> bool:
        """Whether an evaluation with this score would be the best; the first of equal ones is."""
        return self.best is None or score > self.best[1]

    def new_skips(self) -> list[dict[str, Any]]:
        """The "skip" records of the steps seen since the last call."""
        news, self._news = self._news, []
        return news

    def state(self) -> dict[str, Any]:
        """What goes with a checkpoint, once settled: JSON of some hundred bytes."""
        return {
            "sums": {name: list(sums) for name, sums in self._sums.items()},
            "steps": self._steps,
            "skips": self._skips,
            "skipped": self.skipped,
            "in_row": self.in_row,
            "evaluated": self.evaluated,
            "best": self.best,
        }

    def record(self, step: int, stretch: Stretch) -> dict[str, Any]:
        """The "train" record of the window, which then starts anew."""
        record = self.so_far(step, stretch)
        spent = self._clock.seconds[TRAIN] - self._began[TRAIN]
        self._clock.move(TRAIN, "skipped steps", spent * self._skips / self._steps)
        self._restart()
        return record

    def so_far(self, step: int, stretch: Stretch) -> dict[str, Any]:
        """What the record would be if it were due; waits for all steps.

        Means are over the steps that were not skipped, None where all were. Speeds are those of
        the steps of this session; of positions that were computed, padding included.
        """
        self.settle()
        means = {name: total / weight for name, (total, weight) in self._sums.items() if weight}
        norm = means.pop("grad_norm", None)
        losses = [means[name] for name in ("mlm_loss", "nsp_loss") if name in means]
        spent = {cause: self._clock.seconds[cause] - began for cause, began in self._began.items()}
        seconds = sum(spent.values())
        positions_per_second = self._positions_here / seconds
        return {
            "kind": "train",
            "step": step,
            "phase": stretch.phase,
            "loss": sum(losses) if losses else None,
            **means,
            "grad_norm": norm,
            "skipped": self._skips,
            "steps_per_second": self._steps_here / seconds,
            "tokens_per_second": positions_per_second,
            "mfu": stretch.flops * positions_per_second / self._peak if self._peak else None,
            "input_wait": spent["input"] / seconds,
        }

    def _count(self, step: int, positions: int, metrics: Metrics, outcome: Outcome) -> None:
        with self._clock(TRAIN):
            metrics, outcome = jax.device_get((metrics, outcome))
        self._steps += 1
        self._steps_here += 1
        self._positions_here += positions
        if outcome.skipped:
            self._skips += 1
            self.skipped += 1
            self.in_row += 1
            self._news.append(_skip_record(step, self.in_row, outcome))
            return
        self.in_row = 0
        for name, (total, weight) in (metrics | {"grad_norm": (outcome.grad_norm, 1)}).items():
            sums = self._sums.setdefault(name, [0.0, 0.0])
            sums[0] += float(total)
            sums[1] += float(weight)


def _skip_record(step: int, in_row: int, outcome: Outcome) -> dict[str, Any]:
    loss, norm = float(outcome.loss), float(outcome.grad_norm)
    if not math.isfinite(loss):
        reason = f"its loss is {loss}"
    elif not math.isfinite(norm):
        reason = f"its gradient's norm is {norm}"
    else:
        reason = f"its gradient's norm, {norm:.4g}, is a spike"
    return {
        "kind": "skip",
        "step": step,
        "reason": reason,
        "in_row": in_row,
        "loss": loss,
        "grad_norm": norm,
    }
