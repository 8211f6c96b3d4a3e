"""A cloud on this machine, on which the launch scripts run as they are."""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
FAKES = ROOT / "tests/launch"
PLACE = ["--project=my-project", "--zone=us-west4-a"]
RUN = [
    *PLACE,
    *("--name=bert", "--accelerator=v5litepod-16", "--bucket=my-bucket"),
    *("--data=data/books", "--workdir=runs/books"),
]
ACTIVE = ["ACTIVE"]
# As a time limit of a test, in seconds, on a machine that does other things too.
LIMIT = 120


def write_program(path: Path, source: Path) -> None:
    """A program that does not look for packages, to start in 10 ms."""
    path.write_text(f"#!{sys.executable} -IS\n{source.read_text()}")
    path.chmod(0o755)


def finish(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """Wait for a launcher to end; all that it said is in the failure where it does not."""
    try:
        output, errors = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate(timeout=LIMIT)
        pytest.fail(f"{process.args} did not end in {LIMIT} s:\n{output}{errors}")
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


class Cloud:
    """A bucket, a checkout with the launchers, and what is to happen (see the programs).

    Attributes:
      folder: where all of it is.
      launcher: folder of the scripts.
    """

    def __init__(self, folder: Path) -> None:
        """An empty project with token shards in its bucket."""
        self.folder = folder
        self.launcher = folder / "checkout/launch"
        for name in ("bin", "host_bin", "starts", "buckets/my-bucket/data/books/tokenizer"):
            (folder / name).mkdir(parents=True)
        (folder / "buckets/my-bucket/data/books/manifest.json").write_text("{}")
        write_program(folder / "bin/gcloud", FAKES / "fake_gcloud.py")
        write_program(folder / "bin/kubectl", FAKES / "fake_kubectl.py")
        write_program(folder / "host_bin/fake_train", FAKES / "fake_train.py")
        shutil.copy(FAKES / "fake_host.sh", folder / "host_bin/fake_host")
        (folder / "host_bin/fake_host").chmod(0o755)
        pythons = ("python3", "python3.11", "python3.12", "python3.13")
        for name in ("sudo", "curl", "lsb_release", "mountpoint", *pythons):
            (folder / "host_bin" / name).symlink_to(folder / "host_bin/fake_host")
        shutil.copytree(ROOT / "launch", self.launcher)
        for name in ("setup.py", "constraints.txt"):
            shutil.copy(ROOT / name, self.launcher.parent)
        self._git("init", "-q")
        self._git("add", ".")
        self._git("-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qm", "all")
        self.plan([ACTIVE], [0])

    def _git(self, *arguments: str) -> None:
        subprocess.run(["git", *arguments], cwd=self.launcher.parent, check=True)

    def plan(self, lives: list[list[str]], trains: list[Any], **more: Any) -> None:
        """Set what is to happen.

        Args:
          lives: for each time that the TPUs are asked for, their states, one a look.
          trains: for each start of training, its exit code on all hosts or each, or "hang".
          more: `workers` of a slice, how many starts bring `checkpoints`, how many calls find the
            hosts `unreachable` or the service `failing`.
        """
        nothing = {"name": "", "nodes": [], "made": 0, "look": -1, "unreachable": 0, "failing": 0}
        state = nothing | {"lives": lives, "trains": trains, "workers": 2, "checkpoints": 0} | more
        (self.folder / "state.json").write_text(json.dumps(state))

    def start(self, script: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Start a launcher; it and what it starts are a group, as in a terminal."""
        path = f"{self.folder / 'bin'}:/usr/local/bin:/usr/bin:/bin"
        return subprocess.Popen(
            ["bash", str(self.launcher / script), *arguments],
            env={"PATH": path, "HOME": str(self.folder), "FAKE_CLOUD": str(self.folder)}
            | {"BERT_JAX_POLL": "0.1"}
            | environment,
            cwd=self.folder,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(
        self, script: str, *arguments: str, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a launcher to its end."""
        return finish(self.start(script, *arguments, **environment))

    def calls(self, *words: str) -> list[list[str]]:
        """The calls of programs that hold all these words, in order."""
        path = self.folder / "calls.jsonl"
        calls = (
            [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        )
        return [call for call in calls if set(words) <= set(call)]

    def trained(self) -> dict[str, list[str]]:
        """The arguments of each start on each host, by HOST.NUMBER."""
        paths = sorted((self.folder / "starts").glob("*.json"))
        return {path.stem: json.loads(path.read_text()) for path in paths}

    @property
    def has_tpus(self) -> bool:
        """Whether anything is there that costs."""
        return bool(json.loads((self.folder / "state.json").read_text())["name"])

    def close(self) -> None:
        """End what still runs on the hosts."""
        for pid in (self.folder / "hosts").glob("*/bert_jax_run/pid"):
            with suppress(OSError, ValueError):
                os.killpg(int(pid.read_text()), signal.SIGKILL)
