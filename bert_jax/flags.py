"""The command line of a config: a recipe by name or file, and its fields changed one by one."""

import argparse
import ast
import copy
import dataclasses
import difflib
import importlib.util
import os
import re
import sys
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from absl import flags
from ml_collections import config_flags

from bert_jax.config import ARCHITECTURE, Config, RunConfig
from bert_jax.errors import UserError, exit_with
from bert_jax.settings import holds_names, is_of_type, walk

_PACKAGE = Path(__file__).resolve().parent
# In a wheel the recipes are installed inside the package; in a checkout they stand beside it.
_INSTALLED, _BESIDE = _PACKAGE / "configs", _PACKAGE.parent / "configs"
_RECIPES = _INSTALLED if _INSTALLED.is_dir() else _BESIDE
# Where the recipes of a schema are that has a folder of its own.
_FOLDERS = {"FinetuneConfig": "finetune"}
C = TypeVar("C", bound=RunConfig)


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, like every other error here."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs
        )

    def error(self, message: str) -> NoReturn:
        """Print `error: ...` and exit with code 2."""
        exit_with(f"{message} (see --help)")


def recipe_names(schema: type[RunConfig] = Config) -> list[str]:
    """The names that `--config` takes: the files of the schema's recipe folder."""
    return sorted(path.stem for path in _folder(schema).glob("*.py") if path.stem != "__init__")


def load_config(recipe: str, schema: type[C] = Config) -> C:
    """The config of a recipe, before any override.

    Args:
      recipe: a bare name (`base`), found in a checkout and in an installed wheel from any working
        directory, or a path (with `/` or `.py`); `:ARG` after it is passed to `get_config`.
      schema: what the recipe is to give.

    Raises:
      UserError: there is no such recipe, or its file does not give a `schema`.
    """
    name, _, argument = recipe.partition(":")
    path = _recipe_path(name, schema)
    spec = importlib.util.spec_from_file_location(f"bert_jax_recipe_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UserError(f"--config={recipe}: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        config = module.get_config(argument) if argument else module.get_config()
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"--config={recipe}: {path}: {type(error).__name__}: {error}") from error
    if not isinstance(config, schema):
        raise UserError(
            f"--config={recipe}: get_config in {path} does not return a {schema.__name__}"
        )
    _check_types(config, f"{path}: config")
    return config


def _check_types(node: Any, where: str) -> None:
    """Refuse values of other types than their defaults', such as 1e5 steps, which is no integer."""
    like = type(node)()
    for spec in dataclasses.fields(node):
        value, default, name = getattr(node, spec.name), getattr(like, spec.name), spec.name
        if dataclasses.is_dataclass(default) and dataclasses.is_dataclass(value):
            _check_types(value, f"{where}.{name}")
        elif isinstance(default, tuple) and isinstance(value, tuple | list):
            for index, item in enumerate(value):
                _check_type(
                    item, "" if holds_names(spec) else default[0], f"{where}.{name}[{index}]"
                )
                if dataclasses.is_dataclass(item):
                    _check_types(item, f"{where}.{name}[{index}]")
        else:
            _check_type(value, default, f"{where}.{name}")


def _check_type(value: Any, default: Any, where: str) -> None:
    if not is_of_type(value, default):
        raise UserError(f"{where}={value!r}: must be of type {type(default).__name__}")


def override(config: C, arguments: list[str]) -> C:
    """A copy of `config`, changed by arguments such as `--config.phases[0].steps=500`.

    Raises:
      UserError: an unknown field, with the nearest name, or a value of the wrong type.
    """
    settings = walk(config)
    known = {path: value for path, value, _ in settings}
    named = {path for path, _, spec in settings if holds_names(spec)}
    for argument in arguments:
        _check_override(known, argument)
    arguments = [_with_names(argument, named) for argument in arguments]
    values = flags.FlagValues()
    try:
        holder = config_flags.DEFINE_config_dataclass(
            "config", copy.deepcopy(config), flag_values=values, sys_argv=arguments
        )
        values(["", *arguments])
    except (flags.Error, ValueError, TypeError) as error:
        raise UserError(str(error)) from error
    return holder.value


def describe(config: RunConfig) -> str:
    """Every field of `config` with its value, meaning and choices, for `--help`."""
    lines = []
    for path, value, spec in walk(config):
        values = "A,B,..." if holds_names(spec) else "|".join(spec.metadata["choices"])
        told = spec.metadata["help"] + (f" [{values}]" if values else "")
        value = ",".join(value) if holds_names(spec) else value
        lines.append(f"  --config.{path}={value}\n        {told}")
    return "\n".join(lines)


