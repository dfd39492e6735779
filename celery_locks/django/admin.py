"""The locks in Django's admin: the views, their URLs and their permissions.

Lock names are in the query, not in the path: a name can be ``..``. Every change is a POST,
protected by Django's CSRF token.

More than 300 lines: Django wants the views of a model in one class.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse

from celery_locks.admin import format_count
from celery_locks.django import actions, detail, listing, rates
from celery_locks.django.celery_app import get_app, get_locks
from celery_locks.django.models import Lock
from celery_locks.errors import LockError
from celery_locks.printable_text import printable

_MAX_HISTORY = 100
_STYLESHEET = "celery_locks/admin.css"


@admin.register(Lock)
class LockAdmin(admin.ModelAdmin):  # type: ignore[misc]
    """The pages; for another admin site, call ``site.register(Lock, LockAdmin)``."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_release_permission(self, request: HttpRequest) -> bool:
        is_permitted: bool = request.user.has_perm("celery_locks.release_lock")
        return is_permitted and self.has_view_permission(request)

    def get_urls(self) -> list[Any]:
        views = {
            "": ("changelist", self.changelist_view),
            "lock/": ("detail", self.detail_view),
            "lock/release/": ("release", self.release_view),
            "lock/stop/": ("stop", self.stop_view),
            **{
                f"lock/{kind}/": (kind, partial(self.override_view, action=action))
                for kind, action in actions.LOCK_ACTIONS.items()
            },
            "lock/purge/": ("purge", self.purge_view),
            "rates/": ("rates", self.rates_view),
            **{
                f"rates/{kind}/": (kind, partial(self.override_view, action=action, back="rates"))
                for kind, action in actions.RATE_ACTIONS.items()
            },
            "history/": ("history", self.operator_history_view),
            "<path:object_id>/change/": ("change", self.change_view),
        }
        protect = self.admin_site.admin_view
        return [
            path(route, protect(view), name=f"celery_locks_lock_{name}")
            for route, (name, view) in views.items()
        ]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        self._require(self.has_view_permission(request))
        query = listing.ListQuery.of(request.GET)
        page, trouble = listing.ListPage(), ""
        try:
            page = listing.read_page(get_locks(), query)
        except LockError as error:
            trouble = _sentence(error)
        values = {
            "query": query,
            "page": page,
            "trouble": trouble,
            "columns": _columns(query, page),
            "states": [(state, query.url_with(state=state)) for state in ("", *listing.STATES)],
            "clear": listing.ListQuery(sort=query.sort).url_with(),
            "max_sorted": listing.MAX_SORTED,
            "previous": query.url_with(page=query.page - 1) if query.page > 1 else "",
            "next": query.url_with(page=query.page + 1) if page.has_next else "",
        }
        return self._render(request, "list", "Locks", values)

    def detail_view(self, request: HttpRequest) -> HttpResponse:
        self._require(self.has_view_permission(request))
        name = request.GET.get("name", "")
        page, trouble = detail.DetailPage(), ""
        try:
            page = detail.read_page(get_locks(), name, get_app())
        except LockError as error:
            trouble = _sentence(error)
        values = {"name": name, "page": page, "trouble": trouble}
        values["may_release"] = self.has_release_permission(request)
        return self._render(request, "lock", printable(name), values)

    def change_view(self, request: HttpRequest, object_id: str, **_: Any) -> HttpResponse:
        """Redirect to the lock: Django's own log of actions links here."""
        return self._redirect_to_lock(unquote(object_id))

    def operator_history_view(self, request: HttpRequest) -> HttpResponse:
        self._require(self.has_view_permission(request))
        history: tuple[detail.HistoryRow, ...] = ()
        trouble = ""
        try:
            history = detail.read_history(get_locks(), _MAX_HISTORY)
        except LockError as error:
            trouble = _sentence(error)
        values = {"history": history, "trouble": trouble}
        return self._render(request, "history", "History", values)

    def rates_view(self, request: HttpRequest) -> HttpResponse:
        self._require(self.has_view_permission(request))
        name = request.GET.get("name", "")
        rows: list[rates.RateRow] = []
        total, trouble = 0, ""
        try:
            rows, total = rates.read_rates(get_locks(), name)
        except LockError as error:
            trouble = _sentence(error)
        values = {"name": name, "rows": rows, "more": total - len(rows), "trouble": trouble}
        values["may_release"] = self.has_release_permission(request)
        return self._render(request, "rates", "Rates", values)

    def release_view(self, request: HttpRequest) -> HttpResponse:
        return self._confirm(request, actions.RELEASE)

    def stop_view(self, request: HttpRequest) -> HttpResponse:
        return self._confirm(request, actions.STOP)

    def override_view(
        self, request: HttpRequest, action: actions.LockAction, back: str = "detail"
    ) -> HttpResponse:
        """Ask for the reason on GET; pause the lock, set its limit or end that on POST.

        ``back`` is the page to return to: of the lock, or that of the rates.
        """
        self._require(self.has_release_permission(request))
        name = request.GET.get("name", "")
        form = action.form(request.POST if request.method == "POST" else None)
        if form.is_valid():
            try:
                self._override(request, action, name, form.cleaned_data)
            except LockError as error:
                messages.error(request, _sentence(error))
            return HttpResponseRedirect(self._url_of(back, name))
        values = {"label": printable(name), "action": action, "form": form}
        values["back"] = self._url_of(back, name)
        return self._render(request, "confirm", f"{action.title}: {printable(name)}", values)

    def _override(
        self,
        request: HttpRequest,
        action: actions.LockAction,
        name: str,
        fields: Mapping[str, Any],
    ) -> None:
        by = f"{request.user.get_username()} via Django admin"
        done = action.run(get_locks(), name, by, fields)
        is_missed = bool(action.missed) and not done.was_set
        sentence = (action.missed if is_missed else action.done).format(name=printable(repr(name)))
        messages.add_message(request, messages.INFO if is_missed else messages.SUCCESS, sentence)
        if not is_missed:
            self._log(request, name, sentence, fields["reason"])

    def purge_view(self, request: HttpRequest) -> HttpResponse:
        """Ask for the reason on GET; remove the parked messages, or that of one task, on POST."""
        self._require(self.has_release_permission(request))
        name, task_id = request.GET.get("name", ""), request.GET.get("task_id", "")
        data = request.POST if request.method == "POST" else None
        form = actions.PurgeForm(data, initial={"task_id": task_id})
        if form.is_valid():
            try:
                self._purge(request, name, form.cleaned_data)
            except LockError as error:
                messages.error(request, _sentence(error))
            return self._redirect_to_lock(name)
        action = actions.PURGE
        values = {"name": name, "label": printable(name), "action": action, "form": form}
        return self._render(request, "confirm", f"{action.title}: {printable(name)}", values)

    def _purge(self, request: HttpRequest, name: str, fields: Mapping[str, Any]) -> None:
        by = f"{request.user.get_username()} via Django admin"
        options = {"reason": fields["reason"], "task_id": fields["task_id"] or None}
        purged = actions.PURGE.run(get_locks(), name, by=by, app=get_app(), **options)
        if not purged.messages:
            messages.info(request, actions.PURGE.missed.format(name=printable(repr(name))))
            return
        count = format_count(len(purged.messages), "parked message")
        sentence = actions.PURGE.done.format(count=count, name=printable(repr(name)))
        messages.success(request, sentence)
        for trouble in filter(None, (purged.unmarked, purged.trouble)):
            messages.warning(request, f"{printable(trouble)[:1].upper()}{printable(trouble)[1:]}.")
        self._log(request, name, sentence, fields["reason"])

    def _log(self, request: HttpRequest, name: str, sentence: str, reason: str) -> None:
        # PostgreSQL cannot store NUL, and a lock name may contain one.
        lock = Lock(name=name.replace("\0", "\ufffd"))
        self.log_change(request, lock, f"{sentence} Reason: {printable(reason)}")

    def _confirm(self, request: HttpRequest, action: actions.AdminAction) -> HttpResponse:
        """Ask for confirmation on GET, act on POST; on this holder only, never on a later one."""
        self._require(self.has_release_permission(request))
        name, token = request.GET.get("name", ""), request.GET.get("token", "")
        is_post = request.method == "POST"
        try:
            # Workers take a second or two to answer; wait for them only if the page is shown.
            holder = detail.holder_of(get_locks(), name, token, None if is_post else get_app())
            if holder is None:
                messages.info(request, action.missed.format(name=printable(repr(name))))
                return self._redirect_to_lock(name)
            form = action.form(request.POST if is_post else None, holder.default_grace)
            if form.is_valid():
                self._run(request, action, name, holder, form.cleaned_data)
                return self._redirect_to_lock(name)
            if is_post:
                holder = detail.holder_of(get_locks(), name, token, get_app()) or holder
        except LockError as error:
            messages.error(request, _sentence(error))
            return self._redirect_to_lock(name)
        values = {
            "back": self._url_of("detail", name),
            "label": printable(name),
            "holder": holder,
            "action": action,
            "form": form,
        }
        return self._render(request, "confirm", f"{action.title}: {printable(name)}", values)

    def _run(
        self,
        request: HttpRequest,
        action: actions.AdminAction,
        name: str,
        holder: detail.HolderBox,
        fields: Mapping[str, Any],
    ) -> None:
        by = f"{request.user.get_username()} via Django admin"
        was_held = action.run(get_locks(), name, holder.token, by, fields)
        message = action.done if was_held else action.missed
        sentence = message.format(name=printable(repr(name)), who=holder.who)
        messages.add_message(request, messages.SUCCESS if was_held else messages.INFO, sentence)
        if was_held:
            self._log(request, name, sentence, fields["reason"])

    @staticmethod
    def _require(is_permitted: bool) -> None:
        if not is_permitted:
            raise PermissionDenied

    def _redirect_to_lock(self, name: str) -> HttpResponse:
        return HttpResponseRedirect(self._url_of("detail", name))

    def _url_of(self, view: str, name: str) -> str:
        url = reverse(f"admin:celery_locks_lock_{view}", current_app=self.admin_site.name)
        return f"{url}?{urlencode({'name': name})}"

    def _render(
        self, request: HttpRequest, template: str, title: str, values: Mapping[str, Any]
    ) -> HttpResponse:
        request.current_app = self.admin_site.name
        stylesheets = [
            f"admin/css/{'changelists' if template == 'list' else 'forms'}.css",
            _STYLESHEET,
        ]
        context = {"opts": self.opts, "title": title, "stylesheets": stylesheets}
        context |= self.admin_site.each_context(request)
        return TemplateResponse(request, f"celery_locks/{template}.html", {**context, **values})


def _sentence(error: LockError) -> str:
    text = printable(str(error))
    return text[:1].upper() + text[1:]


def _columns(query: listing.ListQuery, page: listing.ListPage) -> list[dict[str, str]]:
    """Return the column headers; a click sorts by the column, another reverses the order."""
    headers = {
        "Lock": "name",
        "Holder": "",
        "Held for": "held",
        "Expires in": "remaining",
        "Waiting": "waiting",
    }
    return [_column(query, page.sort, text, key) for text, key in headers.items()]


def _column(query: listing.ListQuery, sort: str, text: str, key: str) -> dict[str, str]:
    if not key:
        return {"text": text}
    if sort.removeprefix("-") != key:
        return {"text": text, "url": query.url_with(sort=key)}
    # The longest held and the most waited for come first, so these start descending.
    is_descending = sort.startswith("-") != (key in ("held", "waiting"))
    reverse_sort = key if sort.startswith("-") else f"-{key}"
    order = "descending" if is_descending else "ascending"
    return {"text": text, "url": query.url_with(sort=reverse_sort), "order": order}
