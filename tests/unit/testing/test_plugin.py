"""The pytest plugin, run by a pytest of its own."""

from pathlib import Path

import pytest

import celery_locks.testing

pytest_plugins = ["pytester"]

MODULE = "celery_locks.testing.plugin"
APP = """
    import pytest
    from celery import Celery
    from celery_locks import LockedTask
    app = Celery("shop", broker="memory://", backend="cache+memory://")

    @app.task(base=LockedTask, bind=True, lock_key="invoice:{number}")
    def bill(self, number):
        return self.lock.name
"""


@pytest.fixture
def inner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Only our plugin, as an installed one would be there."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    return pytester


def run(inner: pytest.Pytester, *args: str) -> pytest.RunResult:
    # A process of its own: what is imported there is what the plugin imports.
    return inner.runpytest_subprocess("-p", MODULE, "-W", "error", *args)


def test_plugin_costs_nothing_where_it_is_not_used(inner: pytest.Pytester) -> None:
    """It is loaded into every pytest run of whoever has us installed."""
    inner.makepyfile("""
        import sys, threading

        def test_nothing_is_loaded():
            heavy = {"celery", "kombu", "redis", "fakeredis", "ssl", "asyncio"}
            assert heavy.intersection(sys.modules) == set()
            assert "celery_locks.testing.in_memory" not in sys.modules
            assert threading.active_count() == 1
    """)
    run(inner).assert_outcomes(passed=1)


def test_plugin_offers_the_functions_of_testing(inner: pytest.Pytester) -> None:
    """Who has read of a function finds the fixture by the same name; and there is nothing else."""
    inner.makepyfile("def test(): pass")
    listed = run(inner, "--fixtures", "-q").stdout.str()
    # Each heads a line together with where it is from.
    ours = [line.split()[0] for line in listed.splitlines() if "testing/plugin.py:" in line]
    assert sorted(ours) == sorted(["celery_locks_app", *celery_locks.testing.__all__])


def test_fixtures_are_all_that_a_test_needs(inner: pytest.Pytester) -> None:
    """The example of docs/how-to/testing.md."""
    inner.makepyfile(
        APP
        + """
    def test_second_bill_is_skipped(in_memory_locks, hold_lock, assert_skipped, lock_name_of):
        assert lock_name_of(bill, 42) == "invoice:42"
        with hold_lock("invoice:42"):
            assert_skipped(bill.apply((42,)), lock="invoice:42")
        assert bill.apply((42,)).get() == "invoice:42"
    """
    )
    run(inner).assert_outcomes(passed=1)


def test_memory_fixture_gives_each_test_empty_locks(inner: pytest.Pytester) -> None:
    inner.makepyfile(
        APP
        + """
    @pytest.mark.parametrize("time", [1, 2])
    def test_runs_then_skips(in_memory_locks, assert_skipped, time):
        assert bill.apply((42,)).get() == "invoice:42"
        lease = in_memory_locks.acquire("invoice:42")
        assert_skipped(bill.apply((42,)))   # and is left held

    def test_is_gone_after():
        with pytest.raises(ValueError, match="no Redis"):
            bill.apply((42,), throw=True)
    """
    )
    run(inner).assert_outcomes(passed=3)


def test_disabled_fixture_needs_no_server(inner: pytest.Pytester) -> None:
    inner.makepyfile(
        APP
        + """
    def test_runs(locks_disabled):
        assert bill.apply((42,)).get() == ""
    """
    )
    run(inner).assert_outcomes(passed=1)


def test_app_fixture_follows_celerys_own(inner: pytest.Pytester) -> None:
    """Celery's ``celery_app`` is another app than the current one of before the test."""
    inner.makepyfile(
        APP
        + """
    def test_memory_is_of_the_fixtures_app(
        celery_app, in_memory_locks, hold_lock, assert_skipped
    ):
        @celery_app.task(base=LockedTask, lock_key="k", shared=False)
        def other():
            return "ran"

        with hold_lock("k"):
            assert_skipped(other.apply())
        assert other.apply().get() == "ran"
    """
    )
    # Celery's fixtures leave warnings of their own.
    run(inner, "-p", "celery.contrib.pytest", "-W", "default").assert_outcomes(passed=1)


def test_app_fixture_can_be_overridden(inner: pytest.Pytester) -> None:
    inner.makepyfile(
        APP
        + """
    mine = Celery("mine", broker="memory://", set_as_current=False)

    @mine.task(base=LockedTask, lock_key="k", shared=False)
    def other():
        return "ran"

    @pytest.fixture
    def celery_locks_app():
        return mine

    def test_memory_is_of_mine(in_memory_locks, hold_lock, assert_skipped):
        assert other.apply().get() == "ran"
        with hold_lock("k"):
            assert_skipped(other.apply())
    """
    )
    run(inner).assert_outcomes(passed=1)


def test_assert_skipped_fails_at_the_line_that_asks(inner: pytest.Pytester) -> None:
    """The reader wants the sentence and their own line, not the inside of the helper."""
    inner.makepyfile(
        APP
        + """
    def test_fails(in_memory_locks, assert_skipped):
        assert_skipped(bill.apply((42,)))
    """
    )
    done = run(inner)
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["E *AssertionError: the task was not skipped: it ran and returned*"])
    done.stdout.no_fnmatch_line("*def _fail*")


def test_plugin_is_an_entry_point(request: pytest.FixtureRequest) -> None:
    """Where the package is installed (``make test``), pytest finds the plugin by itself."""
    manager = request.config.pluginmanager
    if not any(dist.project_name == "celery-locks" for _, dist in manager.list_plugin_distinfo()):
        pytest.skip("celery-locks is on the path here, but not installed")
    assert manager.get_plugin("celery_locks").__name__ == MODULE
