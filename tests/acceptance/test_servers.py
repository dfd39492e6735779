"""The embedded servers, from outside: they start, fail as asked, and leave nothing behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.servers.embedded import EmbeddedServer, ServerNotReady
from tests.servers.plain_client import ServerError
from tests.servers.subprocesses import DIRECTORY_VARIABLE
from tests.servers.topologies import EmbeddedCluster, EmbeddedSentinel
from tests.support.processes import is_alive, processes_in
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]


def test_valkey_answers_a_client(valkey: EmbeddedServer) -> None:
    """The url and the client lead to a real server."""
    with valkey.client(decode_responses=True) as client:
        client.set("greeting", "hello")
        assert client.get("greeting") == "hello"
        assert client.info("server")["process_id"] == valkey.pid
    assert valkey.url == f"redis://127.0.0.1:{valkey.port}/0"


def test_redis_server_is_redis(redis_server: EmbeddedServer) -> None:
    """The same class runs a binary from the PATH."""
    server = redis_server.info("server")
    assert "valkey_version" not in server


def test_fresh_empties(
    valkey: EmbeddedServer, fresh: Callable[[EmbeddedServer], EmbeddedServer]
) -> None:
    """A shared server starts each test empty."""
    valkey.ask("SET", "left", "over")
    assert fresh(valkey).ask("DBSIZE") == 0


def test_restart_keeps_the_port_and_forgets() -> None:
    """Without persistence a restart is the loss of everything, at the same address."""
    with EmbeddedServer() as server:
        port, pid = server.port, server.pid
        server.ask("SET", "a", "1")
        server.restart()
        assert (server.port, server.ask("GET", "a")) == (port, None)
        assert server.pid != pid


def test_restart_with_appendonly_remembers() -> None:
    """With AOF always, what was acknowledged survives a SIGKILL."""
    with EmbeddedServer(appendonly="always") as server:
        server.ask("SET", "a", "1")
        server.kill()
        assert not server.is_running
        server.restart()
        assert server.ask("GET", "a") == "1"


def test_pause_leaves_clients_without_an_answer() -> None:
    """A paused server keeps its connections and says nothing until resumed."""
    with EmbeddedServer() as server:
        server.pause()
        with pytest.raises(TimeoutError):
            server.ask("PING")
        server.resume()
        assert server.ask("PING") == "PONG"


def test_stop_ends_a_paused_server() -> None:
    """A test that fails while its server is paused still leaves nothing behind."""
    with EmbeddedServer() as server:
        pid = server.pid
        server.pause()
    assert not is_alive(pid)


def test_config_reaches_the_server() -> None:
    """Options are lines of the server's own configuration."""
    with EmbeddedServer({"maxmemory": "3mb", "requirepass": "sesame"}) as server:
        with pytest.raises(ServerError, match="NOAUTH"):
            server.ask("PING")
        with server.client(password="sesame") as client:
            assert client.config_get("maxmemory")["maxmemory"] == str(3 * 1024 * 1024)


def test_wrong_config_fails_with_the_log() -> None:
    """The server's own complaint is in the error, and no process is left."""
    server = EmbeddedServer({"no-such-option": "yes"})
    with pytest.raises(ServerNotReady, match="no-such-option"):
        server.start()
    assert not server.is_running


def test_taken_port_fails_when_it_was_asked_for(valkey: EmbeddedServer) -> None:
    """The other server's answer must not be mistaken for ours."""
    with pytest.raises(ServerNotReady, match="ddress already in use"):
        EmbeddedServer(port=valkey.port).start()


