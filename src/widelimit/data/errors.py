"""The error of this package: data that cannot be used as it is."""

from ..errors import WidelimitError

SHOWN = 5  # how many offenders an error names before it only counts them


class DataError(WidelimitError):
    """Files, columns, labels, texts or images that cannot be used as they are."""


class MissingDataError(DataError):
    """A data set that is not on this disk, as opposed to one that is there and damaged."""


def some(items: list[str]) -> str:
    """The first few of `items`, and how many more there are."""
    more = len(items) - SHOWN
    return ", ".join(items[:SHOWN]) + (f" and {more} more" if more > 0 else "")
