"""What mkdocs does to pages besides: links to files outside of docs become their names, for the site has no such files."""

import posixpath
import re
from typing import Any

LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(((?:\.\./)+[^)\s]*)\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs with the text of each page."""
    folder = posixpath.dirname(page.file.src_uri)

    def shown(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[2]))
        return link[1] if target.startswith("..") else link[0]

    return LINK.sub(shown, markdown)
