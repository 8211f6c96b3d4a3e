"""python -m bert_jax.plan: what a run needs on a machine, before anyone pays for it.

The very train step that `train` would run is compiled ahead of time, for each phase of the recipe
and each topology: does it fit, what does it compute and exchange, how long would it take at best.
TPUs are compiled for by their own compiler (`pip install -e ".[tpu]"`), NVIDIA's GPUs by theirs
(`".[gpu]"`), on any machine. Without it GPUs are estimated from a program for the CPU.
"""

import argparse
import dataclasses
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from bert_jax.config import Config, MeshConfig
from bert_jax.errors import UserError, print_error, run_main
from bert_jax.flags import Parser, parse_recipe
from bert_jax.planning.topologies import Topology, parse_topologies, prepare
from bert_jax.training.stopping import ending_at_signals

if TYPE_CHECKING:
    from bert_jax.planning.planner import Plan
    from bert_jax.planning.roofline import Efficiency

_EXAMPLES = """examples:
  python -m bert_jax.plan --config=base --topology=v5e:4x4
      the paper's recipe on 16 chips of TPU v5e: minutes, on any machine
  python -m bert_jax.plan --config=large --topology=v5p:2x2x4,v6e:4x4 --price=2.50 --json=plan.json
      two topologies, ranked; what they cost at $2.50 a chip and hour
  python -m bert_jax.plan --config=large --topology=v5e:4x4 --mesh=data=16 --mesh=data=4,fsdp=4
      two meshes, ranked
  python -m bert_jax.plan --config=base_fast --topology='v5e:*' --efficiency=compute=0.6
      every slice of a kind, ranked, where 60 % of the peak is reached
"""


def main() -> None:
    """Parse the command line, plan, print."""
    parser = Parser(prog="python -m bert_jax.plan", description=__doc__, epilog=_EXAMPLES)
    parser.add_argument(
        "--topology",
        required=True,
        action="append",
        metavar="NAME",
        help="v5e:4x4, v4:2x2x4, v5e:16x16*2 (two slices), v5e:* (every slice), h200:8, cpu:8; "
        "several by commas",
    )
    parser.add_argument(
        "--mesh",
        action="append",
        metavar="AXES",
        help="a mesh, as data=4,fsdp=4; several times for several; by default that of the config",
    )
    parser.add_argument(
        "--efficiency",
        default="",
        metavar="SHARES",
        help="shares of the data sheet's figures that are reached, as compute=0.6,memory=0.8,"
        "interconnect=0.8; 1 where nothing is given",
    )
    parser.add_argument("--price", type=_price, metavar="PRICE", help="of a chip for an hour")
    parser.add_argument(
        "--search",
        action="store_true",
        help="look for the largest batch that fits, too: up to four more compilations a phase",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the plans there")
    parser.add_argument(
        "--save",
        type=Path,
        metavar="DIR",
        help="keep the compiled programs there; train uses those that match where "
        "JAX_COMPILATION_CACHE_DIR=DIR is set",
    )
    arguments, config = parse_recipe(parser)
    topologies = [
        topology
        for names in arguments.topology
        for name in names.split(",")
        for topology in parse_topologies(name)
    ]
    meshes = [_mesh(text, config.mesh) for text in arguments.mesh or []] or [config.mesh]
    # Else Ctrl-C would be heard of when the compiler is done, minutes later.
    with ending_at_signals():
        plans = make_plans(config, topologies, meshes, arguments)
    if arguments.json:
        _write(arguments.json, plans)
    _refuse_what_does_not_fit(plans)


def make_plans(
    config: Config,
    topologies: list[Topology],
    meshes: list[MeshConfig],
    arguments: argparse.Namespace,
) -> "list[Plan]":
    """Plan every mesh on every topology, and print each plan and their ranking.

    Where there are several, one that cannot be is told and left out.

    Raises:
      UserError: the only one cannot be, or none can.
    """
    efficiency = _efficiency(arguments.efficiency)
    prepare(topologies)  # before JAX comes up
    config = _as_trained(config)
    from bert_jax.planning.compile import keep_programs
    from bert_jax.planning.planner import plan_recipe
    from bert_jax.planning.tables import plan_text, ranking

    if arguments.save:
        keep_programs(arguments.save)
    plans: list[Plan] = []
    refused: UserError | None = None
    for topology in topologies:
        for mesh in meshes:
            meshed = dataclasses.replace(config, mesh=mesh)
            meshed.validate()
            try:
                plan = plan_recipe(
                    meshed,
                    topology,
                    efficiency=efficiency,
                    price=arguments.price,
                    search=arguments.search,
                )
            except UserError as error:
                refused = UserError(f"--topology={topology.name}: {error}")
                if len(topologies) * len(meshes) > 1:
                    print_error(refused)
                continue
            plans.append(plan)
            print(plan_text(plan), flush=True)
    if refused and not plans:
        raise refused
    if len(plans) > 1:
        print("\n" + ranking(plans))
    return plans


def _as_trained(config: Config) -> Config:
    """With the architecture and vocabulary of what it names: weights, vocabulary, token shards.

    Where it names none, those of the recipe: a small corpus may give a smaller vocabulary.
    """
    from bert_jax.data.corpus_vocabulary import given_vocabulary, new_pieces
    from bert_jax.interop import load_weights
    from bert_jax.interop.init_from import adopt
    from bert_jax.pretraining import with_token_shards

    if config.init_from:
        config = adopt(config, load_weights(config.init_from))
    if config.data.dir:
        return with_token_shards(config)[0]
    if not config.corpus.vocab:
        return config
    new = new_pieces(config.corpus, config.model.vocab_size)
    pieces = given_vocabulary(config.corpus, new).vocab_size
    return dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=pieces))


