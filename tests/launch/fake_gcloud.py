"""Stands in for gcloud on PATH: checks each call as the real one would, and plays a cloud.

What happens is told by state.json in $FAKE_CLOUD (see `fake_cloud.py`): the states that a queued
resource goes through, one a look, for each time that it is made. The hosts are folders, in which
what comes by ssh is run. Every call is written to calls.jsonl.
"""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

CLOUD = Path(os.environ["FAKE_CLOUD"])
# Of gcloud 528, by its own table for command completion (data/cli/gcloud_completions.py); after "/"
# those without a value.
PLACE = "--project --zone / --quiet"
FLAGS = {
    "compute tpus queued-resources create": "--accelerator-type --data-disk --description --labels "
    "--metadata --metadata-from-file --network --node-count --node-id --node-prefix --range "
    "--reservation-host-folder --reservation-host-organization --reservation-host-project "
    "--runtime-version --scopes --service-account --subnetwork --tags --topology --type "
    "--valid-after-duration --valid-after-time --valid-until-duration --valid-until-time / "
    "--async --guaranteed --internal-ips --reserved --shielded-secure-boot --spot",
    "compute tpus queued-resources delete": "/ --async --force",
    "compute tpus queued-resources list": "--filter --format --limit --page-size --sort-by / --uri",
    "compute tpus tpu-vm ssh": "--command --output-directory --ssh-flag --ssh-key-expiration "
    "--ssh-key-expire-after --ssh-key-file --strict-host-key-checking --worker / --dry-run "
    "--force-key-file-overwrite --internal-ip --plain",
    "compute tpus tpu-vm scp": "--scp-flag --ssh-key-expiration --ssh-key-expire-after "
    "--ssh-key-file --strict-host-key-checking --worker / --compress --dry-run "
    "--force-key-file-overwrite --internal-ip --plain --recurse",
    "storage ls": "/ --all-versions --buckets --etag --full --json --long --recursive",
}


def fail(message: str, code: int = 1) -> NoReturn:
    print(f"ERROR: (gcloud) {message}", file=sys.stderr)
    sys.exit(code)


def parse(arguments: list[str]) -> tuple[str, list[str], dict[str, str]]:
    """The command, its positional arguments and its flags; ends as gcloud does where one is bad."""
    line = " ".join(arguments)
    command = next((name for name in FLAGS if line.startswith(name + " ")), None)
    if command is None:
        fail(f"Invalid choice: {line}", 2)
    valued, plain = (
        set(f"{ours} {theirs}".split())
        for ours, theirs in zip(FLAGS[command].split("/"), PLACE.split("/"), strict=True)
    )
    positional, flags = [], {}
    for argument in arguments[len(command.split()) :]:
        flag, equals, value = argument.partition("=")
        if not argument.startswith("-"):
            positional.append(argument)
        elif flag not in (valued if equals else plain):
            fail(f"unrecognized arguments: {argument}", 2)
        else:
            flags[flag] = f"{flags[flag]}\n{value}" if flag in flags else value
    if command.startswith("compute"):
        for flag in ("--project", "--zone"):
            if flag not in flags:
                fail(f"{flag} must be specified", 2)
    return command, positional, flags


