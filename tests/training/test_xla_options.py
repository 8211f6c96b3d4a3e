"""The compiler's options of a training step: ours, the user's, and those that it does not take."""

import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from bert_jax.errors import UserError
from bert_jax.planning.topologies import describe_devices, parse_topologies
from bert_jax.training.xla_options import DEFAULTS, check_xla_options, compiler_options


def tpu_mesh(name: str) -> Mesh:
    pytest.importorskip("libtpu", reason="TPU's compiler: pip install libtpu")
    (topology,) = parse_topologies(name)
    devices = describe_devices(topology)
    return jax.make_mesh((len(devices),), ("data",), axis_types=(AxisType.Auto,), devices=devices)


@pytest.fixture
def mesh() -> Mesh:
    return jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))


@pytest.mark.parametrize(
    ("topology", "expected"),
    [
        ("v4:2x2x1", {"xla_tpu_dot_dot_fusion": False}),
        ("v5e:2x2", DEFAULTS["TPU v5 lite"]),
        ("v5p:2x2x1", {"xla_tpu_dot_dot_fusion": False}),
        ("v6e:2x2", DEFAULTS["TPU v6 lite"]),
    ],
)
def test_the_tpu_s_compiler_takes_ours(topology, expected):
    mesh = tpu_mesh(topology)
    check_xla_options("", mesh)
    assert compiler_options("", mesh) == expected


def test_the_user_s_go_before_ours_which_can_be_taken_away():
    mesh = tpu_mesh("v5e:2x2")
    ours = DEFAULTS["TPU v5 lite"]
    first, *others = ours
    given = ",".join([f"{first}=false", " xla_tpu_rwb_fusion=true", *(f"{one}=" for one in others)])
    check_xla_options(given, mesh)
    options = compiler_options(given, mesh)
    assert options == {first: False, "xla_tpu_rwb_fusion": True}
    with pytest.raises(UserError, match=r"No such compile option: 'xla_tpu_nosuch'$"):
        check_xla_options("xla_tpu_nosuch=true", mesh)
    with pytest.raises(UserError, match="xla_tpu_scoped_vmem_limit_kib"):
        check_xla_options("xla_tpu_scoped_vmem_limit_kib=much", mesh)


def test_a_gpu_s_are_the_same_for_every_kind():
    told = types.SimpleNamespace(platform="gpu", device_kind="NVIDIA H200")
    mesh: Any = types.SimpleNamespace(devices=np.array([told]))
    options = compiler_options("xla_gpu_enable_triton_gemm=", mesh)
    assert options == {"xla_allow_excess_precision": False}
    # Every backend knows the names.
    jax.jit(jnp.negative, compiler_options=compiler_options("", mesh))(1.0)


def test_other_devices_have_none_but_the_user_s(mesh):
    assert compiler_options("", mesh) == {}
    given = "xla_cpu_enable_fast_math=False"
    check_xla_options(given, mesh)
    assert compiler_options(given, mesh) == {"xla_cpu_enable_fast_math": False}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("fast", "'fast' is not NAME=VALUE"),
        ("=true", "'=true' is not NAME=VALUE"),
        ("xla_nosuch=1", "No such compile option: 'xla_nosuch'"),
        ("xla_cpu_enable_fast_math=7", "'7' is not a valid bool value"),
    ],
)
def test_what_the_compiler_does_not_take_is_told_in_a_line(given, told, mesh):
    with pytest.raises(UserError, match=told) as error:
        check_xla_options(given, mesh)
    assert "\n" not in str(error.value)
