"""Checkpoints: whole or not used, on any mesh, whatever is done to their files."""

import contextlib
import itertools
import os
import random
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from bert_jax.errors import UserError
from bert_jax.training.checkpoints import Checkpoints, saved_steps
from bert_jax.training.seal import SEAL_FILE, read_seal, write_seal
from bert_jax.training.sharding import MESH_AXES

SPECS = {
    "bias": PartitionSpec("tensor"),
    "half": PartitionSpec(None, "fsdp"),
    "kernel": PartitionSpec("fsdp", "tensor"),
    "mask": PartitionSpec("fsdp"),
    "step": PartitionSpec(),
}
MARKER = "commit_success.txt"
WINDOW = {"steps": 2, "mlm_loss": [0.1 + 0.2, 1e-300]}
_SAVES_THEN_COUNTS_BYTES = """
import resource, sys
from pathlib import Path
import jax, numpy as np
from bert_jax.training.checkpoints import Checkpoints
draw = np.random.default_rng(0)
state = [jax.device_put(draw.normal(size=1 << 22).astype(np.float32)) for _ in range(32)]
checkpoints = Checkpoints(Path(sys.argv[1]), 3)
checkpoints.save(state[:1], 1, {})
checkpoints._checkpointer.wait_until_finished()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
checkpoints.save(state, 2, {})
state = jax.jit(lambda tree: [leaf + 1 for leaf in tree], donate_argnums=0)(state)
checkpoints.close()
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(grown << 10, sum(leaf.nbytes for leaf in state))
"""


def make_mesh(*shape: int) -> Mesh:
    devices = jax.devices()[: int(np.prod(shape))]
    return jax.make_mesh(shape, MESH_AXES, axis_types=(AxisType.Auto,) * 3, devices=devices)


def make_state(mesh: Mesh, step: int) -> dict[str, jax.Array]:
    """Every dtype that a state may hold, cut in every way."""
    draw = np.random.default_rng(step)
    state = {
        "bias": draw.normal(size=16).astype(np.float32),
        "half": jnp.asarray(draw.normal(size=(4, 8)), jnp.bfloat16),
        "kernel": draw.normal(size=(32, 16)).astype(np.float32),
        "mask": draw.random(8) < 0.5,
        "step": np.int32(step),
    }
    return {
        name: jax.device_put(leaf, NamedSharding(mesh, SPECS[name])) for name, leaf in state.items()
    }


def abstract(state: dict[str, jax.Array]) -> dict[str, Any]:
    return {
        name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
        for name, leaf in state.items()
    }


def bits(state: dict[str, jax.Array]) -> dict[str, bytes]:
    return {name: np.asarray(leaf).tobytes() for name, leaf in state.items()}


def save(run: Path, *steps: int, mesh: Mesh | None = None, keep: int = 3) -> None:
    checkpoints = Checkpoints(run, keep)
    for step in steps:
        checkpoints.save(make_state(mesh or make_mesh(1, 1, 1), step), step, WINDOW)
    checkpoints.close()


def restore(run: Path, mesh: Mesh | None = None) -> tuple[dict[str, jax.Array], dict[str, Any]]:
    restored = Checkpoints(run, 3).restore(abstract(make_state(mesh or make_mesh(1, 1, 1), 0)))
    assert restored is not None
    return restored


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """A run with checkpoints of steps 1 and 2; not to be changed."""
    run = tmp_path_factory.mktemp("run")
    save(run, 1, 2)
    return run


@pytest.fixture
def run(saved, tmp_path) -> Path:
    """A copy of it."""
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    return tmp_path


def files_of(folder: Path) -> list[Path]:
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


# --- What is kept


def test_the_newest_comes_back_to_the_bit(run):
    state, window = restore(run)
    assert bits(state) == bits(make_state(make_mesh(1, 1, 1), 2))
    assert window == WINDOW


def test_where_none_was_saved_there_is_none(tmp_path):
    assert Checkpoints(tmp_path, 3).restore(abstract(make_state(make_mesh(1, 1, 1), 0))) is None


def test_the_newest_few_are_kept(tmp_path):
    save(tmp_path, 5, 10, 15, 20, keep=2)
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["15", "20"]


def test_a_saved_step_is_not_saved_again(run):
    checkpoints, state = Checkpoints(run, 3), make_state(make_mesh(1, 1, 1), 2)
    checkpoints.restore(abstract(state))
    seal = (run / "checkpoints/2" / SEAL_FILE).stat().st_mtime_ns
    checkpoints.save(state, 2, {})
    checkpoints.close()
    assert (run / "checkpoints/2" / SEAL_FILE).stat().st_mtime_ns == seal


