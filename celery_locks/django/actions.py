"""What the admin's user can do to a holder: take the lock from it, or ask it to stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django import forms

from celery_locks import admin
from celery_locks.core.locks import Locks

# The request waits as long: web servers give up on one that takes 30 s.
LONGEST_GRACE = 20.0


class StopForm(forms.Form):  # type: ignore[misc]
    def __init__(self, data: Any, default_grace: float) -> None:
        super().__init__(data, initial={"grace": min(default_grace, LONGEST_GRACE)})
        self.default_grace = default_grace

    reason = forms.CharField(
        max_length=500,
        help_text="Goes into the history, with your name.",
        widget=forms.TextInput(attrs={"class": "vTextField", "autocomplete": "off"}),
    )


class ReleaseForm(StopForm):
    grace = forms.FloatField(
        min_value=0,
        max_value=LONGEST_GRACE,
        widget=forms.NumberInput(attrs={"step": "any"}),
    )

    def __init__(self, data: Any, default_grace: float) -> None:
        super().__init__(data, default_grace)
        self.fields["grace"].help_text = _grace_help(default_grace)


def _grace_help(default_grace: float) -> str:
    asked = (
        "Seconds. The holder is asked to stop first. The lock is taken from it only if it still "
        "has the lock after this time. With 0 the lock is taken at once."
    )
    needed = f" This holder needs up to {default_grace:g} s to stop." if default_grace else ""
    most = f" The most is {LONGEST_GRACE:g} s here; for more, run manage.py celery_locks release."
    return asked + needed + most


@dataclass(frozen=True, slots=True)
class AdminAction:
    """``do`` answers whether there was anybody to do it to; ``done`` and ``missed`` say so."""

    title: str
    button: str
    warning: str
    form: type[StopForm]
    do: Callable[[Locks, str, str, str, Mapping[str, Any]], bool]
    done: str
    missed: str


def _release(locks: Locks, name: str, token: str, by: str, said: Mapping[str, Any]) -> bool:
    how = {"reason": said["reason"], "grace": said["grace"]}
    return bool(admin.force_release(locks, name, token, by=by, **how))


def _stop(locks: Locks, name: str, token: str, by: str, said: Mapping[str, Any]) -> bool:
    return bool(admin.stop(locks, name, token, by=by, reason=said["reason"]))


RELEASE = AdminAction(
    title="Release",
    button="Release the lock",
    warning="The lock is taken from this holder and the next in line gets it. The holder learns of "
    "it at its next renewal; what it writes until then only a fence can refuse.",
    form=ReleaseForm,
    do=_release,
    done="Lock {name} was taken from {who}.",
    missed="Nothing was taken: that holder has given lock {name} back.",
)
STOP = AdminAction(
    title="Ask to stop",
    button="Ask it to stop",
    warning="The holder hears it with its next renewal and keeps the lock until it ends. One that "
    "does not listen goes on.",
    form=StopForm,
    do=_stop,
    done="The holder of lock {name}, {who}, was asked to stop.",
    missed="Nobody was asked: that holder has given lock {name} back.",
)
