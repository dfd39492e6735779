"""The faulty network must be faulty in the way it says: every fault test stands on it."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.proxy import Proxy
from tests.support.waiting import wait_until


class Echo:
    """Answers every chunk with `<chunk>` and counts them."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                end, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(end,), daemon=True).start()

    def _answer(self, end: socket.socket) -> None:
        with end:
            while data := end.recv(1024):
                self.heard.append(data)
                end.sendall(b"<" + data + b">")


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", echo.port) as proxy:
        yield proxy


@pytest.fixture
def end(proxy: Proxy) -> Iterator[socket.socket]:
    """A connection that has spoken once, so its threads are up."""
    with socket.create_connection((proxy.host, proxy.port), timeout=5) as end:
        end.sendall(b"hello")
        assert end.recv(100) == b"<hello>"
        yield end


def silent(end: socket.socket, seconds: float = 0.2) -> bool:
    """Nothing comes for a while."""
    end.settimeout(seconds)
    try:
        return end.recv(100) is None
    except TimeoutError:
        return True
    finally:
        end.settimeout(5)


def test_black_hole_forwards_nothing(proxy: Proxy, echo: Echo, end: socket.socket) -> None:
    """A dead network keeps connections open and carries nothing, either way."""
    proxy.black_hole()
    end.sendall(b"lost?")
    assert silent(end)
    assert b"lost?" not in echo.heard


def test_black_hole_swallows_replies(proxy: Proxy, echo: Echo, end: socket.socket) -> None:
    """A reply already on its way when the network dies stays out too."""
    proxy.delay(60)
    end.sendall(b"asked")
    wait_until(lambda: b"asked" in echo.heard, what="the request to arrive")
    proxy.black_hole()
    assert silent(end)


def test_black_hole_accepts_new_connections(proxy: Proxy) -> None:
    """Connecting succeeds, as with a half-dead host: the client must time out by itself."""
    proxy.black_hole()
    with socket.create_connection((proxy.host, proxy.port), timeout=5) as late:
        late.sendall(b"anyone?")
        assert silent(late)


def test_pass_through_heals(proxy: Proxy, end: socket.socket) -> None:
    """What a black hole held back arrives when it ends, as TCP's resends would."""
    proxy.black_hole()
    end.sendall(b"held")
    assert silent(end)
    proxy.pass_through()
    assert end.recv(100) == b"<held>"


def test_delay_makes_replies_late(proxy: Proxy, echo: Echo, end: socket.socket) -> None:
    """The server acts at once; only the answer is late."""
    proxy.delay(0.3)
    asked = time.monotonic()
    end.sendall(b"late")
    wait_until(lambda: b"late" in echo.heard, deadline=0.25, what="the request to arrive at once")
    assert end.recv(100) == b"<late>"
    assert time.monotonic() - asked >= 0.3


def test_drop_replies_lets_requests_through(proxy: Proxy, echo: Echo, end: socket.socket) -> None:
    """The server did it and the client never hears."""
    proxy.drop_replies()
    end.sendall(b"done")
    wait_until(lambda: proxy.dropped == 1, what="the reply to be dropped")
    assert silent(end)
    assert b"done" in echo.heard
    proxy.pass_through()
    end.sendall(b"next")
    assert end.recv(100) == b"<next>"


def test_drop_next_reply_drops_one(proxy: Proxy, echo: Echo, end: socket.socket) -> None:
    """Once means once."""
    proxy.drop_next_reply()
    end.sendall(b"one")
    wait_until(lambda: proxy.dropped == 1, what="the reply to be dropped")
    end.sendall(b"two")
    assert end.recv(100) == b"<two>"
    assert b"one" in echo.heard


def test_drop_next_reply_waits_for_its_request(proxy: Proxy, end: socket.socket) -> None:
    """A connection's handshake keep their replies when another command is meant."""
    proxy.drop_next_reply(to=b"EVALSHA")
    end.sendall(b"HELLO 3")
    assert end.recv(100) == b"<HELLO 3>"
    end.sendall(b"EVALSHA abc")
    wait_until(lambda: proxy.dropped == 1, what="the reply to be dropped")
    assert silent(end)


def test_repeat_next_reply_repeats_one(proxy: Proxy, end: socket.socket) -> None:
    """What a broken proxy does, and for one reply only."""
    proxy.repeat_next_reply(to=b"EVALSHA")
    end.sendall(b"HELLO 3")
    assert end.recv(100) == b"<HELLO 3>"
    end.sendall(b"EVALSHA abc")
    assert end.recv(100) == b"<EVALSHA abc><EVALSHA abc>"
    end.sendall(b"EVALSHA abc")
    assert end.recv(100) == b"<EVALSHA abc>"


def test_refuse_closes_new_connections_only(proxy: Proxy, end: socket.socket) -> None:
    """Like a server at its connection limit: who is in stays in."""
    proxy.refuse()
    with socket.create_connection((proxy.host, proxy.port), timeout=5) as refused:
        assert refused.recv(100) == b""
    end.sendall(b"still")
    assert end.recv(100) == b"<still>"


def test_cut_ends_present_connections(proxy: Proxy, end: socket.socket) -> None:
    """A reset: the client hears of it, and a new connection works."""
    proxy.cut()
    assert end.recv(100) == b""
    assert proxy.connections == 0
    with socket.create_connection((proxy.host, proxy.port), timeout=5) as again:
        again.sendall(b"again")
        assert again.recv(100) == b"<again>"


def test_cut_works_in_a_black_hole(proxy: Proxy, end: socket.socket) -> None:
    """No thread may be stuck in the hole when the test ends."""
    proxy.black_hole()
    end.sendall(b"held")
    proxy.cut()
    assert end.recv(100) == b""


def test_drip_sends_a_byte_at_a_time(proxy: Proxy, end: socket.socket) -> None:
    """Each read brings a little, so a timeout per read never fires and the whole takes long."""
    proxy.drip(0.05)
    asked = time.monotonic()
    end.sendall(b"slow")
    pieces = [end.recv(100)]
    while not pieces[-1].endswith(b">"):
        pieces.append(end.recv(100))
    assert b"".join(pieces) == b"<slow>"
    assert len(pieces) > 1
    assert time.monotonic() - asked >= 6 * 0.05


def test_dead_target_closes_the_client(end: socket.socket) -> None:
    """A proxy before a dead server looks like one that hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with Proxy("127.0.0.1", port) as proxy:
        with socket.create_connection((proxy.host, proxy.port), timeout=5) as client:
            assert client.recv(100) == b""
