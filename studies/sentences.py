"""The kernels of the IMDb study on short sentences about films (rt-polarity)."""

from functools import partial

from widelimit.app.studies import film_texts, sources
from widelimit.app.studies.comparison import ContestSize, contest
from widelimit.app.studies.film_texts import TextSize
from widelimit.app.studies.study import Size

SCALES = {
    Size.SMALL: ContestSize((TextSize(24, 1, 300, 400),), 300),
    Size.LARGE: ContestSize((TextSize(32, 1, 6000, 1662),), 1000),
}
STUDY = contest(
    "rt-polarity",
    "Sentences about films",
    "The kernels of the IMDb study on short sentences of every length.",
    groups=film_texts.groups,
    scales=SCALES,
    arena=partial(film_texts.arena, sources.rt_polarity, "rt-polarity"),
    baselines=film_texts.BASELINES,
    claims=film_texts.CLAIMS,
)
