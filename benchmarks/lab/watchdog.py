"""Take a lab down when the process that owns it has died: `python -m benchmarks.lab.watchdog OWNER_PID LAB_ID`."""

from __future__ import annotations

import os
import select
import sys

from benchmarks.lab.lab import bring_down


def main(owner: int, lab_id: str) -> None:
    try:
        descriptor = os.pidfd_open(owner)
    except ProcessLookupError:
        pass
    else:
        # Readable when the process has ended. Had the owner died before, its parent would be ours by now.
        if os.getppid() == owner:
            select.select([descriptor], [], [])
    bring_down(only=lab_id)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
