"""The extension of Sphinx for this site: it connects the pure functions of the other modules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

from celery_locks_site import generated, links, llms

logger = logging.getLogger(__name__)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_config_value("llms_about", "", "env", str)
    app.connect("source-read", expand_source)
    app.connect("missing-reference", find_by_last_name)
    app.connect("build-finished", write_llms)
    app.connect("build-finished", check_links)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def expand_source(app: Sphinx, name: str, source: list[str]) -> None:
    source[0] = generated.for_site(source[0])


def find_by_last_name(
    app: Sphinx, env: BuildEnvironment, node: Any, content: nodes.TextElement
) -> nodes.reference | None:
    """Resolve `celery_locks.core.lease.Lease`, as in a signature, to `celery_locks.Lease`."""
    python = env.domains.python_domain
    last = node.get("reftarget", "").rpartition(".")[2]
    found = [name for name in python.objects if last and name.rpartition(".")[2] == last]
    if node.get("refdomain") != "py" or len(found) != 1:
        return None
    return python.resolve_xref(env, node["refdoc"], app.builder, "obj", found[0], node, content)


def write_llms(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        pages = list(_pages(app))
        folder = Path(app.outdir)
        about = str(app.config.llms_about)
        (folder / "llms.txt").write_text(llms.index(app.config.project, about, pages))
        (folder / "llms-full.txt").write_text(llms.full(pages))


def _pages(app: Sphinx) -> Iterator[llms.Page]:
    """Yield the pages in the order of the site."""
    for name in _ordered(app.env, str(app.config.root_doc)):
        path = Path(app.env.doc2path(name))
        source = llms.plain(generated.for_text(path.read_text()), path.parent)
        yield llms.Page(name, app.env.titles[name].astext(), source)


def _ordered(env: BuildEnvironment, name: str) -> Iterator[str]:
    yield name
    for child in env.toctree_includes.get(name, []):
        yield from _ordered(env, child)


def check_links(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        for sentence in links.problems(Path(app.outdir)):
            logger.warning(sentence)
