"""A time limit, or Ctrl-C, strikes on the way to a release: the lock must not wait to lapse."""

from typing import Any

import fakeredis
import pytest

from celery_locks.integration.app import AppLocks
from tests.support.waiting import wait_until


@pytest.mark.parametrize("where", ["verbs.release", "_store.perform"])
@pytest.mark.parametrize("way", ["of a task", "by hand"])
def test_release_interrupted_on_its_way_is_made_up_for(
    monkeypatch: pytest.MonkeyPatch, way: str, where: str
) -> None:
    locks = AppLocks(fakeredis.FakeRedis())
    lease = locks.acquire("a", ttl=600)
    assert lease
    owner, name = (
        (locks.verbs, "release") if where == "verbs.release" else (locks._store, "perform")
    )
    original = getattr(owner, name)

    def struck(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(owner, name, original)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, struck)
    with pytest.raises(KeyboardInterrupt):
        if way == "of a task":
            locks.give_back(lease, (), 0.0, "")
        else:
            lease.release()
    wait_until(lambda: locks.info("a") is None)
