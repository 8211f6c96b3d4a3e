"""Suite `startup`: what passes before the first step, and how much memory commands take.

Imports, the first step (compiled anew, or found in the cache) beside PyTorch's, compilation of ever
more layers scanned or unrolled, and the peaks of `prepare`, `train` and `convert`.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.batches import write_batch
from benchmarks.commands import NEW, Command, in_turns, once
from benchmarks.contest import Contender, Result, contest
from benchmarks.input_pipeline import write_text
from benchmarks.tables import record
from benchmarks.training_step import COMPILED, mode_name

_CPU = {"JAX_PLATFORMS": "cpu"}
_COMPILED = _CPU | {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}


def imports(rounds: int) -> list[Result]:
    """Of what a run needs, and of the peer's model; and the answer to --help, which needs less."""
    needed = "import bert_jax.pretraining"
    tensorflow = "from bert_jax.data.quiet_tensorflow import load_tensorflow; load_tensorflow()"
    own = [
        Command("ours, import", ["-c", needed]),
        Command("ours, with TensorFlow", ["-c", f"{needed}; {tensorflow}"]),
        Command("ours, --help", ["-m", "bert_jax.train", "--help"]),
    ]
    peer = ["-c", "from transformers import BertForPreTraining"]
    return in_turns(own, [Command("transformers, import", peer)], rounds)


def first_step(size: str, folder: Path, modes: Sequence[str], rounds: int) -> list[Result]:
    """From the start of the process to the end of its first step, at length 128."""
    batch, kept = folder / f"{size}.npz", folder / f"compiled-{size}"
    write_batch(batch, 128, 8)
    settings = {"size": size, "batch": str(batch), "dtype": "float32"}

    def start(name: str, module: str, environment: Mapping[str, str], **more: Any) -> Command:
        contender = Contender(name, module, settings | more)
        return Command(name, contender.arguments, environment)

    cold = _COMPILED | {"JAX_COMPILATION_CACHE_DIR": NEW}
    warm = _COMPILED | {"JAX_COMPILATION_CACHE_DIR": str(kept)}
    own = [
        start("ours, compiled", "benchmarks.step_jax", cold),
        start("ours, from the cache", "benchmarks.step_jax", warm),
    ]
    own[1].run()  # fills it
    peers = [
        start(
            f"PyTorch, {mode_name(mode)}",
            "benchmarks.step_torch",
            {"TORCHINDUCTOR_CACHE_DIR": NEW},
            head="full",
            mode=mode,
            device="cpu",
        )
        for mode in modes
    ]
    return in_turns(own, peers, rounds)


def compilation(layers: int, folder: Path, rounds: int) -> list[Result]:
    """Of a step, scanned and, as its peer, unrolled."""
    batch = folder / "layers.npz"
    write_batch(batch, 128, 8)

    def contender(scanned: bool) -> Contender:
        settings = {"layers": layers, "scanned": scanned, "batch": str(batch)}
        name = "scanned" if scanned else "unrolled"
        return Contender(name, "benchmarks.compile_jax", settings, _CPU)

    return contest([contender(True)], [contender(False)], rounds)


def memory(size: str, text_bytes: int, steps: int, folder: Path) -> list[Result]:
    """Peaks of commands; that of `prepare` is to be the same for ten times the text."""
    commands = []
    for times in (10, 1):
        text, shards = folder / f"{times}.txt", folder / f"shards-{times}"
        written = write_text(text, times * text_bytes)
        source = [f"--source=text:{text}", "--sentences=lines", "--vocab_size=2000"]
        prepare = ["-m", "bert_jax.prepare", *source]
        once(*prepare, f"--output={shards}")
        given = [f"--vocab={shards}/tokenizer", f"--output={NEW}/shards"]
        commands.append(Command(f"prepare, {written / 1e6:.1f} MB", [*prepare, *given]))
    few = [f"--config.phases[{phase}].steps={steps}" for phase in range(2)]
    few.append("--config.optimizer.warmup_steps=1")
    model = [f"--config.data.dir={folder}/shards-1", "--config.model.vocab_size=2000"]
    train = ["-m", "bert_jax.train", "--config=tiny", *model, *few, f"--workdir={NEW}/run"]
    commands.append(Command("train, tiny", train, _CPU))
    weights = folder / "published/model.safetensors"
    once("-m", "benchmarks.peers", size, str(weights.parent))
    convert = ["-m", "bert_jax.convert", str(weights.parent), f"{NEW}/ours", "--to=bert_jax"]
    mebibytes = weights.stat().st_size / 2**20
    commands.append(Command(f"convert, {mebibytes:,.0f} MiB of weights", convert, _CPU))
    return in_turns(commands, [], 1)


def run(quick: bool) -> Iterator[dict[str, Any]]:
    """A record for each part."""
    rounds = 1 if quick else 3
    modes = ("eager",) if quick else COMPILED
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        parts = {"imports": lambda: imports(rounds)}
        for size in ("tiny",) if quick else ("tiny", "base"):
            parts[f"first step of {size}"] = lambda s=size: first_step(s, folder, modes, rounds)
        for layers in (2,) if quick else (2, 6, 12, 24):
            parts[f"compiling {layers} layers"] = lambda n=layers: compilation(n, folder, rounds)
        scale = ("tiny", 100_000, 2) if quick else ("base", 900_000, 50)
        parts["memory"] = lambda: memory(*scale, folder)
        for name, measure in parts.items():
            print(name, flush=True)
            yield {"name": name, "results": [record(result) for result in measure()]}
