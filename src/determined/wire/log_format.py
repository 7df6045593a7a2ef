"""How the log of an allocation is written: one JSON object a line, and a small index beside it.

``{"t": time, "r": rank, "n": node rank, "s": "stdout"|"stderr", "l": level, "g": "task"|"node", "m": text}``
"""

from __future__ import annotations

import pathlib
import struct

# Offset, number of lines before it, and time of the line that begins there: one entry about every SPAN bytes.
ENTRY = struct.Struct("<QQd")
SPAN = 1 << 16
# A line's id is its run epoch and the byte it begins at: it grows along the log of a task.
EPOCH_SHIFT = 40
LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def index_of(log: pathlib.Path) -> pathlib.Path:
    """The index of a log."""
    return log.with_name(f"{log.name}.index")
