"""The bounds of a step against arithmetic by hand."""

import dataclasses
from types import SimpleNamespace

import pytest

from bert_jax.planning.chips import CHIPS
from bert_jax.planning.hlo import Collective, Shape
from bert_jax.planning.kernels import Kernel
from bert_jax.planning.roofline import (
    Efficiency,
    Place,
    by_kind,
    collective_seconds,
    device_places,
    roofline,
)
from bert_jax.planning.topologies import Topology

CHIP = dataclasses.replace(CHIPS["v5e"], bandwidth=1e12, link=50e9, network=25e9, host_devices=4)
PEAK = 197e12


def collective(kind: str = "all-reduce", size: int = 250_000_000, devices: int = 16) -> Collective:
    """One of `size` float32 numbers: a GB by default."""
    shapes = (Shape("f32", (size,)),)
    return Collective(kind, shapes, tuple(range(devices)), 1, False, "")


def torus(rows: int, columns: int, slices: int = 1) -> list[Place]:
    return [
        Place(number, (row, column, 0))
        for number in range(slices)
        for row in range(rows)
        for column in range(columns)
    ]


def bounds(work, exchanged, places, **efficiency):
    found = roofline(
        CHIP, work, exchanged, places, float32=False, efficiency=Efficiency(**efficiency)
    )
    assert found
    return found


def test_a_ring_passes_twice_what_an_all_gather_does():
    places = torus(1, 16)  # 16 in a row are a ring: both links of the axis
    assert collective_seconds(CHIP, collective(), places) == pytest.approx(2 * 15 / 16 / 100)
    gather = collective("all-gather")
    assert collective_seconds(CHIP, gather, places) == pytest.approx(15 / 16 / 100)


def test_a_line_has_half_the_links_and_a_torus_those_of_both_axes():
    assert collective_seconds(CHIP, collective(devices=8), torus(1, 8)) == pytest.approx(
        2 * 7 / 8 / 50
    )
    assert collective_seconds(CHIP, collective(), torus(4, 4)) == pytest.approx(2 * 15 / 16 / 100)
    # A part of a ring has its links; 24 in a row are none.
    assert collective_seconds(CHIP, collective(devices=8), torus(1, 16)) == pytest.approx(
        2 * 7 / 8 / 100
    )
    assert collective_seconds(CHIP, collective(devices=24), torus(1, 24)) == pytest.approx(
        2 * 23 / 24 / 50
    )
    group = collective(devices=16)
    assert collective_seconds(CHIP, group, torus(16, 16)) == pytest.approx(2 * 15 / 16 / 100)


def test_slices_exchange_what_each_device_holds_over_the_network_of_its_host():
    within = 2 * 3 / 4 / 100
    between = 2 * 1 / 2 * (1 / 4) * 4 / 25
    places = torus(2, 2, slices=2)
    found = collective_seconds(CHIP, collective(devices=8), places)
    assert found == pytest.approx(within + between)


def test_a_permutation_passes_all_of_its_bytes_once():
    permute = collective("collective-permute")
    assert collective_seconds(CHIP, permute, torus(1, 16)) == pytest.approx(1 / 100)


def test_the_cores_of_a_chip_exchange_over_one_link():
    places = [Place(0, (0, 0)), Place(0, (0, 0))]
    found = collective_seconds(CHIPS["v3"], collective(devices=2), places)
    assert found == pytest.approx(1e9 / CHIPS["v3"].link)


def test_devices_are_placed_by_their_coordinates_or_their_hosts():
    devices = [SimpleNamespace(coords=[1, 2, 0]), SimpleNamespace(coords=[0, 0, 0], slice_index=3)]
    places = device_places(Topology("v5e", (4, 4)), devices)
    assert places == [Place(0, (1, 2, 0)), Place(3, (0, 0, 0))]
    gpus = device_places(Topology("h100", (16,)), [object()] * 16)
    assert gpus == [Place(0, ())] * 8 + [Place(1, ())] * 8


def test_gpus_share_a_switch_within_a_host():
    chip = CHIPS["h100"]
    places = [Place(index // 8, ()) for index in range(16)]
    assert collective_seconds(chip, collective(devices=8), places) == pytest.approx(
        2 * 7 / 8 * 1e9 / chip.link
    )
    assert collective_seconds(chip, collective(devices=16), places) > 2 * 1e9 / chip.link


def test_each_kernel_takes_the_longer_of_its_bounds():
    work = [Kernel(int(PEAK), 0, 2), Kernel(0, int(1e12), 3)]
    found = bounds(work, [collective()], torus(4, 4))
    exchange = 2 * 15 / 16 / 100
    assert found.compute == pytest.approx(2)
    assert found.memory == pytest.approx(3)
    assert found.step == pytest.approx(2 + 3 + exchange)  # one after the other
    assert found.limit == "memory"
    both = bounds([Kernel(int(PEAK), int(1e12), 1)], [], torus(1, 1))
    assert both.step == pytest.approx(1)


def test_efficiencies_stretch_their_bound():
    work = [Kernel(int(PEAK), int(1e12), 1)]
    both = [collective(), dataclasses.replace(collective("all-gather"), asynchronous=True)]
    shares = {"compute": 0.5, "memory": 0.2, "interconnect": 0.25}
    found = bounds(work, both, torus(4, 4), **shares)
    assert found.compute == pytest.approx(2)
    assert found.memory == pytest.approx(5)
    assert found.interconnect == pytest.approx(4 * (2 + 1) * 15 / 16 / 100)


def test_what_runs_beside_the_work_takes_no_time_of_its_own():
    beside = dataclasses.replace(collective(), asynchronous=True)
    found = bounds([Kernel(int(PEAK), 0, 1)], [beside], torus(4, 4))
    assert found.step == pytest.approx(1)
    assert found.limit == "compute"
    exchange = 100 * 2 * 15 / 16 / 100
    longer = bounds(
        [Kernel(int(PEAK), 0, 1)], [dataclasses.replace(beside, times=100)], torus(4, 4)
    )
    assert longer.interconnect == longer.step == pytest.approx(exchange)
    assert longer.limit == "interconnect"


def test_float32_runs_at_half_the_peak_on_a_gpu_only():
    work, efficiency = [Kernel(10**15, 0, 1)], Efficiency()
    for kind, ratio in (("h100", 2), ("v5e", 1)):
        wide, narrow = (
            roofline(CHIPS[kind], work, [], [], float32=float32, efficiency=efficiency)
            for float32 in (True, False)
        )
        assert wide
        assert narrow
        assert wide.compute == pytest.approx(ratio * narrow.compute)


def test_a_chip_whose_peak_is_not_known_has_no_bounds():
    found = roofline(CHIPS["cpu"], [], [], [], float32=True, efficiency=Efficiency())
    assert found is None


def test_collectives_are_summed_by_kind():
    many = dataclasses.replace(collective(size=10), times=12)
    found = by_kind([many, collective(size=5), collective("all-gather", size=1)])
    assert list(found.items()) == [
        ("all-gather", {"count": 1, "bytes": 4}),
        ("all-reduce", {"count": 13, "bytes": 12 * 40 + 20}),
    ]
