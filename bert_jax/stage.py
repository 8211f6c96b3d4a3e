"""python -m bert_jax.stage: copy token shards to a local disk, checked by their checksums.

Training reads its shards at random, which a bucket or a network drive is slow at. On each host of a
pod this brings them over first; what is there already and whole is not copied again.
"""

import time
from pathlib import Path

from bert_jax.data.staging import stage
from bert_jax.errors import run_main
from bert_jax.flags import Parser

_EXAMPLES = """examples:
  python -m bert_jax.stage ~/gcs/data/books ~/staged/books
      from a bucket that is mounted at ~/gcs
"""


def main() -> None:
    """Parse the command line and copy."""
    parser = Parser(prog="python -m bert_jax.stage", description=__doc__, epilog=_EXAMPLES)
    parser.add_argument("source", type=Path, help="directory of token shards, made by prepare")
    parser.add_argument("directory", type=Path, help="where to have them")
    arguments = parser.parse_args()
    start = time.perf_counter()
    staged = stage(arguments.source, arguments.directory)
    print(
        f"{arguments.directory}: {staged.files} files, each checked; {staged.copied} copied, "
        f"{staged.copied_bytes / 2**20:,.1f} MiB in {time.perf_counter() - start:,.1f} s"
    )


if __name__ == "__main__":
    run_main(main)
