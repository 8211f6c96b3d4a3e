"""Imports of libraries that would load others, of which nothing is asked."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def without(name: str) -> Iterator[None]:
    """Imports within take a module for not installed, unless it is loaded already."""
    modules: dict[str, Any] = sys.modules
    if name in modules:
        yield
        return
    modules[name] = None  # which `import` takes for not installed
    try:
        yield
    finally:
        del modules[name]
