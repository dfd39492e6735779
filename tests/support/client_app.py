"""The side of a Celery app that sends tasks and reads results: how to open and close it."""

from celery import Celery


def open_client(url: str) -> Celery:
    """An app without tasks, broker and results in the same database."""
    app = Celery("client", broker=url, backend=url, set_as_current=False)
    app.conf.task_ignore_result = False
    return share_backend(app)


def share_backend(app: Celery) -> Celery:
    """Use one result backend in all threads; Celery's default of one each cannot be closed here."""
    app.conf.result_backend_thread_safe = True
    return app


def close_client(app: Celery) -> None:
    """Close the app's connections, and keep its results from looking for the server later.

    The results of a failed test live until some later test. They would unsubscribe then, wait 20 s
    for a server that is gone, and their error would fail the other test.
    """
    backend = app.backend
    backend.remove_pending_result = lambda result: result
    consumer = getattr(backend, "result_consumer", None)
    if consumer is not None:
        consumer.stop()
        consumer._pubsub = None
        consumer.subscribed_to.clear()  # who still asks for a result subscribes again
        # Its client does not own its pool. Left to the garbage collector, the pool's sockets may be
        # finalised before the connections that would close them: a warning in some later test.
        backend.client.connection_pool.disconnect()
    # Another app with this URL shares the pool: it is emptied, then filled with unused connections.
    app.pool.force_close_all(close_pool=False)
    app.pool.setup()
    app.close()
