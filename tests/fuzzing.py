"""Odd values, files and commands for tests that try thousands of them."""

import csv
import gzip
import io
import json
import math
import zipfile

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FEW, MANY = 40, 600


def tries(count):
    """Settings of a fuzzer: always the same cases, none too slow."""
    return settings(
        max_examples=count,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def tried(count, cases, check):
    """Check drawn cases: how many different ones there were."""
    seen = set()

    @tries(count)
    @given(cases)
    def run(case):
        seen.add(repr(case))
        check(case)

    run()
    return len(seen)


words = st.sampled_from(
    [
        "good",
        "bad film",
        "a b c d",
        "",
        " ",
        "$x$",
        "1",
        "0",
        "-3.5",
        "1e308",
        "nan",
        "inf",
        "1_0",
        "\x1b[31m",
        "é😀",
        "true",
        "null",
        "[bold]",
        "train",
        "test",
        "2020-01-01",
        "٣",
        "x" * 300,
    ]
)
texts = st.one_of(words, st.text(max_size=8))
names = st.sampled_from(["text", "label", "target", "split", "a", "b", "", "y", "$f$", "\x1b[1m"])
numbers = st.one_of(
    st.integers(-(10**20), 10**20),
    st.floats(),
    st.sampled_from([10**400, 1e308, 5e-324, math.nan, -0.0, 2**63]),
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=6,
)


@st.composite
def csv_files(draw):
    head = draw(st.lists(names, min_size=1, max_size=4))
    size = draw(st.sampled_from([0, 1, 9, 12, 25]))
    kinds = [draw(st.sampled_from(["class", "number", "text", "odd"])) for _ in head]
    rows = [[_cell(draw, kind, i) for kind in kinds] for i in range(size)]
    if rows and draw(st.booleans()):
        rows[-1] = rows[-1][:-1]
    text = io.StringIO()
    csv.writer(text, delimiter=draw(st.sampled_from([",", ",", ";", "\t"]))).writerows(
        [head, *rows]
    )
    return text.getvalue().encode("utf-8", "surrogatepass")


def _cell(draw, kind, i):
    if kind == "class":
        return ("yes", "no", "$n$")[i % draw(st.sampled_from([2, 3]))]
    if kind == "number":
        return str(draw(numbers)) if i == 3 else f"{math.sin(3 * i):.3f}"
    return (
        " ".join(("good", "bad", "film", "story")[: 1 + i % 4]) if kind == "text" else draw(texts)
    )


@st.composite
def json_lines(draw):
    head = draw(st.lists(names, min_size=1, max_size=3, unique=True))
    size = draw(st.sampled_from([1, 11, 20]))
    lines = []
    for i in range(size):
        row = {
            name: ("good film", "bad film")[i % 2] if n == 0 else i % 2
            for n, name in enumerate(head)
        }
        lines.append(json.dumps(row))
    for _ in range(draw(st.integers(0, 2))):
        odd = draw(
            st.one_of(values.map(json.dumps), st.dictionaries(names, values).map(json.dumps))
        )
        lines.insert(draw(st.integers(0, len(lines))), odd)
    return "\n".join(lines).encode("utf-8", "surrogatepass")


arrays = st.one_of(
    st.sampled_from(
        [
            np.arange(20) % 2,
            np.sin(np.arange(60.0)).reshape(20, 3),
            np.cos(np.arange(240.0)).reshape(20, 4, 3),
            np.ones((20, 4), bool),
            np.array(["a", "b"] * 10),
            np.zeros((20, 3)),
            np.float64(3),
            np.full((20, 3), np.nan),
            np.full((20, 3), 1e300),
            np.ones(20) * 1j,
            np.zeros((0, 3)),
            np.array(["2020-01-01"] * 20, "M8[D]"),
            np.zeros(20, [("a", "i4")]),
            np.arange(20, dtype="u8") + 2**63,
            np.sin(np.arange(960.0)).reshape(20, 4, 4, 3).astype(np.float16),
        ]
    )
)
members = st.sampled_from(
    [
        "x",
        "y",
        "mask",
        "class_names",
        "x_train",
        "y_train",
        "x_test",
        "y_test",
        "mask_train",
        "words",
        "vectors",
        "scale",
    ]
)


@st.composite
def npz_files(draw):
    file = io.BytesIO()
    held = draw(st.dictionaries(members, arrays, max_size=5))
    if draw(st.booleans()):
        held |= {"x": np.sin(np.arange(60.0)).reshape(20, 3), "y": np.arange(20) % 2}
    np.savez(file, **held)
    if draw(st.booleans()):
        with zipfile.ZipFile(file, "a") as archive:
            archive.writestr(draw(st.sampled_from(["readme.txt", "z.npy", "a/b.npy"])), b"odd")
    return file.getvalue()


@st.composite
def damaged(draw, whole):
    """A file that was cut, changed in places, or packed."""
    content = bytearray(draw(whole))
    way = draw(
        st.sampled_from(["as it is", "as it is", "cut", "flip", "zeros", "gzip", "cut gzip"])
    )
    if way == "cut":
        del content[draw(st.integers(0, len(content))) :]
    for _ in range(draw(st.integers(1, 4)) if way == "flip" and content else 0):
        content[draw(st.integers(0, len(content) - 1))] = draw(st.integers(0, 255))
    if way == "zeros" and content:
        start = draw(st.integers(0, len(content) - 1))
        content[start : start + 20] = bytes(len(content[start : start + 20]))
    if "gzip" in way:
        content = bytearray(gzip.compress(bytes(content), 1, mtime=0))
        if way == "cut gzip":
            del content[draw(st.integers(0, len(content))) :]
    return bytes(content)


@st.composite
def good_files(draw):
    """A table, texts or arrays as they should be, with labels and names of many kinds."""
    size, classes = draw(st.sampled_from([10, 13, 24])), draw(st.sampled_from([2, 2, 3]))
    labels = [draw(texts) for _ in range(classes)]
    order = [(i * i + i) // 2 % classes for i in range(size)]
    kind = draw(st.sampled_from(["t.csv", "t.jsonl", "t.npz"]))
    if kind == "t.npz":
        x = np.sin(np.arange(size * 12.0)).reshape((size, *draw(st.sampled_from([(12,), (4, 3)]))))
        file = io.BytesIO()
        np.savez(file, x=x * draw(st.sampled_from([1.0, 1e-300, 1e300])), y=np.array(order))
        return kind, file.getvalue()
    columns = {
        "a": [math.sin(3 * i) * 10 ** draw(st.sampled_from([0, 0, 0, 250, -250])) for i in order],
        "b": [("red", "blue", "$g$")[i * i % 3] for i in range(size)],
        "label": [labels[i] for i in order],
        "target": [i * draw(st.sampled_from([1.0, 1.0, 0.0, 1e200])) for i in order],
    }
    if kind == "t.jsonl":
        columns["text"] = [("good film", "bad story film", "x")[i % 3] for i in order]
    rows = list(zip(*columns.values(), strict=True))
    if kind == "t.jsonl":
        return kind, "\n".join(
            json.dumps(dict(zip(columns, row, strict=True))) for row in rows
        ).encode()
    text = io.StringIO()
    csv.writer(text).writerows([list(columns), *rows])
    return kind, text.getvalue().encode("utf-8", "surrogatepass")


files = st.one_of(
    st.tuples(st.sampled_from(["t.csv", "t.tsv", "t.csv.gz"]), damaged(csv_files())),
    st.tuples(st.sampled_from(["t.jsonl", "t.ndjson", "t.jsonl.gz"]), damaged(json_lines())),
    st.tuples(st.just("t.npz"), damaged(npz_files())),
    st.tuples(st.sampled_from(["t.csv", "t.npz", "t.txt", "t", "t.png"]), st.binary(max_size=60)),
)
