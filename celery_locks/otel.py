"""OpenTelemetry: the events of a lock in the trace of the task that holds it.

    from celery_locks import otel

    otel.install()                    # in the module of the app; needs opentelemetry-api only

An acquire is a span ``lock.acquire``, as long as it took, below the current span: the task's own if
``opentelemetry-instrumentation-celery`` or similar made one. Later events of the lock are events on
that span (``lock.released``, ``lock.lost``, ``lock.stop``, ``lock.suspended``), and so are the
results of a conflict (``lock.skipped``, ``lock.requeued`` …). If no span is recorded, each of them
is a span of its own, without length.

The worker's main process renews for its children and has none of their spans: a renewal that fails
there is a span of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakValueDictionary

from celery_locks import events
from celery_locks.events import LockEvent
from celery_locks.extras import missing_extra

try:
    from opentelemetry import trace
    from opentelemetry.trace import Span, Status, StatusCode, Tracer, TracerProvider
    from opentelemetry.util.types import AttributeValue
except ImportError as error:
    raise missing_extra("otel", error) from error

_ASKED = {"acquired", "conflict", "deadlock", "unavailable"}
_LATER = {
    "released",
    "lost",
    "stop",
    "suspended",
    "freed",
    "skipped",
    "requeued",
    "parked",
    "woken",
    "recovered",
    "limited",
    "duplicate",
    "already_done",
    "unlocked",
}
_FIELDS = ("task", "task_id", "policy", "why", "decision", "waited", "held_for", "pause", "ours")
PREFIX = "celery_locks."


def install(
    *, lock_names: bool = True, tracer_provider: TracerProvider | None = None
) -> Callable[[], None]:
    """Trace every lock event of this process; the returned function ends it.

    A lock's name may contain private data (a customer's number, an address): ``lock_names=False``
    leaves it out, and the sentences that may contain it.
    """
    tracer = trace.get_tracer("celery_locks", tracer_provider=tracer_provider)
    return events.subscribe(Traces(tracer, lock_names))


class Traces:
    """A subscriber of events; see the module's docstring."""

    def __init__(self, tracer: Tracer, lock_names: bool) -> None:
        self._tracer = tracer
        self._lock_names = lock_names
        # Events from background threads belong to the span in which the lock was acquired.
        self._span_of: WeakValueDictionary[str, Span] = WeakValueDictionary()

    def __call__(self, event: LockEvent) -> None:
        if event.kind in _ASKED:
            self._asked(event)
        elif event.kind in _LATER:
            self._later(event)

    def _asked(self, event: LockEvent) -> None:
        current = trace.get_current_span()
        if event.kind == "acquired" and current.is_recording():
            self._span_of[event.token] = current
        began = event.at - event.detail.get("waited", 0.0)
        attributes = {**self._attributes(event), f"{PREFIX}outcome": event.kind}
        span = self._tracer.start_span(
            "lock.acquire", attributes=attributes, start_time=_nanoseconds(began)
        )
        if event.kind == "unavailable":
            span.set_status(Status(StatusCode.ERROR))
        span.end(_nanoseconds(event.at))

    def _later(self, event: LockEvent) -> None:
        span = self._span_of.get(event.token) or trace.get_current_span()
        attributes, at = self._attributes(event), _nanoseconds(event.at)
        if span.is_recording():
            span.add_event(f"lock.{event.kind}", attributes, timestamp=at)
        else:
            alone = self._tracer.start_span(
                f"lock.{event.kind}", attributes=attributes, start_time=at
            )
            alone.end(at)

    def _attributes(self, event: LockEvent) -> dict[str, AttributeValue]:
        detail = event.detail
        attributes: dict[str, AttributeValue] = {
            PREFIX + field: detail[field] for field in _FIELDS if detail.get(field) is not None
        }
        if event.fence:
            attributes[f"{PREFIX}fence"] = event.fence
        if self._lock_names:
            attributes[f"{PREFIX}name"] = event.name
        else:
            attributes.pop(f"{PREFIX}why", None)
        return attributes


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
