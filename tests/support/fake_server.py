"""A server that is none: it answers with a version, an address or anything of our choice."""

import socket
import threading
from typing import Self


class FakeServer:
    """Accepts connections on loopback, keeps what it hears, answers every request alike."""

    def __init__(self, version: str, greeting: bytes | None = None) -> None:
        body = f"# Server\r\nredis_version:{version}\r\nredis_mode:standalone\r\n".encode()
        self.answer = greeting or b"$%d\r\n%b\r\n" % (len(body), body)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.heard: list[bytes] = []

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="fake-server", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65536):
                    self.heard.append(data)
                    connection.sendall(self.answer)
            except OSError:
                pass


class FakeSentinel(FakeServer):
    """Names the primary that we tell it to name."""

    def __init__(self) -> None:
        super().__init__("")

    def name_primary(self, host: str, port: int) -> None:
        words = [host.encode(), str(port).encode()]
        self.answer = b"*2\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)

    @property
    def url(self) -> str:
        return super().url.replace("redis://", "redis+sentinel://").replace("/0", "/service/0")
