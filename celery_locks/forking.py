"""The one at-fork hook of this package: it resets in a forked child what belongs to the parent.

Layers are reset from the bottom up, so a callback may use the layers below its own: the connections
of the store are new before the renewer is, and the renewer is before the worker's supervisor.
Within a layer the callbacks run in the order in which they were registered.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Literal

Layer = Literal["ground", "store", "core", "integration", "surfaces"]

_callbacks: dict[Layer, list[Callable[[], object]]] = {
    "ground": [],
    "store": [],
    "core": [],
    "integration": [],
    "surfaces": [],
}


def run_after_fork(callback: Callable[[], object], layer: Layer) -> None:
    """Call ``callback`` in every child that is forked from now on, after the layers below."""
    _callbacks[layer].append(callback)


def _run_all() -> None:
    errors: list[Exception] = []
    for callbacks in _callbacks.values():
        for callback in list(callbacks):
            try:
                callback()
            except Exception as error:  # noqa: BLE001 (one must not keep the others from running)
                errors.append(error)
    if errors:
        raise ExceptionGroup("resetting celery-locks after a fork failed", errors)


os.register_at_fork(after_in_child=_run_all)
