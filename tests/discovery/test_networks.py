"""Servers in network namespaces of their own: reached at their address, or said what to configure."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from ipaddress import ip_address
from typing import TYPE_CHECKING

import pytest

from kvwatch.sources.discovery.routes import container_addresses, is_attached
from tests.discovery.stand_ins import REPOSITORY, VLLM_PAGES, write_program

if TYPE_CHECKING:
    from pathlib import Path

UNSHARE = ("unshare", "--net")

# Runs in a network namespace that plays the host's. For each container: [name, address or "", host that its
# server binds to, kind of link]. Prints what discovery finds after some looks, by container.
HOST = """
import atexit, json, subprocess, sys, time
from pathlib import Path
from kvwatch.sources.procfs import ProcfsSource
from kvwatch.sources.discovery.discovery import Discovery

def sh(line):
    subprocess.run(line, shell=True, check=True)

sh("ip link set lo up")
folder, engine, containers = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
processes = {}
for number, (name, address, binds, link) in enumerate(containers):
    place = folder / name
    place.mkdir()
    script = place / "vllm"
    script.write_text(Path(engine).read_text())
    words = [sys.executable, str(script), "serve", "m", "--host", binds, "--port", "8000"]
    process = subprocess.Popen(["unshare", "--net", "sh", "-c", 'read line; exec "$@"', "sh", *words],
        stdin=subprocess.PIPE, cwd=place)
    atexit.register(process.kill)
    processes[process.pid] = name
    while Path(f"/proc/{process.pid}/ns/net").readlink() == Path("/proc/self/ns/net").readlink():
        time.sleep(0.01)
    inside = f"nsenter -t {process.pid} -n ip"
    sh(f"{inside} link set lo up")
    if link == "veth":
        sh(f"ip link add v{number} type veth peer name eth0 netns {process.pid}")
        sh(f"ip link set v{number} up; ip addr add 198.51.100.{101 + number}/32 dev v{number}")
        sh(f"ip route replace {address}/32 dev v{number}")
        sh(f"{inside} addr add {address}/24 dev eth0; {inside} link set eth0 up")
    elif address:
        sh(f"{inside} addr add {address}/24 dev lo")
    process.stdin.write(b"go\\n")
    process.stdin.flush()
    while not (place / "port").exists():
        time.sleep(0.01)
discovery = Discovery()
table = ProcfsSource().read([], [])
found = discovery.read([], table, [], {}, private=False)
found = discovery.read([], table, [], {}, private=False)
mine = [target for target in found.targets if target.pid in processes]
print(json.dumps({processes[target.pid]: [target.name, target.url,
    target.hindrance and target.hindrance.reason, target.hindrance and target.hindrance.detail]
    for target in mine}))
print(json.dumps({name: (folder / name / "asked").exists() for name in processes.values()}))
"""


def can_unshare() -> bool:
    """Try whether network namespaces can be made and linked."""
    if shutil.which("ip") is None or shutil.which("nsenter") is None or os.geteuid() != 0:
        return False
    line = [*UNSHARE, "ip", "link", "add", "t0", "type", "veth", "peer", "name", "t1"]
    return subprocess.run(line, capture_output=True, check=False).returncode == 0


needs_namespaces = pytest.mark.skipif(not can_unshare(), reason="needs root and linked network namespaces")


def found(folder: Path, *containers: tuple[str, str, str, str]) -> dict[str, list[str | None]]:
    """Return what discovery finds of some containers: name, URL, reason, detail."""
    script = write_program(folder / "program", "vllm", VLLM_PAGES)
    result = subprocess.run(
        [*UNSHARE, sys.executable, "-c", HOST, str(folder), str(script), json.dumps(containers)],
        env={**os.environ, "PYTHONPATH": REPOSITORY},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    targets, asked = (json.loads(line) for line in result.stdout.splitlines())
    assert not any(asked.values()), "discovery itself asks nobody"
    return dict(targets)


@needs_namespaces
def test_a_container_is_reached_at_its_address(tmp_path: Path) -> None:
    """As on Docker's bridge: the port is open on every address in there, and the link leads inside."""
    (target,) = found(tmp_path, ("a", "198.51.100.2", "0.0.0.0", "veth")).values()
    assert target == ["198.51.100.2:8000", "http://198.51.100.2:8000", None, None]


@needs_namespaces
def test_a_port_on_a_containers_loopback_is_not_reached(tmp_path: Path) -> None:
    """Nobody outside gets there; the detail says so and what to configure."""
    (target,) = found(tmp_path, ("a", "198.51.100.2", "127.0.0.1", "veth")).values()
    assert target[0] == "198.51.100.2:8000"
    assert target[2] == "unreachable"
    assert "only on 127.0.0.1, inside its container" in str(target[3])
    assert "{url: http://HOST:PORT, pid: " in str(target[3])


