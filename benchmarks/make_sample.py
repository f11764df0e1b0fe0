"""Make the sample from larger files: `python benchmarks/make_sample.py DIRECTORY`.

The directory holds CIFAR-10 and GloVe in any form the loaders read, and `rt_polarity.jsonl.gz`.
The same files give the same sample.
"""

import gzip
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from widelimit.data.arrays import save_npz
from widelimit.data.cifar import load_cifar10
from widelimit.data.datasets import Dataset, Labelled, stratified_order
from widelimit.data.files import writing
from widelimit.data.frames import read_frame
from widelimit.data.labels import class_numbers
from widelimit.data.preprocess import downsample
from widelimit.data.sample import IMAGES, SENTENCES, VECTORS, sample_directory
from widelimit.data.tokens import Tokenizer
from widelimit.data.vectors import WordVectors, load_glove

CLASSES = ("airplane", "automobile", "frog", "horse")
SIDE = 16
TRAIN_IMAGES, TEST_IMAGES = 160, 80
TRAIN_SENTENCES, TEST_SENTENCES = 400, 200
WORDS = range(5, 25)  # words of a sentence
VOCABULARY = 2500  # sentences use only the most frequent words, so that few vectors are needed
LEVELS = 127  # vectors are stored as whole numbers −127..127 with a scale per component
SEED = 0


def make_images(data: Dataset) -> Dataset:
    """Stratified subsets of four classes, shrunk by area averaging."""
    train = _of_classes(data.train).subset(TRAIN_IMAGES, key=SEED)
    test = _of_classes(data.test).subset(TEST_IMAGES, key=SEED)
    return Dataset.join(train, test).map(
        lambda x: np.rint(downsample(x, (SIDE, SIDE))).astype(np.uint8)
    )


def make_texts(sentences: Any, glove: WordVectors) -> tuple[Any, WordVectors]:
    """Short sentences of frequent words, and the vectors of their words."""
    tokenizer = Tokenizer()
    tokens = [tokenizer(text) for text in sentences["text"]]
    counts = Counter(word for words in tokens for word in set(words))
    frequent = {word for word, _ in counts.most_common(VOCABULARY) if word in glove}
    suited = [
        i for i, words in enumerate(tokens) if len(words) in WORDS and frequent.issuperset(words)
    ]
    chosen = sentences.iloc[suited]
    order = stratified_order(chosen["label"].to_numpy(), key=SEED)
    chosen = chosen.iloc[order[: TRAIN_SENTENCES + TEST_SENTENCES]]
    used = {word for text in chosen["text"] for word in tokenizer(text)}
    words = tuple(word for word in glove.words if word in used)
    vectors = glove.vectors[glove.find(words)]
    order = stratified_order(chosen["label"].to_numpy(), key=SEED)
    order = np.roll(order, -TEST_SENTENCES)  # the first ones are for testing
    split = ["train"] * TRAIN_SENTENCES + ["test"] * TEST_SENTENCES
    return chosen.iloc[order].assign(split=split), WordVectors(words, vectors)


def write(images: Dataset, texts: Any, vectors: WordVectors, directory: Path) -> None:
    """Write the three files."""
    save_npz(
        directory / IMAGES,
        x_train=images.x_train,
        y_train=images.y_train.astype(np.uint8),
        x_test=images.x_test,
        y_test=images.y_test.astype(np.uint8),
        class_names=np.array(images.class_names),
    )
    scale = np.abs(vectors.vectors).max(axis=0) / LEVELS
    save_npz(
        directory / VECTORS,
        words=np.array(vectors.words),
        vectors=np.rint(vectors.vectors / scale).astype(np.int8),
        scale=scale.astype(np.float32),
    )
    rows = texts[["split", "label", "text"]].to_dict("records")
    content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    with writing(directory / SENTENCES) as file:
        file.write(gzip.compress(content.encode(), mtime=0))


def _of_classes(data: Labelled) -> Labelled:
    names = np.array(data.class_names)[data.y]
    kept = data.take(np.flatnonzero(np.isin(names, CLASSES)))
    labels = [data.class_names[number] for number in kept.y]
    return Labelled(kept.x, class_numbers(labels, CLASSES), CLASSES)


def main(directory: str) -> None:
    """Make all three files from those in `directory`."""
    sentences = read_frame(Path(directory) / SENTENCES)
    texts, vectors = make_texts(sentences, load_glove(directory))
    write(make_images(load_cifar10(directory)), texts, vectors, sample_directory())


if __name__ == "__main__":
    main(*sys.argv[1:])
