"""Stands in for the Python of .venv, of which local_cluster.sh asks a free port and the processes.

At the start number $AT, $SIGNAL comes after the port is asked for and before there are processes.
Those of the starts before end with 75; those of that one wait to be ended.
"""

import os
import signal
import sys
import time
from pathlib import Path


def main() -> None:
    starts, at = Path("starts"), int(os.environ["AT"])
    if sys.argv[1] == "-c":
        with starts.open("a") as file:
            file.write("a start\n")
    number = len(starts.read_text().splitlines())
    if sys.argv[1] != "-c":
        if number < at:
            sys.exit(75)
        time.sleep(10)
        sys.exit("nothing was passed on")
    if number == at:
        if os.environ["SIGNAL"] == "SIGINT":
            os.killpg(0, signal.SIGINT)  # as a terminal sends it
        else:
            os.kill(os.getpgrp(), signal.Signals[os.environ["SIGNAL"]])  # the launcher
    print(1234)


if __name__ == "__main__":
    main()
