"""A TCP proxy that misbehaves on command: the network's faults, on one machine.

    with Proxy(server.host, server.port) as proxy:
        client = Redis(port=proxy.port)
        proxy.black_hole()

A mode holds for all connections, present and new, until the next is set; bytes held back by one
mode go on under the next. It knows no Redis: a "reply" is what the target sends.
"""

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

HOST = "127.0.0.1"
CHUNK = 65536


@dataclass(frozen=True)
class Mode:
    kind: Literal["pass", "black_hole", "delay", "drop_replies", "refuse", "drip"]
    seconds: float = 0.0


class Proxy:
    """Listens on `host`:`port`, forwards to the target as the mode allows."""

    host = HOST

    def __init__(self, target_host: str, target_port: int) -> None:
        self._target = (target_host, target_port)
        self._mode = Mode("pass")
        self._changed = threading.Condition()
        self._connections: set[_Connection] = set()
        self._drop_reply_to: bytes | None = None
        self._repeat_reply_to: bytes | None = None
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self.dropped = 0

    @property
    def url(self) -> str:
        return f"redis://{self.host}:{self.port}/0"

    @property
    def connections(self) -> int:
        """How many are open now."""
        return len(self._connections)

    def __enter__(self) -> Self:
        _thread(self._accept)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _close(self._listener)
        self.cut()

    def pass_through(self) -> None:
        """Forward everything; what was held back goes on now, as after a healed network."""
        self._set(Mode("pass"))

    def black_hole(self) -> None:
        """Accept connections and forward nothing, either way."""
        self._set(Mode("black_hole"))

    def delay(self, seconds: float) -> None:
        """Forward requests at once and replies `seconds` late."""
        self._set(Mode("delay", seconds))

    def drop_replies(self) -> None:
        """Forward requests, throw replies away: the server did it and the client never hears."""
        self._set(Mode("drop_replies"))

    def drop_next_reply(self, to: bytes = b"") -> None:
        """Throw away one reply: that to the next request which contains `to`.

        Name the command when a new connection's handshake could come first.
        """
        with self._changed:
            self._drop_reply_to = to

    def repeat_next_reply(self, to: bytes = b"") -> None:
        """Send one reply twice: that to the next request which contains `to`."""
        with self._changed:
            self._repeat_reply_to = to

    def refuse(self) -> None:
        """Close new connections at once. Present ones stay: add `cut()` to end them too."""
        self._set(Mode("refuse"))

    def drip(self, interval: float) -> None:
        """Forward replies one byte per `interval` seconds."""
        self._set(Mode("drip", interval))

    def cut(self) -> None:
        """Close all present connections, whatever the mode."""
        with self._changed:
            doomed, self._connections = self._connections, set()
            for connection in doomed:
                connection.close()
            self._changed.notify_all()

    def _set(self, mode: Mode) -> None:
        with self._changed:
            self._mode = mode
            self._changed.notify_all()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed: the proxy ends
            if self._mode.kind == "refuse":
                _close(client)
            else:
                self._connect(client)

    def _connect(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self._target)
        except OSError:
            _close(client)
            return
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(client, server)
        with self._changed:
            self._connections.add(connection)
        _thread(lambda: self._pump(connection, client, self._send_request))
        _thread(lambda: self._pump(connection, server, self._send_reply))

    def _pump(
        self,
        connection: "_Connection",
        source: socket.socket,
        send: Callable[["_Connection", bytes], None],
    ) -> None:
        try:
            while data := source.recv(CHUNK):
                send(connection, data)
        except OSError:
            pass  # cut, or one side went away
        self._leave_hole(connection)
        connection.close()
        with self._changed:
            self._connections.discard(connection)

    def _send_request(self, connection: "_Connection", data: bytes) -> None:
        self._leave_hole(connection)
        with self._changed:
            wanted = self._drop_reply_to
            if wanted is not None and wanted in data:
                self._drop_reply_to = None
                connection.drops_reply = True
            wanted = self._repeat_reply_to
            if wanted is not None and wanted in data:
                self._repeat_reply_to = None
                connection.repeats_reply = True
        connection.server.sendall(data)

    def _send_reply(self, connection: "_Connection", data: bytes) -> None:
        if connection.repeats_reply:
            connection.repeats_reply = False
            data += data
        while data and not connection.closed:
            mode = self._leave_hole(connection)
            if mode.kind == "drop_replies" or connection.drops_reply:
                connection.drops_reply = False
                self.dropped += 1
                return
            # A mode set while we wait is obeyed at once, hence one more turn.
            if mode.seconds and self._wait(connection, mode):
                continue
            if mode.kind == "delay":
                data += _waiting_bytes(connection.server)
            size = 1 if mode.kind == "drip" else len(data)
            connection.client.sendall(data[:size])
            data = data[size:]

    def _leave_hole(self, connection: "_Connection") -> Mode:
        """Wait while the mode is black hole. A hole swallows the news of a closed end too."""
        with self._changed:
            self._changed.wait_for(lambda: connection.closed or self._mode.kind != "black_hole")
            return self._mode

    def _wait(self, connection: "_Connection", mode: Mode) -> bool:
        """Wait the mode's seconds; True when the mode changed meanwhile."""
        with self._changed:
            return self._changed.wait_for(
                lambda: connection.closed or self._mode is not mode, mode.seconds
            )


class _Connection:
    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.closed = False
        self.drops_reply = False
        self.repeats_reply = False

    def close(self) -> None:
        self.closed = True
        _close(self.client)
        _close(self.server)


def _close(end: socket.socket) -> None:
    # shutdown first: close alone does not wake a thread that is waiting in recv or accept.
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # never connected, or closed by the other side
    end.close()


def _waiting_bytes(end: socket.socket) -> bytes:
    """What arrived meanwhile: the tail of a long reply is late once, not once per chunk."""
    try:
        return end.recv(1 << 20, socket.MSG_DONTWAIT)
    except OSError:
        return b""


def _thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="proxy", daemon=True).start()
