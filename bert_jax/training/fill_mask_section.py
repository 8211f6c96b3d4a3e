"""The table of a report that shows what a model puts in the place of masked words."""

import html
from typing import Any

from bert_jax.training.page import section


def fill_mask_section(examples: list[dict[str, Any]]) -> str:
    """The section of a report for `examples`, which `are_examples` has checked; "" for none."""
    targets = [target for example in examples for target in example["targets"]]
    if not targets:
        return ""
    first = sum(_is_right(target) for target in targets)
    among = sum(any(p == t["truth"] for p, _ in t["predictions"]) for t in targets)
    note = (
        f"Of {len(targets)} masked words the model's first guess is right for {first} "
        f"(&#10003;), and one of its first {max(len(t['predictions']) for t in targets)} for "
        f"{among}."
    )
    rows = "".join(_example_rows(example) for example in examples if example["targets"])
    header = "<tr><th>held-out sentence</th><th>masked word</th><th>guesses</th></tr>"
    table = f'<div class="scroll"><table class="guesses">{header}{rows}</table></div>'
    return section("Fill-mask predictions", f"<p>{note}</p>{table}")


def _example_rows(example: dict[str, Any]) -> str:
    """A row a masked word; the sentence stands in the first and spans them."""
    targets = example["targets"]
    texts = [html.escape(text) for text in example["text_with_mask"].split("[MASK]")]
    marks = [_mark(target) for target in targets] + ["[MASK]"] * len(texts)
    sentence = texts[0] + "".join(mark + text for mark, text in zip(marks, texts[1:], strict=False))
    rows = []
    for target in targets:
        guesses = " ".join(
            f'<span class="{"hit" if piece == target["truth"] else "guess"}">'
            f"{_word(piece)}&nbsp;<small>{share:.0%}</small></span>"
            for piece, share in target["predictions"]
        )
        span = f'<td rowspan="{len(targets)}">{sentence}</td>' if not rows else ""
        rows.append(f"<tr>{span}<td>{_mark(target)}</td><td>{guesses}</td></tr>")
    return "".join(rows)


def _mark(target: dict[str, Any]) -> str:
    """The masked word, with a sign beside its colour for those who do not see the colour."""
    name, sign = ("right", "&#10003;") if _is_right(target) else ("wrong", "&#10007;")
    return f'<mark class="{name}">{_word(target["truth"])}&nbsp;{sign}</mark>'


def _word(piece: str) -> str:
    """A piece as HTML, without SentencePiece's mark of a word's start."""
    return html.escape(piece.removeprefix("\u2581"))


def _is_right(target: dict[str, Any]) -> bool:
    return bool(target["predictions"]) and target["predictions"][0][0] == target["truth"]


def are_examples(examples: Any) -> bool:
    """Whether `examples` has the shape that a run writes to predictions.json."""
    try:
        return isinstance(examples, list) and all(
            isinstance(example["text_with_mask"], str)
            and isinstance(example["targets"], list)
            and all(
                isinstance(target["truth"], str)
                and all(
                    isinstance(piece, str) and isinstance(share, int | float)
                    for piece, share in target["predictions"]
                )
                for target in example["targets"]
            )
            for example in examples
        )
    except (KeyError, TypeError, ValueError):
        return False