@contextmanager
def the_cloud() -> Any:
    """What is, alone and written back; who only reads finds it whole."""
    path = CLOUD / "state.json"
    with (CLOUD / "state.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = json.loads(path.read_text())
        try:
            yield state
        finally:
            path.with_suffix(".tmp").write_text(json.dumps(state))
            path.with_suffix(".tmp").replace(path)


def remove_hosts() -> None:
    for pid in (CLOUD / "hosts").glob("*/bert_jax_run/pid"):
        with suppress(OSError, ValueError):
            os.killpg(int(pid.read_text()), signal.SIGKILL)
    shutil.rmtree(CLOUD / "hosts", ignore_errors=True)


def create(positional: list[str], flags: dict[str, str]) -> None:
    if len(positional) != 1 or not re.fullmatch("[a-z][a-z0-9-]*", positional[0]):
        fail("QUEUED_RESOURCE must be one name", 2)
    if ("--node-id" in flags) == ("--node-count" in flags):
        fail("Exactly one of (--node-id | --node-count) must be specified", 2)
    if "--accelerator-type" not in flags or "--runtime-version" not in flags:
        fail("--accelerator-type and --runtime-version must be specified", 2)
    count = int(flags.get("--node-count", 1))
    if "--node-id" not in flags and count < 2:
        fail("--node-count must be at least 2", 2)
    prefix = flags.get("--node-prefix", positional[0])
    nodes = [flags["--node-id"]] if count == 1 else [f"{prefix}-{i}" for i in range(count)]
    with the_cloud() as cloud:
        if cloud["name"]:
            fail("ALREADY_EXISTS: the resource is there already")
        made = cloud["made"]
        cloud |= {"name": positional[0], "nodes": nodes, "made": made + 1, "look": -1}


def states(cloud: dict[str, Any]) -> list[str]:
    return cloud["lives"][min(cloud["made"], len(cloud["lives"])) - 1]


def state_of(cloud: dict[str, Any]) -> str:
    life = states(cloud)
    return life[min(max(cloud["look"], 0), len(life) - 1)]


def listing(flags: dict[str, str]) -> None:
    if flags.get("--format") != "value(state.state)":
        fail("a format that this stand-in does not know", 2)
    pattern = re.fullmatch(r"name~(.*)", flags["--filter"])
    with the_cloud() as cloud:
        if cloud["failing"]:
            cloud["failing"] -= 1
            fail("could not reach the service")
        name = f"projects/1234/locations/{flags['--zone']}/queuedResources/{cloud['name']}"
        if not cloud["name"] or not pattern or not re.search(pattern[1], name):
            return
        cloud["look"] += 1
        state = state_of(cloud)
        if state != "ACTIVE":
            remove_hosts()
        print(state)


def delete(positional: list[str], flags: dict[str, str]) -> None:
    with the_cloud() as cloud:
        if [cloud["name"]] != positional:
            fail("NOT_FOUND: no such queued resource")
        if "--force" not in flags and state_of(cloud) not in ("SUSPENDED", "FAILED"):
            fail("FAILED_PRECONDITION: it has nodes; use --force")
        remove_hosts()
        cloud["name"] = ""


def hosts_of(node: str) -> list[Path]:
    """The home of each worker."""
    with the_cloud() as cloud:
        if node not in cloud["nodes"] or not cloud["name"] or state_of(cloud) != "ACTIVE":
            fail(f"NOT_FOUND: {node} is no TPU that is there")
        if cloud["unreachable"]:
            cloud["unreachable"] -= 1
            fail("[/usr/bin/ssh] exited with return code [255].")
        homes = [CLOUD / f"hosts/{node}-{index}" for index in range(cloud["workers"])]
    for home in homes:
        (home / "bin").mkdir(parents=True, exist_ok=True)
    return homes


def ssh(positional: list[str], flags: dict[str, str]) -> None:
    if len(positional) != 1 or flags.get("--worker") != "all" or "--command" not in flags:
        fail("this stand-in runs a --command on --worker=all")
    running = []
    for home in hosts_of(positional[0]):
        path = [home / "bin", CLOUD / "host_bin", "/usr/local/bin:/usr/bin:/bin"]
        environment = {
            "HOME": str(home),
            "PATH": ":".join(map(str, path)),
            "FAKE_CLOUD": str(CLOUD),
            "FAKE_HOST": home.name,
        }
        command = ["bash", "-c", flags["--command"]]
        running.append(subprocess.Popen(command, cwd=home, env=environment))
    sys.exit(next((code for code in [process.wait() for process in running] if code), 0))


def scp(positional: list[str], flags: dict[str, str]) -> None:
    *sources, target = positional
    node, colon, path = target.partition(":")
    if not colon or not sources or flags.get("--worker") != "all":
        fail("this stand-in copies files to --worker=all")
    for home in hosts_of(node):
        for source in sources:
            shutil.copy(source, home / (path or Path(source).name))


def storage_ls(positional: list[str]) -> None:
    for url in positional:
        bucket, _, path = url.removeprefix("gs://").partition("/")
        place = CLOUD / "buckets" / bucket / path
        if not url.startswith("gs://") or not place.exists():
            fail("(storage.ls) One or more URLs matched no objects.")
        for child in sorted(place.iterdir()) if place.is_dir() else [place]:
            name = child.relative_to(CLOUD / "buckets").as_posix()
            print(f"gs://{name}/" if child.is_dir() else f"gs://{name}")


def main() -> None:
    with (CLOUD / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps(["gcloud", *sys.argv[1:]]) + "\n")
    command, positional, flags = parse(sys.argv[1:])
    match command.split()[-1], command.split()[0]:
        case "create", _:
            create(positional, flags)
        case "delete", _:
            delete(positional, flags)
        case "list", _:
            listing(flags)
        case "ssh", _:
            ssh(positional, flags)
        case "scp", _:
            scp(positional, flags)
        case _:
            storage_ls(positional)


if __name__ == "__main__":
    main()
