"""Two processes of a test file that is run as a script, each with two virtual CPU devices."""

import os
import subprocess
import sys
from pathlib import Path

from small_run import free_port

TESTS = Path(__file__).parent
SECONDS = 180


def two_peers(script: str, *arguments: str) -> list[tuple[str, str]]:
    """What each says on its two streams; it gets its rank, a port to meet at, and `arguments`."""
    port = free_port()
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)]),
    }
    peers = [
        subprocess.Popen(
            [sys.executable, script, str(rank), str(port), *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [peer.communicate(timeout=SECONDS) for peer in peers]
    finally:
        for peer in peers:
            peer.kill()
    assert [peer.returncode for peer in peers] == [0, 0], said
    return said
