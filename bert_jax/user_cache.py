"""Where what can be made again is kept for the user: compiled programs, shards of a corpus."""

import os
from pathlib import Path

from bert_jax.errors import UserError


def user_cache() -> Path:
    """The project's folder in the user's cache; it need not be there.

    Raises:
      UserError: there is no cache: a user without a name, as containers have them, has no home.
    """
    chosen = os.environ.get("XDG_CACHE_HOME")
    try:
        return Path(chosen or Path.home() / ".cache") / "bert_jax"
    except RuntimeError as error:
        raise UserError(
            "no home directory is known, and so no cache; set XDG_CACHE_HOME to a folder that can "
            "be written"
        ) from error
