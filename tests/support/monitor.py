"""What a monitor (Flower and its like) hears from workers that send events."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def captured(app: Any) -> Iterator[list[dict[str, Any]]]:
    """The events about locks that a monitor sees."""
    seen: list[dict[str, Any]] = []

    def note(event: dict[str, Any]) -> None:
        if event["type"].startswith("lock-"):
            seen.append(event)

    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": note})
        capture = threading.Thread(
            target=receiver.capture, kwargs={"limit": None, "timeout": None, "wakeup": False}
        )
        capture.start()
        try:
            yield seen
        finally:
            receiver.should_stop = True
            capture.join()
