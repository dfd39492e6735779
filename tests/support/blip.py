"""A network of our own, with a server at its other end, and a short break in it.

Run as ``unshare -n python -m tests.support.blip``: in a network namespace, where a lost packet is
the kernel's to send again. Prints what it saw, as JSON.
"""

import asyncio
import json
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from celery_locks import AsyncLocks, Holder, Locks, LockUnavailable
from celery_locks.types import LockSpec
from tests.servers.embedded import valkey_binary
from tests.servers.subprocesses import Child, new_directory
from tests.support.waiting import wait_until

OURS, THEIRS, PORT = "10.9.0.1/24", "10.9.0.2/24", 7379
HOST = THEIRS.partition("/")[0]
URL = f"redis://{HOST}:{PORT}/0"
# A call's first try has half of that. The kernel sends a lost packet again after about 0.2, 0.6,
# 1.5, 3.2 and 6.6 s: the network is back after the fourth, and before the try is given up.
BUDGET, BREAK, WATCH = 9.0, 3.9, 8.0


def sh(command: str) -> None:
    subprocess.run(command, shell=True, check=True)


class Network:
    def __init__(self) -> None:
        serve = f"{valkey_binary()} --bind {HOST} --port {PORT} --protected-mode no --save ''"
        wait = "until ip link set v1 up 2>/dev/null; do sleep 0.05; done"
        script = f"{wait}; ip addr add {THEIRS} dev v1; exec {serve}"
        self._server = Child(["/usr/bin/env", "unshare", "-n", "sh", "-c", script], new_directory())
        there = f"/proc/{self._server.pid}/ns/net"
        here = "/proc/self/ns/net"
        wait_until(lambda: _inode(there) != _inode(here), 10, what="the other namespace")
        sh(f"ip link add v0 type veth peer name v1 netns {self._server.pid}")
        sh(f"ip addr add {OURS} dev v0; ip link set v0 up")

    def there(self, command: str) -> None:
        sh(f"nsenter -t {self._server.pid} -n {command}")

    def close(self) -> None:
        self._server.kill()


def _inode(path: str) -> str:
    return subprocess.run(["readlink", path], capture_output=True, text=True).stdout


def ask(locks: Any, name: str) -> Any:
    call = locks.commands.acquire(LockSpec(name, 30.0), f"{name}-token", Holder())
    call.budget = BUDGET
    return call


async def ask_awaited(warm: threading.Barrier, broken: threading.Event) -> Any:
    locks = AsyncLocks.from_url(URL)
    await locks.info("warm")
    await asyncio.to_thread(warm.wait)
    await asyncio.to_thread(broken.wait)
    return await locks._store.perform(ask(locks, "awaited"))


def ask_blocking(warm: threading.Barrier, broken: threading.Event) -> Any:
    locks = Locks.from_url(URL)
    locks.info("warm")
    warm.wait()
    broken.wait()
    return locks.perform(ask(locks, "blocking"))


def main() -> None:
    network = Network()
    near = Locks.from_url(URL)
    wait_until(lambda: _answers(near), 10, what="the server")
    warm, broken = threading.Barrier(3, timeout=20), threading.Event()
    with ThreadPoolExecutor(2) as pool:
        asked = [
            pool.submit(ask_blocking, warm, broken),
            pool.submit(asyncio.run, ask_awaited(warm, broken)),
        ]
        warm.wait()
        network.there(f"ip addr del {THEIRS} dev v1")
        began = time.monotonic()
        broken.set()
        time.sleep(BREAK)
        network.there(f"ip addr add {THEIRS} dev v1")
        granted = [one.result() > 0 for one in asked]
    took = time.monotonic() - began
    names = ("blocking", "awaited")
    for name in names:
        near.perform(near.commands.release(name, f"{name}-token"))
    came_back: set[str] = set()
    while time.monotonic() < began + WATCH:
        came_back |= {name for name in names if near.info(name)}
        time.sleep(0.05)
    network.close()
    print(json.dumps({"granted": granted, "took": took, "came back": sorted(came_back)}))


def _answers(locks: Locks) -> bool:
    try:
        locks.info("warm")
    except LockUnavailable:
        return False
    return True


if __name__ == "__main__":
    main()
