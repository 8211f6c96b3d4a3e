"""`BertConfig` as the fields of a Hugging Face `config.json`, both ways."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_jax.config import COMPUTATION, BertConfig
from bert_jax.errors import UserError

ARCHITECTURES = (
    "BertModel",
    "BertForPreTraining",
    "BertForMaskedLM",
    "BertForNextSentencePrediction",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertForQuestionAnswering",
    "BertForMultipleChoice",
)
# What else config.json may ask of a BERT, and the only value that this encoder computes.
_FIXED = {
    "model_type": "bert",
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
}
# transformers' default where it is not ours: the erf form.
_DEFAULT_ACTIVATION = "gelu"


def bert_config_to_json(
    config: BertConfig, architecture: str = "BertForPreTraining"
) -> dict[str, Any]:
    """The fields of a `config.json` that makes transformers build the same model."""
    fields: dict[str, Any] = {"architectures": [architecture], "model_type": "bert"}
    return fields | {spec.name: getattr(config, spec.name) for spec in _model_fields()}


def bert_config_from_json(fields: Mapping[str, Any], where: str = "config.json") -> BertConfig:
    """The `BertConfig` of a `config.json`; a field that is absent has transformers' default.

    Fields that say nothing about the encoder (labels, versions, stored dtype) are ignored.

    Args:
      fields: the parsed file.
      where: what errors call it.

    Raises:
      UserError: another architecture, or a value that is of the wrong type or that this encoder
        doesn't compute; it names the field.
    """
    for name, value in _FIXED.items():
        if fields.get(name, value) != value:
            raise UserError(
                f"{where}: {name} is {fields[name]!r}: only {value!r} is supported "
                f"(architectures {', '.join(ARCHITECTURES)})"
            )
    architectures = fields.get("architectures") or []
    if not isinstance(architectures, list):
        raise UserError(f"{where}: architectures is {architectures!r}: it must be a list of names")
    for name in architectures:
        if name not in ARCHITECTURES:
            raise UserError(
                f"{where}: architecture {name!r} is not supported: use one of "
                f"{', '.join(ARCHITECTURES)}"
            )
    values: dict[str, Any] = {"hidden_act": _DEFAULT_ACTIVATION}
    for spec in _model_fields():
        # No padding is what transformers may say of it; it is the vocabulary's in any case.
        if spec.name == "pad_token_id" and fields.get(spec.name) is None:
            continue
        if spec.name in fields:
            values[spec.name] = _checked(fields[spec.name], spec, where)
    config = BertConfig(**values)
    if config.hidden_size % config.num_attention_heads:
        raise UserError(
            f"{where}: num_attention_heads {config.num_attention_heads} does not divide "
            f"hidden_size {config.hidden_size}"
        )
    return config


def _model_fields() -> list[dataclasses.Field]:
    return [spec for spec in dataclasses.fields(BertConfig) if spec.name not in COMPUTATION]


def _checked(value: Any, spec: dataclasses.Field, where: str) -> Any:
    """`value` as the type of the field's default, in its range."""
    kind = type(spec.default)
    if kind is float and type(value) is int and abs(value) < 2**53:
        value = float(value)
    if type(value) is not kind:
        raise UserError(f"{where}: {spec.name} is {value!r}: it must be of type {kind.__name__}")
    choices = spec.metadata["choices"]
    if choices and value not in choices:
        raise UserError(f"{where}: {spec.name} is {value!r}: choose one of {', '.join(choices)}")
    if kind is float and not 0 <= value < 1:
        raise UserError(f"{where}: {spec.name} is {value!r}: it must be at least 0 and below 1")
    if kind is int and value < (0 if spec.name == "pad_token_id" else 1):
        raise UserError(f"{where}: {spec.name} is {value!r}: it must be positive")
    return value
