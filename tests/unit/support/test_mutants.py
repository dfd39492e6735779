"""The mutants of the scripts (`tests/mutants`): what is changed, and what is left alone."""

from tests.mutants.operators import mutants_of
from tests.mutants.run import scripts_with

TEXT = """-- a + b
local kept = '1 + 2'
if score > 3 then redis.call('ZREM', key) end
redis.call('HDEL', records)
redis.call('DEL', held)
return kept
"""


def changes(text: str) -> set[str]:
    """Return "operator: the changed lines" for each mutant."""
    before = text.split("\n")
    return {
        f"{it.id.split(':')[1]}: "
        + " / ".join(line for line in it.text.split("\n") if line not in before)
        for it in mutants_of("a.lua", text)
    }


def test_mutants_have_one_mistake_each() -> None:
    """Two mistakes at once may hide each other."""
    assert changes(TEXT) == {
        "flip: if score <= 3 then redis.call('ZREM', key) end",
        "boundary: if score >= 3 then redis.call('ZREM', key) end",
        "number: if score > 4 then redis.call('ZREM', key) end",
        "negate: if not (score > 3) then redis.call('ZREM', key) end",
        "remove: ",
        "exchange: ",
    }


def test_mutants_remove_and_exchange_whole_statements() -> None:
    """Part of a statement does not compile, and would count as found."""
    texts = [it.text for it in mutants_of("a.lua", TEXT)]
    assert TEXT.replace("redis.call('DEL', held)\n", "\n") in texts
    swapped = "redis.call('DEL', held)\nredis.call('HDEL', records)\n"
    assert TEXT.replace("redis.call('HDEL', records)\nredis.call('DEL', held)\n", swapped) in texts
    assert not any("1 - 2" in text or "a - b" in text for text in texts)


def test_mutant_keeps_its_id_when_other_lines_change() -> None:
    """Explanations name mutants by id; an edit elsewhere must not detach them."""
    before = {it.id for it in mutants_of("a.lua", TEXT)}
    assert before <= {it.id for it in mutants_of("a.lua", "local more = 1\n" + TEXT)}


def test_equal_lines_have_mutants_of_their_own() -> None:
    """Each place is a mistake of its own, though the text of the line is the same."""
    line = "redis.call('DEL', held)\n"
    removed = [it.id for it in mutants_of("a.lua", f"{line}local a\n{line}") if "remove" in it.id]
    assert len(set(removed)) == 2


def test_mutant_of_a_library_concerns_the_scripts_that_include_it() -> None:
    """Else no test runs against it, and it survives for the wrong reason."""
    assert scripts_with("release.lua") == {"release"}
    assert scripts_with("lib/park.lua") == {"acquire"}
    assert {"acquire", "release"} <= scripts_with("lib/past.lua")
