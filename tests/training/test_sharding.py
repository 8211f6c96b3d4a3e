"""Where arrays lie on a mesh, how slices make one, and that the training is the same on any."""

import dataclasses
import functools
import itertools
import re
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from bert_jax.config import BertConfig, Config, MeshConfig, OptimizerConfig, model_size
from bert_jax.errors import UserError
from bert_jax.models import BertForPreTraining
from bert_jax.training.checkpoints import Checkpoints
from bert_jax.training.objective import pretraining
from bert_jax.training.optimizer import make_optimizer
from bert_jax.training.sharding import check_mesh, make_mesh, process_rows, shard_batch
from bert_jax.training.state import TrainState, abstract_state, create_state
from bert_jax.training.steps import compile_train_step

STEPS = 6
BATCH, LENGTH, PREDICTIONS = 16, 16, 4
MODEL = BertConfig(
    vocab_size=93,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=16,
    vocab_multiple=8,
)


@dataclasses.dataclass(frozen=True)
class SliceDevice:
    """A device that says it is of a slice, as those of TPUs do."""

    device: Any
    slice_index: int

    @property
    def device_kind(self) -> str:
        return self.device.device_kind

    @property
    def platform(self) -> str:
        return self.device.platform


def mesh_of_two_slices(config: MeshConfig) -> Mesh:
    """A mesh of devices whose slices alternate, as JAX may list them."""
    devices: list[Any] = [SliceDevice(device, device.id % 2) for device in jax.devices()]
    mesh = make_mesh(config, devices)
    real = np.array([each.device for each in mesh.devices.flat]).reshape(mesh.devices.shape)
    return Mesh(real, mesh.axis_names, axis_types=mesh.axis_types)


def program(config: Config) -> tuple[Any, Any]:
    return pretraining(BertForPreTraining(config.model)), make_optimizer(config.optimizer, STEPS)


def make_abstract(config: Config, mesh: Mesh) -> TrainState:
    return abstract_state(*program(config), mesh, config.mesh.shard_optimizer)


def shards(leaf: Any) -> int:
    """In how many different parts an array lies on its mesh."""
    return leaf.size // np.prod(leaf.sharding.shard_shape(leaf.shape))


