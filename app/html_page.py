"""What the pages that Thinwire writes have in common: their style, and pictures inside them."""

from __future__ import annotations

import base64
import io
from typing import Any

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse } td, th { padding: .25rem .8rem; text-align: right; border-bottom: 1px solid #ddd }
td:first-child, th:first-child, td:last-child { text-align: left; white-space: pre }
img { max-width: 100% } code, pre { background: #f4f4f4; padding: .1rem .3rem } pre { padding: .6rem; overflow: auto }
"""


def encoded(figure: Any) -> str:
    """A matplotlib figure as PNG in base64; closes it."""
    from matplotlib import pyplot

    figure.tight_layout()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    pyplot.close(figure)
    return base64.b64encode(buffer.getvalue()).decode()
