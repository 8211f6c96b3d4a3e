"""Checkpoints of several processes: all go on from the same step. Run as a script, it is one."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from peers import two_peers


def peer(rank: int, port: int, run: Path, steps: list[int]) -> None:
    """Say what is restored, then save `steps`."""
    import jax
    import numpy as np
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    from bert_jax.errors import UserError
    from bert_jax.training.checkpoints import Checkpoints

    jax.distributed.initialize(f"localhost:{port}", 2, rank)
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec("x"))
    numbers = np.random.default_rng(0).normal(size=64).astype(np.float32)

    def state(step: int) -> dict[str, jax.Array]:
        return {"x": jax.make_array_from_callback((64,), sharding, lambda i: numbers[i] + step)}

    checkpoints = Checkpoints(run, 3)
    try:
        restored: Any = checkpoints.restore(
            {"x": jax.ShapeDtypeStruct((64,), np.float32, sharding=sharding)}
        )
    except UserError as error:
        print("refused:", error, flush=True)
        return
    if restored:
        step = restored[1]["step"]
        for shard in restored[0]["x"].addressable_shards:
            np.testing.assert_array_equal(shard.data, numbers[shard.index] + step)
        print(f"restored {step}\n", end="", flush=True)
    for step in steps:
        checkpoints.save(state(step), step, {"step": step})
    checkpoints.close()


def in_two(run: Path, *steps: int) -> list[tuple[str, str]]:
    return two_peers(__file__, str(run), *map(str, steps))


def both_say(what: str, said: list[tuple[str, str]]) -> bool:
    """Whether they do, between lines of Gloo's."""
    return all(what in out for out, _ in said)


@pytest.mark.slow
def test_two_processes_go_on_from_the_same_step(tmp_path):
    folder = tmp_path / "checkpoints"
    in_two(tmp_path, 1, 2, 3)
    assert both_say("restored 3\n", in_two(tmp_path))

    # Its files are damaged: process 0 sees it.
    (folder / "3/manifest.ocdbt").unlink()
    said = in_two(tmp_path)
    assert both_say("restored 2\n", said)
    assert sum(err.count("damaged: manifest.ocdbt is missing; set aside") for _, err in said) == 1

    # Its arrays are not those that were fingerprinted: all see it.
    from bert_jax.training.seal import SEAL_FILE, read_seal, write_seal

    content = read_seal(folder / "2")
    content["arrays"]["x"]["fingerprint"] = "00000000"
    (folder / "2" / SEAL_FILE).unlink()
    write_seal(folder / "2", {name: content[name] for name in ("arrays", "window")})
    said = in_two(tmp_path)
    assert both_say("restored 1\n", said)
    assert sum(err.count("damaged: x is not what was saved; set aside") for _, err in said) == 1

    (folder / "1" / SEAL_FILE).unlink()
    said = in_two(tmp_path)
    assert both_say("no checkpoint is whole", said), said
    assert sorted(os.listdir(folder / "damaged")) == ["1-3", "2-2", "3-1"]


if __name__ == "__main__":
    peer(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), [int(n) for n in sys.argv[4:]])
