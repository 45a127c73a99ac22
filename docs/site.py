"""What mkdocs does besides.

Links to files outside of docs become their names, for the site has no such files; navigation gets all pages of results.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(((?:\.\./)+[^)\s]*)\)")


def on_config(config: Any) -> Any:
    """Called by mkdocs before it looks for pages."""
    pages = sorted((Path(config.docs_dir) / "results").glob("*.md"))
    titles = {page: page.read_text().partition("\n")[0].removeprefix("# ") for page in pages}
    (results,) = [entry for entry in config.nav if isinstance(entry, dict) and "Results" in entry]
    results["Results"] = [{title: f"results/{page.name}"} for page, title in titles.items()]
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs with the text of each page."""
    folder = posixpath.dirname(page.file.src_uri)

    def shown(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[2]))
        return link[1] if target.startswith("..") else link[0]

    return LINK.sub(shown, markdown)