@needs_namespaces
def test_a_container_without_a_way_to_it_is_reported(tmp_path: Path) -> None:
    """With its address where it has one, else by its namespace."""
    seen = found(tmp_path, ("a", "203.0.113.5", "0.0.0.0", "none"), ("b", "", "0.0.0.0", "none"))
    assert seen["a"][0] == "203.0.113.5:8000"
    assert seen["a"][2] == seen["b"][2] == "unreachable"
    assert "at 203.0.113.5 in a network of its own" in str(seen["a"][3])
    assert str(seen["b"][0]).startswith("net-4026")


@needs_namespaces
def test_an_address_that_leads_to_somebody_else_is_not_asked(tmp_path: Path) -> None:
    """Two containers have the same address, and ours is the way to one of them only."""
    seen = found(tmp_path, ("a", "198.51.100.2", "0.0.0.0", "veth"), ("b", "198.51.100.2", "0.0.0.0", "none"))
    assert seen["a"][1:3] == ["http://198.51.100.2:8000", None]
    assert seen["b"][2] == "unreachable"
    assert seen["b"][0] != seen["a"][0]
    assert str(seen["b"][0]).startswith("198.51.100.2:8000-")


TRIE = """\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 172.17.0.0/16 2 0 2
        |-- 172.17.0.0
           /16 link UNICAST
        |-- 172.17.0.2
           /32 host LOCAL
        |-- 172.17.255.255
           /32 link BROADCAST
Local:
  +-- 127.0.0.0/8 2 0 2
     |-- 127.0.0.1
        /32 host LOCAL
     |-- 172.17.0.2
        /32 host LOCAL
"""
INET6 = """\
fd000000000000000000000000000002 04 40 00 82     eth0
00000000000000000000000000000001 01 80 10 80       lo
fe8000000000000000fc00fffe000001 04 40 20 80     eth0
"""


def test_the_addresses_of_a_container(tmp_path: Path) -> None:
    """Loopback and link-local apart, each once, IPv4 first; nothing where they cannot be read."""
    net = tmp_path / "7" / "net"
    net.mkdir(parents=True)
    assert container_addresses(tmp_path, 7) == ()
    (net / "fib_trie").write_text(TRIE)
    (net / "if_inet6").write_text(INET6)
    assert [str(address) for address in container_addresses(tmp_path, 7)] == ["172.17.0.2", "fd00::2"]


ROUTES = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t0000000A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
docker0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
cali1\t0500640A\t00000000\t0005\t0\t0\t0\tFFFFFFFF\t0\t0\t0
flannel\t0000F40A\t0100F40A\t0003\t0\t0\t0\t0000FFFF\t0\t0\t0
cilium\t0000C80A\t0100007F\t0003\t0\t0\t0\t0000FFFF\t0\t0\t0
*\t0000630A\t00000000\t0201\t0\t0\t0\t0000FFFF\t0\t0\t0
"""
ROUTES_6 = """\
fd000000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 \
00000100 00000001 00000000 00000001  docker0
00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe800000000000000000000000000001 \
00000400 00000003 00000000 00000003     eth0
"""


@pytest.mark.parametrize(
    "address, attached",
    [
        ("172.17.0.2", True),  # Docker's bridge
        ("10.100.0.5", True),  # a link to one container (Calico)
        ("10.200.3.4", True),  # a router that is this machine itself (Cilium)
        ("10.244.0.9", False),  # another node's containers, behind a router
        ("10.0.0.9", False),  # the wire: a machine next door
        ("10.99.0.1", False),  # a route that rejects
        ("8.8.8.8", False),  # the rest of the world
        ("fd00::2", True),
        ("2001:db8::1", False),
    ],
)
def test_only_what_is_on_this_machine_is_attached(tmp_path: Path, address: str, *, attached: bool) -> None:
    """The best route decides, and a card with a device behind it leads elsewhere."""
    net = tmp_path / "self" / "net"
    net.mkdir(parents=True)
    (net / "route").write_text(ROUTES)
    (net / "ipv6_route").write_text(ROUTES_6)
    interfaces = tmp_path / "class"
    for name in ("docker0", "cali1", "flannel", "cilium"):
        (interfaces / name).mkdir(parents=True)
    (interfaces / "eth0" / "device").mkdir(parents=True)
    assert is_attached(tmp_path, interfaces, ip_address(address)) is attached
