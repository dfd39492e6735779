"""Servers that speak TLS, with certificates of an authority made for the test.

Debian's Redis speaks TLS; the embedded Valkey does not.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.servers.embedded import HOST, EmbeddedServer, free_port


class Authority:
    """A certificate authority; its certificates are for 127.0.0.1 and for no host name."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self.certificate = folder / "ca.pem"
        key = ("-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key")
        # Python 3.13 asks for both extensions.
        may_sign = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
        self._openssl(
            *("req", "-x509", *key, "-days", "2", "-out", "ca.pem", "-subj", "/CN=test", *may_sign)
        )
        (folder / "extensions").write_text(
            f"subjectAltName=IP:{HOST}\nauthorityKeyIdentifier=keyid\n"
        )

    def issue(self, name: str) -> dict[str, str]:
        """A certificate and its key, as redis-py's options."""
        key, request, made = f"{name}.key", f"{name}.csr", f"{name}.pem"
        new_key = ("-newkey", "rsa:2048", "-nodes", "-keyout", key)
        self._openssl("req", *new_key, "-out", request, "-subj", f"/CN={name}")
        by_us = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2")
        extensions = ("-extfile", "extensions")
        self._openssl("x509", "-req", "-in", request, *by_us, "-out", made, *extensions)
        return {"ssl_certfile": str(self._folder / made), "ssl_keyfile": str(self._folder / key)}

    def _openssl(self, *words: str) -> None:
        command = ["openssl", *words]
        subprocess.run(command, check=True, capture_output=True, cwd=self._folder)


class TlsServer(EmbeddedServer):
    """A Redis with a port for TLS beside its plain one, which the test itself asks."""

    tls_port = 0

    def __init__(self, authority: Authority, config: dict[str, Any] | None = None) -> None:
        super().__init__(config or {}, binary=shutil.which("redis-server"))
        self._tls = _tls_config(authority)

    def _defaults(self) -> dict[str, str | int]:
        self.tls_port = free_port()
        return {**super()._defaults(), **self._tls, "tls-port": self.tls_port}


class TlsSentinel(EmbeddedServer):
    """One sentinel, with a plain port and one for TLS, of a server that it asks by TLS."""

    tls_port = 0

    def __init__(self, authority: Authority, primary: TlsServer) -> None:
        super().__init__(binary=shutil.which("redis-server"), arguments=("--sentinel",))
        self._tls = _tls_config(authority)
        self._primary = primary

    def _defaults(self) -> dict[str, str | int]:
        self.tls_port = free_port()
        return {
            **self._basics(),
            **self._tls,
            "tls-port": self.tls_port,
            "tls-replication": "yes",
            "sentinel monitor": f"mymaster {HOST} {self._primary.tls_port} 1",
        }


def _tls_config(authority: Authority) -> dict[str, str | int]:
    mine = authority.issue("server")
    return {
        "tls-cert-file": mine["ssl_certfile"],
        "tls-key-file": mine["ssl_keyfile"],
        "tls-ca-cert-file": str(authority.certificate),
        "tls-auth-clients": "no",
    }
