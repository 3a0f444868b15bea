"""A page opened in a real headless browser, and what a script said there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import escape
from pathlib import Path
from typing import Any

import pytest

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium or chrome is installed")

CATCH = """
<script>window.problems = []; addEventListener("error", e => problems.push(e.message));</script>
"""


def looked_at(
    html: str, probe: str, folder: Path, width: int, *options: str
) -> tuple[dict[str, Any], str]:
    """What the probe said inside a frame of that width, and what the browser printed.

    The probe is a script that puts JSON into the root element's ``data-said``; its errors
    are in ``window.problems``.
    """
    probed = html.replace("<head>", "<head>" + CATCH, 1).replace(
        "</body>", f"<script>{probe}</script></body>", 1
    )
    assert probed.count("<script>") == html.count("<script>") + 2
    outer = folder / "outer.html"
    outer.write_text(
        "<!doctype html><title>frame</title>"
        f'<iframe id="f" width="{width}" height="900" style="border:0" srcdoc="{escape(probed)}">'
        "</iframe><script>setInterval(() => { document.title = document.getElementById('f')"
        ".contentDocument?.documentElement?.dataset.said ?? ''; }, 50);</script>",
        "utf-8",
    )
    done = subprocess.run(
        [
            str(BROWSER),
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"),
            *(f"--user-data-dir={folder / 'profile'}", "--window-size=1400,1000", *options),
            *("--virtual-time-budget=5000", "--dump-dom", outer.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    title = re.search(r"<title>(\{.*?\})</title>", done.stdout, re.S)
    assert title, done.stdout[:500] + done.stderr[-500:]
    return json.loads(title[1].replace("&amp;", "&")), done.stderr
