"""`thinwire bench loader`: how fast data come in, next to a peer and next to what training needs."""

from __future__ import annotations
