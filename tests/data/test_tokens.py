import pytest

from widelimit.data import Tokenizer, load_glove, load_imdb


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("I don't like it.", "do not like it"),
        ("Can't, won't, shan't, ain't", "can not will not shall not is not"),
        ("they couldn’t’ve known", "they could not ve known"),
        ("it did n't work", "it did not work"),
        ("it's the dog's film", "it the dog film"),
        ("'quoted' words''", "quoted words"),
        ("rated 7 of 10, 3.5 stars in the 1980s", "rated of stars in the 1980s"),
        ("good<br /><br />bad <b>bold</b>", "good bad bold"),
        ("i <3 it, x < y and y > z", "it and"),
        ("a café, naïve", "café naïve"),
        ("cafe\N{COMBINING ACUTE ACCENT}", "café"),
        ("honor\N{REPLACEMENT CHARACTER} snake_case e-mail", "honor snake case mail"),
        ("!!! ...", ""),
    ],
)
def test_words(text, words):
    assert Tokenizer()(text) == words.split()


def test_negation_is_what_tells_them_apart():
    tokenizer = Tokenizer()
    assert tokenizer("I would") != tokenizer("I wouldn't")
    assert "not" in tokenizer("I WOULDN'T")


def test_options():
    assert Tokenizer(lower=False)("The Film") == ["The", "Film"]
    assert Tokenizer(numbers=True, shortest=1)("a 7") == ["a", "7"]


def test_coverage_of_real_reviews(real_data):
    glove, tokenizer = load_glove(real_data), Tokenizer()
    texts = load_imdb(real_data)["text"].head(500)
    naive = [word for text in texts for word in text.lower().split()]
    ours = [word for text in texts for word in tokenizer(text)]
    assert glove.coverage(ours) > 0.985 > glove.coverage(naive)
