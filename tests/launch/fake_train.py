"""Stands in for `python -m bert_jax.train` on a TPU host.

What it comes to is told by "trains" in state.json: for each start, an exit code of all hosts, one a
host, or "hang" (until SIGTERM). A start brings a new checkpoint where "checkpoints" says so.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path


def main() -> None:
    cloud, host = Path(os.environ["FAKE_CLOUD"]), os.environ["FAKE_HOST"]
    arguments = sys.argv[3:]  # after -m bert_jax.train
    number = len(list((cloud / "starts").glob(f"{host}.*.json")))
    state = json.loads((cloud / "state.json").read_text())
    play = state["trains"][min(number, len(state["trains"]) - 1)]
    if isinstance(play, list):
        play = play[int(host.rpartition("-")[2])]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
    flags = dict(argument.split("=", 1) for argument in arguments[:4] if "=" in argument)
    assert (Path(flags["--config.data.dir"]) / "manifest.json").is_file()
    if number < state["checkpoints"]:
        step = 100 * (number + 1)
        Path(flags["--workdir"], f"checkpoints/{step}").mkdir(parents=True, exist_ok=True)
    print(f"step 1 on {host}", flush=True)
    told = cloud / "starts" / f"{host}.{number}.json"
    told.with_suffix(".tmp").write_text(json.dumps(arguments))
    told.with_suffix(".tmp").rename(told)
    while play == "hang":
        time.sleep(0.02)
    print(f"this is the end with {play}", flush=True)
    sys.exit(play)


if __name__ == "__main__":
    main()
