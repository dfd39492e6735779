"""A world without threads and without time: the virtual clock, the still renewer, a store."""

from collections.abc import Iterator

import pytest

from tests.support.scripted_store import ScriptedStore
from tests.support.still_renewer import StillRenewer, use_still_renewer
from tests.support.virtual_clock import VirtualClock, use_virtual_clock


@pytest.fixture
def virtual_clock(monkeypatch: pytest.MonkeyPatch) -> VirtualClock:
    """Replaces the clock of all deadlines."""
    return use_virtual_clock(monkeypatch)


@pytest.fixture
def still_renewer(virtual_clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> StillRenewer:
    """Replaces the renewer: nothing is renewed or released unless the test runs it."""
    return use_still_renewer(monkeypatch)


@pytest.fixture
def scripted_store() -> Iterator[ScriptedStore]:
    """The test fails unless the store's script was followed to its end."""
    store = ScriptedStore()
    yield store
    store.check()