def parse(
    parser: Parser, argv: list[str] | None = None, schema: type[C] = Config
) -> tuple[argparse.Namespace, C]:
    """Parse the command line of a run: `parse_recipe`'s, and where it is and what it begins with.

    Args:
      parser: the entry point's own arguments; those of any run are added: `--init_from`,
        `--workdir`, `--distributed` and those of `parse_recipe`.
      argv, schema: as for `parse_recipe`.

    Returns:
      The arguments, `workdir` a path, and the config: overridden and validated.

    Raises:
      UserError: an unknown recipe, field or value; a field that the weights determine.
    """
    parser.add_argument(
        "--workdir", metavar="DIR", help="the run's directory; runs/RECIPE where it is not given"
    )
    parser.add_argument(
        "--distributed",
        action="store_true",
        help="one of several processes, which JAX finds by itself (Cloud TPU pods, SLURM, Open "
        "MPI); elsewhere set JAX_COORDINATOR_ADDRESS=HOST:PORT of process 0, JAX_NUM_PROCESSES "
        "and JAX_PROCESS_ID",
    )
    parser.add_argument(
        "--init_from", metavar="SOURCE", help="weights to begin with; as --config.init_from"
    )
    arguments, config = parse_recipe(parser, argv, schema)
    config.init_from = arguments.init_from or config.init_from
    if config.init_from:
        _check_adopted(sys.argv[1:] if argv is None else argv)
    recipe = Path(arguments.config.partition(":")[0]).stem
    arguments.workdir = Path(arguments.workdir or f"runs/{recipe}")
    config.validate()
    return arguments, config


def parse_recipe(
    parser: Parser, argv: list[str] | None = None, schema: type[C] = Config
) -> tuple[argparse.Namespace, C]:
    """Parse a command line that takes `--config=RECIPE` and overrides of its fields.

    Args:
      parser: the entry point's own arguments; `--config` and the fields' help are added.
      argv: the arguments, or None for those of the process.
      schema: of the config.

    Returns:
      The arguments and the config: overridden, not validated yet.

    Raises:
      UserError: an unknown recipe or field, or a value of the wrong type.
    """
    argv = sys.argv[1:] if argv is None else argv
    parser.add_argument(
        "--config",
        required=True,
        metavar="RECIPE",
        help=f"one of {', '.join(recipe_names(schema))}, or the path of a file with get_config(); "
        "--config.FIELD=VALUE changes a field of it",
    )
    if {"-h", "--help"} & set(argv):
        chosen = [a.partition("=")[2] for a in argv if a.startswith("--config=")]
        config = load_config(chosen[0], schema) if chosen else schema()
        title = f"the fields of --config={chosen[0]}" if chosen else "the fields of a config"
        parser.epilog = f"{parser.epilog or ''}\n{title}, with their values:\n{describe(config)}"
    arguments, rest = parser.parse_known_args(argv)
    unknown = [item for item in rest if not re.match(r"--(no)?config\.", item)]
    if unknown:
        raise UserError(f"unknown argument {unknown[0]!r} (see --help)")
    return arguments, override(load_config(arguments.config, schema), rest)


def _folder(schema: type[RunConfig]) -> Path:
    return _RECIPES / _FOLDERS.get(schema.__name__, "")


def _recipe_path(name: str, schema: type[RunConfig]) -> Path:
    if "/" in name or name.endswith(".py"):
        path = Path(os.path.expanduser(name))
        if not path.is_file():
            raise UserError(f"--config={name}: no such file")
        return path
    names = recipe_names(schema)
    if name not in names:
        raise UserError(
            f"--config={name}: no such recipe{_nearest(name, names)}; there are {', '.join(names)}"
        )
    return _folder(schema) / f"{name}.py"


def _check_override(known: Mapping[str, Any], argument: str) -> None:
    name, equals, _ = argument.partition("=")
    path = re.sub(r"^--(no)?config\.", "", name)
    if path not in known:
        raise UserError(f"{name}: no such field{_nearest(path, list(known))} (see --help)")
    if not equals and not isinstance(known[path], bool):
        raise UserError(f"{name}: give its value as {name}=VALUE")


def _with_names(argument: str, named: Set[str]) -> str:
    """The argument as `config_flags` reads it, where it is one of the settings that hold names."""
    name, equals, text = argument.partition("=")
    held = equals and name.removeprefix("--config.") in named
    return f"{name}={_names(text)!r}" if held else argument


def _names(text: str) -> tuple[str, ...]:
    """`a,b`, or as in Python, `("a,b", "c")`, where a comma is part of a name."""
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        value = None
    value = (value,) if isinstance(value, str) else value
    if isinstance(value, tuple | list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if (text[:1], text[-1:]) in (("(", ")"), ("[", "]")):
        text = text[1:-1]
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _check_adopted(arguments: list[str]) -> None:
    """Refuse what is asked for in vain; a larger vocabulary is that of the text with new pieces."""
    for argument in arguments:
        name = argument.partition("=")[0].removeprefix("--config.model.")
        if name in ARCHITECTURE and name != "vocab_size":
            raise UserError(f"{argument}: the architecture is that of init_from; leave it out")


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if not near:
        last = {path.rpartition(".")[2]: path for path in known}
        leaf = difflib.get_close_matches(name.rpartition(".")[2], list(last), n=1)
        near = [last[match] for match in leaf]
    return f", did you mean {near[0]}?" if near else ""