def names(tree: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


@pytest.mark.parametrize("size", ["base", "large"])
def test_fsdp_leaves_no_more_than_two_thousandths_whole(size: str):
    config = Config(model=model_size(size), mesh=MeshConfig(data=1, fsdp=8))
    leaves = jax.tree.leaves(make_abstract(config, make_mesh(config.mesh)))
    assert {shards(leaf) for leaf in leaves} == {1, 8}
    whole = sum(leaf.size for leaf in leaves if shards(leaf) == 1)
    assert whole < 0.002 * sum(leaf.size for leaf in leaves)


@pytest.mark.parametrize("rule", ["adam_original", "adamw", "lamb", "muon"])
@pytest.mark.parametrize("shape", [(8, 1, 1), (4, 1, 2), (2, 2, 2)])
def test_the_optimizer_is_spread_over_all_devices_where_parameters_are_not(rule, shape):
    data, fsdp, tensor = shape
    mesh_config = MeshConfig(data=data, fsdp=fsdp, tensor=tensor, shard_optimizer=True)
    config = Config(
        model=model_size("base"), mesh=mesh_config, optimizer=OptimizerConfig(name=rule)
    )
    state = make_abstract(config, make_mesh(config.mesh))
    for moment in (leaf for leaf in jax.tree.leaves(state.opt_state) if leaf.size > 100_000):
        assert shards(moment) >= data * fsdp, moment
    for name, leaf in names(state.params).items():
        assert "data" not in jax.tree.leaves(tuple(leaf.sharding.spec)), name


def test_no_layer_of_a_scan_is_cut_from_the_others():
    config = Config(
        model=dataclasses.replace(MODEL, num_hidden_layers=8, scan_layers=True),
        mesh=MeshConfig(data=8, shard_optimizer=True),
    )
    state = make_abstract(config, make_mesh(config.mesh))
    kernels = [leaf for name, leaf in names(state.opt_state).items() if "layer/" in name]
    assert kernels
    assert all(leaf.sharding.spec[:1] in ((), (None,), PartitionSpec(None)) for leaf in kernels)


def test_heads_are_not_cut_but_on_a_tpu():
    """A GPU joins queries, keys and values along a head's dimensions."""
    config = Config(model=model_size("base"), mesh=MeshConfig(data=1, fsdp=8))
    params = names(make_abstract(config, make_mesh(config.mesh)).params)
    kernels = [leaf for name, leaf in params.items() if re.search("(query|key|value)/kernel", name)]
    assert len(kernels) == 3 * config.model.num_hidden_layers
    assert {shards(leaf) for leaf in kernels} == {8}
    assert {leaf.sharding.shard_shape(leaf.shape)[-2:] for leaf in kernels} == {(12, 64)}


def test_slices_lie_one_after_the_other_along_data():
    mesh = mesh_of_two_slices(MeshConfig(data=4, tensor=2))
    odd = np.array([[device.id % 2 for device in row.flat] for row in mesh.devices])
    assert odd.tolist() == [[0, 0], [0, 0], [1, 1], [1, 1]]


@pytest.mark.parametrize("shape", [(1, 8, 1), (1, 4, 2), (1, 1, 8)])
def test_an_axis_that_would_cross_slices_is_refused(shape):
    data, fsdp, tensor = shape
    with pytest.raises(UserError, match="data=1 is not a multiple of the 2 slices"):
        mesh_of_two_slices(MeshConfig(data=data, fsdp=fsdp, tensor=tensor))


def test_devices_can_be_given():
    mesh = make_mesh(MeshConfig(tensor=2), jax.devices()[4:])
    assert mesh.shape == {"data": 2, "fsdp": 1, "tensor": 2}
    assert {device.id for device in mesh.devices.flat} == {4, 5, 6, 7}


def test_a_mesh_that_does_not_make_the_devices_is_refused():
    with pytest.raises(UserError, match="data=3 fsdp=1 tensor=1 does not make 8 devices"):
        make_mesh(MeshConfig(data=3))


def test_a_batch_too_small_for_the_devices_is_refused():
    config = Config(model=MODEL)
    config.optimizer.accumulate = 4
    mesh = make_mesh(MeshConfig())
    with pytest.raises(UserError, match=r"size=16 over .*accumulate=4 must .* 8, .* at least 32"):
        check_mesh(config, {"size": 16}, mesh)
    check_mesh(config, {"size": 32}, mesh)


def test_a_process_feeds_its_rows_in_their_order_however_devices_lie():
    devices = np.array(jax.devices())[[5, 2, 7, 0, 3, 6, 1, 4]].reshape(4, 2, 1)
    mesh = Mesh(devices, ("data", "fsdp", "tensor"))
    rows = process_rows(mesh, 16)
    assert rows.tolist() == list(range(16))
    placed = shard_batch(mesh, {"x": np.arange(100, 116)[rows]})["x"]
    assert np.asarray(placed).tolist() == list(range(100, 116))


def test_a_checkpoint_goes_on_with_the_optimizer_spread_and_gathered_again(tmp_path):
    def config(**mesh: Any) -> Config:
        return Config(model=MODEL, mesh=MeshConfig(**mesh))

    kinds = [config(), config(shard_optimizer=True), config(data=2, fsdp=4, shard_optimizer=True)]
    states = []
    for step, each in enumerate(kinds):
        mesh = make_mesh(each.mesh)
        with jax.set_mesh(mesh):
            abstract = make_abstract(each, mesh)
            checkpoints = Checkpoints(tmp_path, 3)
            restored = checkpoints.restore(abstract)
            state = restored[0] if restored else create_state(*program(each), abstract, seed=3)
            state = dataclasses.replace(state, opt_state=jax.tree.map(_stirred, state.opt_state))
            states.append((restored[0] if restored else None, state))
            checkpoints.save(state, step, {})
            checkpoints.close()
    for (_, saved), (restored, _) in itertools.pairwise(states):
        jax.tree.map(np.testing.assert_array_equal, restored, saved)


def _stirred(leaf: jax.Array) -> jax.Array:
    """Other values, in the same sharding."""
    return leaf + 1


def random_batch(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shape, ids = (BATCH, LENGTH), (5, MODEL.vocab_size)
    counts = rng.integers(1, PREDICTIONS + 1, BATCH)
    return {
        "input_ids": rng.integers(*ids, shape).astype(np.int32),
        "token_type_ids": rng.integers(0, 2, shape).astype(np.int32),
        "attention_mask": (np.arange(LENGTH) < rng.integers(6, LENGTH, BATCH)[:, None]).astype(int),
        "masked_lm_positions": rng.integers(1, 6, (BATCH, PREDICTIONS)).astype(np.int32),
        "masked_lm_ids": rng.integers(*ids, (BATCH, PREDICTIONS)).astype(np.int32),
        "masked_lm_weights": (np.arange(PREDICTIONS) < counts[:, None]).astype(np.float32),
        "next_sentence_labels": rng.integers(0, 2, BATCH).astype(np.int32),
        "next_sentence_weights": np.ones(BATCH, np.float32),
    }


def mesh_of(data: int = 1, fsdp: int = 1, tensor: int = 1, slices: int = 1) -> Mesh:
    config = MeshConfig(data=data, fsdp=fsdp, tensor=tensor)
    if slices == 2:
        return mesh_of_two_slices(config)
    return make_mesh(config, jax.devices()[: data * fsdp * tensor])


@functools.cache
def trained(rule: str, gradient_dtype: str = "float32", sharded: bool = False, **axes: int):
    """The losses of some steps with dropout, and the parameters after them."""
    model = dataclasses.replace(MODEL, gradient_dtype=gradient_dtype)
    config = Config(model=model, optimizer=OptimizerConfig(name=rule))
    config.optimizer.learning_rate, config.optimizer.warmup_steps = 1e-2, 2
    config.mesh.shard_optimizer = sharded
    objective, optimizer = program(config)
    mesh = mesh_of(**axes)
    with jax.set_mesh(mesh):
        abstract = make_abstract(config, mesh)
        state = create_state(objective, optimizer, abstract, seed=3)
        step = compile_train_step(
            abstract, objective, optimizer, accumulate=1, shard_optimizer=sharded
        )
        losses = []
        for index in range(STEPS):
            state, _, outcome = step(state, shard_batch(mesh, random_batch(index)), 3)
            losses.append(float(outcome.loss))
    return np.array(losses), jax.tree.map(np.asarray, state.params)


MESHES = [
    ("adamw", {"data": 8, "slices": 2, "sharded": True}),
    ("adamw", {"fsdp": 8}),
    ("adamw", {"data": 2, "fsdp": 2, "tensor": 2, "sharded": True}),
    *(
        pytest.param(*more, marks=pytest.mark.exhaustive)
        for more in (
            ("adamw", {"data": 8}),
            ("adamw", {"data": 4, "tensor": 2}),
            ("adamw", {"fsdp": 4, "tensor": 2}),
            ("adamw", {"data": 2, "fsdp": 2, "tensor": 2}),
            ("lamb", {"data": 8, "sharded": True}),
            ("muon", {"data": 8, "sharded": True}),
        )
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "mesh"), MESHES, ids=str)
def test_the_training_is_that_of_one_device(rule: str, mesh: dict[str, Any]):
    losses, params = trained(rule)
    cut_losses, cut = trained(rule, **mesh)
    np.testing.assert_allclose(cut_losses, losses, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 2e-3, 2e-5), cut, params)
    assert losses[-1] < losses[0]


@pytest.mark.slow
def test_gradients_added_up_in_bfloat16_differ_by_their_rounding():
    losses, params = trained("lamb")
    rounded_losses, rounded = trained("lamb", gradient_dtype="bfloat16", data=8)
    np.testing.assert_allclose(rounded_losses, losses, rtol=2e-3)
    moved, end = (
        np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)])
        for tree in (jax.tree.map(np.subtract, rounded, params), params)
    )
    # A gradient has 8 significant bits.
    assert 0 < np.linalg.norm(moved) < 2**-7 * np.linalg.norm(end)