def _refuse_what_does_not_fit(plans: "list[Plan]") -> None:
    """Fail where no plan fits: a script must not go on to pay for it."""
    if any(all(phase.fits for phase in plan.phases) for plan in plans):
        return
    helpful = {setting for plan in plans for phase in plan.phases for setting in phase.remedies}
    what = f"what would: {', '.join(sorted(helpful))}" if helpful else "use more or larger devices"
    raise UserError(f"the recipe fits no topology given; {what}")


def _write(path: Path, plans: "list[Plan]") -> None:
    text = json.dumps([dataclasses.asdict(plan) for plan in plans], indent=2, default=str)
    try:
        # JSON has no infinity: the memory of a CPU is not known.
        path.write_text(re.sub(r"\bInfinity\b", "null", text) + "\n")
    except OSError as error:
        raise UserError(f"--json={path}: {error.strerror}") from error


def _mesh(text: str, given: MeshConfig) -> MeshConfig:
    """`data=4,fsdp=4` in the place of the axes that are given; data is what the others leave."""
    sizes = _pairs("--mesh", text, ("data", "fsdp", "tensor"))
    if any(size != int(size) for size in sizes.values()):
        raise UserError(f"--mesh={text}: sizes are whole numbers")
    axes = {"data": -1, "fsdp": 1, "tensor": 1} | {name: int(n) for name, n in sizes.items()}
    return MeshConfig(**axes, shard_optimizer=given.shard_optimizer)


def _efficiency(text: str) -> "Efficiency":
    from bert_jax.planning.roofline import Efficiency

    names = tuple(field.name for field in dataclasses.fields(Efficiency))
    shares = _pairs("--efficiency", text, names) if text else {}
    if not all(0 < share <= 1 for share in shares.values()):
        raise UserError(f"--efficiency={text}: shares lie above 0 and up to 1")
    return Efficiency(**shares)


def _pairs(flag: str, text: str, names: tuple[str, ...]) -> dict[str, float]:
    """`name=number,name=number`."""
    found: dict[str, float] = {}
    for pair in text.split(","):
        name, _, value = pair.partition("=")
        if name not in names or not re.fullmatch(r"-?\d+(\.\d+)?", value):
            raise UserError(
                f"{flag}={text}: give NAME=NUMBER pairs by commas; names are {', '.join(names)}"
            )
        found[name] = float(value)
    return found


def _price(text: str) -> float:
    if not re.fullmatch(r"\d+(\.\d+)?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a price")
    return float(text)


if __name__ == "__main__":
    run_main(main)
