"""What a user of the admin can do to a holder, and to a lock or rate: pause it, set its limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django import forms

from celery_locks import admin
from celery_locks.admin.connect import Locks
from celery_locks.validation import MAX_LIMIT

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


class OverrideForm(forms.Form):  # type: ignore[misc]
    """Asks for the reason."""

    reason = forms.CharField(
        max_length=500,
        help_text="Recorded in the history, with your name.",
        widget=forms.TextInput(attrs={"class": "vTextField", "autocomplete": "off"}),
    )


class PauseForm(OverrideForm):
    """Asks for the reason and the end."""

    minutes = forms.IntegerField(
        min_value=1,
        max_value=1_000_000,
        required=False,
        help_text="It ends by itself after so many minutes. Empty: it has no end.",
    )


class LimitForm(PauseForm):
    """Asks for the reason, the end and the limit."""

    limit = forms.IntegerField(
        min_value=1, max_value=MAX_LIMIT, help_text="How many may hold the lock at once."
    )


class PurgeForm(OverrideForm):
    """Asks for the reason and for the task whose message to remove."""

    task_id = forms.CharField(
        max_length=1000,
        required=False,
        label="Task ID",
        help_text="Only the message of this task. Empty: all parked messages of the lock.",
        widget=forms.TextInput(attrs={"class": "vTextField", "autocomplete": "off"}),
    )


class RateForm(PauseForm):
    """Asks for the reason, the end and the rate."""

    rate = forms.CharField(
        max_length=100,
        help_text="As 30/m, with s, m, h or d; several with spaces between them. It wins over the "
        "rate of every caller.",
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )


@dataclass(frozen=True, slots=True)
class LockAction:
    """An action on a lock or rate; ``missed`` is the message if there was nothing to end."""

    title: str
    button: str
    warning: str
    form: type[OverrideForm]
    run: Callable[..., Any]
    done: str
    missed: str = ""


def _pause(locks: Locks, name: str, by: str, fields: Mapping[str, Any]) -> admin.Overridden:
    return admin.pause(locks, name, exact=True, by=by, **_options(fields))


def _resume(locks: Locks, name: str, by: str, fields: Mapping[str, Any]) -> admin.Overridden:
    return admin.resume(locks, name, exact=True, by=by, reason=fields["reason"])


def _set_limit(locks: Locks, name: str, by: str, fields: Mapping[str, Any]) -> admin.Overridden:
    return admin.set_limit(locks, name, fields["limit"], by=by, **_options(fields))


def _reset_limit(locks: Locks, name: str, by: str, fields: Mapping[str, Any]) -> admin.Overridden:
    return admin.reset_limit(locks, name, by=by, reason=fields["reason"])


def _pause_rate(locks: Locks, name: str, by: str, fields: Mapping[str, Any]) -> admin.Overridden:
    return admin.pause_rate(locks, name, by=by, **_options(fields))


def _resume_rate(locks: Locks, name: str, by: str, fields: Mapping[str, Any]) -> admin.Overridden:
    return admin.resume_rate(locks, name, by=by, reason=fields["reason"])


def _set_rate(locks: Locks, name: str, by: str, fields: Mapping[str, Any]) -> admin.Overridden:
    return admin.set_rate(locks, name, fields["rate"], by=by, **_options(fields))


def _reset_rate(locks: Locks, name: str, by: str, fields: Mapping[str, Any]) -> admin.Overridden:
    return admin.reset_rate(locks, name, by=by, reason=fields["reason"])


def _options(fields: Mapping[str, Any]) -> dict[str, Any]:
    minutes = fields["minutes"]
    return {"reason": fields["reason"], "seconds": minutes * 60 if minutes else None}


LOCK_ACTIONS = {
    "pause": LockAction(
        title="Pause",
        button="Pause the lock",
        warning="Nobody can acquire the lock until it is resumed. Its holders finish; waiters stay "
        "in the queue.",
        form=PauseForm,
        run=_pause,
        done="Lock {name} is paused.",
    ),
    "resume": LockAction(
        title="Resume",
        button="Resume the lock",
        warning="The first waiters get the lock.",
        form=OverrideForm,
        run=_resume,
        done="Lock {name} is resumed.",
        missed="Lock {name} itself is not paused.",
    ),
    "limit": LockAction(
        title="Set limit",
        button="Set the limit",
        warning="The limit wins over that of every caller. If more hold the lock, they finish.",
        form=LimitForm,
        run=_set_limit,
        done="The limit of lock {name} is set.",
    ),
    "limit-reset": LockAction(
        title="Reset limit",
        button="Reset the limit",
        warning="The limits of the callers apply again.",
        form=OverrideForm,
        run=_reset_limit,
        done="The limit of lock {name} is reset.",
        missed="No limit is set for lock {name}.",
    ),
}

# Its view is not that of the others: it acts on messages, and Celery stores their results.
PURGE = LockAction(
    title="Drop parked messages",
    button="Drop",
    warning="The messages are removed from the queue of the lock and never run. The results of "
    "their tasks are REVOKED.",
    form=PurgeForm,
    run=admin.purge,
    done="Dropped {count} of lock {name}.",
    missed="No such message is parked for lock {name}.",
)
RATE_ACTIONS = {
    "rate-pause": LockAction(
        title="Pause rate",
        button="Pause the rate",
        warning="Nothing starts at the rate until it is resumed. Tasks that are delayed come back "
        "later.",
        form=PauseForm,
        run=_pause_rate,
        done="The rate {name} is paused.",
    ),
    "rate-resume": LockAction(
        title="Resume rate",
        button="Resume the rate",
        warning="Tasks that were delayed start when they come back.",
        form=OverrideForm,
        run=_resume_rate,
        done="The rate {name} is resumed.",
        missed="The rate {name} is not paused.",
    ),
    "rate-set": LockAction(
        title="Set rate",
        button="Set the rate",
        warning="The rate wins over that of every caller. It allows no burst.",
        form=RateForm,
        run=_set_rate,
        done="The rate {name} is set.",
    ),
    "rate-reset": LockAction(
        title="Reset rate",
        button="Reset the rate",
        warning="The rates of the callers apply again.",
        form=OverrideForm,
        run=_reset_rate,
        done="The rate {name} is reset.",
        missed="No operator set the rate {name}.",
    ),
}
