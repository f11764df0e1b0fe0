"""A text classifier from a CSV file: learn, see what it is sure of, ask it a sentence."""

import marimo

app = marimo.App(width="medium", app_title="A text classifier from a CSV file")


@app.cell
def _():
    import tempfile
    from pathlib import Path

    import marimo as mo
    import numpy as np

    import widelimit as wl
    from widelimit import data

    return Path, data, mo, np, tempfile, wl


@app.cell
def _(mo):
    mo.md("""
    # A text classifier from a CSV file

    The file needs two columns, `text` and `label`. Without one of yours this uses a sample of film
    opinions that ships with the package, written to a CSV file first. Word vectors are those of the
    sample, too: for texts of your own use GloVe (`data.load_glove`).
    """)


@app.cell
def _(mo):
    upload = mo.ui.file(filetypes=[".csv"], label="your CSV file (optional)")
    upload
    return (upload,)


@app.cell
def _(Path, data, tempfile, upload):
    folder = Path(tempfile.mkdtemp())
    file = folder / "opinions.csv"
    if upload.value:
        file.write_bytes(upload.contents(0))
    else:
        sample = data.load_sample_sentences()
        sample[sample["split"] == "train"].to_csv(file, index=False)
    texts = data.read_frame(file)
    return (texts,)


@app.cell
def _(mo, texts):
    count = mo.ui.slider(
        20,
        min(200, len(texts) - 20),
        step=10,
        value=60,
        label="texts to learn from",
        show_value=True,
    )
    count
    return (count,)


@app.cell
def _(count, data, np, texts, wl):
    embedder = data.Embedder(vectors=data.load_sample_vectors(), length=16, empty=data.Empty.MEAN)
    order = np.random.default_rng(0).permutation(len(texts))
    learned, held = (
        order[: count.value],
        order[200:260] if len(order) > 260 else order[count.value :],
    )
    net = wl.Serial(
        wl.LayerNorm(), wl.Dense(64),
        wl.Residual(wl.Attention(64, scaling="linear", qk_std=2.0), 0.8),
        wl.Relu(), wl.MeanPool(), wl.Dense(1, w_std=4.0),
    )  # fmt: skip
    x, mask = embedder(texts["text"].iloc[learned])
    fitted = wl.Classifier(wl.GP(net, noise=0.3)).fit(x, texts["label"].iloc[learned], mask)
    test, test_mask = embedder(texts["text"].iloc[held])
    probability = fitted.predict_proba(test, test_mask)
    right = np.array(fitted.classes)[probability.argmax(axis=1)] == texts["label"].iloc[held]
    return embedder, fitted, probability, right


@app.cell
def _(mo, np, probability, right):
    sure = probability.max(axis=1)
    bands = [("sure: 90 % or more", 0.9, 1.01), ("75 % to 90 %", 0.75, 0.9), ("below", 0.0, 0.75)]
    table = [
        {"how sure": name, "texts": int(inside.sum()), "right": int(right[inside].sum())}
        for name, low, high in bands
        if (inside := (sure >= low) & (sure < high)).any()
    ]
    accuracy = float(np.mean(right))
    said = mo.md(f"**{accuracy:.0%}** of {len(right)} other texts are right.")
    mo.vstack([said, mo.ui.table(table, selection=None)])
    return (accuracy,)


@app.cell
def _(mo):
    sentence = mo.ui.text_area(value="a warm and funny film", label="ask it a sentence")
    sentence
    return (sentence,)


@app.cell
def _(embedder, fitted, mo, sentence):
    asked, asked_mask = embedder([sentence.value])
    chances = fitted.predict_proba(asked, asked_mask)[0]
    pairs = zip(fitted.classes, chances, strict=True)
    mo.md(", ".join(f"{name}: **{p:.0%}**" for name, p in pairs))
    return (chances,)


if __name__ == "__main__":
    app.run()
