"""Stands in for `srun` on a cluster whose nodes are this machine: a process a node, side by side.

As SLURM does, it sets each process's place among them, and exits with the greatest of their codes.
What it was called with, and which processes it started, it writes in the folder of FAKE_SLURM.
"""

import json
import os
import subprocess
import sys
from pathlib import Path


def main() -> None:
    options = [argument for argument in sys.argv[1:4] if argument.startswith("--")]
    command = sys.argv[1 + len(options) :]
    told = Path(os.environ["FAKE_SLURM"])
    (told / "call.json").write_text(json.dumps([options, command]))
    count = os.environ["SLURM_NTASKS"]
    step = {
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_TASKS_PER_NODE": f"1(x{count})",
        "SLURM_LOCALID": "0",
    }
    tasks = []
    for index in range(int(count)):
        place = os.environ | step | {"SLURM_PROCID": str(index)}
        tasks.append(subprocess.Popen(command, env=place))
    (told / "tasks.json").write_text(json.dumps([task.pid for task in tasks]))
    codes = [task.wait() for task in tasks]
    sys.exit(max(128 - code if code < 0 else code for code in codes))


if __name__ == "__main__":
    main()
