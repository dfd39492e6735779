"""What a user of the admin can do to a holder: release its lock, or ask it to stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django import forms

from celery_locks import admin
from celery_locks.admin.connect import Locks

# The request waits this long; web servers give up on a request after 30 s.
MAX_GRACE = 20.0


class StopForm(forms.Form):  # type: ignore[misc]
    """Asks for the reason."""

    def __init__(self, data: Any, default_grace: float) -> None:
        super().__init__(data, initial={"grace": min(default_grace, MAX_GRACE)})
        self.default_grace = default_grace

    reason = forms.CharField(
        max_length=500,
        help_text="Recorded in the history, with your name.",
        widget=forms.TextInput(attrs={"class": "vTextField", "autocomplete": "off"}),
    )


class ReleaseForm(StopForm):
    """Asks for the reason and the grace period."""

    grace = forms.FloatField(
        min_value=0,
        max_value=MAX_GRACE,
        widget=forms.NumberInput(attrs={"step": "any"}),
    )

    def __init__(self, data: Any, default_grace: float) -> None:
        super().__init__(data, default_grace)
        self.fields["grace"].help_text = _grace_help(default_grace)


def _grace_help(default_grace: float) -> str:
    meaning = (
        "Seconds. The holder is asked to stop first. The lock is taken from it only if it still "
        "holds the lock after this time. With 0 the lock is taken immediately."
    )
    needed = f" This holder needs up to {default_grace:g} s to stop." if default_grace else ""
    maximum = f" The maximum is {MAX_GRACE:g} s; for more, run manage.py celery_locks release."
    return meaning + needed + maximum


@dataclass(frozen=True, slots=True)
class AdminAction:
    """An action on one holder.

    ``run`` returns whether the holder still had the lock; ``done`` and ``missed`` are the messages
    for the two cases.
    """

    title: str
    button: str
    warning: str
    form: type[StopForm]
    run: Callable[[Locks, str, str, str, Mapping[str, Any]], bool]
    done: str
    missed: str


def _release(locks: Locks, name: str, token: str, by: str, fields: Mapping[str, Any]) -> bool:
    options = {"reason": fields["reason"], "grace": fields["grace"]}
    return bool(admin.force_release(locks, name, token, by=by, **options))


def _stop(locks: Locks, name: str, token: str, by: str, fields: Mapping[str, Any]) -> bool:
    return bool(admin.stop(locks, name, token, by=by, reason=fields["reason"]))


RELEASE = AdminAction(
    title="Release",
    button="Release the lock",
    warning="The lock is taken from this holder and the next waiter gets it. The holder learns of "
    "this at its next renewal. Until then it may keep writing; only a fence can reject that.",
    form=ReleaseForm,
    run=_release,
    done="Lock {name} was taken from {who}.",
    missed="Nothing was taken: that holder has already released lock {name}.",
)
STOP = AdminAction(
    title="Ask to stop",
    button="Ask to stop",
    warning="The holder receives the request with its next renewal and keeps the lock until it "
    "stops. A task that does not check for stop requests continues.",
    form=StopForm,
    run=_stop,
    done="The holder of lock {name}, {who}, was asked to stop.",
    missed="Nobody was asked: that holder has already released lock {name}.",
)
