"""The mark that records that the work of a lock is completed, with its result. No I/O.

The lock prevents two runs at once, the mark prevents a second run. The call that acquires checks
it after the lock is known to be free, and the call that releases writes it (``marks.lua``).

``reuse`` says what may run again:

=============  ====================================================================================
failed_only    failed work; completed work does not run again (the default)
never          nothing: a failure leaves a mark too, and so does the start, so that a run whose
               process was killed is not repeated either. At most once; ``reset`` allows it again
always         everything: the mark only records the last result
=============  ====================================================================================

With ``once_failed`` a failure leaves a mark too, for that many seconds; ``failed_only`` then allows
failed work to run again when they are over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from celery_locks.options import Reuse
from celery_locks.printable_text import printable
from celery_locks.skipped import REASONS
from celery_locks.store.commands.locks import IdempotencyCheck, Mark

logger = logging.getLogger("celery_locks")

# A larger result is not kept; the mark is, so a repeat learns that the work is completed.
RESULT_BYTES = 64 * 1024
# Characters of an error that the mark of a failure keeps.
ERROR_LENGTH = 200


class Codec(NamedTuple):
    """The functions that turn results into text and back; either may raise."""

    encode: Callable[[Any], str]
    decode: Callable[[str], Any]


class Failure(NamedTuple):
    """The error of work that failed, and when it did, in seconds since 1970."""

    error: str
    failed_at: float

    def __str__(self) -> str:
        return f"it failed {max(0.0, time.time() - self.failed_at):.0f} s ago with {self.error}"


class Repeat(NamedTuple):
    """The answer to a call whose work is not done again."""

    has_result: bool
    result: Any
    reason: str
    failure: Failure | None = None

    @property
    def value(self) -> Any:
        if self.has_result:
            return self.result
        failure = self.failure._asdict() if self.failure else {}
        return {"skipped": True, "reason": self.reason, **failure}

    @property
    def failed(self) -> str:
        """When the work failed and with which error, as a clause; "" if it did not."""
        return str(self.failure or "")


class Once(NamedTuple):
    """The rule for one lock; ``mark`` is the name of its mark."""

    mark: str
    ttl: float
    reuse: Reuse
    codec: Codec
    once_failed: float = 0.0

    @property
    def check(self) -> IdempotencyCheck | None:
        if self.reuse == "always":
            return None
        reuse = "failed_later" if self._delays_failed else self.reuse
        return IdempotencyCheck(self.mark, reuse, self.ttl)

    @property
    def _delays_failed(self) -> bool:
        return bool(self.once_failed) and self.reuse == "failed_only"

    def completed_mark(self, token: str, result: Any) -> Mark:
        """Return the mark of completed work, without the result if that cannot be kept."""
        try:
            text = self.codec.encode(result)
        except Exception as error:  # noqa: BLE001 (whatever a serializer may raise)
            logger.warning("the result of %r cannot be kept: %s", *self._about(error))
            return Mark(self.mark, f"n{token} ", self.ttl)
        if len(text) > RESULT_BYTES:
            logger.warning(
                "the result of %r is not kept: %d bytes, %d is the most",
                self.mark[2:],
                len(text),
                RESULT_BYTES,
            )
            return Mark(self.mark, f"n{token} ", self.ttl)
        return Mark(self.mark, f"r{token} {text}", self.ttl)

    def failed_marks(self, token: str, error: BaseException) -> list[Mark]:
        """Return the marks of failed work: ``never`` and ``once_failed`` have one.

        With ``once_failed``, work that was only interrupted may run again at once.
        """
        if self._delays_failed and isinstance(error, Exception):
            text = f"{time.time():.3f} {_described(error)}"
            return [Mark(self.mark, f"f{token} {text}", self.once_failed)]
        if self.reuse != "never":
            return []
        return [Mark(self.mark, f"f{token} {type(error).__name__}", self.ttl)]

    def joined_marks(self, fence: int, result: Any) -> list[Mark]:
        """Return the mark with the result for those that join the run; none without a result."""
        mark = self.completed_mark(str(fence), result)
        return [mark] if str(mark.value).startswith("r") else []

    def joined_failure(self, fence: int, error: BaseException) -> list[Mark]:
        """Return the mark with the error for those that join the run."""
        if not isinstance(error, Exception):
            return []
        return [Mark(self.mark, f"f{fence} {time.time():.3f} {_described(error)}", self.ttl)]

    def unfinished_marks(self) -> list[Mark]:
        """Return the marks of work that another attempt continues: remove the one of the start."""
        return [Mark(self.mark, "", 0.0)] if self.reuse == "never" else []

    def _about(self, error: Exception) -> tuple[str, str]:
        return self.mark[2:], printable(str(error))

    def repeat(self, mark: str) -> Repeat:
        _, kind, text = split_mark(mark)
        if kind == "r":
            try:
                return Repeat(True, self.codec.decode(text), "already_done")
            except Exception as error:  # noqa: BLE001
                logger.warning("the kept result of %r cannot be read: %s", *self._about(error))
        return Repeat(False, None, REASONS.get(kind, "already_done"), failure_of(kind, text))


def failure_of(kind: str, text: str) -> Failure | None:
    """Return the failure in the text of a mark; None if it is another kind, or has no time."""
    failed_at, _, error = text.partition(" ")
    with suppress(ValueError):
        return Failure(error, float(failed_at)) if kind == "f" and error else None
    return None


def _described(error: Exception) -> str:
    """Return type and message of an error, in a form that the server can store and a log show."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 (an error of the user's own)
        message = ""
    name = type(error).__name__
    return printable(f"{name}: {message}" if message else name)[:ERROR_LENGTH]


def split_mark(mark: str) -> tuple[str, str, str]:
    """Return the token, kind and text of a mark."""
    head, _, text = mark.partition(" ")
    return head[1:], head[:1], text
