"""On a CPU a state is written from a copy, which is given back when all of it is written."""

import errno
import gc
import mmap
import os
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from bert_jax.errors import UserError
from bert_jax.training.checkpoints import Checkpoints


@pytest.fixture(params=[1, 2])
def state(request) -> dict[str, jax.Array]:
    """Of odd sizes, cut and copied over devices, and a number."""
    devices = jax.devices()[: request.param]
    mesh = jax.make_mesh((len(devices),), ("data",), (AxisType.Auto,), devices=devices)
    kernel = jnp.arange(6 * 35, dtype=jnp.float32).reshape(6, 35)
    return {
        "kernel": jax.device_put(kernel, NamedSharding(mesh, P("data"))),
        "half": jax.device_put(jnp.ones(3, jnp.bfloat16), NamedSharding(mesh, P())),
        "count": jax.device_put(jnp.arange(5), NamedSharding(mesh, P())),
        "step": jax.device_put(jnp.int32(7), NamedSharding(mesh, P())),
    }


def test_the_next_step_takes_over_a_state_that_is_being_written(state, tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path, 1)
    values = {name: np.array(leaf) for name, leaf in state.items()}
    written: dict[str, jax.Array] = {}
    memory: list[np.ndarray] = []

    def begin(_: Any, args: Any) -> None:
        written.update(args.item)
        for leaf in written.values():
            memory.extend(np.asarray(shard.data) for shard in leaf.addressable_shards)

    monkeypatch.setattr(checkpoints._checkpointer, "save", begin)
    checkpoints.save(state, 7, {})
    step = jax.jit(lambda tree: jax.tree.map(jnp.square, tree), donate_argnums=0)
    jax.block_until_ready(step(state))
    assert all(leaf.is_deleted() for leaf in state.values())
    assert {name: leaf.sharding for name, leaf in written.items()} == {
        name: leaf.sharding for name, leaf in state.items()
    }
    for name, leaf in written.items():
        np.testing.assert_array_equal(np.asarray(leaf), values[name])


def test_its_memory_is_given_back_when_it_is_written(state, tmp_path, monkeypatch):
    checkpoints, taken = Checkpoints(tmp_path, 1), []

    def take(*args: int, **flags: int) -> mmap.mmap:
        memory = mmap_of_system(*args, **flags)
        taken.append(weakref.ref(memory))
        return memory

    mmap_of_system = mmap.mmap
    monkeypatch.setattr(mmap, "mmap", take)
    checkpoints.save(state, 7, {})
    monkeypatch.undo()
    checkpoints.close()
    jax.device_put(0)  # JAX lets go of what it was lent in the next call
    gc.collect()
    assert [memory() for memory in taken] == [None]


def test_a_memory_without_room_for_it_is_no_full_disk(state, tmp_path, monkeypatch):
    def refuse(*_: int, **__: int) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(UserError, match=r"allocate memory\); there is none yet; free some memory"):
        Checkpoints(tmp_path, 1).save(state, 7, {})
