"""One self-contained HTML page: text, numbers, tables and pictures, no network needed."""

import base64
import html
import io
import platform
import shlex
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..data import write_text

_STYLE = """
:root{--ink:#1c2733;--soft:#4a5a6a;--faint:#6b7a88;--line:#dde4ea;--tint:#eef4f9;--blue:#24527a}
*{box-sizing:border-box}
body{font:16px/1.55 system-ui,-apple-system,"Segoe UI",sans-serif;color:var(--ink);
background:#fff;max-width:66rem;margin:0 auto;padding:2.2rem 1.25rem 3rem}
h1{font-size:1.9rem;line-height:1.2;margin:0 0 .3rem}
h2{font-size:1.25rem;margin:2.6rem 0 .4rem;padding-top:.9rem;border-top:1px solid var(--line)}
h3{font-size:1rem;margin:1.2rem 0 .3rem}
p{margin:.4rem 0 .8rem;max-width:48rem}p.lead{color:var(--soft);font-size:1.05rem}
p.warning{background:#fdf0d5;border-left:5px solid #c77700;padding:.7rem 1rem;max-width:none}
figure{margin:1rem 0}img{max-width:100%;height:auto;display:block}
figcaption{color:var(--soft);font-size:.9rem;max-width:48rem;margin-top:.3rem}
.scroll{overflow-x:auto}
table{border-collapse:collapse;margin:.8rem 0;font-size:.94rem}
th{color:var(--soft);font-weight:600}
th,td{padding:.35rem .9rem .35rem 0;text-align:left;border-bottom:1px solid var(--line);
vertical-align:top}
td:first-child{white-space:nowrap}
td.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
code,pre{font:13px/1.5 ui-monospace,Menlo,Consolas,monospace;background:#f3f6f8;border-radius:5px}
pre{padding:.8rem;overflow-x:auto;white-space:pre-wrap;overflow-wrap:anywhere}
ul{margin:.3rem 0 .8rem;padding-left:1.2rem;color:var(--soft)}
.tiles{display:flex;flex-wrap:wrap;gap:.8rem;margin:1.3rem 0}
.tile{background:var(--tint);border-radius:9px;padding:.7rem 1.1rem;min-width:8.5rem;
color:var(--soft);font-size:.9rem}
.tile b{display:block;font-size:1.55rem;line-height:1.25;color:var(--blue);
font-variant-numeric:tabular-nums}
.sides{display:flex;flex-wrap:wrap;gap:2rem;align-items:flex-start}
.sides>div{flex:1 1 19rem;min-width:0}.sides>div.narrow{flex:0 1 auto;max-width:100%}
.words{line-height:2.1;margin:.2rem 0 1rem}
.words span{border-radius:4px;padding:.12em .25em;margin-right:.15em;display:inline-block;
line-height:1.4}
.badge{display:inline-block;border-radius:4px;padding:0 .45em;font-size:.85rem;font-weight:600}
.good{background:#dff2ea;color:#1e7a55}.bad{background:#f9dfdc;color:#a93226}
footer{margin-top:3rem;padding-top:.9rem;border-top:1px solid var(--line);color:var(--faint);
font-size:.85rem}
@media print{body{max-width:none}h2{break-after:avoid}figure{break-inside:avoid}}
"""
_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E"
    "%3Crect width='16' height='16' rx='4' fill='%2324527a'/%3E%3C/svg%3E"
)

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""What a browser may load for a page: nothing from elsewhere, and no scripts."""


class Report:
    """A page built from top to bottom; every method returns the report, `write` makes the file."""

    def __init__(self, title: str, lead: str = ""):
        """A page with this title and one sentence below it."""
        self.title = title
        self.parts = [f"<h1>{html.escape(title)}</h1>"]
        if lead:
            self.parts.append(f'<p class="lead">{html.escape(lead)}</p>')

    def section(self, heading: str, text: str = "") -> "Report":
        """A heading, and a paragraph below it."""
        self.parts.append(f"<h2>{html.escape(heading)}</h2>")
        return self.text(text) if text else self

    def heading(self, text: str) -> "Report":
        """A small heading inside a section."""
        self.parts.append(f"<h3>{html.escape(text)}</h3>")
        return self

    def text(self, text: str) -> "Report":
        """A paragraph."""
        self.parts.append(f"<p>{html.escape(text)}</p>")
        return self

    def warning(self, text: str) -> "Report":
        """A sentence in a box, not to be overlooked."""
        self.parts.append(f'<p class="warning">{html.escape(text)}</p>')
        return self

    def bullets(self, items: Sequence[str]) -> "Report":
        """A list of short remarks."""
        if items:
            inner = "".join(f"<li>{html.escape(item)}</li>" for item in items)
            self.parts.append(f"<ul>{inner}</ul>")
        return self

    def code(self, text: str) -> "Report":
        """Preformatted text."""
        self.parts.append(f"<pre>{html.escape(text)}</pre>")
        return self

    def numbers(self, numbers: dict[str, str]) -> "Report":
        """A row of tiles: a large number over what it counts."""
        tiles = "".join(
            f'<div class="tile"><b>{html.escape(value)}</b>{html.escape(name)}</div>'
            for name, value in numbers.items()
        )
        self.parts.append(f'<div class="tiles">{tiles}</div>')
        return self

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> "Report":
        """A table; numbers are set to the right, True and False become marks."""
        self.parts.append(_table(columns, rows))
        return self

    def figure(self, figure: Any, caption: str) -> "Report":
        """A matplotlib figure, or the path of a PNG file, embedded in the page."""
        if isinstance(figure, str | Path):
            data = Path(figure).read_bytes()
        else:
            stream = io.BytesIO()
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Glyph .* missing")  # a box is drawn
                figure.savefig(stream, format="png", dpi=130, bbox_inches="tight")
            data = stream.getvalue()
        source = base64.b64encode(data).decode("ascii")
        alt = html.escape(caption, quote=True)
        self.parts.append(
            f'<figure><img alt="{alt}" src="data:image/png;base64,{source}">'
            f"<figcaption>{html.escape(caption)}</figcaption></figure>"
        )
        return self

    def diagram(self, svg: str, caption: str, facts: Sequence[tuple[str, Any]] = ()) -> "Report":
        """A drawing as inline SVG, with a table of facts beside it."""
        figure = f"<figure>{svg}<figcaption>{html.escape(caption)}</figcaption></figure>"
        side = f"<div>{_table((), facts)}</div>" if facts else ""
        self.parts.append(
            f'<div class="sides"><div class="narrow scroll">{figure}</div>{side}</div>'
        )
        return self

    def weighted_words(
        self, words: Sequence[str], weights: Sequence[float], note: str = ""
    ) -> "Report":
        """A text whose words are shaded by their weights, from the least to the largest one.

        A weight of 1 is an even share, which the words tell under the pointer.
        """
        low, high = min(weights, default=0.0), max(weights, default=0.0)
        spread = max(high - low, 1e-12)
        spans = "".join(
            f'<span style="background:rgba(192,57,43,{0.04 + 0.6 * (w - low) / spread:.3f})" '
            f'title="{w:.2f} of an even share">{html.escape(word)}</span>'
            for word, w in zip(words, weights, strict=True)
        )
        head = f"<h3>{html.escape(note)}</h3>" if note else ""
        self.parts.append(f'{head}<p class="words">{spans}</p>')
        return self

    def command(self) -> "Report":
        """The command that made this page, to make it again."""
        name = Path(sys.argv[0]).name
        name = "widelimit" if name in ("__main__.py", "widelimit_command.py") else name
        return self.code(shlex.join([name, *sys.argv[1:]]))

    def html(self) -> str:
        """The page as text."""
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width,initial-scale=1">'
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
            f'<link rel="icon" href="{_ICON}">'
            f"<title>{html.escape(self.title)}</title><style>{_STYLE}</style></head><body>"
            + "\n".join(self.parts)
            + f"<footer>{html.escape(versions())}</footer></body></html>\n"
        )

    def write(self, path: str | Path) -> Path:
        """Write the page; a half-written one never replaces an old one."""
        write_text(path, self.html())
        return Path(path)


def versions() -> str:
    """What this was made with."""
    import jax
    import numpy as np

    from .. import __version__

    return (
        f"widelimit {__version__}, JAX {jax.__version__}, NumPy {np.__version__}, "
        f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(_cell(value) for value in row) + "</tr>" for row in rows)
    top = f"<thead><tr>{head}</tr></thead>" if columns else ""
    return f'<div class="scroll"><table>{top}<tbody>{body}</tbody></table></div>'


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        kind, word = ("good", "right") if value else ("bad", "wrong")
        return f'<td><span class="badge {kind}">{word}</span></td>'
    if isinstance(value, float):
        return f'<td class="n">{value:.4g}</td>'
    kind = ' class="n"' if isinstance(value, int) else ""
    return f"<td{kind}>{html.escape(str(value))}</td>"