def test_a_save_that_is_refused_is_an_error(run):
    """Another process saved this step in the meantime, say."""
    with pytest.raises(UserError, match=r"could not be written .*exists.*whole is step 2"):
        Checkpoints(run, 3).save(make_state(make_mesh(1, 1, 1), 2), 2, {})


def test_a_save_takes_as_long_as_the_watchdog_lets_it(tmp_path, monkeypatch):
    seconds = itertools.count(0, 100)
    monkeypatch.setattr(time, "time", lambda: float(next(seconds)))
    save(tmp_path, 5)
    assert saved_steps(tmp_path / "checkpoints") == [5]


def test_what_is_not_the_name_of_a_step_is_left_alone(run):
    names = ("007", "-3", "2147483648", "3.old", "²")
    for name in names:
        (run / "checkpoints" / name).mkdir()
    assert restore(run)[0]["step"] == 2
    assert sorted(os.listdir(run / "checkpoints")) == sorted([*names, "1", "2"])


def test_an_unfinished_save_is_not_used_and_makes_room(run):
    unfinished = run / "checkpoints/3.orbax-checkpoint-tmp"
    shutil.copytree(run / "checkpoints/2", unfinished)
    assert restore(run)[0]["step"] == 2
    assert not unfinished.exists()


# --- Another mesh

MESHES = [(8, 1, 1), (4, 2, 1), (1, 8, 1), (2, 2, 2), (2, 1, 4)]
SUBMESHES = [(4, 1, 1), (1, 2, 2), (1, 1, 4), (2, 1, 1), (1, 2, 1), (1, 1, 1)]


@pytest.mark.parametrize("before", MESHES, ids=str)
def test_another_mesh_gets_the_same_bits_in_its_own_shards(tmp_path, before):
    save(tmp_path, 7, mesh=make_mesh(*before))
    whole = make_state(make_mesh(1, 1, 1), 7)
    for after in MESHES + SUBMESHES:
        mesh = make_mesh(*after)
        state, _ = restore(tmp_path, mesh)
        assert bits(state) == bits(whole), after
        for name, leaf in state.items():
            sharding = NamedSharding(mesh, SPECS[name])
            assert leaf.sharding == sharding
            shard = sharding.shard_shape(leaf.shape)
            assert all(piece.data.shape == shard for piece in leaf.addressable_shards)


def test_an_array_that_each_device_writes_a_part_of_comes_back(tmp_path):
    mesh = make_mesh(8, 1, 1)
    state = {"x": jax.device_put(floats(3)["x"], NamedSharding(mesh, PartitionSpec()))}
    checkpoints = Checkpoints(tmp_path, 3)
    checkpoints.save(state, 3, WINDOW)
    checkpoints.close()
    restored = Checkpoints(tmp_path, 3).restore(abstract(state))
    assert restored is not None
    np.testing.assert_array_equal(restored[0]["x"], state["x"])


def test_the_seal_does_not_know_the_mesh(tmp_path):
    seals = []
    for index, shape in enumerate(MESHES + SUBMESHES):
        save(tmp_path / str(index), 7, mesh=make_mesh(*shape))
        seals.append(read_seal(tmp_path / str(index) / "checkpoints/7")["arrays"])
    assert all(seal == seals[0] for seal in seals)


# --- Damage


Damage = Callable[[Path], Any]  # what is done to a checkpoint's folder


