"""The rules of the house, held over the syntax trees and the files themselves."""

import ast
import re
from pathlib import Path

import pytest

from bert_jax.finetune_config import FinetuneConfig
from bert_jax.flags import load_config
from bert_jax.training.flops import run_flops

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "bert_jax"
FOLDERS = ("bert_jax", "configs", "tests", "benchmarks", ".ci")
FILES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
MODULES = [path for path in FILES if path.is_relative_to(PACKAGE)]
# Tests may do what the product must not: write a hostile file, say.
SHIPPED = [path for path in FILES if not path.is_relative_to(ROOT / "tests")]

# Imports point one way: a module imports its own layer and those that stand after it here.
ENTRY_POINT, PREDICTION, TASKS, MIDDLE, MODELS, CONFIG, ERRORS = range(7)
LAYER_OF_FOLDER = {
    "prediction": PREDICTION,
    "reporting": PREDICTION,
    "planning": PREDICTION,
    "tasks": TASKS,
    "training": MIDDLE,
    "data": MIDDLE,
    "interop": MIDDLE,
    "models": MODELS,
}
LAYER_OF_FILE = {
    "config.py": CONFIG,
    "user_cache.py": ERRORS,
    "errors.py": ERRORS,
    "files.py": ERRORS,
    "imports.py": ERRORS,
    "settings.py": ERRORS,
    "terminal.py": ERRORS,
    "__init__.py": ERRORS,
}
TENSORFLOW = {"tensorflow", "tensorflow_datasets", "tensorflow_text"}
# Narrower than the layers: what a folder must not import at all. Only entry points read flags.
FORBIDDEN = {
    "models": {*TENSORFLOW, "absl"},
    "training": {*TENSORFLOW, "absl", "bert_jax.data"},
    "data": {"jax", "flax", "optax", "orbax", "absl", "bert_jax.models", "bert_jax.training"},
}
UNSAFE_MODULES = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
MAX_LINES, MAX_TEST_LINES = 400, 500


def name_of(path: Path) -> str:
    """A file's name in test output."""
    return path.relative_to(ROOT).as_posix()


def layer_of(path: Path) -> int:
    """The layer of a module of the package; a file at its top is an entry point."""
    first, *rest = path.relative_to(PACKAGE).parts
    return LAYER_OF_FOLDER[first] if rest else LAYER_OF_FILE.get(first, ENTRY_POINT)


def imported_names(tree: ast.AST) -> set[str]:
    """Dotted names of all that a syntax tree imports, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def module_file(name: str) -> Path | None:
    """The file of the package that a dotted name, of a module or of a thing in it, stands in."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        stem = ROOT.joinpath(*parts[:length])
        for file in (stem.with_suffix(".py"), stem / "__init__.py"):
            if file.is_file():
                return file
    return None


def is_within(name: str, package: str) -> bool:
    """Whether a dotted name is `package` or stands in it."""
    return f"{name}.".startswith(f"{package}.")


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_one_way(path: Path):
    for name in imported_names(ast.parse(path.read_text())):
        imported = module_file(name) if is_within(name, "bert_jax") else None
        if imported:
            assert layer_of(imported) >= layer_of(path), f"{name_of(path)} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_folder_imports_nothing_that_it_must_do_without(path: Path):
    forbidden = FORBIDDEN.get(path.relative_to(PACKAGE).parts[0], set())
    for name in imported_names(ast.parse(path.read_text())):
        assert not any(is_within(name, package) for package in forbidden), name


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_tensorflow_is_imported_inside_functions_only(path: Path):
    # It takes ten seconds, which --help must not.
    tree = ast.parse(path.read_text())
    top_level = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = imported_names(ast.Module(body=list(top_level), type_ignores=[]))
    assert not any(is_within(name, tf) for name in names for tf in TENSORFLOW)


@pytest.mark.parametrize("path", SHIPPED, ids=name_of)
def test_nothing_unsafe_is_read(path: Path):
    tree = ast.parse(path.read_text())
    roots = {name.split(".")[0] for name in imported_names(tree)}
    assert not roots & UNSAFE_MODULES
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        flags = {k.arg: k.value.value for k in call.keywords if isinstance(k.value, ast.Constant)}
        for flag in ("allow_pickle", "trust_remote_code", "shell"):
            assert not flags.get(flag), f"line {call.lineno}: {flag}"
        if isinstance(call.func, ast.Attribute) and ast.unparse(call.func) == "np.load":
            assert flags.get("allow_pickle") is False, f"line {call.lineno}: say allow_pickle=False"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_the_type_checker_is_not_silenced(path: Path):
    silencer = re.compile(r"#\s*(type:\s*ignore|pyright:|mypy:)")
    assert not [line for line in path.read_text().splitlines() if silencer.search(line)]


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_are_short_and_are_named_for_what_they_hold(path: Path):
    assert path.name not in {"utils.py", "helpers.py", "common.py", "misc.py"}
    limit = MAX_LINES if path in SHIPPED else MAX_TEST_LINES
    assert len(path.read_text().splitlines()) <= limit


