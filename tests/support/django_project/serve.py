"""Serve the project's admin on a free port: ``python -m tests.support.django_project.serve``.

Its users, each with the password "pw": root, who may all; vera, who may view; rolf, who may release
too; sam, who is staff and no more. Each request has a thread of its own, as with ``runserver``.
"""

import os

import django
from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.management import call_command
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from django.core.wsgi import get_wsgi_application

STAFF = {"vera": ("view_lock",), "rolf": ("view_lock", "release_lock"), "sam": ()}


def add_users() -> None:
    from django.contrib.auth.models import Permission, User

    User.objects.create_superuser("root", password="pw")
    for name, permissions in STAFF.items():
        user = User.objects.create_user(name, password="pw", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.support.django_project.settings")
    django.setup()
    call_command("migrate", verbosity=0)
    add_users()
    server = ThreadedWSGIServer(("127.0.0.1", 0), WSGIRequestHandler)
    server.set_app(StaticFilesHandler(get_wsgi_application()))
    print(f"serving on port {server.server_port}.", flush=True)
    server.serve_forever()