def flip(name: Path, bit: int) -> Damage:
    def damage(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[bit // 8] ^= 1 << bit % 8
        (folder / name).write_bytes(content)

    return damage


def cut(name: Path, size: int) -> Damage:
    return lambda folder: os.truncate(folder / name, size)


def delete(name: Path) -> Damage:
    return lambda folder: (folder / name).unlink()


def overwrite(name: str, content: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(content)


def empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def put_a_file_in_its_place(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("step 2")


def random_damages(folder: Path) -> Iterator[tuple[str, Damage]]:
    """Bits by the files' sizes, and some of each file; each file cut, emptied and deleted."""
    draw = random.Random(0)
    sizes = {name: (folder / name).stat().st_size for name in files_of(folder)}
    for name in draw.choices([*sizes], [*sizes.values()], k=200) + 8 * [*sizes]:
        bit = draw.randrange(sizes[name] * 8)
        yield f"bit {bit} of {name}", flip(name, bit)
    for name, size in sizes.items():
        short = draw.randrange(1, size)
        yield f"{name} cut to {short}", cut(name, short)
        yield f"{name} emptied", cut(name, 0)
        yield f"{name} deleted", delete(name)
    yield "an empty folder", empty
    yield "a file in its place", put_a_file_in_its_place
    for content in (b"", b"{}", b"[]", b"\xff\x00", b"[" * 100_000, b'{"crc32": 1e999}'):
        yield f"a seal of {content[:20]}", overwrite(SEAL_FILE, content)


def test_no_damage_is_silent(saved, tmp_path, capfd):
    """Each is named and set aside, and the checkpoint before it used.

    But for the wording of Orbax's marker, which nothing reads: there the state is the newest.
    """
    states = [bits(make_state(make_mesh(1, 1, 1), step)) for step in (0, 1, 2)]
    run, newest, harmless = tmp_path / "run", tmp_path / "run/checkpoints/2", 0
    damages = list(random_damages(saved / "checkpoints/2"))
    for what, damage in damages:
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(saved, run)
        damage(newest)
        state, window = restore(run)
        told = capfd.readouterr().err
        assert window == WINDOW
        if not told:
            harmless += 1
            assert bits(state) == states[2], what
            assert MARKER in what
            assert "deleted" not in what
            continue
        assert bits(state) == states[1], what
        assert told.startswith(f"{newest}: damaged: "), what
        assert told.count("\n") == 1
        assert os.listdir(run / "checkpoints/damaged") == ["2-1"]
        assert not newest.exists()
    assert len(damages) - harmless >= 200


def test_what_changed_before_the_seal_is_seen_too(saved, tmp_path, capfd):
    """Bits of the arrays, flipped under a seal that is right: by the fingerprint."""
    draw, run = random.Random(0), tmp_path / "run"
    newest = run / "checkpoints/2"
    states = [bits(make_state(make_mesh(1, 1, 1), step)) for step in (0, 1, 2)]
    stored = read_seal(saved / "checkpoints/2")
    content = {"arrays": stored["arrays"], "window": WINDOW}
    name = max(stored["files"], key=lambda name: (stored["files"][name] or [0])[0])
    seen = 0
    for _ in range(60):
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(saved, run)
        flip(Path(name), draw.randrange(stored["files"][name][0] * 8))(newest)
        (newest / SEAL_FILE).unlink()
        write_seal(newest, content)
        with contextlib.suppress(UserError):  # what Orbax itself sees
            state, _ = restore(run)
            told = capfd.readouterr().err
            assert bits(state) == states[1 if told else 2]
            seen += "is not what was saved" in told
    assert seen >= 20


def test_without_a_whole_one_the_run_does_not_begin_anew(run, capfd):
    for step in (1, 2):
        (run / f"checkpoints/{step}" / SEAL_FILE).unlink()
    for _ in range(2):
        with pytest.raises(UserError, match=r"no checkpoint is whole.*damaged away"):
            restore(run)
    assert capfd.readouterr().err.count("seal.json is missing") == 2
    assert sorted(os.listdir(run / "checkpoints/damaged")) == ["1-2", "2-1"]
    # The way out that it tells of.
    shutil.move(run / "checkpoints/damaged", run / "elsewhere")
    assert Checkpoints(run, 3).restore(abstract(make_state(make_mesh(1, 1, 1), 0))) is None


def test_a_step_that_was_set_aside_can_be_saved_and_set_aside_again(run):
    for count in (1, 2):
        os.truncate(run / "checkpoints/2" / SEAL_FILE, 10)
        assert restore(run)[0]["step"] == 1
        assert len(os.listdir(run / "checkpoints/damaged")) == count
        save(run, 2)
    assert restore(run)[0]["step"] == 2


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda s: s | {"half": s["kernel"]},
            r"half is bfloat16\[4, 8\] there, and float32\[32, 16",
        ),
        (lambda s: s | {"bias": s["bias"][:8]}, r"bias is float32\[16\] there, and float32\[8\]"),
        (lambda s: s | {"extra": s["bias"]}, r"extra is missing there, and float32\[16\]"),
        (lambda s: {n: s[n] for n in s if n != "mask"}, r"mask is bool\[8\] there, and missing"),
    ],
)
def test_arrays_that_do_not_fit_the_model_are_named(run, capfd, change, told):
    with pytest.raises(UserError, match=told):
        Checkpoints(run, 3).restore(abstract(change(make_state(make_mesh(1, 1, 1), 0))))
    assert sorted(os.listdir(run / "checkpoints")) == ["1", "2"]
    assert not capfd.readouterr().err


# --- Memory


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere memory is counted in other units")
def test_what_is_written_is_held_in_memory_once_beside_the_state(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", _SAVES_THEN_COUNTS_BYTES, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    grown, state = map(int, done.stdout.split())
    assert grown - state < state / 2


# --- A full disk


def floats(step: int) -> dict[str, jax.Array]:
    """9 MB that do not compress."""
    return {"x": jax.random.normal(jax.random.key(step), (9 << 18,))}


def test_a_full_disk_is_told_at_once_and_keeps_what_was_saved(small_disk):
    """40 MB have room for four checkpoints of 9 MB."""
    run = small_disk("40m")
    checkpoints = Checkpoints(run, 10)
    for step in range(4):
        checkpoints.save(floats(step), step, {})
    with pytest.raises(UserError, match=r"takes 10\.0 MiB, and .* free\); .*whole is step 3; free"):
        checkpoints.save(floats(4), 4, {})
    restored = Checkpoints(run, 10).restore(abstract(floats(0)))
    assert restored is not None
    np.testing.assert_array_equal(restored[0]["x"], floats(3)["x"])
    assert sorted(os.listdir(run / "checkpoints")) == ["0", "1", "2", "3"]


def test_what_tensorstore_may_not_write_is_no_full_disk(tmp_path, monkeypatch):
    """As a process of another user meets it in the folder that process 0 has made."""
    checkpoints = Checkpoints(tmp_path, 10)

    def refuse(*_: object, **__: object) -> None:
        raise ValueError('PERMISSION_DENIED: Error writing "grad_norms/1" in OCDBT database')

    monkeypatch.setattr(checkpoints._checkpointer, "save", refuse)
    with pytest.raises(UserError, match=r"grad_norms/1.* there is none yet; let it be written to"):
        checkpoints.save(floats(0), 0, {})


def test_a_folder_that_may_not_be_written_is_told_and_not_waited_for(small_disk):
    """A disk that the system has made read-only after errors, say."""
    run = small_disk("40m")
    checkpoints = Checkpoints(run, 10)
    checkpoints.save(floats(0), 0, {})
    checkpoints.close()
    subprocess.run(["mount", "-o", "remount,ro", str(run)], check=True)
    before = {*threading.enumerate()}
    with pytest.raises(UserError, match=r"Read-only .*whole is step 0; let it be written to and"):
        Checkpoints(run, 10).save(floats(1), 1, {})
    waiting = {*threading.enumerate()} - before
    assert not [thread for thread in waiting if not thread.daemon]


def test_the_best_stays_until_a_checkpoint_that_names_another_is_whole(tmp_path, monkeypatch):
    def steps() -> list[int]:
        return saved_steps(tmp_path / "checkpoints")

    checkpoints = Checkpoints(tmp_path, 1)
    checkpoints.save(floats(7), 7, {"best": [7, 0.5]})
    checkpoints.save(floats(14), 14, {"best": [7, 0.5]})
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=1, free=0))
        with pytest.raises(UserError, match="whole is step 14"):
            checkpoints.save(floats(21), 21, {"best": [21, 0.6]})
    assert steps() == [7, 14]
    checkpoints.save(floats(21), 21, {"best": [21, 0.6]})
    checkpoints.close()
    assert steps() == [21]


