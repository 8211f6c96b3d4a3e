"""What a fine-tuned model says of examples that it is not trained on, and how good that is."""

from typing import Any

from bert_jax.finetune_data import Data, Outputs, Scored
from bert_jax.finetune_results import Predicted
from bert_jax.tasks.inference import Inference
from bert_jax.tasks.task import Task
from bert_jax.training.loop import Run, before_scoring


class Scoring:
    """Asks a run's model about its examples; each method raises `Stopped` where it is to stop."""

    def __init__(self, run: Run, data: Data, inference: Inference) -> None:
        """What the best state says of dev is kept: the end of the run need not ask again."""
        self._run, self._data, self._inference = run, data, inference
        self._best: tuple[int, Outputs] | None = None

    def dev_scores(self, step: int, params: Any) -> dict[str, float]:
        """The scores on dev of the state of `step`."""
        task, dev = self._data.task, self._data.dev
        outputs = self._outputs(dev, params)
        scores = task.scores(dev.examples, dev.predictions(task, outputs))
        if self._run.window.would_be_best(scores[task.score]):
            self._best = step, outputs
        return scores

    def results(self, step: int, params: Any) -> tuple[Task, list[Predicted]]:
        """What the state of `step` says of all examples, and its scores.

        Returns:
          The task, with what it chose on dev (a threshold, say), and the sets: dev first.
        """
        task, results = self._data.task, []
        kept = {"dev": self._best[1]} if self._best and self._best[0] == step else {}
        for path, scored in ({"dev": self._data.dev} | self._data.others).items():
            outputs = kept.get(path) or self._outputs(scored, params)
            if path == "dev":
                # With what is tuned on them, the predictions of dev may be others.
                task = task.tuned(scored.examples, scored.predictions(task, outputs))
            said = scored.predictions(task, outputs)
            labelled = path == "dev" or all("label" in prediction for prediction in said)
            scores = task.scores(scored.examples, said) if labelled else {}
            results.append(Predicted(path, said, scores))
        return task, results

    def _outputs(self, scored: Scored, params: Any) -> Outputs:
        sequences = sum(map(len, scored.features))

        def between(done: int) -> None:
            told = f"scoring: {done:,} of {sequences:,} sequences"
            before_scoring(self._run, "step", told)

        return scored.outputs(self._inference, params, between)
