"""Celery lets the environment name its servers; the locks go where the messages go."""

import pytest
from celery import Celery

from celery_locks import settings


@pytest.mark.parametrize("variable", ["CELERY_BROKER_URL", "CELERY_RESULT_BACKEND"])
def test_settings_heed_celerys_variables(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples and many deployments name the server this way only."""
    monkeypatch.setenv(variable, "redis://elsewhere:7000/3")
    broker = "redis://here/0" if "BROKER" in variable else "amqp://here"
    app = Celery(broker=broker, set_as_current=False)
    assert settings.of(app).url == "redis://elsewhere:7000/3"
