"""Installs kvwatch on a clean Debian as docs/install.md says: `python bench/install.py`.

From the wheel, from the sdist, by the steps of the Dockerfile, and as the systemd unit under systemd.
Each ends with the first right number, and the time until then is printed. Then the unit is tried with less
and with more rights, and what each loses is printed. Needs root, debootstrap and a package registry.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))

import figures  # noqa: E402
from debian_tree import Booted, Tree, booted, copy_of, make_debian  # noqa: E402

from tests.packaging.distributions import build  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PORT = 9848
_CAPTURES = ROOT / "tests" / "captures" / "vllm"
_DEADLINE_SECONDS = 60.0
# Two pools of the demo hold 11 and 3 requests of full length; the captured vLLM's holds 3.
_RIGHT = {"demo": {"chat": 11.0, "embedding": 3.0}, "unit": {"127.0.0.1:8000": 3.0}}
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))

_ENGINE = """\
#!/usr/bin/python3
import http.server


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        try:
            body = open("/srv/pages/" + self.path.rpartition("/")[2], "rb").read()
        except OSError:
            return self.send_error(404)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)


http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Page).serve_forever()
"""
_ENGINE_UNIT = """\
[Service]
User=www-data
ExecStart=/usr/bin/python3 /usr/local/bin/vllm serve /models/tiny --port 8000 --max-num-seqs 16
"""
_NO_RIGHTS = "AmbientCapabilities=\nCapabilityBoundingSet=\n"
_VARIANTS = {
    "as it is": "",
    "without its two capabilities": _NO_RIGHTS,
    "the same, and ProtectProc=invisible": f"{_NO_RIGHTS}ProtectProc=invisible\n",
    "root with the two capabilities": "DynamicUser=no\nUser=root\n",
    "MemoryDenyWriteExecute, ProtectHome=yes, no @privileged, no @resources": (
        "MemoryDenyWriteExecute=yes\nProtectHome=yes\nSystemCallFilter=~@privileged @resources\n"
    ),
}


def main() -> None:
    """Install in every way, print how long each took."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--unit", action="store_true", help="the systemd unit only")
    only_unit = parser.parse_args().unit
    print(f"{figures.machine()}\n")
    with tempfile.TemporaryDirectory(prefix="kvwatch-install-") as name:
        folder = Path(name)
        files = {kind: build(kind, ROOT, folder / "dist") for kind in ("wheel", "sdist")}
        debian = make_debian(
            folder / "debian", ["python3-venv", "ca-certificates", "systemd", "dbus", "curl"]
        )
        print("| way | seconds to the first right number |")
        print("|---|---|")
        ways: dict[str, Callable[[Tree, Path], float]] = {
            "wheel": lambda tree, _: by_pip(tree, files["wheel"]),
            "sdist": lambda tree, _: by_pip(tree, files["sdist"]),
            "the Dockerfile's steps": by_dockerfile,
        }
        for way, install in () if only_unit else ways.items():
            with copy_of(debian, folder / way.split()[-1]) as tree:
                print(f"| {way} | {install(tree, folder):.0f} |", flush=True)
        with copy_of(debian, folder / "unit") as tree:
            by_unit(tree, files["wheel"])


def by_pip(tree: Tree, file: Path) -> float:
    """Install a file into an environment; return the seconds until the demo's numbers are right."""
    shutil.copy(file, tree.root / "root")
    began = time.monotonic()
    tree.run("python3", "-m", "venv", "/opt/kvwatch")
    tree.run("/opt/kvwatch/bin/pip", "install", "--quiet", f"/root/{file.name}")
    tree.run("/opt/kvwatch/bin/kvwatch", "--version")
    with _demo(tree, ["/opt/kvwatch/bin/kvwatch"], {}):
        _wait("demo", _fetch)
    return time.monotonic() - began


