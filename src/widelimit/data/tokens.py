"""Split a text into words so that word vectors find them and negation survives."""

import re
import unicodedata
from dataclasses import dataclass
from itertools import pairwise

TAG = re.compile(r"</?[a-zA-Z][^<>]*>")  # not the hearts and inequalities of plain text
WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
APOSTROPHES = str.maketrans("’‘ʼ`", "''''")
STEMS = {"ca": "can", "wo": "will", "sha": "shall", "ai": "is"}  # can't, won't, shan't, ain't


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """Words of a text, as plain word vectors such as GloVe know them.

    Tags such as `<br />` are dropped, words are split at apostrophes, `n't` becomes `not`
    (`don't` → `do not`, `can't` → `can not`), words shorter than `shortest` go, and so do words
    without a letter unless `numbers`.
    """

    lower: bool = True
    shortest: int = 2
    numbers: bool = False

    def __call__(self, text: str) -> list[str]:
        """The words of `text` in order."""
        text = unicodedata.normalize("NFC", TAG.sub(" ", text)).translate(APOSTROPHES)
        text = text.lower() if self.lower else text
        words = [part for word in WORD.findall(text) for part in _parts(word)]
        return [word for word in words if self._keeps(word)]

    def _keeps(self, word: str) -> bool:
        has_letter = any(map(str.isalpha, word))
        return len(word) >= self.shortest and (has_letter or self.numbers)


def _parts(word: str) -> list[str]:
    """`couldn't've` → `could`, `not`, `ve`."""
    parts = word.split("'")
    for i, (stem, end) in enumerate(pairwise(parts)):
        if stem.lower().endswith("n") and end.lower() == "t":
            parts[i : i + 2] = [STEMS.get(stem[:-1].lower(), stem[:-1]), "not"]
    return parts
