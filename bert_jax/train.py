"""python -m bert_jax.train: pretrain BERT, from text or token shards to a model and its report.

A run lives in its directory, --workdir: config, tokenizer, checkpoints, metrics, report. The same
command on the same directory goes on from its newest checkpoint.
"""

import sys

from bert_jax.allocator import restart_with_allocator
from bert_jax.errors import run_main
from bert_jax.flags import Parser, parse
from bert_jax.terminal import outlive_terminal
from bert_jax.training.clock import Clock, process_age
from bert_jax.training.stopping import RESUME_EXIT_CODE, exit_at_signals, ignore_signals

_EXAMPLES = """examples:
  python -m bert_jax.train --config=tiny
      the embedded corpus, minutes on a laptop CPU
  python -m bert_jax.train --config=base --config.data.dir=data/books --workdir=runs/books
      the paper's recipe on one's own text, prepared by python -m bert_jax.prepare
  python -m bert_jax.train --config=tiny '--config.phases[0].steps=500' --config.mesh.fsdp=2
      a recipe with fields changed
  python -m bert_jax.train --config=base --init_from=bert-base --config.data.dir=data/books
      going on from a published checkpoint, on text prepared with --vocab=bert-base
"""


def main() -> None:
    """Parse the command line and pretrain."""
    outlive_terminal()
    exit_at_signals()
    parser = Parser(prog="python -m bert_jax.train", description=__doc__, epilog=_EXAMPLES)
    arguments, config = parse(parser)
    restart_with_allocator()
    # Only now, for it takes seconds: --help and mistakes are answered at once.
    from bert_jax.pretraining import train

    finished = train(config, arguments.workdir, Clock(process_age()), arguments.distributed)
    ignore_signals()
    if not finished:
        sys.exit(RESUME_EXIT_CODE)


if __name__ == "__main__":
    run_main(main)
