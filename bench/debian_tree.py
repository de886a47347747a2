"""A clean Debian in a folder: copies of it that cost nothing, commands in them, systemd booted in one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import shlex
import shutil
import subprocess
import termios
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SUITE = "bookworm"
# What reaches this machine's registries, where it is not the default.
_PIP_CONFIGURATION = Path("/etc/pip.conf")
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_TEMPORARY = "/tmp"  # noqa: S108 - that of the tree
_BOOT_SECONDS = 30


@dataclass(frozen=True, kw_only=True)
class Tree:
    """The root folder of a Debian."""

    root: Path
    user: tuple[int, int] = (0, 0)
    read_only: bool = False
    """With /tmp writable, as a container's tmpfs."""

    def command(self, words: Sequence[str], environment: dict[str, str] | None = None) -> list[str]:
        """Return what runs a command in the tree, in PID and mount namespaces of its own."""
        root = shlex.quote(str(self.root))
        steps = [f"mount --bind {root} {root}", f"mount -t proc proc {root}/proc"]
        steps += [f"mount -t tmpfs tmpfs {root}/dev -o mode=755"]
        for node in ("null", "zero", "random", "urandom"):
            steps += [f"touch {root}/dev/{node}", f"mount --bind /dev/{node} {root}/dev/{node}"]
        if self.read_only:
            steps += [
                f"mount -o remount,bind,ro {root}",
                f"mount -t tmpfs tmpfs {root}{_TEMPORARY} -o mode=1777",
            ]
        user, group = self.user
        variables = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        variables |= {name: text for name, text in os.environ.items() if name.startswith("PIP_")}
        given = [f"{name}={text}" for name, text in (variables | (environment or {})).items()]
        inside = ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", "--no-new-privs"]
        steps.append(f"exec chroot {root} {shlex.join([*inside, '/usr/bin/env', '-i', *given, *words])}")
        return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", "; ".join(steps)]

    def run(self, *words: str, environment: dict[str, str] | None = None) -> str:
        """Run a command; return what it says, raise with it where it fails."""
        done = subprocess.run(
            self.command(words, environment),
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode:
            raise RuntimeError(f"{shlex.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout


def make_debian(root: Path, packages: Sequence[str]) -> Tree:
    """Unpack a Debian with nothing in it but the base system and some packages."""
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(packages)}", SUITE, str(root)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    if _PIP_CONFIGURATION.exists():
        shutil.copy(_PIP_CONFIGURATION, root / "etc")
        shutil.copy(_CERTIFICATES, root / "etc/ssl/certs")
    return Tree(root=root)


@contextlib.contextmanager
def copy_of(tree: Tree, folder: Path) -> Iterator[Tree]:
    """Lay a writable copy over a tree."""
    for name in ("upper", "work", "root"):
        (folder / name).mkdir(parents=True)
    layers = f"lowerdir={tree.root},upperdir={folder / 'upper'},workdir={folder / 'work'}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, folder / "root"], check=True)
    try:
        yield Tree(root=folder / "root")
    finally:
        subprocess.run(["umount", "--lazy", folder / "root"], check=True)


_BOOT = """
set -e
R=$1
mount --bind $R $R
mount -t proc proc $R/proc
mount -t sysfs sysfs $R/sys
mount -t tmpfs tmpfs $R/dev -o mode=755
for n in null zero full random urandom tty; do touch $R/dev/$n; mount --bind /dev/$n $R/dev/$n; done
mkdir $R/dev/pts $R/dev/shm
mount -t devpts devpts $R/dev/pts -o newinstance,ptmxmode=0666
ln -s pts/ptmx $R/dev/ptmx
touch $R/dev/console; mount --bind $(tty) $R/dev/console
mount -t tmpfs tmpfs $R/run -o mode=755
mount -t tmpfs tmpfs $R/tmp
mount -t tmpfs tmpfs $R/sys/fs/cgroup -o mode=755
mkdir -p $R/sys/fs/cgroup/systemd $R/sys/fs/cgroup/unified
mount -t cgroup2 cgroup2 $R/sys/fs/cgroup/unified
mount -t cgroup -o none,name=systemd cgroup $R/sys/fs/cgroup/systemd 2>/dev/null || true
ip link set lo up
cd $R
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=linux \\
  chroot $R /lib/systemd/systemd --log-target=console --show-status=no
"""


# Below a control group of its own: the tree's systemd must not take this machine's slices for its own.
_GROUP = "kvwatch-install"
_GROUP_TRIES = 50
_HIERARCHIES = ("/sys/fs/cgroup", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified")
_ENTER_GROUP = f"""
for h in {" ".join(_HIERARCHIES)}; do
  if [ -w $h/cgroup.procs ]; then mkdir -p $h/{_GROUP}; echo $$ > $h/{_GROUP}/cgroup.procs; fi
done
exec "$@"
"""


class Booted:
    """A tree in which systemd runs as the first process, with a network of its own."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def command(self, *words: str) -> list[str]:
        """Return what runs a command beside that systemd."""
        entered = [
            "nsenter",
            "-t",
            str(self._pid),
            "--mount",
            "--pid",
            "--net",
            "--uts",
            "--ipc",
            "--root",
            "--wd",
        ]
        return [*entered, *words]

    def run(self, *words: str, check: bool = True) -> str:
        """Run a command; return its output."""
        done = subprocess.run(self.command(*words), capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise RuntimeError(f"{shlex.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout


@contextlib.contextmanager
def booted(tree: Tree) -> Iterator[Booted]:
    """Boot a tree; its processes end with the block."""
    (tree.root / "etc/systemd/system/console-getty.service").symlink_to("/dev/null")
    leader, follower = pty.openpty()
    namespaces = ["--mount", "--pid", "--fork", "--uts", "--ipc", "--net", "--cgroup", "--kill-child"]
    process = subprocess.Popen(
        [
            "sh",
            "-ec",
            _ENTER_GROUP,
            "enter",
            "unshare",
            *namespaces,
            "bash",
            "-c",
            _BOOT,
            "boot",
            str(tree.root),
        ],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - no threads yet
    )
    said: list[bytes] = []

    def listen() -> None:
        while process.poll() is None:
            if select.select([leader], [], [], 0.2)[0]:
                with contextlib.suppress(OSError):
                    said.append(os.read(leader, 4096))

    threading.Thread(target=listen, daemon=True).start()
    try:
        for _ in range(_BOOT_SECONDS * 10):
            if b"Startup finished" in b"".join(said):
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
                raise RuntimeError(b"".join(said).decode(errors="replace"))
        children = (
            Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="utf-8").split()
        )
        yield Booted(int(children[0]))
    finally:
        process.kill()
        process.wait()
        _leave_no_group()


def _leave_no_group() -> None:
    """Remove the control groups that the tree's systemd made, once its last processes have ended."""
    tops = [top for top in (Path(hierarchy) / _GROUP for hierarchy in _HIERARCHIES) if top.exists()]
    for _ in range(_GROUP_TRIES):
        for top in tops:
            for folder in sorted((path for path in top.rglob("*") if path.is_dir()), reverse=True):
                with contextlib.suppress(OSError):
                    folder.rmdir()
            with contextlib.suppress(OSError):
                top.rmdir()
        if not any(top.exists() for top in tops):
            return
        time.sleep(0.1)
