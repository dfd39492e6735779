"""How Sphinx builds this site: `make docs`. It needs no network, and warnings are errors."""

import sys
from importlib.metadata import metadata
from pathlib import Path

_HERE = Path(__file__).parent
sys.path.insert(0, str(_HERE / "_ext"))
# For the calculations of benchmarks/plan.py.
sys.path.insert(1, str(_HERE.parent))

project = "celery-locks"
copyright = "celery-locks contributors"
version = release = metadata("celery-locks")["Version"]

extensions = [
    "myst_parser",
    "sphinx_design",
    "sphinx_copybutton",
    "celery_locks_site",
]
# A page belongs into a section; at the top there is only the front page.
exclude_patterns = [
    "_*",
    *(page.name for page in _HERE.glob("*.md") if page.name != "index.md"),
]

myst_enable_extensions = ["colon_fence", "deflist", "attrs_block", "attrs_inline"]
myst_heading_anchors = 4

# The types in signatures: those of Python and of other libraries have no page here.
nitpick_ignore_regex = [("py:class", ".*")]
python_maximum_signature_line_length = 80
add_module_names = False
toc_object_entries_show_parents = "hide"

llms_about = metadata("celery-locks")["Summary"]

html_theme = "furo"
html_title = "celery-locks"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_show_sphinx = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}

# `$ ` and `>>> ` are prompts: what is copied is what a reader has to type.
copybutton_prompt_text = r"\$ |>>> "
copybutton_prompt_is_regexp = True
