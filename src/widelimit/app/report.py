"""One self-contained HTML page: text, numbers, tables and pictures, no network needed.

`page.html` beside this file is the template of every page; everything that is put into it is
escaped, and the page forbids its browser to load or run anything.
"""

import base64
import functools
import io
import platform
import shlex
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data import write_text
from ..errors import MissingExtraError


@dataclass(frozen=True)
class Picture:
    """A small picture in the cell of a table, as the bytes of a PNG file."""

    data: bytes

    @property
    def source(self) -> str:
        """The picture as an address that holds it."""
        return f"data:image/png;base64,{base64.b64encode(self.data).decode('ascii')}"


class Report:
    """A page built from top to bottom; every method returns the report, `write` makes the file."""

    def __init__(self, title: str, lead: str = ""):
        """A page with this title and one sentence below it."""
        self.title, self.lead = title, lead
        self.blocks: list[tuple[str, Any]] = []

    def _add(self, kind: str, value: Any) -> "Report":
        self.blocks.append((kind, value))
        return self

    def section(self, heading: str, text: str = "") -> "Report":
        """A heading, and a paragraph below it."""
        self._add("section", heading)
        return self.text(text) if text else self

    def heading(self, text: str) -> "Report":
        """A small heading inside a section."""
        return self._add("heading", text)

    def text(self, text: str) -> "Report":
        """A paragraph."""
        return self._add("text", text)

    def warning(self, text: str) -> "Report":
        """A sentence in a box, not to be overlooked."""
        return self._add("warning", text)

    def bullets(self, items: Sequence[str]) -> "Report":
        """A list of short remarks."""
        return self._add("bullets", items) if items else self

    def code(self, text: str) -> "Report":
        """Preformatted text."""
        return self._add("code", text)

    def numbers(self, numbers: dict[str, str]) -> "Report":
        """A row of tiles: a large number over what it counts."""
        return self._add("numbers", numbers)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> "Report":
        """A table; numbers are set to the right, True and False become marks."""
        return self._add("table", (columns, rows))

    def figure(self, figure: Any, caption: str) -> "Report":
        """A matplotlib figure, or the path of a PNG file, embedded in the page."""
        data = Path(figure).read_bytes() if isinstance(figure, str | Path) else as_png(figure)
        return self._add("figure", {"source": Picture(data).source, "caption": caption})

    def diagram(
        self, drawing: str, caption: str, facts: Sequence[tuple[str, Any]] = ()
    ) -> "Report":
        """A drawing by `diagram`, with a table of facts beside it."""
        return self._add("diagram", {"drawing": drawing, "caption": caption, "facts": facts})

    def weighted_words(
        self, words: Sequence[str], weights: Sequence[float], note: str = ""
    ) -> "Report":
        """A text whose words are shaded by their weights, from the least to the largest one.

        A weight of 1 is an even share, which the words tell under the pointer.
        """
        low, high = min(weights, default=0.0), max(weights, default=0.0)
        shades = [0.04 + 0.6 * (weight - low) / max(high - low, 1e-12) for weight in weights]
        shaded = list(zip(words, weights, shades, strict=True))
        return self._add("words", {"words": shaded, "note": note})

    def command(self) -> "Report":
        """The command that made this page, to make it again."""
        name = Path(sys.argv[0]).name
        name = "widelimit" if name in ("__main__.py", "widelimit_command.py") else name
        return self.code(shlex.join([name, *sys.argv[1:]]))

    def html(self) -> str:
        """The page as text."""
        return _template().render(
            title=self.title, lead=self.lead, blocks=self.blocks, versions=versions()
        )

    def write(self, path: str | Path) -> Path:
        """Write the page; a half-written one never replaces an old one."""
        write_text(path, self.html())
        return Path(path)


def as_png(figure: Any, dpi: int = 130) -> bytes:
    """A matplotlib figure as the bytes of a PNG file."""
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a box is drawn
        figure.savefig(stream, format="png", dpi=dpi, bbox_inches="tight")
    return stream.getvalue()


@functools.cache
def _template() -> Any:
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError:
        raise MissingExtraError("jinja2", "cli") from None
    pages = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined
    )
    pages.tests["picture"] = lambda value: isinstance(value, Picture)
    return pages.get_template("page.html")


def versions() -> str:
    """What this was made with."""
    import jax
    import numpy as np

    from .. import __version__

    return (
        f"widelimit {__version__}, JAX {jax.__version__}, NumPy {np.__version__}, "
        f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    )
