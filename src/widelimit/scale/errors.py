"""What can be wrong with a stored kernel."""

from ..errors import WidelimitError


class StoreError(WidelimitError):
    """A store that cannot be used for what is asked."""


class OtherKernelError(StoreError):
    """A store of another kernel than the one that is asked for."""


class DamagedTilesWarning(UserWarning):
    """Some tiles of a store were damaged; they are computed anew."""
