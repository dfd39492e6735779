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
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from celery_locks.options import Reuse
from celery_locks.printable_text import printable
from celery_locks.skipped import REASONS
from celery_locks.store.commands.requests import IdempotencyCheck, Mark

logger = logging.getLogger("celery_locks")

# A larger result is not kept; the mark is, so a repeat learns that the work is completed.
RESULT_BYTES = 64 * 1024


class Codec(NamedTuple):
    """The functions that turn results into text and back; either may raise."""

    encode: Callable[[Any], str]
    decode: Callable[[str], Any]


class Repeat(NamedTuple):
    """The answer to a call whose work is not done again."""

    has_result: bool
    result: Any
    reason: str

    @property
    def value(self) -> Any:
        return self.result if self.has_result else {"skipped": True, "reason": self.reason}


class Once(NamedTuple):
    """The rule for one lock; ``mark`` is the name of its mark."""

    mark: str
    ttl: float
    reuse: Reuse
    codec: Codec

    @property
    def check(self) -> IdempotencyCheck | None:
        return None if self.reuse == "always" else IdempotencyCheck(self.mark, self.reuse, self.ttl)

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
        """Return the marks of failed work: only ``never`` has one."""
        if self.reuse != "never":
            return []
        return [Mark(self.mark, f"f{token} {type(error).__name__}", self.ttl)]

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
        return Repeat(False, None, REASONS.get(kind, "already_done"))


def split_mark(mark: str) -> tuple[str, str, str]:
    """Return the token, kind and text of a mark."""
    head, _, text = mark.partition(" ")
    return head[1:], head[:1], text
