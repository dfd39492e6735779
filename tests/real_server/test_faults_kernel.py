"""What the kernel does with a question that nobody waits for any more."""

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from celery_locks import LockUnavailable
from tests.support.worker import ROOT

Open = Callable[..., Any]


def _may_have_networks() -> bool:
    tools = all(shutil.which(tool) for tool in ("unshare", "nsenter", "ip"))
    return tools and not subprocess.run(["unshare", "-n", "true"], capture_output=True).returncode


@pytest.mark.skipif(not _may_have_networks(), reason="No network namespaces for us here.")
def test_question_given_up_does_not_arrive_after_all() -> None:
    """Asked again, got, given back; then the first one comes, and nobody would have the lock."""
    command = ["unshare", "-n", sys.executable, "-m", "tests.support.blip"]
    seen = json.loads(subprocess.check_output(command, cwd=ROOT, timeout=60))
    assert seen["granted"] == [True, True]
    assert seen["took"] > 4.0, "the first try was answered: nothing was given up"
    assert seen["came back"] == []


def test_question_given_up_is_taken_back_from_the_kernel(face: Open) -> None:
    """The other end hears that all is off, not that there is nothing more to come."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        locks = face(f"redis://127.0.0.1:{listener.getsockname()[1]}/0")
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(locks.acquire, "a", ttl=1.5)
            peer, _ = listener.accept()
            with peer:
                assert b"INFO" in peer.recv(4096)
                peer.sendall(b"$-1\r\n")  # a server that hides its version
                assert b"EVALSHA" in peer.recv(4096)
                with pytest.raises(LockUnavailable):
                    asking.result(10)
                with pytest.raises(ConnectionResetError):
                    peer.recv(4096)
