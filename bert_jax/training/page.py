"""The frame of a report: an HTML page that needs no other file, light or dark, and its parts."""

import html
import json
from collections.abc import Iterable, Sequence
from typing import Any


def page(title: str, body: str) -> str:
    """A whole page; `title` is text, `body` HTML."""
    return _PAGE.format(title=html.escape(title), style=_STYLE, body=body)


def section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>\n{content}</section>"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], name: str = "") -> str:
    """A table of cells that are HTML already; the first cell of a row is its header."""
    head = "".join(f'<th scope="col">{cell}</th>' for cell in header)
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>\n'
        for first, *rest in rows
    )
    return f'<div class="scroll"><table class="{name}"><tr>{head}</tr>\n{body}</table></div>'


def facts(texts: Iterable[str]) -> str:
    """Texts in a line, below a page's heading."""
    items = "".join(f"<li>{html.escape(text)}</li>" for text in texts)
    return f'<ul class="facts">{items}</ul>'


def chart(title: str, drawing: str) -> str:
    """A drawing, HTML, under its title, text."""
    return f"<figure><figcaption>{html.escape(title)}</figcaption>{drawing}</figure>"


def charts(drawings: Iterable[str]) -> str:
    """Charts side by side where there is room."""
    return f'<div class="charts">{"".join(drawings)}</div>'


def shown(text: str) -> str:
    """A text that others wrote as HTML: escaped, and cut after 300 characters."""
    cut = text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "\u2026"
    return html.escape(cut)


def details(title: str, content: dict[str, Any]) -> str:
    if not content:
        return ""
    text = html.escape(json.dumps(content, indent=2, ensure_ascii=False))
    return f"<details><summary>{title}</summary><pre>{text}</pre></details>"


_MOST_CHARACTERS = 300
_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""
_STYLE = """
:root {
  color-scheme: light dark;
  --page: #fff; --text: #1c2430; --muted: #5b6675; --rule: #d9dee5; --panel: #f5f7f9;
  --train: #2f6fbe; --heldout: #c2570c; --right: #d8f0de; --wrong: #fbe0dc;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14181e; --text: #e4e8ed; --muted: #9aa6b5; --rule: #333c48; --panel: #1c222a;
    --train: #7ab0f0; --heldout: #f0a060; --right: #1d4a2b; --wrong: #5a2a26;
  }
}
* { box-sizing: border-box; }
body {
  max-width: 66rem; margin: 2.5rem auto; padding: 0 1.25rem;
  background: var(--page); color: var(--text); font: 16px/1.5 system-ui, sans-serif;
}
h1 { margin: 0; font-size: 1.9rem; overflow-wrap: anywhere; }
h2 { margin: 2.5rem 0 .6rem; font-size: 1.15rem; }
p { margin: .6rem 0; color: var(--muted); font-size: .9rem; }
.facts { margin: .3rem 0 0; padding: 0; list-style: none; color: var(--muted); }
.facts li { display: inline; }
.facts li + li::before { content: " \\00b7  "; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .7rem; border-bottom: 1px solid var(--rule); text-align: right; }
td { white-space: nowrap; }
th { font-weight: 500; color: var(--muted); }
tr:first-child th { font-size: .85rem; vertical-align: bottom; }
th:first-child { text-align: left; padding-left: 0; }
.matrix td { padding: .1rem; }
.matrix td div { padding: .3rem .4rem; border-radius: .25rem; }
.texts th, .texts td, .guesses th, .guesses td {
  text-align: start; vertical-align: top; white-space: normal;
  unicode-bidi: plaintext; /* a text of Arabic or Hebrew from right to left */
}
.texts tr:not(:first-child) th { overflow-wrap: anywhere; }
.texts td { overflow-wrap: break-word; }
.texts tr:not(:first-child) th:not(:nth-last-child(2)) { min-width: 11rem; } /* a text, no count */
.texts tr:not(:first-child) th { font-weight: 400; color: var(--text); }
.results td:nth-child(2) { font-size: 1.3rem; font-weight: 600; }
.time { max-width: 44rem; }
.time td:last-child { width: 45%; }
.bar { height: .7rem; border-radius: .2rem; background: var(--train); }
.charts {
  display: grid; gap: 1.2rem;
  grid-template-columns: repeat(auto-fill, minmax(min(25rem, 100%), 1fr));
}
figure { margin: 0; padding: .8rem; border-radius: .5rem; background: var(--panel); }
figcaption { margin-bottom: .3rem; font-size: .9rem; font-weight: 600; }
svg { display: block; width: 100%; height: auto; }
.guesses td[rowspan] { padding-left: 0; }
.guess, .hit { display: inline-block; margin-right: .7rem; color: var(--muted); }
.hit { color: var(--text); font-weight: 600; }
mark { padding: 0 .3rem; border-radius: .25rem; color: var(--text); white-space: nowrap; }
.right { background: var(--right); }
.wrong { background: var(--wrong); }
details { margin-top: 1rem; }
summary { cursor: pointer; font-weight: 600; }
pre { padding: .8rem; overflow-x: auto; border-radius: .5rem; background: var(--panel); }
@media print {
  body { margin: 0; max-width: none; font-size: 11px; }
  figure, tr { break-inside: avoid; }
}
"""
