"""The locks in Django's admin: the views, their URLs and their permissions.

Lock names are in the query, not in the path: a name can be ``..``. Every change is a POST,
protected by Django's CSRF token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse

from celery_locks.django import actions, detail, listing
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

    def release_view(self, request: HttpRequest) -> HttpResponse:
        return self._confirm(request, actions.RELEASE)

    def stop_view(self, request: HttpRequest) -> HttpResponse:
        return self._confirm(request, actions.STOP)

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
            "name": name,
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
            # PostgreSQL cannot store NUL, and a lock name may contain one.
            lock = Lock(name=name.replace("\0", "\ufffd"))
            self.log_change(request, lock, f"{sentence} Reason: {printable(fields['reason'])}")

    @staticmethod
    def _require(is_permitted: bool) -> None:
        if not is_permitted:
            raise PermissionDenied

    def _redirect_to_lock(self, name: str) -> HttpResponse:
        url = reverse("admin:celery_locks_lock_detail", current_app=self.admin_site.name)
        return HttpResponseRedirect(f"{url}?{urlencode({'name': name})}")

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
