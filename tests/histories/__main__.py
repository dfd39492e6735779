"""``python -m tests.histories FILE...``: check recorded histories, files or directories of them."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.histories.contradiction import judge
from tests.histories.requests import read


def main(arguments: list[str]) -> int:
    if not arguments:
        print(__doc__)
        return 2
    verdict = judge(read(map(Path, arguments)))
    print(verdict)
    return 0 if verdict.is_linearizable else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
