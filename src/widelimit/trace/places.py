"""The user's own line behind an equation."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path
from typing import Any

from jax._src import source_info_util

from ..programs.refusals import NOWHERE, Place

_LIBRARIES = (sysconfig.get_paths()["purelib"], sysconfig.get_paths()["stdlib"])
# The rooms that trace; lines of layers are a user's, as those of any model are.
_ROOMS = Path(__file__).resolve().parent.parent
_OURS = tuple(str(_ROOMS / room) for room in ("trace", "programs", "lift"))


def place_of(equation: Any) -> tuple[Place, bool]:
    """The innermost line of the user's own files, and whether there was one.

    Lines of installed packages stand in where no file of the user's is on the stack.
    """
    frames = [
        Place(f.file_name, f.start_line, f.function_name)
        for f in source_info_util.user_frames(equation.source_info.traceback)
    ]
    frames = [f for f in frames if not f.file.startswith(_OURS)]
    for frame in frames:
        if not frame.file.startswith(_LIBRARIES):
            return frame, True
    return (frames[0], False) if frames else (NOWHERE, False)


def said(error: Exception) -> str:
    """What a model's code raised, in one sentence, and at which line of the user's files."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith((*_OURS, *_LIBRARIES))]
    line = f" at {Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""
    message = next((text.strip() for text in str(error).splitlines() if text.strip()), "")
    return f"{type(error).__name__}: {message[:200]}{line}"