def by_dockerfile(debian: Tree, folder: Path) -> float:
    """Take the Dockerfile's steps one by one; the Debian tree stands for the base image."""
    text = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    steps = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    began = time.monotonic()
    variables: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        stages: dict[str, Tree] = {}
        words: dict[str, list[str]] = {}
        here, tree = "/", debian
        for kind, rest in steps:
            if kind == "FROM":
                stage = rest.partition(" AS ")[2] or "last"
                tree = stages[stage] = stack.enter_context(copy_of(debian, folder / f"stage-{stage}"))
                (tree.root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
                here, variables = "/", {}
            elif kind == "WORKDIR":
                here = rest
                (tree.root / here.lstrip("/")).mkdir(parents=True)
            elif kind == "COPY":
                _copy(stages, tree, here, rest.split())
            elif kind == "RUN":
                tree.run("sh", "-ec", f"cd {here}; {rest}", environment=variables)
            elif kind == "ENV":
                variables |= dict(pair.split("=", 1) for pair in shlex.split(rest))
            elif kind == "USER":
                user, group = map(int, rest.split(":"))
                words[kind] = [str(user), str(group)]
            elif kind in {"ENTRYPOINT", "CMD"}:
                words[kind] = json.loads(rest)
            elif kind == "HEALTHCHECK":
                words[kind] = json.loads(rest.partition("CMD ")[2])
        path = variables["PATH"].replace("$PATH", "/usr/local/bin:/usr/bin:/bin")
        # A container runtime sets HOME to / for a user that the image does not name.
        variables |= {"PATH": path, "HOME": "/"}
        user, group = (int(word) for word in words["USER"])
        sealed = Tree(root=tree.root, user=(user, group), read_only=True)
        with _demo(sealed, words["ENTRYPOINT"], variables):
            _wait("demo", _fetch)
            took = time.monotonic() - began
            program, option, check = words["HEALTHCHECK"]
            check = check.replace(":9836", f":{_PORT}")
            sealed.run(program, option, check, environment=variables)
    return took


def _copy(stages: dict[str, Tree], tree: Tree, here: str, words: list[str]) -> None:
    source_root = ROOT
    if words[0].startswith("--from="):
        source_root = stages[words.pop(0).removeprefix("--from=")].root
    *sources, target = words
    for source in sources:
        origin = source_root / source.lstrip("/")
        goal = tree.root / (target if target.startswith("/") else f"{here}/{target}").lstrip("/")
        if origin.is_dir():
            shutil.copytree(origin, goal, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            goal.mkdir(parents=True, exist_ok=True)
            shutil.copy(origin, goal)


def by_unit(tree: Tree, wheel: Path) -> None:
    """Install the unit beside an engine of another user; print the time, rights and what is lost."""
    pages = tree.root / "srv/pages"
    pages.mkdir(parents=True)
    for page, capture in {
        "metrics": "idle.metrics",
        "models": "models.json",
        "version": "version.json",
    }.items():
        shutil.copy(_CAPTURES / f"0.32.0-{capture}", pages / page)
    engine = tree.root / "usr/local/bin/vllm"
    engine.write_text(_ENGINE, encoding="utf-8")
    engine.chmod(0o755)
    units = tree.root / "etc/systemd/system"
    (units / "vllm.service").write_text(_ENGINE_UNIT, encoding="utf-8")
    shutil.copy(wheel, tree.root / "root")
    began = time.monotonic()
    tree.run("python3", "-m", "venv", "/opt/kvwatch")
    tree.run("/opt/kvwatch/bin/pip", "install", "--quiet", f"/root/{wheel.name}")
    (tree.root / "etc/kvwatch").mkdir()
    (tree.root / "etc/kvwatch/kvwatch.yaml").write_text("discovery: true\n", encoding="utf-8")
    shutil.copy(ROOT / "deploy/systemd/kvwatch.service", units)
    with booted(tree) as machine:
        machine.run("systemctl", "start", "vllm")
        machine.run("systemctl", "enable", "--now", "kvwatch")
        _wait("unit", lambda: _fetch_inside(machine))
        print(f"| systemd unit | {time.monotonic() - began:.0f} |\n")
        print("| unit | exposure | what is not known |")
        print("|---|---|---|")
        for name, lines in _VARIANTS.items():
            _try_variant(machine, units / "kvwatch.service.d", name, lines)


def _try_variant(machine: Booted, folder: Path, name: str, lines: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "variant.conf").write_text(f"[Service]\n{lines}", encoding="utf-8")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "restart", "kvwatch")
    with contextlib.suppress(TimeoutError):
        _wait("unit", lambda: _fetch_inside(machine), seconds=20)
    time.sleep(6)  # the poll after
    text = _fetch_inside(machine)
    found = re.findall(
        r'^kvwatch_source_reason\{reason="(\w+)",source="(\w+)",target="([^"]+)"', text, re.MULTILINE
    )
    unknown = [f"{source} {target}: {reason}" for reason, source, target in found]
    if "kvwatch_server_info{" not in text:
        unknown.append("no server is found")
    elif "kvwatch_request_limit{" not in text:
        unknown.append("the server's own limit (--max-num-seqs)")
    security = machine.run("systemd-analyze", "security", "--no-pager", "kvwatch", check=False).splitlines()[
        -1
    ]
    exposure = re.findall(r"[\d.]+", security.partition(":")[2])[0]
    errors = machine.run(
        "sh", "-c", "journalctl -u kvwatch -o cat --no-pager | grep -c level=error || true"
    ).strip()
    print(f"| {name} | {exposure} | {'; '.join(unknown)}; {errors} errors logged |", flush=True)


@contextlib.contextmanager
def _demo(tree: Tree, program: list[str], variables: dict[str, str]) -> Iterator[None]:
    command = tree.command([*program, "demo", "--listen", f"127.0.0.1:{_PORT}"], variables)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT) as process:
        try:
            yield
        finally:
            process.kill()


def _fetch() -> str:
    with _OPENER.open(f"http://127.0.0.1:{_PORT}/metrics", timeout=5) as answer:
        return str(answer.read().decode())


def _fetch_inside(machine: Booted) -> str:
    return machine.run("curl", "-s", "http://127.0.0.1:9836/metrics", check=False)


def _wait(what: str, fetch: Callable[[], str], *, seconds: float = _DEADLINE_SECONDS) -> None:
    """Wait until the numbers are right."""
    text = ""
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        with contextlib.suppress(OSError):
            text = fetch()
            pattern = r'^kvwatch_full_length_requests_fit_empty\{rank="0",server="([^"]+)"\} (\S+)'
            if {name: float(number) for name, number in re.findall(pattern, text, re.MULTILINE)} == _RIGHT[
                what
            ]:
                return
        time.sleep(0.1)
    raise TimeoutError(f"no right number in {seconds:g} s:\n{text}")


if __name__ == "__main__":
    main()
