"""Stands in for kubectl on PATH: checks each call as the real one would, and plays a cluster.

"jobset" in state.json holds the states that a JobSet goes through, one a look: "", "Completed" or
"Failed". What is applied is kept in manifest.yaml; every call is written to calls.jsonl.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

CLOUD = Path(os.environ["FAKE_CLOUD"])
# Of kubectl 1.32 (`kubectl VERB --help`); after "/" those without a value.
FLAGS = {
    "apply": "--filename --namespace --output / --server-side",
    "get": "--namespace --output --selector / --ignore-not-found",
    "delete": "--namespace --cascade --timeout / --ignore-not-found --wait",
    "logs": "--container --max-log-requests --namespace --selector --since --tail / "
    "--follow --ignore-errors --prefix --timestamps",
}


def fail(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(1)


def parse(arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    """The words and the flags; ends as kubectl does where one is bad."""
    verb, *rest = arguments
    if verb not in FLAGS:
        fail(f'unknown command "{verb}" for "kubectl"')
    valued, plain = (set(part.split()) for part in FLAGS[verb].split("/"))
    words, flags = [verb], {}
    for word in rest:
        flag, equals, value = word.partition("=")
        if not word.startswith("-"):
            words.append(word)
        elif flag not in (valued if equals else plain):
            fail(f"unknown flag: {word}")
        else:
            flags[flag] = value
    return words, flags


def answer(words: list[str], flags: dict[str, str], state: dict[str, Any]) -> None:
    there = bool(state["name"])
    if not there and words[0] in ("get", "delete"):
        if "--ignore-not-found" not in flags:
            fail("NotFound")
        return
    match words:
        case ["apply"] if flags.get("--filename") == "-":
            if there:
                fail("the JobSet is there: its spec is immutable")
            (CLOUD / "manifest.yaml").write_text(sys.stdin.read())
            state |= {"name": "there", "look": -1}
        case ["get", "jobset", _]:
            if flags.get("--output") != "jsonpath=there/{.status.terminalState}":
                fail("a template that this stand-in does not know")
            state["look"] = min(state["look"] + 1, len(state["jobset"]) - 1)
            print("there/" + state["jobset"][state["look"]], end="")
        case ["delete", "jobset", _]:
            state["name"] = ""
        case ["logs"] if "--selector" in flags:
            print("[pod/bert-slice-0-0-abcde/train] step 1")
        case _:
            fail(f"unknown: {words}")


def main() -> None:
    with (CLOUD / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps(["kubectl", *sys.argv[1:]]) + "\n")
    words, flags = parse(sys.argv[1:])
    path = CLOUD / "state.json"
    state = json.loads(path.read_text())
    if state["failing"]:
        fail("Unable to connect to the server")
    answer(words, flags, state)
    path.write_text(json.dumps(state))


if __name__ == "__main__":
    main()
