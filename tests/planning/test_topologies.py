"""Names of machines, and what the table of chips says of them."""

import pytest
from jax.experimental.pallas import tpu as pallas_tpu

from bert_jax.errors import UserError
from bert_jax.planning import topologies
from bert_jax.planning.chips import CHIPS
from bert_jax.planning.topologies import SLICES, Topology, describe_devices, parse_topologies


@pytest.mark.parametrize(
    ("name", "topology", "chips", "hosts"),
    [
        ("v5e:4x4", Topology("v5e", (4, 4)), 16, 2),
        ("v4:2x2x4", Topology("v4", (2, 2, 4)), 16, 4),
        ("v5e:2x2", Topology("v5e", (2, 2)), 4, 1),
        ("v5e:16x16*2", Topology("v5e", (16, 16), 2), 512, 64),
        ("v5e:2x2*3", Topology("v5e", (2, 2), 3), 12, 3),
        ("v3:4x4", Topology("v3", (4, 4)), 16, 4),
        ("h200:8", Topology("h200", (8,)), 8, 1),
        ("cpu:8", Topology("cpu", (8,)), 8, 1),
    ],
)
def test_a_name_and_what_it_is(name, topology, chips, hosts):
    assert parse_topologies(name) == [topology]
    assert (topology.name, topology.chips, topology.hosts) == (name, chips, hosts)


@pytest.mark.parametrize("kind", CHIPS)
def test_a_star_is_every_slice_of_a_kind(kind):
    found = parse_topologies(f"{kind}:*")
    assert [topology.name for topology in found] == [f"{kind}:{shape}" for shape in SLICES[kind]]
    chips = [topology.chips for topology in found]
    assert chips == sorted(set(chips))


@pytest.mark.parametrize(
    "name", ["", "v5e", "v9:4x4", "v5e:4", "v4:4x4", "v5e:0x4", "h200:2x4", "v5e:4x4*", "v5e:4xx4"]
)
def test_an_unknown_name_is_answered_with_those_known(name):
    with pytest.raises(UserError, match=r"no such topology; known are .*v5e:1x1.*h200:1"):
        parse_topologies(name)


def test_a_machine_nobody_has_is_refused():
    with pytest.raises(UserError, match="chips can be planned for"):
        parse_topologies("v5p:64x64x64")


@pytest.mark.parametrize("kind", CHIPS)
def test_every_chip_but_the_cpu_has_a_peak_and_plausible_figures(kind):
    chip = CHIPS[kind]
    if kind == "cpu":
        assert chip.flops is None
        return
    # FLOPs a byte at the ridge of the roofline: tens to hundreds for any accelerator.
    assert chip.flops
    assert 50 < chip.flops / chip.bandwidth < 700
    assert chip.network / chip.host_devices < chip.link < chip.bandwidth / 5
    assert chip.source


@pytest.mark.parametrize(
    ("kind", "version", "cores"),
    [
        ("v2", "TPU_V2", 1),
        ("v3", "TPU_V3", 1),
        ("v4", "TPU_V4", 2),
        ("v5e", "TPU_V5E", 1),
        ("v5p", "TPU_V5P", 2),
        ("v6e", "TPU_V6E", 1),
    ],
)
def test_figures_of_tpus_are_nearly_those_that_jax_has(kind, version, cores):
    """JAX has them of each of a device's cores, some rounded, and a v3's at another clock."""
    theirs = pallas_tpu.get_tpu_info_for_chip(pallas_tpu.ChipVersion[version], cores)
    assert CHIPS[kind].flops == pytest.approx(cores * theirs.bf16_ops_per_second, rel=0.15)
    assert CHIPS[kind].bandwidth == pytest.approx(cores * theirs.mem_bw_bytes_per_second, rel=0.15)


def test_without_the_tpu_compiler_its_extra_is_named(monkeypatch):
    monkeypatch.setattr(topologies.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r'pip install -e "\.\[tpu\]"'):
        describe_devices(Topology("v5e", (4, 4)))
