"""The files of recorded requests: no process overwrites what another one wrote."""

import json
import os
from pathlib import Path

from tests.histories.recorder import Recorder

ACQUIRE = {"operation": "acquire", "lock": "a", "token": "t"}


def test_process_with_a_used_process_id_writes_requests_of_its_own(tmp_path: Path) -> None:
    """In a run of an hour the system gives a process id again, and the first ids were lost."""
    ids = {Recorder(tmp_path).write_request(ACQUIRE) for _ in range(2)}
    assert len(ids) == 2
    assert ids == {json.loads(file.read_text())["id"] for file in tmp_path.iterdir()}


def test_forked_child_writes_a_file_of_its_own(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.write_request(ACQUIRE)
    pid = os.fork()
    if not pid:
        recorder.write_request(ACQUIRE)
        os._exit(0)
    os.waitpid(pid, 0)
    assert len(list(tmp_path.iterdir())) == 2
