"""The locks in Django's admin: who may see and do what, and at which address.

Names go in the query and not in the path: a name can be ``..``. Everything that changes something
is a POST, protected by Django's token.
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

from celery_locks.django import actions as acts
from celery_locks.django import detail, listing
from celery_locks.django.celery_app import the_app, the_locks
from celery_locks.django.models import Lock
from celery_locks.errors import LockError
from celery_locks.text import printable

_ACTS = 100
_SHEET = "celery_locks/admin.css"


@admin.register(Lock)
class LockAdmin(admin.ModelAdmin):  # type: ignore[misc]
    """Also for an admin site of your own: ``site.register(Lock, LockAdmin)``."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_release_permission(self, request: HttpRequest) -> bool:
        may: bool = request.user.has_perm("celery_locks.release_lock")
        return may and self.has_view_permission(request)

    def get_urls(self) -> list[Any]:
        views = {
            "": ("changelist", self.changelist_view),
            "lock/": ("detail", self.detail_view),
            "lock/release/": ("release", self.release_view),
            "lock/stop/": ("stop", self.stop_view),
            "acts/": ("acts", self.acts_view),
            "<path:object_id>/change/": ("change", self.change_view),
        }
        guarded = self.admin_site.admin_view
        return [
            path(where, guarded(view), name=f"celery_locks_lock_{name}")
            for where, (name, view) in views.items()
        ]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        self._require(self.has_view_permission(request))
        asked = listing.Question.of(request.GET)
        part, trouble = listing.Part(), ""
        try:
            part = listing.part_of(the_locks(), asked)
        except LockError as error:
            trouble = _sentence(error)
        said = {"asked": asked, "part": part, "trouble": trouble, "columns": _columns(asked, part)}
        said["states"] = [(state, asked.but(state=state)) for state in ("", *listing.STATES)]
        said["clear"] = listing.Question(sort=asked.sort).but()
        said["few"] = listing.FEW
        said["previous"] = asked.but(page=asked.page - 1) if asked.page > 1 else ""
        said["next"] = asked.but(page=asked.page + 1) if part.has_next else ""
        return self._page(request, "list", "Locks", said)

    def detail_view(self, request: HttpRequest) -> HttpResponse:
        self._require(self.has_view_permission(request))
        name = request.GET.get("name", "")
        shown, trouble = detail.DetailPage(), ""
        try:
            shown = detail.page_of(the_locks(), name, the_app())
        except LockError as error:
            trouble = _sentence(error)
        said = {"name": name, "page": shown, "trouble": trouble}
        said["may_release"] = self.has_release_permission(request)
        return self._page(request, "lock", printable(name), said)

    def change_view(self, request: HttpRequest, object_id: str, **_: Any) -> HttpResponse:
        """Where Django's own log of actions points to."""
        return self._to_lock(unquote(object_id))

    def acts_view(self, request: HttpRequest) -> HttpResponse:
        self._require(self.has_view_permission(request))
        shown: tuple[detail.ActRow, ...] = ()
        trouble = ""
        try:
            shown = detail.acts_of_all(the_locks(), _ACTS)
        except LockError as error:
            trouble = _sentence(error)
        return self._page(request, "acts", "History", {"acts": shown, "trouble": trouble})

    def release_view(self, request: HttpRequest) -> HttpResponse:
        return self._deed(request, acts.RELEASE)

    def stop_view(self, request: HttpRequest) -> HttpResponse:
        return self._deed(request, acts.STOP)

    def _deed(self, request: HttpRequest, deed: acts.AdminAction) -> HttpResponse:
        """GET asks for the confirmation, POST is it; about one holder, and nobody after it."""
        self._require(self.has_release_permission(request))
        name, token = request.GET.get("name", ""), request.GET.get("token", "")
        is_post = request.method == "POST"
        try:
            # Workers take a second or two to answer, which only a page to be read is worth.
            holder = detail.holder_of(the_locks(), name, token, None if is_post else the_app())
            if holder is None:
                messages.info(request, deed.missed.format(name=printable(repr(name))))
                return self._to_lock(name)
            form = deed.form(request.POST if is_post else None, holder.default_grace)
            if form.is_valid():
                self._do(request, deed, name, holder, form.cleaned_data)
                return self._to_lock(name)
            if is_post:
                holder = detail.holder_of(the_locks(), name, token, the_app()) or holder
        except LockError as error:
            messages.error(request, _sentence(error))
            return self._to_lock(name)
        said = {
            "name": name,
            "label": printable(name),
            "holder": holder,
            "deed": deed,
            "form": form,
        }
        return self._page(request, "confirm", f"{deed.title}: {printable(name)}", said)

    def _do(
        self,
        request: HttpRequest,
        deed: acts.AdminAction,
        name: str,
        holder: detail.HolderBox,
        said: Mapping[str, Any],
    ) -> None:
        by = f"{request.user.get_username()} via Django admin"
        was_there = deed.do(the_locks(), name, holder.token, by, said)
        words = deed.done if was_there else deed.missed
        sentence = words.format(name=printable(repr(name)), who=holder.who)
        messages.add_message(request, messages.SUCCESS if was_there else messages.INFO, sentence)
        if was_there:
            # PostgreSQL stores no NUL, and a lock's name may have one.
            known_as = Lock(name=name.replace("\0", "\ufffd"))
            self.log_change(request, known_as, f"{sentence} Reason: {printable(said['reason'])}")

    @staticmethod
    def _require(may: bool) -> None:
        if not may:
            raise PermissionDenied

    def _to_lock(self, name: str) -> HttpResponse:
        site = self.admin_site.name
        where = reverse("admin:celery_locks_lock_detail", current_app=site)
        return HttpResponseRedirect(f"{where}?{urlencode({'name': name})}")

    def _page(
        self, request: HttpRequest, template: str, title: str, said: Mapping[str, Any]
    ) -> HttpResponse:
        request.current_app = self.admin_site.name
        sheets = [f"admin/css/{'changelists' if template == 'list' else 'forms'}.css", _SHEET]
        context = {"opts": self.opts, "title": title, "sheets": sheets}
        context |= self.admin_site.each_context(request)
        return TemplateResponse(request, f"celery_locks/{template}.html", {**context, **said})


def _sentence(error: LockError) -> str:
    said = printable(str(error))
    return said[:1].upper() + said[1:]


def _columns(asked: listing.Question, part: listing.Part) -> list[dict[str, str]]:
    """The heads of the table; a click sorts by it, and another turns it around."""
    heads = {
        "Lock": "name",
        "Holder": "",
        "Held for": "held",
        "Lapses in": "remaining",
        "Waiting": "waiting",
    }
    return [_column(asked, part.sort, text, word) for text, word in heads.items()]


def _column(asked: listing.Question, sort: str, text: str, word: str) -> dict[str, str]:
    if not word:
        return {"text": text}
    if sort.removeprefix("-") != word:
        return {"text": text, "url": asked.but(sort=word)}
    # The longest held and the most waited for come first, so these begin at the other end.
    is_down = sort.startswith("-") != (word in ("held", "waiting"))
    other = word if sort.startswith("-") else f"-{word}"
    order = "descending" if is_down else "ascending"
    return {"text": text, "url": asked.but(sort=other), "order": order}
