"""The command line: recipes found by name, fields changed, mistakes told in one line."""

import dataclasses
from pathlib import Path

import pytest

from bert_jax.config import BertConfig, Config, Phase, model_size
from bert_jax.errors import UserError
from bert_jax.finetune_config import FinetuneConfig
from bert_jax.flags import Parser, describe, load_config, override, parse, recipe_names
from bert_jax.settings import walk


def changed(*arguments: str) -> Config:
    return override(load_config("base"), list(arguments))


def test_recipes_are_found_from_any_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert {"tiny", "mini", "small", "base", "large", "base_fast"} <= set(recipe_names())
    assert load_config("base").model.hidden_size == 768


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_is_valid(name):
    load_config(name).validate()


def test_base_is_the_papers_recipe():
    config = load_config("base")
    assert config.phases == (
        Phase(seq_len=128, steps=900_000, batch_size=256, max_predictions=20),
        Phase(seq_len=512, steps=100_000, batch_size=256, max_predictions=76),
    )
    assert config.optimizer.learning_rate == 1e-4
    assert config.optimizer.warmup_steps == 10_000


def test_a_path_and_an_argument(tmp_path):
    recipe = tmp_path / "mine.py"
    recipe.write_text(
        "from bert_jax.config import Config, model_size\n"
        "def get_config(size='tiny'):\n    return Config(model=model_size(size))\n"
    )
    assert load_config(str(recipe)).model == model_size("tiny")
    assert load_config(f"{recipe}:mini").model == model_size("mini")


def test_overrides_reach_every_kind_of_field():
    config = changed(
        "--config.optimizer.learning_rate=3e-4",
        "--config.phases[0].steps=500",
        "--config.data.whole_word",
        "--config.data.dir=x/y",
        "--noconfig.data.next_sentence",
    )
    assert config.optimizer.learning_rate == 3e-4
    assert [phase.steps for phase in config.phases] == [500, 100_000]
    assert config.data.whole_word
    assert not config.data.next_sentence
    assert config.data.dir == "x/y"


def test_overrides_do_not_leak_into_the_next_config():
    changed("--config.phases[0].steps=7", "--config.model.hidden_size=8")
    assert Config().phases[0].steps == load_config("base").phases[0].steps == 900_000
    assert Config().model.hidden_size == 768


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        ("--config.optimizer.lerning_rate=1", "did you mean optimizer.learning_rate?"),
        ("--config.learning_rate=1", "did you mean optimizer.learning_rate?"),
        ("--config.phases[2].steps=1", "no such field"),
        ("--config.phases[0].steps=many", "many"),
        ("--config.phases[0].steps", "give its value"),
        ("--config.phases=3", "no such field"),
        ("--config.model.__class__=3", "no such field"),
        ("--config.data.whole_word=perhaps", "perhaps"),
    ],
)
def test_a_mistaken_override_is_named(argument, told):
    with pytest.raises(UserError, match=r"config") as caught:
        changed(argument)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["bsae", "nowhere/base.py", "base.py", "../base", ""])
def test_an_unknown_recipe_is_named(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="no such"):
        load_config(name)


@pytest.mark.parametrize("text", ["get_config = 3\n", "def get_config(:\n", "x = 1\n", "1/0\n"])
def test_a_broken_recipe_file_is_told_in_one_line(tmp_path, text):
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(UserError, match=r"broken\.py"):
        load_config(str(path))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("phases[0].steps = 1e5", r"config.phases\[0\].steps=100000.0: must be of type int"),
        ("phases = (1, 2)", r"config.phases\[0\]=1: must be of type Phase"),
        ("phases = None", "config.phases=None: must be of type tuple"),
        (
            "optimizer.learning_rate = '1e-3'",
            "config.optimizer.learning_rate='1e-3': must be of type float",
        ),
        ("optimizer = None", "config.optimizer=None: must be of type OptimizerConfig"),
        ("data.packing = 'no'", "config.data.packing='no': must be of type bool"),
        ("seed = True", "config.seed=True: must be of type int"),
        ("optimizer.learning_rate = 10**400", "learning_rate=10+: must be of type float"),
    ],
)
def test_a_value_of_another_type_in_a_recipe_is_named(change, told, tmp_path):
    """Python takes any, and the run would end in a traceback once it trains."""
    lines = ("from bert_jax.config import Config", "def get_config():", " made = Config()")
    recipe = tmp_path / "recipe.py"
    recipe.write_text("\n".join([*lines, f" made.{change}", " return made"]))
    with pytest.raises(UserError, match=told):
        load_config(str(recipe))
    recipe.write_text("\n".join([*lines, " made.optimizer.learning_rate = 1", " return made"]))
    assert load_config(str(recipe)).optimizer.learning_rate == 1


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("()", ()),
        ("text", ("text",)),
        ("text,label", ("text", "label")),
        ("(text, label)", ("text", "label")),
        ('("a,b","c")', ("a,b", "c")),
        ("'a,b'", ("a,b",)),
        ("0,1", ("0", "1")),
        ("1.50,-", ("1.50", "-")),
        ("True", ("True",)),
        ("dev(1).csv", ("dev(1).csv",)),
        ("((", ("((",)),
    ],
)
def test_names_are_given_with_commas(text, names):
    config = override(FinetuneConfig(), [f"--config.task.also={text}"])
    assert config.task.also == names
    written = ",".join(names)
    assert f"  --config.task.also={written}\n" in describe(config)


