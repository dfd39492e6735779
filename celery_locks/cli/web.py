"""The command that serves the web page; its dependencies are imported when it runs."""

from __future__ import annotations

import ipaddress
import os
import socket
from typing import Any

import click

from celery_locks.cli import WRONG_INPUT
from celery_locks.cli.context import Context, echo, exit_with, pass_context
from celery_locks.loopback import is_loopback

READ_KEYS, WRITE_KEYS = "CELERY_LOCKS_READ_KEYS", "CELERY_LOCKS_WRITE_KEYS"

_PLAIN_HTTP = (
    "Warning: API keys are sent unencrypted over HTTP, and other machines can reach this address. "
    "Put a proxy with TLS in front (see --behind-proxy)."
)


class Network(click.types.StringParamType):
    """An address, or a network such as 10.0.0.0/8."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            network = ipaddress.ip_network(value)
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)
        is_single = network.prefixlen == network.max_prefixlen
        return str(network.network_address if is_single else network)


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), default=5557, show_default=True)
@click.option(
    "--open", "is_open", is_flag=True, help="Require no credentials; on this machine only."
)
@click.option(
    "--behind-proxy",
    "proxies",
    type=Network(),
    multiple=True,
    help="Trust X-Forwarded-For from the proxy at this address (or network); may be repeated.",
)
@pass_context
def web(context: Context, host: str, port: int, is_open: bool, proxies: tuple[str, ...]) -> None:
    """Serve the web page and the REST API.

    API keys come from CELERY_LOCKS_READ_KEYS and CELERY_LOCKS_WRITE_KEYS, separated by commas.
    X-Forwarded-For is ignored unless it comes from a proxy that --behind-proxy names.
    """
    try:
        import uvicorn

        from celery_locks.web import create_app
    except ImportError as error:
        exit_with(
            WRONG_INPUT,
            "The web page needs more packages: pip install celery-locks[web] "
            f"({error.name} is missing).",
        )
    read_keys, write_keys = _keys(READ_KEYS), _keys(WRITE_KEYS)
    if is_open and not is_loopback(host):
        exit_with(
            WRONG_INPUT,
            f"--open serves this machine only, and {host} is not a loopback address: use API keys.",
        )
    if not is_open and not read_keys and not write_keys:
        exit_with(
            WRONG_INPUT, f"Set {READ_KEYS} or {WRITE_KEYS}, or use --open on this machine only."
        )
    app = create_app(
        context.locks if context.app is None else context.app,
        read_keys=read_keys,
        write_keys=write_keys,
        open_to_all=is_open,
    )
    listening = _listen(host, port)
    name = f"[{host}]" if ":" in host else host
    echo(f"Serving at http://{name}:{listening.getsockname()[1]}/ (Ctrl-C stops it).")
    if not is_loopback(host) and not proxies:
        click.echo(_PLAIN_HTTP, err=True)
    config = uvicorn.Config(
        app,
        log_level="warning",
        server_header=False,
        # By default uvicorn trusts every caller on this machine, which is where we listen.
        proxy_headers=bool(proxies),
        forwarded_allow_ips=list(proxies),
    )
    server = uvicorn.Server(config)
    try:
        server.run([listening])
    except KeyboardInterrupt:
        pass  # uvicorn has shut down, and raises it again for its callers


def _keys(variable: str) -> list[str]:
    return [key.strip() for key in os.environ.get(variable, "").split(",") if key.strip()]


def _listen(host: str, port: int) -> socket.socket:
    """Open the socket before the server starts, so that an error becomes a sentence."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        exit_with(WRONG_INPUT, f"Cannot listen on {host}:{port}: {error}.")
