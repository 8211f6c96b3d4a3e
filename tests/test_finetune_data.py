"""The batches of a fine-tuning run: of how many lengths they are."""

from pathlib import Path

import numpy as np
import pytest
from small_finetune import small_config, write_model

from bert_jax import finetune_data
from bert_jax.finetune_config import FinetuneConfig
from bert_jax.finetune_data import Data, epoch_plan, host_batches, read_data
from bert_jax.interop import load_weights


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> FinetuneConfig:
    """Texts of 1 to 60 words."""
    folder = tmp_path_factory.mktemp("data")
    lines = [f"{'river ' * (1 + index % 60)}\t{index % 2}" for index in range(300)]
    (folder / "table.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")
    config = small_config(write_model(folder / "model"), folder / "table.tsv", folder / "table.tsv")
    config.task.max_length = 64
    return config


def read(config: FinetuneConfig, program: int, monkeypatch: pytest.MonkeyPatch) -> Data:
    """The data where to compile a length takes as long as so many positions."""
    monkeypatch.setattr(finetune_data, "_PROGRAM", {"cpu": program})
    tokenizer = load_weights(Path(config.init_from)).needed_tokenizer()
    return read_data(config, tokenizer, 1)


@pytest.mark.parametrize(("program", "sizes"), [(0, (8, 16, 24, 32, 48, 64)), (10**9, (64,))])
def test_batches_are_padded_to_the_sizes_that_pay(program, sizes, config, monkeypatch):
    data = read(config, program, monkeypatch)
    assert data.computed.sizes == sizes
    rows = np.arange(config.batch_size)
    for epoch in range(2):
        plan = epoch_plan(data.train, config, epoch)
        batches = host_batches(data.train, plan, config, sizes, rows, 1, 0)
        shapes = [batch["input_ids"].shape for batch in batches]
        assert {length for _, length in shapes} == set(sizes)
    positions = sum(count * length for count, length in shapes)
    assert data.computed.positions == pytest.approx(positions / len(shapes), rel=0.05)


def test_a_length_that_saves_much_has_a_program_of_its_own(config, monkeypatch):
    cheap, dear = (read(config, program, monkeypatch).computed for program in (5_000, 20_000))
    assert len(cheap.sizes) > len(dear.sizes) > 1
    assert cheap.padding < dear.padding
