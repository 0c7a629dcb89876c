"""Every kernel compiles for each architecture, and says what it takes of a multiprocessor."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from compression.device.backend import FOLDER, THREADS, kernel_files, kernel_names
from compression.device.sources import ARCHITECTURES, OPTIONS, source_of

MOST_REGISTERS = 65536 // (2 * THREADS)
"""Two blocks of a kernel are to fit a multiprocessor at least."""


class Taken(NamedTuple):
    registers: int
    stack: int
    spilled: int
    shared: int


def compile_file(file: str, arch: str, folder: Path) -> dict[str, Taken]:
    """What nvcc says that each kernel of a file takes, by name."""
    source = folder / file
    source.write_text(source_of(file))
    command = ["nvcc", "-cubin", f"-arch=sm_{arch}", "-Xptxas", "-v", *OPTIONS, "-o", str(folder / "out"), str(source)]
    report = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    assert "warning" not in report, report
    pattern = (
        r"entry function '(\w+)'.*?(\d+) bytes stack.*?(\d+) bytes spill stores, (\d+) .*?Used (\d+) registers([^\n]*)"
    )
    found = {}
    for name, stack, stores, loads, registers, rest in re.findall(pattern, report, re.S):
        shared = re.search(r"(\d+) bytes smem", rest)
        found[name] = Taken(int(registers), int(stack), int(stores) + int(loads), int(shared[1]) if shared else 0)
    return found


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc: kernels are not compiled for GPUs here")
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("file", sorted(set(kernel_files().values())))
def test_kernels_compile_and_do_not_spill(file, arch, tmp_path, capsys):
    taken = compile_file(file, arch, tmp_path)
    assert sorted(taken) == sorted(kernel_names(FOLDER / file))
    with capsys.disabled():
        for name, one in sorted(taken.items()):
            print(f"\n  sm_{arch} {name}: {one.registers} registers, {one.spilled} bytes spilled, "
                  f"{one.shared} bytes shared", end="")  # fmt: skip
    assert {name: one for name, one in taken.items() if one.spilled or one.registers > MOST_REGISTERS} == {}


def test_kernels_include_no_header_of_cuda():
    """So that a driver, a wheel and no toolkit are enough."""
    for file in set(kernel_files().values()):
        assert "#include" not in source_of(file)
        assert source_of(file).count("const u32 BLOCK = 1024;") == 1


def test_each_file_is_a_stage_with_kernels_of_other_names():
    names = [name for file in sorted(FOLDER.glob("*.cu")) for name in kernel_names(file)]
    assert len(names) == len(set(names)) == len(kernel_files())
    assert all(kernel_names(file) for file in FOLDER.glob("*.cu"))
