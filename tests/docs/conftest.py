"""The extension of the documentation is imported from where it is; it is in no package."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "docs" / "_ext"))
