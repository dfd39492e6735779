"""The Lua files: each states its contract, and each include is used and resolved."""

import re
from importlib.resources import files
from pathlib import Path

import pytest

from celery_locks.store import scripts
from celery_locks.store.scripts import SHARD_KEYS, Script

FOLDER = Path(str(files("celery_locks.store.scripts")))
SCRIPTS = {script.name: script for script in vars(scripts).values() if isinstance(script, Script)}


def test_every_script_file_has_a_command() -> None:
    """A file that nobody calls would be tested by nobody."""
    assert {path.stem for path in FOLDER.glob("*.lua")} == set(SCRIPTS)


def test_every_part_is_included_by_a_script() -> None:
    """A part that nothing includes would be dead code."""
    texts = [path.read_text() for path in FOLDER.rglob("*.lua")]
    included = {name for text in texts for name in re.findall(r"^--include (\w+)$", text, re.M)}
    assert {path.stem for path in (FOLDER / "lib").glob("*.lua")} == included


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_script_states_its_contract(name: str) -> None:
    """The head of a script is what its Python side relies on: its name, and what it returns."""
    head = re.match(r"(--.*\n)+", SCRIPTS[name].text)
    assert head
    assert head[0].startswith(f"-- {name}: ")
    assert "-- returns " in head[0]


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_keys_of_the_shard_come_first(name: str) -> None:
    """The caller adds its keys after them: in another order, a script would use a wrong key."""
    line = re.search(r"^--keys (.+)$", (FOLDER / f"{name}.lua").read_text(), re.M)
    is_shared = [key in SHARD_KEYS for key in line[1].split()] if line else []
    assert is_shared == sorted(is_shared, reverse=True)


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.lua")), ids=lambda path: path.stem)
def test_no_script_makes_the_name_of_a_key(path: Path) -> None:
    """A key is a variable: one of KEYS. `tests/contract` finds what this overlooks."""
    calls = re.findall(r"redis\.p?call\('[A-Z]+', ([^,)]+)", path.read_text())
    made = {key for key in calls if ".." in key or key.startswith("'")}
    assert made <= {"'NUMSUB'"}


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_script_includes_each_part_once(name: str) -> None:
    """Included twice, a part would define its functions and state twice."""
    text = SCRIPTS[name].text
    assert "--include " not in text.replace('"--include <name>"', "")
    assert not re.search("^--keys ", text, re.M)
    functions = re.findall(r"^local function (\w+)", text, re.M)
    assert len(functions) == len(set(functions))
