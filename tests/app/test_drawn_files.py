"""Files with several uglinesses at once, drawn: what is no mistake is read as it was meant, and a
mistake is named with its line and goes with `skip`.
"""

import csv
import gzip
import io
import re
from dataclasses import dataclass

import numpy as np
import pytest
from fuzzing import FEW, tries
from hypothesis import given
from hypothesis import strategies as st

from widelimit.app.workflow import Reading, Task, read_source
from widelimit.data import DataError

N = 36
RNG = np.random.default_rng(3)
A = RNG.normal(size=N).round(3) * 1000
KINDS = np.array(["rose" if a > 0 else "iris" for a in A])

# Columns beside the number and the label, and what is said about them.
BESIDE = {
    "id": ([f"x{i:03}" for i in range(N)], r"'id' \(a different"),
    "same": (["7"] * N, r"'same' \(the same in every row"),
    "nothing": ([""] * N, r"'nothing' \(empty"),
    "day": ([f"2024-{1 + i % 12:02}-{1 + i % 28:02}" for i in range(N)], None),
    "open": ([("yes", "no")[i % 2] for i in range(N)], None),
    "größe": ([("klein", "groß", "süß, und fein")[i % 3] for i in range(N)], None),
}
FAULTS = ("a word", "infinite", "too short", "too long", "no label")


@dataclass(frozen=True)
class Ugly:
    """A file and how it must be read: what is unlike a plain table in it."""

    delimiter: str
    decimal: str
    encoding: str
    end: str
    quoting: int
    packed: bool
    hole: str
    holes: frozenset[int]
    columns: tuple[str, ...]  # 'a', 'label' and some of BESIDE, in the file's order
    faults: dict[int, str]  # by row

    def row(self, i):
        number = f"{A[i]:.3f}".replace(".", self.decimal)
        cells = {name: values[i] for name, (values, _) in BESIDE.items()}
        cells |= {"a": self.hole if i in self.holes else number, "label": KINDS[i]}
        fault = self.faults.get(i)
        if fault in ("a word", "infinite"):
            cells["a"] = {"a word": "about ten", "infinite": "inf"}[fault]
        if fault == "no label":
            cells["label"] = ""
        whole = [cells[name] for name in self.columns]
        return {"too short": whole[:-1], "too long": [*whole, "more"]}.get(fault or "", whole)

    def rows_with(self, *faults):
        return sorted(row for row, fault in self.faults.items() if fault in faults)

    def first_mistake(self):
        """What must be said of the file; None where pandas takes all for missing values.

        A last row that is too short ends a file that was cut off."""
        if long := self.rows_with("too long"):
            return f"Line {long[0] + 2} of"
        if self.faults.get(N - 1) == "too short":
            return f"Line {N + 1} of"
        if words := self.rows_with("a word"):
            row = min(words + self.rows_with("infinite"))
            return f"'a' holds {'about ten' if row in words else 'inf'!r} in row {row + 1}"
        if infinite := self.rows_with("infinite"):
            return f"'a' holds an infinite number in row {infinite[0] + 1}"
        short = self.rows_with("too short") if self.columns[-1] == "label" else []
        if empty := sorted(self.rows_with("no label") + short):
            return f"'label' is empty in row {empty[0] + 1}"
        return None

    def whole_rows(self, inputs):
        """The rows that `skip` keeps."""
        gone = {*self.holes, *self.rows_with("a word", "infinite", "no label", "too long")}
        if self.columns[-1] in (*inputs, "label"):
            gone |= set(self.rows_with("too short"))
        return [row for row in range(N) if row not in gone]

    def write(self, folder):
        text = io.StringIO()
        form = {"delimiter": self.delimiter, "lineterminator": self.end, "quoting": self.quoting}
        writer = csv.writer(text, **form)
        writer.writerows([self.columns, *map(self.row, range(N))])
        content = text.getvalue().encode(self.encoding)
        path = folder / ("t.csv.gz" if self.packed else "t.csv")
        path.write_bytes(gzip.compress(content) if self.packed else content)
        return path

    def read(self, path, **options):
        named = "utf-8" if self.encoding == "utf-8-sig" else self.encoding
        how = Reading(encoding=named, decimal=self.decimal, delimiter=self.delimiter, **options)
        return read_source(path, Task.CLASSIFY, how)


@st.composite
def ugly_files(draw):
    rows = st.integers(0, N - 1)
    beside = draw(st.lists(st.sampled_from(list(BESIDE)), unique=True))
    encodings = ("utf-8", "utf-8-sig", "utf-16", "latin-1")
    return Ugly(
        delimiter=draw(st.sampled_from(",;\t|")),
        decimal=draw(st.sampled_from(".,")),
        encoding=draw(st.sampled_from(encodings)),
        end=draw(st.sampled_from(("\n", "\r\n"))),
        quoting=draw(st.sampled_from((csv.QUOTE_MINIMAL, csv.QUOTE_ALL))),
        packed=draw(st.booleans()),
        hole=draw(st.sampled_from(("", "NA", "?", "null"))),
        holes=draw(st.frozensets(rows, max_size=6)),
        columns=tuple(draw(st.permutations(["a", "label", *beside]))),
        faults=draw(st.dictionaries(rows, st.sampled_from(FAULTS), max_size=3)),
    )


@tries(FEW)
@given(ugly_files())
def test_drawn_files_are_read_or_their_mistakes_named(tmp_path_factory, ugly):
    """Without mistakes everything is read as it was meant; a mistake is named with its row."""
    path = ugly.write(tmp_path_factory.mktemp("drawn"))
    if (mistake := ugly.first_mistake()) is not None:
        with pytest.raises(DataError, match=re.escape(mistake)) as caught:
            ugly.read(path)
        assert path.name in str(caught.value)
    if ugly.faults:
        if ugly.faults.get(0) == "too long":  # skipping would lose cells of every row
            with pytest.raises(DataError, match="Line 2 of"):
                ugly.read(path, skip=True)
            return
        found = ugly.read(path, skip=True)
        assert found.y.tolist() == KINDS[ugly.whole_rows(found.x.columns)].tolist()
        return
    found = ugly.read(path)
    said = " | ".join(found.notes)
    assert found.y.tolist() == KINDS.tolist()
    meant = np.array([np.nan if i in ugly.holes else A[i] for i in range(N)])
    np.testing.assert_allclose(found.x["a"].to_numpy(float), meant)
    for name in set(ugly.columns) & set(BESIDE):
        note = BESIDE[name][1]
        assert (name not in found.x) == (note is not None), said
        assert note is None or re.search(note, said), said
