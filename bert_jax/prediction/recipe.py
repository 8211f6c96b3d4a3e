"""How a vector is made of what the layers say of a text's pieces."""

import dataclasses

from bert_jax.errors import UserError

COMBINATIONS = ("concat", "sum", "mean", "weighted")
POOLINGS = ("cls", "mean", "max", "none")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a vector is made of what the layers say.

    layers: "last", "last4", "all" (without the embeddings) or numbers, "-1,-2" or "0,12": 0 are
      the embeddings, -1 is the last layer.
    combine: "concat", in the order of `layers`; "sum"; "mean"; "weighted", a sum.
    weights: of each layer in a weighted sum.
    pooling: of the pieces of a text: "cls" is the vector of [CLS]; "mean" and "max" are over all
      pieces, [CLS] and [SEP] included, as is usual (Reimers & Gurevych, 2019, "Sentence-BERT");
      "none" keeps a vector for each, as extract_features.py of the original does.
    """

    layers: str = "last"
    combine: str = "concat"
    weights: tuple[float, ...] = ()
    pooling: str = "mean"

    def layer_numbers(self, depth: int) -> list[int]:
        """The numbers of the layers of a model with `depth` layers, 0 for its embeddings.

        Raises:
          UserError: another word, or a layer that the model doesn't have.
        """
        named = {"last": 1, "last4": 4, "all": depth}
        if self.layers in named:
            count = named[self.layers]
            if count > depth:
                raise UserError(f"--layers={self.layers}: the model has {depth} layers")
            return list(range(depth - count + 1, depth + 1))
        try:
            numbers = [int(word) for word in self.layers.split(",")]
        except ValueError:
            raise UserError(
                f"--layers={self.layers}: last, last4, all or numbers such as -1,-2 are expected"
            ) from None
        outside = [number for number in numbers if not -depth - 1 <= number <= depth]
        if outside:
            raise UserError(
                f"--layers={self.layers}: there is no layer {outside[0]}; the model has {depth}, "
                f"from 0, the embeddings, to {depth}, or from -{depth + 1} to -1"
            )
        return [number % (depth + 1) for number in numbers]

    def check(self, layers: int) -> None:
        """Check the weights against the number of layers.

        Raises:
          UserError: they don't fit.
        """
        wanted = layers if self.combine == "weighted" else 0
        if len(self.weights) != wanted:
            raise UserError(
                f"--combine={self.combine} of {layers} layers takes {wanted} weights, and "
                f"--weights gives {len(self.weights)}"
            )
