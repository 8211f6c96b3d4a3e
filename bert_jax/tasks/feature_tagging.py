"""Token classification over the features of an encoder that stays as it is (paper, section 5.3)."""

import dataclasses
from typing import ClassVar

from bert_jax.config import BertConfig
from bert_jax.errors import UserError
from bert_jax.models.feature_head import FEATURES, FeatureTagger
from bert_jax.settings import setting
from bert_jax.tasks.tagging import Tagging


@dataclasses.dataclass(slots=True, kw_only=True)
class FeatureTagging(Tagging):
    """A tag for each unit by two bidirectional LSTM layers, which alone are trained."""

    encoder_features: str = setting(
        "concat_last_four", "what is read of the encoder's layers", tuple(FEATURES)
    )
    lstm_width: int = setting(768, "width of each LSTM layer, in each direction")

    kind: ClassVar[str] = "feature_tagging"
    # What transformers loads of the model is its encoder.
    architecture: ClassVar[str] = "BertModel"
    frozen_encoder: ClassVar[bool] = True
    packable: ClassVar[bool] = False

    def model(self, config: BertConfig) -> FeatureTagger:
        """See `Task.model`.

        Raises:
          UserError: the model has fewer layers than `encoder_features` are of.
        """
        first = FEATURES[self.encoder_features].start
        if -first > config.num_hidden_layers:
            raise UserError(
                f"config.task.encoder_features={self.encoder_features!r}: the model has "
                f"{config.num_hidden_layers} layers; choose weighted_all or last"
            )
        return FeatureTagger(config, len(self.labels), self.encoder_features, self.lstm_width)