def test_the_best_of_every_checkpoint_that_is_kept_stays(tmp_path):
    """A run goes on from the one before the newest, where that is damaged."""
    checkpoints = Checkpoints(tmp_path, 2)
    for step, best in ((7, 7), (14, 7), (21, 21), (28, 21)):
        checkpoints.save({"x": jnp.zeros(1)}, step, {"best": [best, 0.5]})
        if step == 21:
            checkpoints._checkpointer.wait_until_finished()
            checkpoints._delete_old()
            assert saved_steps(tmp_path / "checkpoints") == [7, 14, 21]
    checkpoints.close()
    assert saved_steps(tmp_path / "checkpoints") == [21, 28]


def test_a_drive_that_does_not_say_how_full_it_is_is_written_to(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=0, free=0))
    checkpoints = Checkpoints(tmp_path, 1)
    checkpoints.save({"x": jnp.zeros(1)}, 3, {})
    checkpoints.close()
    assert saved_steps(tmp_path / "checkpoints") == [3]


def test_a_save_that_fails_on_the_way_is_told_by_the_next_or_by_close(tmp_path):
    """The system refuses files over 1 MB: so would a quota, say."""
    checkpoints = Checkpoints(tmp_path, 10)
    checkpoints.save(floats(0), 0, {})
    checkpoints.save(floats(1), 1, {})
    checkpoints.close()
    checkpoints = Checkpoints(tmp_path, 10)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        checkpoints.save(floats(2), 2, {})
        with pytest.raises(UserError, match=r"could not be written .*whole is step 1"):
            checkpoints.save(floats(3), 3, {})
        checkpoints.save(floats(2), 2, {})
        with pytest.raises(UserError, match=r"could not be written .*whole is step 1"):
            checkpoints.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    restored = Checkpoints(tmp_path, 10).restore(abstract(floats(0)))
    assert restored is not None
    np.testing.assert_array_equal(restored[0]["x"], floats(1)["x"])
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["0", "1"]
