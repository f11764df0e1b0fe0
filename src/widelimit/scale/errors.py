"""What can be wrong with a stored kernel."""

from ..errors import WidelimitError


class StoreError(WidelimitError):
    """A store that cannot serve this call."""


class OtherKernelError(StoreError):
    """The store holds another kernel than the one that is wanted."""
