"""``metrics``: serve Prometheus from a process of its own, or print the metrics once."""

from __future__ import annotations

import threading

import click

from celery_locks.cli import WRONG_INPUT
from celery_locks.cli.context import Context, echo, exit_with, pass_context

PORT = 9187


@click.command("metrics")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="0.0.0.0 for all interfaces.")
@click.option("--once", is_flag=True, help="Print the metrics and exit.")
@pass_context
def metrics(context: Context, port: int, host: str, once: bool) -> None:
    """Serve the metrics to Prometheus.

    They are at http://HOST:PORT/metrics, summed over all processes that call
    celery_locks.metrics.install(app).
    """
    try:
        from celery_locks.metrics import collector
    except ImportError as error:
        exit_with(
            WRONG_INPUT,
            "Metrics need prometheus-client: pip install celery-locks[metrics] "
            f"({error.name} is missing).",
        )
    where = context.locks
    if context.app is not None:
        where = context.app
        context.app.loader.import_default_modules()  # every locked task gets its counters
    if once:
        click.echo(collector.exposition(where), nl=False)
        return
    try:
        server, thread = collector.serve(where, port, host)
    except OSError as error:
        exit_with(WRONG_INPUT, f"Cannot listen on {host}:{port}: {error}")
    echo(f"Metrics are at http://{host}:{server.server_port}/metrics")
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        server.shutdown()
        thread.join()
