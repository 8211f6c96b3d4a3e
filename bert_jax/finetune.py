"""python -m bert_jax.finetune: fine-tune a pretrained model on a task, and score it.

A run lives in its directory, --workdir: config, checkpoints, metrics, predictions, report, and the
model, which predict and transformers load. The same command on the same directory goes on.
"""

import sys

from bert_jax.allocator import restart_with_allocator
from bert_jax.errors import UserError, run_main
from bert_jax.finetune_config import FinetuneConfig
from bert_jax.flags import Parser, parse
from bert_jax.terminal import outlive_terminal
from bert_jax.training.clock import Clock, process_age
from bert_jax.training.stopping import RESUME_EXIT_CODE, exit_at_signals, ignore_signals

_EXAMPLES = """examples:
  python -m bert_jax.finetune --config=classify --init_from=runs/books \\
      --config.task.train=reviews.csv --config.task.text_column=review --workdir=runs/reviews
      one's own table: a text and a label a row; a tenth of it is held out to score
  python -m bert_jax.finetune --config=glue:sst2 --init_from=google-bert/bert-base-uncased
      a task of GLUE, fetched by TFDS
  python -m bert_jax.finetune --config=glue:rte --init_from=bert-base --sweep --seeds=3
      the paper's grid, three seeds each, picked by the score on dev
  python -m bert_jax.finetune --config=squad --init_from=bert-base \\
      --config.task.train=train-v1.1.json --config.task.dev=dev-v1.1.json
      questions answered by a stretch of a text
"""


def main() -> None:
    """Parse the command line and fine-tune."""
    outlive_terminal()
    exit_at_signals()
    parser = Parser(prog="python -m bert_jax.finetune", description=__doc__, epilog=_EXAMPLES)
    parser.add_argument(
        "--sweep",
        nargs="*",
        metavar="FIELD=VALUE,VALUE",
        help="run all combinations of values, and print their scores; the paper's grid where no "
        "field is given: batch_size=16,32 optimizer.learning_rate=5e-5,3e-5,2e-5 epochs=2,3,4",
    )
    parser.add_argument(
        "--seeds",
        type=int,
        default=1,
        metavar="N",
        help="runs of each combination of a sweep; without one, of the settings as they are",
    )
    arguments, config = parse(parser, schema=FinetuneConfig)
    directory = arguments.workdir
    restart_with_allocator()
    # Only now, for it takes seconds: --help and mistakes are answered at once.
    if arguments.sweep is None and arguments.seeds == 1:
        from bert_jax.finetuning import finetune

        finished = finetune(config, directory, Clock(process_age()), arguments.distributed)
    else:
        from bert_jax.sweep import parse_grid, sweep
        from bert_jax.training.cluster import joins_others

        if arguments.seeds < 1:
            raise UserError(f"--seeds={arguments.seeds}: must be at least 1")
        # A process can join the others once, and so for one run.
        if joins_others(arguments.distributed):
            raise UserError(
                "--sweep, --seeds: run on one process: leave out --distributed and "
                "JAX_NUM_PROCESSES"
            )
        grid = {} if arguments.sweep is None else parse_grid(arguments.sweep)
        finished = sweep(config, grid, arguments.seeds, directory)
    ignore_signals()
    if not finished:
        sys.exit(RESUME_EXIT_CODE)


if __name__ == "__main__":
    run_main(main)