def test_what_is_no_name_in_a_recipe_is_told(tmp_path):
    recipe = tmp_path / "recipe.py"
    recipe.write_text(
        "from bert_jax.finetune_config import FinetuneConfig\n"
        "def get_config():\n made = FinetuneConfig()\n made.task.labels = ('a', 0)\n return made"
    )
    with pytest.raises(UserError, match=r"config.task.labels\[1\]=0: must be of type str"):
        load_config(str(recipe), FinetuneConfig)


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        ("--config.phases[1].seq_len=1024", "max_position_embeddings=512"),
        ("--config.phases[0].batch_size=0", "must be positive"),
        ("--config.phases[0].steps=-1", "must be positive"),
        ("--config.phases[0].steps=2147483648", "must be below 2,147,483,648"),
        ("--config.phases[0].seq_len=7", "must be at least 8"),
        ("--config.seed=4294967296", "must be below 4,294,967,296"),
        ("--config.model.num_attention_heads=5", "does not divide"),
        ("--config.model.dtype=float16", "choose one of float32, bfloat16"),
        ("--config.optimizer.accumulate=3", "does not divide into"),
        ("--config.data.mask_prob=1.5", "fraction"),
        ("--config.phases[0].max_predictions=129", "more than its seq_len"),
        ("--config.model.type_vocab_size=1", "pairs have two token types"),
    ],
)
def test_values_are_checked_across_fields(argument, told):
    with pytest.raises(UserError) as caught:
        changed(argument).validate()
    assert told in str(caught.value)


def test_parse_takes_the_entry_points_own_arguments():
    parser = Parser(prog="x")
    parser.add_argument("--more")
    arguments, config = parse(parser, ["--config=tiny", "--more=w", "--config.seed=4"])
    assert arguments.more == "w"
    assert arguments.workdir == Path("runs/tiny")
    assert config.seed == 4
    with pytest.raises(UserError, match="--wrkdir"):
        parse(Parser(prog="x"), ["--config=tiny", "--wrkdir=w"])


def test_what_given_weights_determine_is_not_asked_for_in_vain():
    begun = ["--config=base", "--init_from=runs/books"]
    _, config = parse(
        Parser(prog="x"),
        [*begun, "--config.model.hidden_dropout_prob=0.2", "--config.model.vocab_size=40000"],
    )
    assert config.model.hidden_dropout_prob == 0.2
    for asked in ("--config.model.hidden_size=384", "--config.model.num_hidden_layers=6"):
        with pytest.raises(UserError, match=f"^{asked}: .*init_from; leave it out"):
            parse(Parser(prog="x"), [*begun, asked])
        parse(Parser(prog="x"), ["--config=base", asked])


def test_usage_errors_exit_with_2(capsys):
    with pytest.raises(SystemExit) as caught:
        parse(Parser(prog="x"), [])
    assert caught.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_help_tells_every_field(capsys):
    with pytest.raises(SystemExit) as caught:
        parse(Parser(prog="x"), ["--config=base", "--help"])
    assert caught.value.code == 0
    told = capsys.readouterr().out
    for path, _, spec in walk(load_config("base")):
        assert f"--config.{path}=" in told
        assert spec.metadata["help"] in told
    assert describe(load_config("base")) in told


def test_a_config_is_plain_json():
    stored = dataclasses.asdict(load_config("base"))
    assert BertConfig(**stored["model"]) == load_config("base").model
    assert stored["phases"][1]["seq_len"] == 512
