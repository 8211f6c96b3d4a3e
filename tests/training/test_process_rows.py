"""Processes whose devices alternate along the mesh feed their own rows. Run as a script, it is one.

The order of the network puts devices of different hosts next to each other on most slices.
"""

import sys

from peers import two_peers

BATCH = 16


def peer(rank: int, port: int) -> None:
    """Place a batch from this process's rows, and print which, and the sum that it should have."""
    import jax
    import numpy as np
    from jax.sharding import AxisType, Mesh

    from bert_jax.training.sharding import MESH_AXES, process_rows, shard_batch

    jax.distributed.initialize(f"localhost:{port}", 2, rank)
    # 0 1 of the first process, 2 3 of the second.
    devices = np.array(sorted(jax.devices(), key=lambda device: device.id))[[0, 2, 1, 3]]
    mesh = Mesh(devices.reshape(2, 2, 1), MESH_AXES, axis_types=(AxisType.Auto,) * 3)
    rows = process_rows(mesh, BATCH)
    numbers = np.arange(BATCH * 3).reshape(BATCH, 3)
    placed = shard_batch(mesh, {"x": numbers[rows]})["x"]
    assert placed.shape == numbers.shape
    for shard in placed.addressable_shards:
        np.testing.assert_array_equal(shard.data, numbers[shard.index])
    print(rows.tolist())


def test_processes_whose_devices_alternate_feed_their_own_rows():
    said = [out.strip() for out, _ in two_peers(__file__)]
    assert said == [str([0, 1, 2, 3, 8, 9, 10, 11]), str([4, 5, 6, 7, 12, 13, 14, 15])]


if __name__ == "__main__":
    peer(int(sys.argv[1]), int(sys.argv[2]))
