"""How texts are put together: [CLS] A [SEP], and two of them [CLS] A [SEP] B [SEP]."""

import tokenizers
from tokenizers import processors


def pair_template(backend: tokenizers.Tokenizer, names: dict[str, str]) -> processors.PostProcessor:
    """The original's: the first text, with [CLS], has the token type 0 and the second 1."""
    cls, sep = names["cls_token"], names["sep_token"]
    return processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(name, backend.token_to_id(name)) for name in (cls, sep)],
    )


def shown_pair(backend: tokenizers.Tokenizer) -> str:
    """The special pieces that `backend` gives a pair of texts, each with its token type."""
    pair = backend.encode("", "")
    return " ".join(
        f"{piece}:{kind}" for piece, kind in zip(pair.tokens, pair.type_ids, strict=True)
    )