@pytest.mark.parametrize("path", SHIPPED, ids=name_of)
def test_a_file_begins_by_saying_what_it_is_for(path: Path):
    assert ast.get_docstring(ast.parse(path.read_text()))


def test_test_files_have_names_of_their_own():
    names = [path.name for path in FILES if path.is_relative_to(ROOT / "tests")]
    assert len(names) == len(set(names))


def test_tests_mirror_the_package():
    for folder in (path for path in (ROOT / "tests").iterdir() if path.is_dir()):
        if any(folder.rglob("*.py")):
            assert any((home / folder.name).is_dir() for home in (PACKAGE, ROOT)), folder.name


RECIPES = sorted(path.stem for path in (ROOT / "configs").glob("[!_]*.py"))
FINETUNING = sorted(path.stem for path in (ROOT / "configs/finetune").glob("[!_]*.py"))


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_loads_and_validates(recipe: str):
    load_config(recipe).validate()


@pytest.mark.parametrize("recipe", FINETUNING)
def test_every_recipe_of_fine_tuning_loads_and_validates(recipe: str):
    config = load_config(recipe, FinetuneConfig)
    config.init_from, config.task.train = "model", config.task.train or "train.tsv"
    config.validate()


@pytest.mark.parametrize("recipe", [*RECIPES, *(f"finetune/{name}" for name in FINETUNING)])
def test_every_recipe_says_its_command(recipe: str):
    docstring = ast.get_docstring(ast.parse((ROOT / f"configs/{recipe}.py").read_text()))
    assert f"--config={Path(recipe).name}" in (docstring or "")


def cost(recipe: str) -> str:
    """What a recipe's docstring says of its cost."""
    docstring = ast.get_docstring(ast.parse((ROOT / f"configs/{recipe}.py").read_text())) or ""
    return docstring.partition("Cost: ")[2]


def is_rounded(told: str, exact: float) -> bool:
    """Whether a figure is the exact one, to as many digits as it has."""
    digits = re.sub(r"e.*|[.,]", "", told).rstrip("0" if "e" not in told else "")
    return float(told.replace(",", "")) == float(f"{exact:.{len(digits) - 1}e}")


@pytest.mark.parametrize("recipe", ["base", "base_fast", "large"])
def test_tokens_and_flops_of_a_recipe_are_those_it_tells(recipe: str):
    config = load_config(recipe)
    told = re.match(r"(\S+) tokens, about (\S+) FLOPs", cost(recipe))
    assert told
    tokens = sum(phase.steps * phase.batch_size * phase.seq_len for phase in config.phases)
    assert is_rounded(told[1], tokens), tokens
    assert is_rounded(told[2], flops := run_flops(config.model, config.phases)), flops


@pytest.mark.parametrize(
    "recipe", ["ner", "feature_ner", "klue_ner", "klue_nli", "nsmc", "multiple_choice", "glue"]
)
def test_steps_of_a_recipe_are_those_it_tells(recipe: str):
    config = load_config(recipe, FinetuneConfig)
    pattern = (
        r"([\d,]+)(?:[^\d:]|-\d+)*(?:come to|:)\s([\d,]+) steps"  # 10 of XY-2003 come to 3 steps
    )
    told = re.search(pattern, cost(f"finetune/{recipe}"))
    assert told
    steps = config.epochs * -(-int(told[1].replace(",", "")) // config.batch_size)
    assert is_rounded(told[2], steps), steps


# What people copy into a shell: pages, the launchers' help, the docstrings and help of the product.
TOLD = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "launch").glob("*")),
]


@pytest.mark.parametrize("path", [*TOLD, *SHIPPED], ids=name_of)
def test_brackets_of_a_flag_are_quoted(path: Path):
    """Unquoted, zsh (of macOS) looks for files of that pattern, and runs nothing."""
    assert not re.findall(r"(?<!\S)--config\.\S*\[.*", path.read_text())


def test_the_layers_catch_a_wrong_import():
    assert layer_of(PACKAGE / "models/attention.py") > layer_of(PACKAGE / "training/losses.py")
    assert layer_of(PACKAGE / "train.py") < layer_of(PACKAGE / "data/shards.py")
    tree = ast.parse("def f():\n  import bert_jax.training.losses\n  from bert_jax import train")
    assert imported_names(tree) == {"bert_jax.training.losses", "bert_jax.train"}
    assert module_file("bert_jax.config.Config") == PACKAGE / "config.py"
