"""One idea, one name: the glossary in CONTRIBUTING.md, enforced.

Read from the source with `ast`: names of files, classes, functions, arguments and variables.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "celery_locks"

# Former names and what replaced them. A name is split into its words: `_paid_debts` has `debts`.
FORMER = {
    "abandon": "release_if_acquired, or close",
    "act": "history entry",
    "acts": "history entries",
    "adrive": "run_async",
    "bell": "wakeup pipe",
    "besides": "extras",
    "bury": "release_dead",
    "charge": "renewal entry",
    "charges": "renewal entries",
    "chore": "background job",
    "chores": "background jobs",
    "debt": "pending release",
    "debts": "pending releases",
    "deed": "admin action",
    "desk": "context",
    "door": "authenticator",
    "doubt": "inconclusive",
    "doubtful": "repeat_until_expired",
    "ear": "subscription",
    "flow": "operation",
    "flows": "operations",
    "giving": "release",
    "greetings": "handshake",
    "hints": "recent answers",
    "keeper": "renewer",
    "leftovers": "stale locks",
    "letter": "waiter",
    "lint": "checks",
    "mailbox": "notifications",
    "mailboxes": "notifications",
    "nap": "wait for hand-over",
    "owed": "deferred",
    "owes": "owns",
    "place": "reservation",
    "places": "reservations",
    "pulse": "keepalive",
    "refusal": "not acquired, or HTTP error",
    "roll": "worker report",
    "said": "options, values or fields",
    "shelf": "files",
    "shot": "snapshot",
    "site": "server",
    "spared": "skipped",
    "trimming": "prune",
    "twin": "copy, or store_for_thread",
    "unsend": "reset",
    "verb": "command",
    "verbs": "commands",
    "visitor": "principal",
    "ward": "supervised task",
    "wards": "supervised tasks",
    "whereabouts": "find_task",
    "wire": "connection",
}
# A field of the REST answers and of `--json` is public: its name stays.
PUBLIC = {("types.py", "act")}
# What a variable or argument is not called: it says how the value came, not what it holds.
VAGUE = {"asked", "how", "mine", "one", "said", "theirs", "word"}


def sources() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def words_of(name: str) -> set[str]:
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return {word for word in spaced.lower().split("_") if word}


def names_in(path: Path) -> Iterator[tuple[int, str]]:
    """Every name that a file defines or binds, with its line; its own name has line 0."""
    yield 0, path.stem
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_file_uses_the_words_of_the_glossary(path: Path) -> None:
    """A former word that comes back gives one idea two names."""
    complaints = [
        f"{path.name}:{line}: {name} has the former word {word!r}; write {FORMER[word]}"
        for line, name in names_in(path)
        for word in sorted(words_of(name) & FORMER.keys())
        if (path.name, name) not in PUBLIC
    ]
    complaints += [
        f"{path.name}:{line}: {name} says how the value came; name what it holds"
        for line, name in names_in(path)
        if name in VAGUE
    ]
    assert not complaints, "\n".join(complaints)


def test_no_class_name_is_defined_twice() -> None:
    """Two classes of one name are two ideas that a reader takes for one."""
    homes = defaultdict(list)
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(str(path.relative_to(SOURCE)))
    twice = {name: where for name, where in homes.items() if len(where) > 1}
    assert not twice
