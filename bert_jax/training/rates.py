"""Learning rates that differ with depth, and parameters that stay as they are.

Howard and Ruder (2018, "Universal Language Model Fine-tuning", section 3.2) lower the rate from
layer to layer downwards; Clark et al. (2020, "ELECTRA", appendix B) do so for encoders like this.
"""

import re
from collections.abc import Callable
from typing import Any

import jax
import optax
from flax.traverse_util import flatten_dict, unflatten_dict

_FROZEN, _TRAINED = "frozen", "trained"


def layer_rate(
    name: str,
    *,
    layers: int,
    decay: float = 1.0,
    head: float = 1.0,
    frozen_layers: int = 0,
    frozen_embeddings: bool = False,
) -> float:
    """What the learning rate of a parameter is multiplied by; 0 for one that stays as it is.

    Args:
      name: its path, `bert/encoder/layer_3/...`; layers must not be stacked.
      layers: of the encoder.
      decay: rate of a layer over that of the layer above it; embeddings lie below the first one,
        and the pooler learns as the topmost.
      head: rate of everything outside `bert` over that of the topmost layer.
      frozen_layers: this many of the first layers stay, and the embeddings; -1 is all layers.
      frozen_embeddings: the embeddings stay.
    """
    if not name.startswith("bert/"):
        return head
    frozen = layers if frozen_layers == -1 else frozen_layers
    if name.startswith("bert/embeddings/"):
        return 0.0 if frozen or frozen_embeddings else decay**layers
    found = re.match(r"bert/encoder/layer_(\d+)/", name)
    if not found:
        return 1.0
    index = int(found[1])
    return 0.0 if index < frozen else decay ** (layers - 1 - index)


def with_rates(
    optimizer: optax.GradientTransformation, rate: Callable[[str], float]
) -> optax.GradientTransformation:
    """`optimizer` with each parameter's update times `rate` of its name.

    Parameters of rate 0 get no update and no optimizer state. Their gradients are zero, by
    `stop_gradients`, and so don't count in the norm that is clipped.
    """

    def scale(updates: optax.Updates, params: optax.Params | None = None) -> optax.Updates:
        del params
        return _by_name(updates, lambda name, update: update * rate(name))

    def labels(params: Any) -> Any:
        return _by_name(params, lambda name, _: _TRAINED if rate(name) else _FROZEN)

    trained = optax.chain(optimizer, optax.stateless(scale))
    return optax.partition({_TRAINED: trained, _FROZEN: optax.set_to_zero()}, labels)


def stop_gradients(params: Any, rate: Callable[[str], float]) -> Any:
    """`params`, of which those of rate 0 are constants: nothing is computed for their gradients."""
    leaves = flatten_dict(params, sep="/")
    stopped = {
        name: leaf if rate(name) else jax.lax.stop_gradient(leaf) for name, leaf in leaves.items()
    }
    return unflatten_dict(stopped, sep="/")


def _by_name(tree: Any, function: Callable[[str, Any], Any]) -> Any:
    def one(path: tuple[Any, ...], leaf: Any) -> Any:
        keys = [str(entry.key) for entry in path if isinstance(entry, jax.tree_util.DictKey)]
        return function("/".join(keys), leaf)

    return jax.tree_util.tree_map_with_path(one, tree)
