"""python -m benchmarks.quality: how well one learns in the same time, ours and transformers'.

Both train a model of tiny's size on the same shards, batches and cores, one after the other, for
the same seconds: ours by the recipe of `tiny`, the peer (predicted positions alone, AdamW,
compiled, bfloat16 autocast) with several learning rates. Writes quality.json, .md and .svg.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.contest import ROOT
from benchmarks.input_pipeline import write_text
from benchmarks.run import machine
from bert_jax import allocator
from bert_jax.config import CorpusConfig
from bert_jax.errors import run_main
from bert_jax.flags import Parser
from bert_jax.prepare import prepare

RATES = (5e-4, 1e-3, 2e-3)


def run(
    module: str, spec: dict[str, Any], folder: Path, options: dict[str, Any]
) -> list[dict[str, float]]:
    """The curve of a learner in a process of its own."""
    answer, file = folder / "answer.json", folder / "spec.json"
    file.write_text(json.dumps(spec | {"answer": str(answer), "options": options}))
    environment = os.environ | allocator.SETTINGS | {"JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-m", module, file], check=True, cwd=ROOT, env=environment)
    return json.loads(answer.read_text())


def draw(curves: dict[str, list[dict[str, float]]], file: Path) -> None:
    """Held-out loss and accuracy over seconds of training."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, name in zip(figure.subplots(1, 2), ("mlm_loss", "mlm_accuracy"), strict=True):
        for contender, curve in curves.items():
            points = [(point["seconds"], point[name]) for point in curve]
            axes.plot(*zip(*points, strict=True), marker=".", label=contender)
        axes.set_xlabel("seconds of training")
        axes.set_title(f"held-out {name.replace('_', ' ').replace('mlm', 'MLM')}")
    axes.legend()
    figure.savefig(file)


def table(curves: dict[str, list[dict[str, float]]]) -> str:
    """Markdown: loss and accuracy at each evaluation."""
    lines = [["seconds", *curves], ["---"] * (len(curves) + 1)]
    for points in zip(*curves.values(), strict=True):
        shown = [f"{p['mlm_loss']:.3f}, {p['mlm_accuracy']:.1%}" for p in points]
        lines.append([f"{points[0]['seconds']:.0f}", *shown])
    lines.append(["steps", *(f"{curve[-1]['step']:,}" for curve in curves.values())])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Make shards, let each learn, and write what came of it."""
    parser = Parser(prog="python -m benchmarks.quality", description=__doc__)
    parser.add_argument("--seconds", type=float, default=180, help="of training, for each")
    parser.add_argument("--quick", action="store_true", help="the smallest case: does it work?")
    parser.add_argument("--output", type=Path, default=Path("."), metavar="DIR")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    quick, stem = arguments.quick, arguments.output / "quality"
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_text(folder / "text.txt", 300_000 if quick else 9_000_000)
        corpus = CorpusConfig(source=f"text:{folder}/text.txt", sentences="lines")
        vocab_size = 1_000 if quick else 8_000
        manifest = prepare(corpus, vocab_size, folder / "shards", progress=False)
        spec = {
            "shards": str(folder / "shards"),
            "vocab_size": manifest.vocab_size,
            "seconds": 2 if quick else arguments.seconds,
            "points": 2 if quick else 6,
            "batch_size": 16,
            "eval_examples": 64 if quick else 2_000,
        }
        curves = {"ours": run("benchmarks.quality_jax", spec, folder, {})}
        for rate in RATES[:1] if quick else RATES:
            options = {"learning_rate": rate}
            curves[f"PyTorch, {rate:g}"] = run("benchmarks.quality_torch", spec, folder, options)
    told = {"machine": machine(), "curves": curves}
    stem.with_suffix(".json").write_text(json.dumps(told, indent=1) + "\n")
    stem.with_suffix(".md").write_text(table(curves) + "\n")
    draw(curves, stem.with_suffix(".svg"))
    print(table(curves))


if __name__ == "__main__":
    run_main(main)
