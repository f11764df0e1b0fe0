"""Studies that test what the two papers claim or show; each writes data, a figure and a page."""

from . import cifar10, film_texts, heads_and_widths, modified, score_scaling, single_head
from .study import Size, Study

_ALL = (
    *heads_and_widths.STUDIES,
    single_head.STUDY,
    score_scaling.STUDY,
    cifar10.STUDY,
    film_texts.STUDY,
    modified.STUDY,
)
STUDIES: dict[str, Study] = {study.name: study for study in _ALL}

__all__ = ["STUDIES", "Size", "Study"]
