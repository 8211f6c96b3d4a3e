"""What the train steps of the recipes need on TPUs, as recorded; a change is to be seen here first.

Of a model's layers three are compiled: the first, which gives the embeddings their gradient, the
last, which is computed at some positions alone, and one like all between, which take their time.

    python tests/recorded_plans.py

compiles all of them and writes `tests/planning/recorded.json` anew: commit it with the change that
moved a figure, and say why. Programs are compiled at XLA's optimisation level O1, in under half the
time: FLOPs and collectives are those of the full level, and memory nearly.

libtpu 0.0.42 and 0.0.50, those of `constraints.txt`, need the same to 0.3 %. 0.0.52 wants 12 % less
memory for `base` at 128 on v5e:8x8, and 16 % less at 512.
"""

import json
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parent / "planning" / "recorded.json"
Case = tuple[str, int, str]  # recipe, phase and topology
CASES = [("base", 0, "v5e:8x8")]
# Minutes of compiling: both phases of each recipe, and those of base_fast on a v5e and on a v6e.
MORE_CASES = [
    ("base", 1, "v5e:8x8"),
    ("large", 0, "v6e:8x8"),
    ("large", 1, "v5e:8x8"),
    ("base_fast", 0, "v5e:8x8"),
    ("base_fast", 1, "v5e:8x8"),
    ("base_fast", 0, "v6e:8x8"),
    ("base_fast", 1, "v6e:8x8"),
    # What these need is what a v5e needs, to a percent: this shows that they compile.
    ("base_fast", 0, "v4:4x4x4"),
    ("base_fast", 1, "v5p:4x4x4"),
]
# As many as the cores of a small machine: a compilation uses little more than one.
_PROCESSES = 2


def name_of(case: Case) -> str:
    recipe, phase, topology = case
    return f"{recipe}, phase {phase + 1}, {topology}"


def measure(case: Case) -> dict[str, Any]:
    """Compile a phase of a recipe for a topology, in a process that does nothing else."""
    from bert_jax.planning.topologies import describe_devices, parse_topologies, prepare

    os.environ.pop("XLA_FLAGS", None)  # those of the tests are for programs that run
    recipe, phase, name = case
    (topology,) = parse_topologies(name)
    prepare([topology])
    import jax

    from bert_jax.flags import load_config
    from bert_jax.planning.compile import DoesNotFit, compile_phase
    from bert_jax.planning.hlo import collectives, flops
    from bert_jax.planning.roofline import by_kind
    from bert_jax.training.flops import step_flops

    jax.config.update("jax_optimization_level", "O1")
    jax.config.update("jax_enable_compilation_cache", False)
    config = load_config(recipe)
    config.model.num_hidden_layers = 3
    config.validate()
    devices = describe_devices(topology)
    try:
        compiled = compile_phase(config, config.phases[phase], devices)
    except DoesNotFit as error:
        return {"fits": False, "bytes": error.wanted}
    model = step_flops(config.model, config.phases[phase])
    return {
        "fits": compiled.memory.total <= topology.chip.memory,
        "bytes": compiled.memory.total,
        "hlo_to_model": round(flops(compiled.text) * len(devices) / model, 5),
        "collectives": by_kind(collectives(compiled.text)),
    }


def measure_all(cases: Sequence[Case]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each case's name and what `measure` says of it, in their order."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(_PROCESSES, mp_context=context) as pool:
        yield from zip(map(name_of, cases), pool.map(measure, cases), strict=True)


def main() -> None:
    """Record every case; what is done is written as it comes."""
    recorded = {}
    for name, found in measure_all([*CASES, *MORE_CASES]):
        recorded[name] = found
        RECORDED.write_text(json.dumps(recorded, indent=1) + "\n")
        print(f"{name}: {found['bytes'] / 2**30:.2f} GiB a device", flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    main()