def test_taken_port_is_replaced_by_another(
    valkey: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losing the race for a free port costs a retry, not a test."""
    from tests.servers import embedded as servers

    choose = servers.free_port
    choices = iter([valkey.port])
    monkeypatch.setattr(servers, "free_port", lambda: next(choices, None) or choose())
    with EmbeddedServer() as server:
        assert server.port != valkey.port
        assert server.ask("PING") == "PONG"


def test_files_are_removed() -> None:
    """Stopping removes what the server wrote."""
    with EmbeddedServer(appendonly="always") as server:
        directory = Path(server.ask("CONFIG", "GET", "dir")[1])  # type: ignore[index, arg-type]
        assert (directory / "server.conf").exists()
    assert not directory.exists()


def test_server_outlives_the_thread_that_started_it() -> None:
    """The kernel's parent-death signal follows threads; a server must not die with one."""
    server = EmbeddedServer()
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    try:
        # The signal is sent while the thread dies, before join returns; it needs no time to come.
        assert server.ask("PING") == "PONG"
        assert server.is_running
    finally:
        server.stop()


def test_cluster_serves_every_slot(cluster: EmbeddedCluster) -> None:
    """Three primaries share the slots, and the client finds its way."""
    with cluster.client() as client:
        for i in range(30):
            client.set(f"key{i}", i)
    owners = {cluster.owner_of(f"key{i}").port for i in range(30)}
    assert owners == {node.port for node in cluster.nodes}
    ports = [node.port for node in cluster.nodes]
    assert cluster.url == "redis+cluster://{}/".format(",".join(f"127.0.0.1:{p}" for p in ports))
    cluster.flush()
    assert [node.ask("DBSIZE") for node in cluster.nodes] == [0, 0, 0]


def test_cluster_replaces_a_dead_primary() -> None:
    """A replica takes over with the data, and the dead one comes back as its replica."""
    with EmbeddedCluster(replicas=1) as cluster:
        with cluster.client() as client:
            client.set("a", "1")
            client.execute_command("WAIT", 1, 1000, target_nodes=client.get_node_from_key("a"))
        dead = cluster.owner_of("a")
        dead.kill()
        cluster.wait_ok()
        heir = cluster.owner_of("a")
        assert heir is not dead
        assert heir.ask("GET", "a") == "1"
        dead.restart()
        wait_until(lambda: dead.info("replication")["role"] == "slave", 20, what="the return")


def test_sentinel_agrees_on_a_primary(sentinel: EmbeddedSentinel) -> None:
    """The url names the sentinels, and they name a primary that takes writes."""
    ports = [watcher.port for watcher in sentinel.sentinels]
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    assert sentinel.url == f"redis+sentinel://{hosts}/mymaster/0"
    found = sentinel.client().discover_master("mymaster")
    assert found == ("127.0.0.1", sentinel.primary.port)
    assert sentinel.primary.ask("SET", "a", "1") == "OK"
    with pytest.raises(ServerError, match="READONLY"):
        sentinel.replica.ask("SET", "a", "2")
    sentinel.flush()


def test_sentinel_promotes_the_replica() -> None:
    """The dead primary's data is at the new one, under the same name."""
    with EmbeddedSentinel() as sentinel:
        old = sentinel.primary
        old.ask("SET", "a", "1")
        wait_until(lambda: sentinel.replica.ask("GET", "a") == "1", what="replication")
        old.kill()
        new = sentinel.wait_failover(old)
        assert new is not old
        assert new.ask("GET", "a") == "1"
        assert new.ask("SET", "b", "2") == "OK"


OWNER = """
import signal, sys, threading
from tests.servers.embedded import EmbeddedServer
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell may ignore it
servers = [EmbeddedServer(), EmbeddedServer(appendonly="always")]
servers[0].start()
thread = threading.Thread(target=servers[1].start)
thread.start()
thread.join()
print(*(server.pid for server in servers), flush=True)
{then}
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the owner below keeps its servers' files; none may work there afterwards."""
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    yield tmp_path
    for pid in processes_in(tmp_path):
        os.kill(pid, signal.SIGKILL)


def start_owner(then: str = "signal.pause()") -> tuple["subprocess.Popen[str]", list[int]]:
    """A process with two servers, one from its main thread, one from a thread that ended."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER.format(then=then)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        process_group=0,
    )
    assert owner.stdout is not None
    with owner.stdout as output:
        return owner, [int(pid) for pid in output.readline().split()]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_servers_end_with_their_owner(directory: Path, number: signal.Signals) -> None:
    """Ctrl-C, a polite and a rude end of the owner: no server stays."""
    owner, pids = start_owner()
    assert len(pids) == 2
    assert all(map(is_alive, pids))
    os.killpg(owner.pid, number)
    owner.wait(10)
    wait_until(lambda: not any(map(is_alive, pids)), what="the servers to end")
    assert processes_in(directory) == []


@pytest.mark.parametrize("then", ["", "sys.exit(3)", "1 / 0"])
def test_servers_end_when_the_owner_finishes(directory: Path, then: str) -> None:
    """A script that forgets to stop its servers leaves neither process nor file."""
    owner, pids = start_owner(then)
    owner.wait(10)
    assert not any(map(is_alive, pids))
    assert list(directory.iterdir()) == []


def test_ctrl_c_removes_the_files(directory: Path) -> None:
    """Interrupting the demo leaves the disk as it was."""
    owner, _ = start_owner()
    assert list(directory.iterdir())
    os.killpg(owner.pid, signal.SIGINT)
    owner.wait(10)
    assert list(directory.iterdir()) == []


def test_fork_does_not_end_the_servers_of_its_parent(directory: Path) -> None:
    """A forked child runs our exit handlers too; the servers are not its own."""
    fork = "import os\nif os.fork() == 0: sys.exit()\nos.wait(); print('waited', flush=True)"
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER.format(then=f"{fork}\nsignal.pause()")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    with owner.stdout as output:
        pids = [int(pid) for pid in output.readline().split()]
        assert output.readline() == "waited\n"
    assert all(map(is_alive, pids))
    owner.kill()
    owner.wait(10)


def test_files_of_a_killed_owner_are_swept_by_the_next(directory: Path) -> None:
    """A killed owner cannot tidy. The next one does, and spares an owner that lives."""
    killed, _ = start_owner()
    [orphaned] = directory.iterdir()
    living, _ = start_owner()
    [in_use] = set(directory.iterdir()) - {orphaned}
    killed.kill()
    killed.wait(10)
    wait_until(lambda: len(processes_in(directory)) == 2, what="the killed owner's servers to end")
    for root in (orphaned, in_use):
        os.utime(root, (time.time() - 3600,) * 2)
    last, _ = start_owner("")
    last.wait(10)
    assert list(directory.iterdir()) == [in_use]
    living.send_signal(signal.SIGINT)
    living.wait(10)
