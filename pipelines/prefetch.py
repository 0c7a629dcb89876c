"""Run an iterator ahead in a thread."""

from __future__ import annotations

import threading
from collections.abc import Generator
from dataclasses import dataclass
from queue import Empty, Queue
from typing import TypeVar

T = TypeVar("T")


@dataclass
class _End:
    error: BaseException | None = None


def prefetched(source: Generator[T], depth: int) -> Generator[T]:
    """Yield the items of `source`, which runs up to `depth` items ahead in a thread of its own.

    An error of the source is raised here, after the items before it. Closing this generator, which leaving its loop by
    an exception also does, closes the source and ends the thread before it returns. The thread starts with the first
    item asked for.
    """
    queue: Queue[T | _End] = Queue(depth)
    stop = threading.Event()

    def work() -> None:
        try:
            for item in source:
                queue.put(item)
                if stop.is_set():
                    break
            source.close()
            queue.put(_End())
        except BaseException as error:
            queue.put(_End(error))

    thread = threading.Thread(target=work, name="thinwire-prefetch", daemon=True)
    thread.start()
    try:
        while not isinstance(item := queue.get(), _End):
            yield item
        if item.error:
            raise item.error
    finally:
        stop.set()
        while thread.is_alive():
            # Room in the queue lets a blocked put return, after which the thread sees `stop`.
            _drain(queue)
            thread.join(0.01)


def _drain(queue: Queue) -> None:
    try:
        while True:
            queue.get_nowait()
    except Empty:
        pass
