"""An exception at a chosen line of our code, as a time limit or Ctrl-C raises it."""

import sys
from linecache import getline
from types import FrameType
from typing import Any


class Strike:
    """Ctrl-C, or another, at the n-th line of ours that runs in the block."""

    def __init__(self, line: int, kind: type[BaseException] = KeyboardInterrupt) -> None:
        self._left, self._kind, self.where = line, kind, ""

    def __enter__(self) -> None:
        sys.settrace(self._look)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _look(self, frame: FrameType, event: str, arg: Any) -> Any:
        if "/celery_locks/" not in frame.f_code.co_filename:
            return None
        # Signals are looked for at calls and jumps; a bare "try:" is neither.
        if event == "line" and getline(frame.f_code.co_filename, frame.f_lineno).strip() != "try:":
            self._left -= 1
            if self._left == 0:
                self.where = f"after a strike in {frame.f_code.co_qualname}:{frame.f_lineno}"
                raise self._kind
        return self._look
