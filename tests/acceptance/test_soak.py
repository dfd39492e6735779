"""``make soak`` for a few seconds, so that the command itself is known to work."""

import pytest

from tests.soak.run import run


@pytest.mark.timeout(300)
def test_soak_with_locks_has_no_overlap():
    """Kills of children and workers, lost connections, a paused lock server: never two at once."""
    outcome = run(locked=True, seconds=12.0, seed=3)
    assert outcome.drained
    assert outcome.faults
    assert outcome.verdict.completed > 10
    assert outcome.verdict.excludes
    assert outcome.history.requests > 10
    assert outcome.history.is_linearizable, str(outcome.history)
