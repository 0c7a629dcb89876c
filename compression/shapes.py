"""How the shape of a section decides how it is coded: on both sides the same, and the same in every implementation."""

from __future__ import annotations

from compression.kernel import kernel

TILE = 1 << 18
"""Most codes of a block of rows, but for very wide rows."""
FEWEST_ROWS, MOST_COLUMNS = 8, 4096
"""Outside of these a matrix is coded as a single column, in the order of its memory."""


@kernel
def most_patches(values):
    """Of more patches a section of so many values is not made: it depends on the section alone, not on what memory
    there is, so that every encoder makes the same bytes."""
    return values // 16 + 32


@kernel
def most_escapes(values):
    """Likewise, of escaped residuals."""
    return values // 8 + 64


@kernel
def is_flat(rows, columns):
    """Whether a matrix is coded as a single column."""
    return rows < FEWEST_ROWS or columns > MOST_COLUMNS or columns < 2


@kernel
def block_rows(columns):
    """Rows that are transposed, predicted and coded together."""
    return min(max(TILE // columns, 64), 4096)


@kernel
def tile_lead(n):
    """Distance of the columns in a tile of n rows: one element is left behind each column."""
    return (n + 32) // 32 * 32
