"""The pictures of the demo in docs/_static: ``python -m examples._demo_pictures [folder]``.

Runs the demo and draws what it prints, one picture for each of its four steps, in light and dark.
A picture refers to nothing outside itself: no font is loaded from elsewhere.
"""

import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).parents[1]
WIDTH = 88  # of the longest line of the demo, and a little more

_GREYS = [(0, 0, 0)] * 8
THEMES = {
    "light": TerminalTheme((248, 249, 251), (33, 37, 41), _GREYS),
    "dark": TerminalTheme((26, 28, 30), (222, 226, 230), _GREYS),
}
_SVG = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def steps_of(output: str) -> list[str]:
    """Split what the demo prints into its steps; blank lines in a row become one."""
    steps = re.split(r"^(?=\d\. )", output.partition("\nDone.")[0], flags=re.MULTILINE)[1:]
    return [re.sub(r"\n{3,}", "\n\n", step).strip() for step in steps]


def draw(step: str, theme: TerminalTheme, name: str) -> str:
    """Return the SVG of one step: sentences are bold, tables are not."""
    console = Console(width=WIDTH, record=True, file=StringIO(), highlight=False)
    for line in step.splitlines():
        console.print(Text(line, style="" if line.startswith("    ") else "bold"))
    svg = console.export_svg(title="make demo", theme=theme, code_format=_SVG, unique_id=name)
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def main(folder: str = str(ROOT / "docs" / "_static")) -> None:
    command = [sys.executable, "-m", "examples.demo", "--plain"]
    output = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    for number, step in enumerate(steps_of(output), 1):
        for scheme, theme in THEMES.items():
            name = f"demo-{number}-{scheme}"
            Path(folder, f"{name}.svg").write_text(draw(step, theme, name))


if __name__ == "__main__":
    main(*sys.argv[1:])
