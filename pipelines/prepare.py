"""Raw click logs to a prepared data set (layout: pipelines/dataset.py; for users: docs/data.md).

Three stages, each cut into jobs that leave their result in OUT/.scratch: parse a file, rank a table, encode a part.
The jobs of a stage depend on nothing but their arguments, so one process or a Ray cluster gives the same bytes.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

from pipelines.assemble import columns_alone, complete
from pipelines.dataset import MANIFEST, Dataset, Manifest, part_schema
from pipelines.encode import Encoded, EncodeJob
from pipelines.errors import UserError
from pipelines.files import write_bytes
from pipelines.formats import Schema, load_schema
from pipelines.ingest import Parsed, ParseJob
from pipelines.ranking import Ranked, RankJob
from pipelines.ray_tasks import cluster, run_jobs
from pipelines.readers import Reader
from pipelines.segments import SegmentInfo
from pipelines.sources import find_files
from pipelines.splits import Split, decide, parse_split
from pipelines.summary import summary

Progress = Callable[[str, int, int], None]
"""Called with the stage (parse, rank, encode), the work done and all work (bytes, tables, rows)."""

PART_SEGMENTS = 8
_SCRATCH = ".scratch"
_VERSION = 1
"""Of the scratch: another one is not resumed."""
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class PrepareOptions:
    """How to prepare."""

    min_count: int = 1
    """Values rarer than this in the train split get the unknown id."""
    max_ids: int | None = None
    """Most ids a table, the two reserved ones included; the rarest values beyond it get the unknown id."""
    split: str = "last:0.1"
    """last:SHARE, random:SHARE, files:COUNT (the last COUNT input files are valid) or none."""
    seed: int = 0
    """Of the random split."""
    on_bad_line: Literal["error", "skip"] = "error"
    """Stop at a bad line, or leave it out and count it."""
    schema: Path | None = None
    """Schema file of the formats csv and parquet."""
    like: Path | None = None
    """Encode with the ids of this data set, into one split named serve; labels may be absent and then are 0."""
    days: list[int] | None = None
    """Criteo 1TB: use these days only."""
    keep_scratch: bool = False
    """Keep the intermediate files (about as large as the input)."""
    overwrite: bool = False
    """Replace a finished data set."""


def prepare(
    sources: Sequence[str | Path],
    *,
    format: str,
    out: str | Path,
    options: PrepareOptions = PrepareOptions(),
    workers: int = 0,
    progress: Progress | None = None,
) -> Manifest:
    """Prepares a data set.

    Args:
        sources: files or directories, in time order.
        format: one of `pipelines.formats.FORMATS`.
        out: folder of the data set; the same call again after a kill resumes.
        workers: 0: this process; N: Ray tasks, at most N at once, in the running cluster or a new local one.

    Raises:
        UserError: wrong input, a bad line, `out` in use or finished, disk too small or full.
    """
    schema = load_schema(format, options.schema)
    _check(options)
    if workers < 0:
        raise UserError(f"workers is {workers}", fix="0 for this process, or the number of Ray tasks")
    files = find_files(sources, format, options.days)
    out = Path(out).expanduser().absolute()
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = FileLock(out / ".lock", timeout=0)
        with lock, cluster(workers):
            return _Run(files, format, schema, out, options, workers, progress or (lambda *_: None)).run()
    except Timeout:
        raise UserError("another prepare writes to this folder", where=str(out), fix="wait for it") from None
    except (PermissionError, FileExistsError, NotADirectoryError) as error:
        raise UserError(str(error.strerror).lower(), where=str(error.filename)) from error
    except OSError as error:
        if error.errno not in _DISK_FULL:
            raise
        fix = "free some space and run the same command again: it resumes"
        raise UserError(f"the disk is full ({error.strerror})", where=str(out), fix=fix) from error


def _check(options: PrepareOptions) -> None:
    parse_split(options.split)
    if options.min_count < 1:
        raise UserError(f"min_count is {options.min_count}", fix="1 keeps every value")
    if options.max_ids is not None and options.max_ids < 3:
        raise UserError(f"max_ids is {options.max_ids}", fix="3 or more: two ids are reserved")
    if options.on_bad_line not in ("error", "skip"):
        raise UserError(f"on_bad_line is '{options.on_bad_line}'", fix="error or skip")
    if options.like is not None:
        for name in ("split", "min_count", "max_ids"):
            if getattr(options, name) != getattr(PrepareOptions, name):
                fix = "leave it out: ids come from that data set, and all rows go to the split serve"
                raise UserError(f"{name} has no effect with like={options.like}", fix=fix)
    if not 0 <= options.seed < 2**63:
        raise UserError(f"seed is {options.seed}", fix="0 to 2^63 - 1")


class _Run:
    """One call of `prepare`, with the folder locked."""

    def __init__(
        self,
        files: list[Path],
        format: str,
        schema: Schema,
        out: Path,
        options: PrepareOptions,
        workers: int,
        progress: Progress,
    ) -> None:
        self.files, self.format, self.schema, self.out, self.options = files, format, schema, out, options
        self.workers, self.progress = workers, progress
        self.scratch = out / _SCRATCH
        self.like = None if options.like is None else Dataset(options.like)
        self.names = tuple(c.name for c in schema.tables)
        min_count = options.min_count if self.like is None else self.like.manifest.min_count
        self._columns = columns_alone(schema, format, min_count)

    def run(self) -> Manifest:
        if self.like is not None:
            self._check_like(self.like.manifest)
        self._start()
        parsed = self._parse()
        segments = [s for p in parsed for s in p.segments]
        if not segments:
            raise UserError("no rows in the input", where=str(self.files[0]), fix="are the files empty?")
        split = self._split(parsed)
        ranked = self._rank(segments, split)
        jobs = self._encode_jobs(parsed, split)
        encoded = self._encode(jobs)
        parts = [(source, job.path, result) for (source, job), result in zip(jobs, encoded, strict=True)]
        manifest = complete(self._columns, ranked, parts, split)
        by_split = {name: [e.splits[name].lookups for e in encoded] for name in split.names}
        lookups = {name: [sum(n) for n in zip(*parts, strict=True)] for name, parts in by_split.items()}
        text = summary(manifest, [r.distinct for r in ranked], lookups, self._bad(parsed))
        write_bytes(self.out / "summary.txt", text.encode())
        write_bytes(self.out / MANIFEST, (manifest.model_dump_json(indent=1) + "\n").encode(), durable=True)
        if not self.options.keep_scratch:
            shutil.rmtree(self.scratch)
        return manifest

    def _check_like(self, like: Manifest) -> None:
        theirs, ours = [t.name for t in like.tables], list(self.names)
        theirs += [d.name for d in like.dense]
        ours += [c.name for c in self.schema.dense_columns]
        if theirs != ours:
            odd = sorted(set(theirs) ^ set(ours)) or ["their order"]
            fix = "use the format or schema that the data set was made with"
            raise UserError(
                f"columns differ from that data set: {', '.join(odd)}", where=str(self.options.like), fix=fix
            )

    def _start(self) -> None:
        """Resumes the same run, or clears what another has left."""
        if (self.out / MANIFEST).exists() and not self.options.overwrite:
            fix = "choose another folder, or give --overwrite"
            raise UserError("the folder already holds a prepared data set", where=str(self.out), fix=fix)
        ours = {MANIFEST, "summary.txt", "train", "valid", "serve", "tables", _SCRATCH, ".lock"}
        foreign = sorted(p.name for p in self.out.iterdir() if p.name not in ours)
        if foreign:
            raise UserError(f"the folder holds other files: {foreign[0]}", where=str(self.out), fix="name a new folder")
        plan, plan_file = self._plan(), self.scratch / "plan.json"
        # A finished data set that is to be replaced must stop being one before its parts go.
        (self.out / MANIFEST).unlink(missing_ok=True)
        if not (plan_file.is_file() and plan_file.read_bytes() == plan):
            for name in (_SCRATCH, "train", "valid", "serve", "tables"):
                shutil.rmtree(self.out / name, ignore_errors=True)
        self._check_space()
        for name in (_SCRATCH, "tables", *self._split_names()):
            (self.out / name).mkdir(exist_ok=True)
            for left in (self.out / name).glob(".*.tmp"):
                left.unlink()
        write_bytes(plan_file, plan)

    def _split_names(self) -> tuple[str, ...]:
        if self.like is not None:
            return ("serve",)
        return ("train",) if self.options.split == "none" else ("train", "valid")

    def _plan(self) -> bytes:
        """Everything that the result depends on, as bytes to compare."""
        options = asdict(replace(self.options, keep_scratch=False, overwrite=False))
        like = None if self.like is None else hashlib.sha256((self.like.path / MANIFEST).read_bytes()).hexdigest()
        inputs = [(str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in self.files]
        plan = {
            "version": _VERSION,
            "format": self.format,
            "schema": self.schema.model_dump(),
            "options": options,
            "like": like,
            "inputs": inputs,
        }
        return json.dumps(plan, indent=1, default=str).encode()

    def _check_space(self) -> None:
        needed = sum(_space(f) for f in self.files)
        held = sum(f.stat().st_size for f in self.out.rglob("*") if f.is_file())
        free = shutil.disk_usage(self.out).free
        if free + held < needed:
            gib = 2**30
            what = f"the data set and intermediate files need about {needed / gib:.1f} GiB, {free / gib:.1f} are free"
            raise UserError(what, where=str(self.out), fix="free some space or name another folder")

    def _parse(self) -> list[Parsed]:
        reader = Reader(self.format, self.schema, serve=self.like is not None)
        skip = self.options.on_bad_line == "skip"
        jobs = [ParseJob(i, file, self.scratch, reader, skip) for i, file in enumerate(self.files)]
        sizes = [f.stat().st_size for f in self.files]
        total = sum(sizes)
        done = 0

        def on_done(index: int) -> None:
            nonlocal done
            done += sizes[index]
            self.progress("parse", done, total)

        if self.workers:
            return run_jobs(jobs, self.workers, on_done)
        parsed = []
        for i, job in enumerate(jobs):
            parsed.append(job.run(lambda position: self.progress("parse", done + position, total)))
            on_done(i)
        return parsed

    def _split(self, parsed: list[Parsed]) -> Split:
        rows = [p.rows for p in parsed]
        if self.like is not None:
            return Split(f"serve: all {sum(rows):,} rows, ids of {self.like.path.name}", ("serve",))
        return decide(self.options.split, self.options.seed, rows)

    def _rank(self, segments: list[SegmentInfo], split: Split) -> list[Ranked]:
        limits = (self.options.min_count, self.options.max_ids)
        like = None if self.like is None else self.like.path
        jobs = [
            RankJob(i, column, self.schema, self.scratch, self.out, segments, split, limits, like)
            for i, column in enumerate(self.schema.tables)
        ]
        counter = itertools.count(1)
        return run_jobs(jobs, self.workers, lambda _: self.progress("rank", next(counter), len(jobs)))

    def _encode_jobs(self, parsed: list[Parsed], split: Split) -> list[tuple[str, EncodeJob]]:
        """(source, job) of every part."""
        schema = part_schema(self._columns)
        starts = [0] * len(self.names)
        row = 0
        jobs: list[tuple[str, EncodeJob]] = []
        for file, result in zip(self.files, parsed, strict=True):
            for at in range(0, len(result.segments), PART_SEGMENTS):
                segments = result.segments[at : at + PART_SEGMENTS]
                map_starts = []
                first_row = row
                for segment in segments:
                    map_starts.append(starts)
                    starts = [s + k for s, k in zip(starts, segment.keys, strict=True)]
                    row += segment.rows
                job = EncodeJob(len(jobs), self.scratch, self.out, segments, first_row, map_starts, split, schema)
                jobs.append((file.name, job))
        return jobs

    def _encode(self, jobs: list[tuple[str, EncodeJob]]) -> list[Encoded]:
        total = sum(s.rows for _, job in jobs for s in job.segments)
        done = 0

        def on_done(index: int) -> None:
            nonlocal done
            done += sum(s.rows for s in jobs[index][1].segments)
            self.progress("encode", done, total)

        return run_jobs([job for _, job in jobs], self.workers, on_done)

    def _bad(self, parsed: list[Parsed]) -> list[str]:
        """Lines about the bad lines that were left out."""
        return [
            f"{file.name}: {p.n_bad:,} bad lines left out, first: {'; '.join(p.bad)}"
            for file, p in zip(self.files, parsed, strict=True)
            if p.n_bad
        ]


def _space(file: Path) -> int:
    """Bytes that the scratch and the parts of a file take at most, roughly."""
    with file.open("rb") as raw:
        start = raw.read(4)
    growth = 4.0 if start[:2] == b"\x1f\x8b" or start == b"PAR1" else 1.4
    return int(file.stat().st_size * growth)
