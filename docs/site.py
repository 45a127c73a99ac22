"""What mkdocs does besides.

Links to files outside of docs become their names, for the site has no such files; navigation gets all pages of results.
Behind the pages come the reports of the gallery and the man pages.
"""

import os
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

GALLERY = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SHIM = "https://unpkg.com/iframe-worker/shim"
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


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Called by mkdocs with each page as HTML: the plugin `offline` would fetch its script from a network."""
    return output.replace(SHIM, posixpath.relpath("file_worker.js", posixpath.dirname(page.file.dest_uri) or "."))


def on_post_build(config: Any) -> None:
    """Called by mkdocs when all pages are written: make the gallery's reports by the commands on its page, and man pages."""
    docs, site = Path(config.docs_dir), Path(config.site_dir)
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run([sys.executable, docs / "command_reference.py", "--man", site / "man"], check=True)
    (commands,) = GALLERY.findall((docs / "gallery.md").read_text())
    (site / "gallery").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        made = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands], cwd=folder, env={**os.environ, "PATH": programs}, check=False,
            capture_output=True, text=True,
        )  # fmt: skip
        if made.returncode:
            raise RuntimeError(f"the gallery's commands failed:\n{made.stderr[-2000:]}")
        for report in Path(folder).glob("*.html"):
            shutil.copy(report, site / "gallery")
