"""One self-contained HTML page: text, numbers, tables and pictures, no network needed."""

import base64
import html
import io
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_STYLE = """
body{font:16px/1.55 system-ui,sans-serif;color:#1c2733;background:#fff;max-width:62rem;
margin:2.5rem auto;padding:0 1.25rem}
h1{font-size:1.9rem;margin:0 0 .2rem}h2{font-size:1.25rem;margin:2.2rem 0 .4rem}
p.lead{color:#4a5a6a;margin-top:0}figure{margin:1rem 0}img{max-width:100%;height:auto}
figcaption{color:#4a5a6a;font-size:.92rem}table{border-collapse:collapse;margin:.8rem 0}
th,td{padding:.3rem .9rem .3rem 0;text-align:left;border-bottom:1px solid #dde4ea}
td.n{text-align:right;font-variant-numeric:tabular-nums}
code,pre{background:#f3f6f8;border-radius:4px}pre{padding:.8rem;overflow-x:auto}
.tiles{display:flex;flex-wrap:wrap;gap:1rem;margin:1.2rem 0}
.tile{background:#eef4f9;border-radius:8px;padding:.8rem 1.2rem;min-width:9rem}
.tile b{display:block;font-size:1.6rem;color:#24527a}footer{margin-top:3rem;color:#6b7a88;
font-size:.85rem}
"""


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

    def text(self, text: str) -> "Report":
        """A paragraph."""
        self.parts.append(f"<p>{html.escape(text)}</p>")
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
        """A table; numbers are set to the right."""
        head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
        body = "".join("<tr>" + "".join(_cell(value) for value in row) + "</tr>" for row in rows)
        self.parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
        return self

    def figure(self, figure: Any, caption: str) -> "Report":
        """A matplotlib figure, or the path of a PNG file, embedded in the page."""
        if isinstance(figure, str | Path):
            data = Path(figure).read_bytes()
        else:
            stream = io.BytesIO()
            figure.savefig(stream, format="png", dpi=130, bbox_inches="tight")
            data = stream.getvalue()
        source = base64.b64encode(data).decode("ascii")
        alt = html.escape(caption, quote=True)
        self.parts.append(
            f'<figure><img alt="{alt}" src="data:image/png;base64,{source}">'
            f"<figcaption>{html.escape(caption)}</figcaption></figure>"
        )
        return self

    def html(self) -> str:
        """The page as text."""
        import jax

        from . import __version__

        made = (
            f"widelimit {__version__}, JAX {jax.__version__}, Python {platform.python_version()} · "
            f"command: {html.escape(' '.join(sys.argv))}"
        )
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width,initial-scale=1">'
            f"<title>{html.escape(self.title)}</title><style>{_STYLE}</style></head><body>"
            + "\n".join(self.parts)
            + f"<footer>{made}</footer></body></html>\n"
        )

    def write(self, path: str | Path) -> Path:
        """Write the page; a half-written one never replaces an old one."""
        from .data import writing

        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with writing(path) as stream:
            stream.write(self.html().encode("utf-8"))
        return path


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f'<td class="n">{value:.4g}</td>'
    kind = ' class="n"' if isinstance(value, int) else ""
    return f"<td{kind}>{html.escape(str(value))}</td>"
