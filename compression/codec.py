"""Tables to one payload and back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from compression import flat, message, planes, wire
from compression.errors import CorruptPayloadError
from compression.inputs import Output, Source, output, source
from compression.message import CHAIN, COLUMNS, ERROR, ROWS, SLACK, STOP
from compression.quantize import SMALLEST, check_bound, grid, grids, wire_bound, wire_bounds
from compression.select import Selector
from compression.wire import BITPACK, CHAINS, HEADER, LOSSLESS, RAW, Section
from compression.workspace import Workspace

THREAD_BYTES = 1 << 20
"""Fewer raw bytes are not worth waking a thread for."""
PIECES = 4
"""Groups of sections for each thread, at most: threads take them in turn, so that none waits long for another."""


class Relative(NamedTuple):
    """A bound as a share of the range (largest minus smallest finite value) of the table that is encoded.

    >>> Relative(0.03)
    Relative(share=0.03)
    """

    share: float


Bound = float | Relative


class _Part(NamedTuple):
    """What becomes a section: some rows of a table."""

    source: Source
    first: int
    last: int
    chain: int
    bound: float


class _Job(NamedTuple):
    """A section, numbered from 0, and the rows of an output that it holds."""

    section: Section
    target: Output
    row: int
    number: int


class Codec:
    """Encodes tables of one message, each under its own error bound, and decodes them.

    Every finite float32 x comes back as y with |x - y| <= bound, judged in float64; NaN, infinities and -0.0 come back
    bit for bit; a bound of 0 means bit for bit. A payload has at most the raw bytes and a header of 20 bytes and 20
    bytes a table (and 20 more for every 8 MiB of a table).

    Buffers are kept from call to call, so a codec belongs to one thread of the caller at a time.

    Args:
        threads: threads that share the work of a large message. The payload does not depend on them.
        link: bytes per second of the link that payloads go over; what "auto" decides by.
        exact: "auto" may send a table that has a bound bit for bit, where that is faster. If not, what is decoded does
            not depend on speed.

    >>> import numpy as np
    >>> rows = np.repeat(np.linspace(-1, 1, 64, dtype=np.float32).reshape(4, 16), 256, axis=0)
    >>> codec = Codec()
    >>> payload = codec.encode([rows], bounds=0.01)
    >>> out = np.empty_like(rows)
    >>> codec.decode(payload, [out])
    >>> bool(np.abs(out - rows).max() <= 0.01), payload.nbytes < rows.nbytes / 50
    (True, True)
    """

    def __init__(self, threads: int = 1, link: float = 125e6, *, exact: bool = True) -> None:
        if threads < 1 or not link > 0:
            raise ValueError(f"threads and link are positive, not {threads} and {link}")
        self.threads = threads
        self._exact = exact
        self.selector = Selector(link, exact=exact)
        self._encoders = [Workspace(decode=False) for _ in range(threads)]
        self._decoders = [Workspace(decode=True) for _ in range(threads)]
        self._words = np.empty(0, np.uint32)
        self._flat = flat.Flat(self._encoders[0], self._decoders[0])
        self._pool = ThreadPoolExecutor(threads - 1, "codec") if threads > 1 else None

    def encode(
        self,
        tables: Sequence[Any],
        bounds: Bound | Sequence[Bound] = 0.0,
        chain: str | Sequence[str] = "auto",
        *,
        stochastic: int | None = None,
    ) -> NDArray[np.uint8]:
        """Encode tables into one payload.

        Args:
            tables: [rows, columns] each, arrays or CPU tensors. Only float32, float16 and bfloat16 can be lossy.
            bounds: absolute, or `Relative`; one for all tables or one for each.
            chain: "auto", or one of `wire.CHAINS`; one for all tables or one for each. Where it does not make a table
                smaller, a simpler one is taken; a bound of 0 takes "lossless", unless "raw" is asked for.
            stochastic: a seed for rounding at random to one of the two neighbouring codes so that the expected value is
                the true one (for gradients); costs a bit a value. None = to the nearest.

        Returns:
            uint8 [bytes], a view of the codec's buffer: valid until the next call of `encode`.

        Raises:
            ValueError: a bound or chain is none; a table is not a matrix.
            TypeError: a dtype or device that cannot be encoded.
        """
        chains: list[str] = list(chain) if isinstance(chain, (list, tuple)) else [cast(str, chain)] * len(tables)
        for name in {chain} if isinstance(chain, str) else chains:
            if name != "auto" and name not in CHAINS:
                raise ValueError(f"no chain {name!r}: auto, {', '.join(CHAINS)}")
        single = isinstance(bounds, (Relative, str, bytes)) or not hasattr(bounds, "__len__")
        single = single or getattr(bounds, "ndim", 1) == 0
        each: list[Any] = [bounds] * len(tables) if single else list(cast(Sequence[Bound], bounds))
        for what, given in (("bounds", each), ("chains", chains)):
            if len(given) != len(tables):
                raise ValueError(f"{len(given)} {what} for {len(tables)} tables")
        parts: list[_Part] = []
        for i, (table, bound) in enumerate(zip(tables, each, strict=True)):
            one = source(table)
            absolute = _absolute(bound, one)
            if stochastic is not None and one.dtype <= wire.BFLOAT16 and absolute >= SMALLEST:
                one = one.dithered(grid(wire_bound(absolute), True), stochastic + i)
            number = self._chain(chains[i], one, absolute, i, stochastic is not None)
            parts += [_Part(one, a, b, number, absolute) for a, b in wire.parts(one.rows, one.row_bytes)]
        return self._encode(parts, stochastic is not None)

    def decode(self, payload: Any, outs: Sequence[Any]) -> None:
        """Decode a payload into given arrays or tensors.

        Args:
            payload: bytes, an array or a CPU tensor of them.
            outs: one for each table, of its shape and dtype; non-contiguous ones are filled by a copy.

        Raises:
            CorruptPayloadError: the payload is truncated, changed or foreign, or holds other shapes or dtypes. What was
                written to `outs` then has no meaning.
        """
        words = wire.as_words(payload)
        targets = [output(out) for out in outs]
        jobs = _assign(wire.read_frame(words), targets)
        groups = self._split(jobs, lambda job: job.section.rows * job.target.row_bytes)
        self._share([partial(_decode_run, jobs=group, words=words) for group in groups], self._decoders)
        for target in targets:
            target.finish()

    def encode_flat(
        self,
        values: NDArray[np.float32],
        rows: NDArray[np.int64],
        columns: NDArray[np.int64],
        bounds: Sequence[Bound],
        chains: Sequence[str],
        *,
        stochastic: int | None = None,
    ) -> NDArray[np.uint8]:
        """`encode` of tables that lie one after the other in one array; several times as fast where they are small.

        Args:
            values: float32 [sum of rows * columns], contiguous.
            rows, columns: int64 [tables].
            bounds, chains, stochastic: as in `encode`, one entry a table.
        """
        if stochastic is None and values.nbytes <= flat.MOST_BYTES:
            numbers = self._small_chains(rows, columns, chains)
            if numbers is not None:
                relative = [isinstance(bound, Relative) for bound in bounds]
                limits = [bound.share if isinstance(bound, Relative) else bound for bound in bounds]
                payload = self._flat.encode(values, rows, columns, np.array(limits), np.array(relative), numbers)
                if payload is not None:
                    return payload
        return self.encode(flat.tables_of(values, rows, columns), bounds, chains, stochastic=stochastic)

    def decode_flat(
        self, payload: Any, rows: NDArray[np.int64], columns: NDArray[np.int64], out: NDArray[np.float32]
    ) -> None:
        """`decode` to tables that lie one after the other in one array.

        Args:
            out: float32 [sum of rows * columns], contiguous, written.

        Raises:
            CorruptPayloadError: as `decode`.
        """
        words = wire.as_words(payload)
        if out.nbytes > flat.MOST_BYTES or not self._flat.decode(words, rows, columns, out):
            self.decode(words.view(np.uint8), flat.tables_of(out, rows, columns))

    def set_link(self, link: float) -> None:
        """The rate of the link in bytes per second has changed: "auto" decides anew."""
        self.selector = Selector(link, exact=self._exact)

    def close(self) -> None:
        """End the threads; the codec then works on the caller's alone."""
        if self._pool:
            self._pool.shutdown()
            self._pool = None

    def _chain(self, chain: str, one: Source, bound: float, table: int, stochastic: bool) -> int:
        if not one.size:
            return RAW
        if bound < SMALLEST or one.dtype > wire.BFLOAT16:
            return RAW if chain == "raw" else LOSSLESS
        return self.selector.choose(table, one, bound, stochastic) if chain == "auto" else CHAINS[chain]

    def _small_chains(
        self, rows: NDArray[np.int64], columns: NDArray[np.int64], chains: Sequence[str]
    ) -> list[int] | None:
        """Numbers of the chains where each is known without looking at the values; else None."""
        numbers = []
        for count, wide, chain in zip(rows.tolist(), columns.tolist(), chains, strict=True):
            number = self.selector.known(count, wide) if chain == "auto" else CHAINS[chain]
            if number is None or number == LOSSLESS:
                return None
            numbers.append(number)
        return numbers

    def _encode(self, parts: list[_Part], stochastic: bool) -> NDArray[np.uint8]:
        groups = self._split(parts, lambda part: (part.last - part.first) * part.source.row_bytes)
        head = HEADER + wire.DESCRIPTOR * len(parts)
        # Encoders write up to SLACK beyond what they keep, so that much lies between the groups.
        starts = [head]
        for group in groups:
            raw = sum(((part.last - part.first) * part.source.row_bytes + 3) // 4 for part in group)
            starts.append(starts[-1] + raw + SLACK)
        if self._words.size < starts[-1]:
            self._words = np.empty(starts[-1], np.uint32)
        words = self._words
        calls = [
            partial(_encode_run, parts=group, words=words[:stop], at=start, stochastic=stochastic)
            for group, start, stop in zip(groups, starts, starts[1:], strict=False)
        ]
        runs = self._share(calls, self._encoders)
        at, sections = head, []
        for run in runs:
            start = run[0].start
            stop = run[-1].stop
            if start != at:
                words[at : at + stop - start] = words[start:stop].copy()
            sections += [s._replace(start=s.start - start + at, stop=s.stop - start + at) for s in run]
            at += stop - start
        payload = words[:at]
        wire.write_frame(payload, sections)
        return payload.view(np.uint8)

    def _split(self, jobs: list[Any], size: Callable[[Any], int]) -> list[list[Any]]:
        """Consecutive jobs in groups of about equal size, some for each thread."""
        if self.threads == 1:
            return [jobs] if jobs else []
        total = sum(size(job) for job in jobs)
        count = max(min(PIECES * self.threads, len(jobs), total // THREAD_BYTES), 1)
        groups: list[list[Any]] = [[] for _ in range(count)]
        seen = 0
        for job in jobs:
            groups[min(seen * count // max(total, 1), count - 1)].append(job)
            seen += size(job)
        return [group for group in groups if group]

    def _share(self, calls: Sequence[Callable[[Workspace], Any]], works: list[Workspace]) -> list[Any]:
        """Make calls on all threads, each with its workspace; what they returned, in order.

        Returns, or raises the first error, when all threads have ended.
        """
        if len(calls) < 2 or self._pool is None:
            return [call(works[0]) for call in calls]
        left = deque(enumerate(calls))
        found: list[Any] = [None] * len(calls)

        def take(work: Workspace) -> None:
            while left:
                try:
                    i, call = left.popleft()
                except IndexError:  # another thread was faster
                    return
                found[i] = call(work)

        others = [self._pool.submit(take, work) for work in works[1:]]
        try:
            take(works[0])
        finally:
            wait(others)
        for other in others:
            other.result()
        return found


def inspect(payload: Any) -> list[dict[str, Any]]:
    """What a payload says of its sections: chain, dtype, rows, columns, bound and bytes.

    >>> inspect(Codec().encode([[[1.5]]], 0.0))
    [{'chain': 'raw', 'dtype': 'float64', 'rows': 1, 'columns': 1, 'bound': 0.0, 'bytes': 8}]

    Raises:
        CorruptPayloadError: it is not a payload.
    """
    names = {number: name for name, number in CHAINS.items()}
    return [
        {
            "chain": names[s.chain],
            "dtype": wire.DTYPES[s.dtype],
            "rows": s.rows,
            "columns": s.columns,
            "bound": s.bound,
            "bytes": 4 * (s.stop - s.start),
        }
        for s in wire.read_frame(wire.as_words(payload))
    ]


def _absolute(bound: Bound, one: Source) -> float:
    if not isinstance(bound, Relative):
        return check_bound(bound)
    share = check_bound(bound.share)
    return share * one.value_range() if one.dtype <= wire.BFLOAT16 else 0.0


def _encode_run(
    work: Workspace, parts: list[_Part], words: NDArray[np.uint32], at: int, stochastic: bool
) -> list[Section]:
    """Encode parts one after the other from word `at` on."""
    sections: list[Section] = []
    # Parts that are copied to be encoded, of 16-bit floats, and bit-exact ones go one by one, all others in one call.
    alone = [part.chain == LOSSLESS or part.source.dtype != wire.FLOAT32 for part in parts]
    i = 0
    while i < len(parts):
        j = i + 1
        while j < len(parts) and not alone[i] and not alone[j]:
            j += 1
        if parts[i].chain == LOSSLESS:
            sections.append(_encode_lossless(parts[i], words, at))
        else:
            sections += _encode_lossy(work, parts[i:j], words, at, stochastic)
        i, at = j, sections[-1].stop
    return sections


def _encode_lossless(part: _Part, words: NDArray[np.uint32], at: int) -> Section:
    one, rows = part.source, part.last - part.first
    raw = one.raw[part.first * one.row_bytes : part.last * one.row_bytes]
    if not raw.flags.writeable:  # read-only memory is another type to compiled functions
        raw = raw.copy()
    chain, size = LOSSLESS, (raw.size + 3) // 4
    room = words[: at + size]
    scratch = planes.planes_work(rows, one.row_bytes, decode=False)
    end = planes.encode_planes(raw, rows, one.row_bytes, wire.ITEM_BYTES[one.dtype], scratch, room, at)
    if end < 0:
        chain, end = RAW, at + size
        words[end - 1] = 0
        words[at:end].view(np.uint8)[: raw.size] = raw
    return Section(chain, one.dtype, rows, one.columns, 0.0, at, end)


def _encode_lossy(
    work: Workspace, parts: list[_Part], words: NDArray[np.uint32], at: int, stochastic: bool
) -> list[Section]:
    # With stochastic rounding the steps are half as wide: those of half the bound, which is what a decoder is told.
    bounds = wire_bounds([0.0 if part.chain == RAW else part.bound for part in parts], 0.5 if stochastic else 1.0)
    each = grids(bounds)
    values = [
        np.empty(0, np.float32) if chain == RAW else one.rows_as_values(first, last, each[i])
        for i, (one, first, last, chain, _) in enumerate(parts)
    ]
    plan = np.array([_plan_row(part, values[i]) for i, part in enumerate(parts)], np.int64)
    shapes = {(part.last - part.first, part.source.columns) for part in parts if part.source.size}
    message.encode_sections(plan, each, work.of(shapes), words, at)
    sections = []
    for i, (part, chain, stop) in enumerate(zip(parts, plan[:, CHAIN].tolist(), plan[:, STOP].tolist(), strict=True)):
        bound = bounds[i] if chain >= BITPACK else 0.0
        if bound and part.source.dtype != wire.FLOAT32:
            _send_halves(part, words[at:stop])
        sections.append(Section(chain, part.source.dtype, part.last - part.first, part.source.columns, bound, at, stop))
        at = stop
    return sections


def _plan_row(part: _Part, values: NDArray[np.float32]) -> tuple[int, ...]:
    """See `message.VALUES`."""
    one, first, last, chain, _ = part
    address = values.__array_interface__["data"][0]
    raw_address, size = one.raw_address + first * one.row_bytes, (last - first) * one.row_bytes
    # What a patch sends: not the values where those were rounded at random.
    bits_address = raw_address if one.dtype == wire.FLOAT32 else address
    return address, bits_address, raw_address, size, last - first, one.columns, chain, 0


def _send_halves(part: _Part, section: NDArray[np.uint32]) -> None:
    """What a patch of 16-bit floats sends are these 16 bits, not those of the float32 that was encoded."""
    patches = int(section[1])
    if patches:
        bits = part.source.raw.view(np.uint16)[part.first * part.source.columns :]
        section[section.size - patches :] = bits[section[section.size - 2 * patches : section.size - patches]]


def _assign(sections: list[Section], targets: list[Output]) -> list[_Job]:
    """Which rows of which output each section holds.

    Raises:
        CorruptPayloadError: they do not fit together.
    """
    jobs: list[_Job] = []
    left = iter(sections)
    for i, target in enumerate(targets):
        row = 0
        while True:
            section = next(left, None)
            if section is None:
                raise CorruptPayloadError("sections", f"the payload ends before table {i} of {len(targets)}")
            if section.dtype != target.dtype:
                held, wanted = wire.DTYPES[section.dtype], wire.DTYPES[target.dtype]
                raise CorruptPayloadError(f"dtype of table {i}", f"the payload holds {held}, the output is {wanted}")
            if section.columns != target.columns or row + section.rows > target.rows:
                held, wanted = f"{section.rows} x {section.columns}", f"{target.rows - row} x {target.columns}"
                raise CorruptPayloadError(
                    f"shape of table {i}", f"the payload holds {held}, the output has {wanted} left"
                )
            jobs.append(_Job(section, target, row, len(jobs)))
            row += section.rows
            if row == target.rows or not section.rows:
                break
        if row != target.rows:
            raise CorruptPayloadError(f"shape of table {i}", f"{row} rows of {target.rows}")
    if next(left, None) is not None:
        raise CorruptPayloadError("sections", f"more than {len(targets)} tables")
    return jobs


def _decode_run(work: Workspace, jobs: list[_Job], words: NDArray[np.uint32]) -> None:
    rows, lossy = [], []
    for section, target, row, number in jobs:
        if section.chain == LOSSLESS:
            _decode_lossless(section, target, row, number, words)
            continue
        if section.chain == RAW:
            address = target.raw_address + row * target.row_bytes
        else:
            address = target.address(row, section.rows)
        size = section.rows * target.row_bytes
        rows.append((address, section.start, section.stop, size, section.rows, section.columns, section.chain, 0))
        lossy.append(section.bound)
    if not rows:
        return
    plan = np.array(rows, np.int64)
    steps = np.ascontiguousarray(grids(lossy)[:, 0])
    shapes = {(row[ROWS], row[COLUMNS]) for row in rows if row[CHAIN] > BITPACK}
    wrong = message.decode_sections(plan, steps, work.of(shapes), words)
    if wrong >= 0:
        number = [job.number for job in jobs if job.section.chain != LOSSLESS][wrong]
        field = message.ERRORS[int(plan[wrong, ERROR])]
        raise CorruptPayloadError(f"{field} of section {number}", "not what an encoder writes")
    for section, target, row, number in jobs:
        if section.chain >= BITPACK and target.dtype != wire.FLOAT32:
            patches, stop = int(words[section.start + 1]), section.stop
            bits = words[stop - patches : stop]
            if patches and bits.max() > 0xFFFF:
                raise CorruptPayloadError(f"patches of section {number}", "more than 16 bits for a value of 16 bits")
            target.round(row, words[stop - 2 * patches : stop - patches], bits)


def _decode_lossless(section: Section, target: Output, row: int, number: int, words: NDArray[np.uint32]) -> None:
    out = target.raw[row * target.row_bytes : (row + section.rows) * target.row_bytes]
    scratch = planes.planes_work(section.rows, target.row_bytes, decode=True)
    item = wire.ITEM_BYTES[section.dtype]
    error = planes.decode_planes(words, section.start, section.stop, section.rows, target.row_bytes, item, scratch, out)
    if error:
        raise CorruptPayloadError(f"{planes.FIELDS[error]} of section {number}", "not what an encoder writes")
