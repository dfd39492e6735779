"""What kombu's Redis transport loses by itself, without Celery and without us.

A consumer pops a message first (BRPOP) and records it as unacknowledged afterwards. If it dies
between the two, or if its connection does, the message is nowhere. The documentation says so
(docs/soak.md); this test notices when kombu mends it.
"""

import socket

import kombu
import pytest

from tests.servers.embedded import EmbeddedServer
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

QUEUE = "jobs"


def test_message_popped_for_a_connection_that_dies_is_lost():
    """So no lock library can promise that a Redis broker loses no job."""
    with EmbeddedServer() as server, Proxy(server.host, server.port) as proxy:
        with kombu.Connection(server.url) as publisher:
            publisher.SimpleQueue(QUEUE).put("a job")
        assert server.ask("LLEN", QUEUE) == 1

        proxy.drop_next_reply(to=b"BRPOP")
        assert consume(proxy, while_waiting=proxy.cut) == []
        assert proxy.dropped == 1
        proxy.pass_through()

        assert server.ask("LLEN", QUEUE) == 0
        assert server.ask("EXISTS", "unacked") == 0
        assert consume(proxy) == []


def test_message_recorded_as_unacknowledged_is_not_lost():
    """The control: one step later the same death of the consumer loses nothing."""
    with EmbeddedServer() as server:
        with kombu.Connection(server.url) as publisher:
            publisher.SimpleQueue(QUEUE).put("a job")
        with kombu.Connection(server.url, transport_options={"visibility_timeout": 1}) as consumer:
            consumer.SimpleQueue(QUEUE).get(timeout=10)
            consumer.default_channel.client.connection_pool.disconnect()
            assert server.ask("HLEN", "unacked") == 1
            with kombu.Connection(server.url, transport_options={"visibility_timeout": 1}) as other:
                wait_until(lambda: restore(other, server), what="the message to return")


def consume(proxy: Proxy, while_waiting=lambda: None) -> list[str]:
    """What a consumer receives through the proxy within two seconds."""
    received: list[str] = []
    with kombu.Connection(proxy.url) as connection:
        channel = connection.channel()
        queue = kombu.Queue(QUEUE, channel=channel)
        with kombu.Consumer(channel, [queue], on_message=lambda m: received.append(m.body)):
            with pytest.raises(socket.timeout):
                connection.drain_events(timeout=2)
            while_waiting()
    return received


def restore(connection: kombu.Connection, server: EmbeddedServer) -> bool:
    connection.default_channel.qos.restore_visible(interval=1)
    return server.ask("LLEN", QUEUE) == 1
