"""The two small programs that enter a host: its PID 1 (`boot`), and the forwarder of one command (`enter`).

Run as a file by `hosts.py`, with the standard library alone, so that it starts in some 20 ms:

    python -I -S inside.py boot NETNS HOSTNAME HOSTS_FILE
    python -I -S inside.py enter PID START_TICKS CWD COMMAND...
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import sys
from pathlib import Path

# From linux/sched.h, sys/mount.h and sys/prctl.h. Python has setns and unshare from 3.12 only.
NEWNS, NEWUTS, NEWPID, NEWNET = 0x00020000, 0x04000000, 0x20000000, 0x40000000
NAMESPACES = {"uts": NEWUTS, "net": NEWNET, "mnt": NEWNS}
MS_BIND, MS_REC, MS_PRIVATE, MS_MOVE = 4096, 16384, 1 << 18, 8192
PR_SET_PDEATHSIG = 1
FORWARDED = {
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
}
SI_KERNEL = 0x80
"""`si_code` of a signal that the kernel sent, such as Ctrl-C on a terminal."""
NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit codes as a shell gives them."""

_libc = ctypes.CDLL(None, use_errno=True)


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if it is gone or a zombie.

    A process ID can be used again, a pair of ID and start cannot.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def boot(netns: str, name: str, hosts_file: str) -> None:
    """Make a host and be its PID 1.

    Prints the PID once the host is made, then waits for a line on stdin and ends without one: a host that its maker
    could not write down before it died must not live on.
    """
    with Path(netns).open() as file:
        _check(_libc.setns(file.fileno(), NEWNET), netns)
    _check(_libc.unshare(NEWNS | NEWUTS | NEWPID), "unshare")
    made, report = os.pipe()
    pid = os.fork()
    if pid:
        os.close(report)
        if os.read(made, 1):
            print(pid, flush=True)
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    socket.sethostname(name)
    _mounts(hosts_file)
    os.write(report, b".")
    os.close(report)
    if not sys.stdin.readline():
        return
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    _reap_for_ever()


def _mounts(hosts_file: str) -> None:
    """Own /proc, /sys (its /sys/class/net shows the interfaces of the host), /dev/shm, /tmp/ray and /etc/hosts."""
    _mount(None, "/", None, MS_REC | MS_PRIVATE)
    _mount("proc", "/proc", "proc")
    # The machine's control groups stay where programs look for them.
    _mount("/sys/fs/cgroup", "/tmp/ray", None, MS_BIND | MS_REC)
    _mount("sysfs", "/sys", "sysfs")
    _mount("/tmp/ray", "/sys/fs/cgroup", None, MS_MOVE)
    _mount("tmpfs", "/dev/shm", "tmpfs", options="mode=1777")
    _mount("tmpfs", "/tmp/ray", "tmpfs", options="mode=1777")
    _mount(hosts_file, "/etc/hosts", None, MS_BIND)


def _mount(source: str | None, target: str, kind: str | None, flags: int = 0, options: str | None = None) -> None:
    texts = [None if text is None else text.encode() for text in (source, target, kind, options)]
    _check(_libc.mount(texts[0], texts[1], texts[2], flags, texts[3]), f"mount {target}")


def _check(result: int, what: str) -> None:
    if result:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def _reap_for_ever() -> None:
    while True:
        signal.sigwait({signal.SIGCHLD})
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass


def enter(pid: int, started: int, cwd: str, command: list[str]) -> int:
    """Run a command in the host whose PID 1 is given. Signals sent to this process reach the command.

    Returns:
        The command's exit code, or minus the signal that ended it.
    """
    spaces = {kind: os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in ("pid", *NAMESPACES)}
    if start_ticks(pid) != started:
        raise ProcessLookupError("the host is down")
    # A process cannot change its own PID namespace, only that of its children. Hence a forwarder.
    _check(_libc.setns(spaces["pid"], NEWPID), "pid namespace")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED | {signal.SIGCHLD})
    child = os.fork()
    if child:
        return forward_signals(child)
    try:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        for kind, flag in NAMESPACES.items():
            _check(_libc.setns(spaces[kind], flag), f"{kind} namespace")
        os.chdir(cwd)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores, and a command must not
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.execvp(command[0], command)
    except OSError as error:
        print(f"lab: {error.filename or command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE)


def forward_signals(child: int) -> int:
    """Wait for a child of the same process group, passing on what is sent to this process.

    FORWARDED and SIGCHLD must be blocked. What the kernel sent (Ctrl-C) went to the whole group already.

    Returns:
        The exit code, or minus the signal that ended it.
    """
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        info = signal.sigwaitinfo(FORWARDED | {signal.SIGCHLD})
        if info.si_signo != signal.SIGCHLD and info.si_code != SI_KERNEL:
            os.kill(child, info.si_signo)


def end_like(code: int) -> None:
    """End this process as the command ended: with its exit code, or by the same signal."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        os.kill(os.getpid(), -code)
    sys.exit(code)


def main() -> None:
    try:
        if sys.argv[1] == "boot":
            boot(*sys.argv[2:5])
        else:
            end_like(enter(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5:]))
    except OSError as error:
        sys.exit(f"lab: {error.strerror or error}")


if __name__ == "__main__":
    main()
