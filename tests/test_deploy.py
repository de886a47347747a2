"""The deployment files: what they mount exists, names and ports agree, and each checker accepts its own."""

from __future__ import annotations

import configparser
import http.server
import json
import re
import shlex
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from kvwatch import __version__, cli
from kvwatch.config import load_config
from kvwatch.engines import ADAPTERS
from kvwatch.history.location import SYSTEM_FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "deploy" / "kvwatch.example.yaml"
PROFILES = ["demo", "gpu"]
CONFIG_PATH = "/etc/kvwatch/kvwatch.yaml"


def load_yaml(path: str) -> Any:
    """Return a YAML file of the repository."""
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def interpolated(value: Any, environment: dict[str, str]) -> Any:
    """Fill in `${NAME:-default}` as compose does."""
    if isinstance(value, dict):
        return {key: interpolated(item, environment) for key, item in value.items()}
    if isinstance(value, list):
        return [interpolated(item, environment) for item in value]
    if isinstance(value, str):
        return re.sub(r"\$\{(\w+):-([^}]*)\}", lambda m: environment.get(m[1], m[2]), value)
    return value


def services(profile: str) -> dict[str, Any]:
    """Return the services that a profile starts."""
    compose = interpolated(load_yaml("docker-compose.yml"), {"COMPOSE_PROFILES": profile})
    return {
        name: service
        for name, service in compose["services"].items()
        if profile in service.get("profiles", [profile])
    }


def mounts(service: dict[str, Any]) -> dict[str, Path]:
    """Return the files and folders of the repository that a service mounts, by their path inside."""
    found = {}
    for volume in service.get("volumes", ()):
        source, target, *mode = volume.split(":")
        if source.startswith("."):
            assert mode == ["ro"], volume
            found[target] = ROOT / source
    return found


def listen_port(service: dict[str, Any]) -> str:
    """Return the port of a kvwatch service's --listen."""
    command = service["command"]
    return str(command[command.index("--listen") + 1].rpartition(":")[2])


def dockerfile() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile, continued lines joined."""
    text = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines]


def instruction(name: str) -> str:
    """Return the last instruction of a kind: that of the final image."""
    return [rest for kind, rest in dockerfile() if kind == name][-1]


@pytest.mark.parametrize("profile", PROFILES)
def test_mounted_files_exist(profile: str) -> None:
    """Everything that is mounted is in the repository, and read-only."""
    for service in services(profile).values():
        for source in mounts(service).values():
            assert source.exists(), source


@pytest.mark.parametrize("profile", PROFILES)
def test_services_are_pinned_and_confined(profile: str) -> None:
    """Images have exact tags, roots are read-only, root has two capabilities at most, ports are local."""
    for name, service in services(profile).items():
        assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), name
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in service["security_opt"]
        user = service.get("user", instruction("USER"))
        if name == "kvwatch-gpu":
            assert service["cap_add"] == ["SYS_PTRACE", "DAC_READ_SEARCH"]
            assert service["pid"] == service["network_mode"] == "host"
        else:
            assert not user.startswith("0")
            assert "cap_add" not in service
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:")
        assert service.get("healthcheck") or service["build"] == "."


def test_the_image_is_of_this_version() -> None:
    """The tag that compose gives the image is the package's version."""
    assert load_yaml("docker-compose.yml")["x-kvwatch"]["image"] == f"kvwatch:{__version__}"


def test_compose_schema() -> None:
    """The compose file is valid by the specification's own schema."""
    pytest.importorskip("check_jsonschema", reason="check-jsonschema is not installed")
    command = ["-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run(
        [sys.executable, *command, ROOT / "docker-compose.yml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.prometheus
@pytest.mark.parametrize("profile", PROFILES)
def test_prometheus_configuration_as_mounted(profile: str, tmp_path: Path) -> None:
    """Laid out as in the container, Prometheus' configuration, rules and targets are complete and valid."""
    for target, source in mounts(services(profile)["prometheus"]).items():
        path = tmp_path / target.removeprefix("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, path)
    file = services(profile)["prometheus"]["command"][0].removeprefix("--config.file=")
    done = subprocess.run(
        ["promtool", "check", "config", tmp_path / file.removeprefix("/")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    assert "2 rule files found" in done.stdout


@pytest.mark.prometheus
def test_alertmanager_configuration() -> None:
    """Amtool accepts the configuration, and every severity finds a receiver."""
    file = ROOT / "deploy" / "alertmanager" / "alertmanager.yml"
    done = subprocess.run(["amtool", "check-config", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for severity in ("critical", "warning", "info"):
        arguments = ["config", "routes", "test", f"--config.file={file}", f"severity={severity}"]
        done = subprocess.run(["amtool", *arguments], capture_output=True, text=True, check=False)
        assert done.stdout.strip() == "nobody", done.stderr


def test_inhibition_names_alerts_that_exist() -> None:
    """Every alert that an inhibition rule names is one of the rules'."""
    groups = load_yaml("deploy/prometheus/kvwatch.rules.yml")["groups"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"]}
    for rule in load_yaml("deploy/alertmanager/alertmanager.yml")["inhibit_rules"]:
        for matcher in rule["source_matchers"] + rule["target_matchers"]:
            found = re.fullmatch(r'alertname(=~|!=|=)"(.*)"', matcher)
            assert found, matcher
            operator, pattern = found.groups()
            named = {name for name in alerts if re.fullmatch(pattern, name)}
            assert named, matcher
            assert operator == "=~" or named == {pattern}


@pytest.mark.parametrize("profile", PROFILES)
def test_prometheus_scrapes_the_kvwatch_of_its_profile(profile: str) -> None:
    """The target's name and port are those of the service, under the job name that the rules know."""
    running = services(profile)
    prometheus = running["prometheus"]
    (targets,) = yaml.safe_load(mounts(prometheus)["/etc/prometheus/targets/kvwatch.yml"].read_text())
    (target,) = targets["targets"]
    host, _, port = target.partition(":")
    assert port == listen_port(running[f"kvwatch-{profile}"])
    if profile == "demo":
        assert host == "kvwatch-demo"
    else:
        assert f"{host}:host-gateway" in prometheus["extra_hosts"]
        assert "network_mode" not in prometheus
    jobs = {job["job_name"]: job for job in load_yaml("deploy/prometheus/prometheus.yml")["scrape_configs"]}
    assert jobs["kvwatch"]["file_sd_configs"] == [{"files": ["targets/kvwatch.yml"]}]


def test_services_find_each_other() -> None:
    """Prometheus names Alertmanager's service and Grafana names Prometheus', each at its published port."""
    running = services("demo")
    config = load_yaml("deploy/prometheus/prometheus.yml")
    (managers,) = config["alerting"]["alertmanagers"]
    (manager,) = managers["static_configs"][0]["targets"]
    (source,) = load_yaml("deploy/grafana/provisioning/datasources/prometheus.yml")["datasources"]
    for name, port in (manager.split(":"), source["url"].removeprefix("http://").split(":")):
        assert running[name]["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert source["jsonData"]["timeInterval"] == config["global"]["scrape_interval"]
    assert load_config(EXAMPLE, ADAPTERS).interval_seconds == 5.0
    assert config["global"]["scrape_interval"] == "5s"


def test_grafana_finds_the_dashboards() -> None:
    """The provider's folder and the home page lie in what is mounted."""
    grafana = services("demo")["grafana"]
    (provider,) = load_yaml("deploy/grafana/provisioning/dashboards/kvwatch.yml")["providers"]
    folder = mounts(grafana)[provider["options"]["path"]]
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert str(home.parent) == provider["options"]["path"]
    assert json.loads((folder / home.name).read_text(encoding="utf-8"))["uid"] == "kvwatch-fleet"


def unit() -> configparser.SectionProxy:
    """Return the [Service] section of the systemd unit."""
    parser = configparser.RawConfigParser(delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(ROOT / "deploy" / "systemd" / "kvwatch.service", encoding="utf-8")
    return parser["Service"]


COMMANDS = {
    "compose, demo": services("demo")["kvwatch-demo"]["command"],
    "compose, gpu": services("gpu")["kvwatch-gpu"]["command"],
    "image": json.loads(instruction("CMD")),
    "systemd": shlex.split(unit()["ExecStart"])[1:],
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_commands_are_understood(command: list[str]) -> None:
    """Kvwatch's own parser takes every command, and the configuration is where it is put."""
    options = cli._parser().parse_args(command)
    if command[0] == "run":
        assert str(options.config) == CONFIG_PATH
    assert CONFIG_PATH in mounts(services("gpu")["kvwatch-gpu"])


def test_example_configuration_loads() -> None:
    """The example is accepted as it stands and describes one server of each engine."""
    config = load_config(EXAMPLE, ADAPTERS)
    assert [(server.name, server.engine) for server in config.servers] == [
        ("chat", "vllm"),
        ("completion", "llamacpp"),
    ]


def test_image_has_what_it_copies() -> None:
    """Every file that is copied exists and passes .dockerignore, and the final image's user is a number."""
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for kind, rest in dockerfile():
        if kind == "COPY" and not rest.startswith("--from="):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert f"!{source}" in ignore
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", instruction("USER"))
    assert "NVIDIA_DRIVER_CAPABILITIES=utility" in instruction("ENV")
    assert instruction("ENTRYPOINT") == '["kvwatch"]'
    assert instruction("EXPOSE") == "9836"


class _Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        """Answer as healthy at /-/healthy only."""
        self.send_response(200 if self.path == "/-/healthy" else 503)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def healthy_port() -> Iterator[int]:
    """Serve /-/healthy on some port."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


HEALTH_CHECKS = {
    "image": json.loads(instruction("HEALTHCHECK").partition("CMD ")[2]),
    "compose, gpu": services("gpu")["kvwatch-gpu"]["healthcheck"]["test"][1:],
}


@pytest.mark.parametrize("command", HEALTH_CHECKS.values(), ids=HEALTH_CHECKS)
def test_health_checks_tell_healthy_from_not(command: list[str], healthy_port: int) -> None:
    """A health check succeeds on a 200 and fails on a 503 and on a closed port."""
    program = re.sub(r"//[\d.]+:9836", f"//127.0.0.1:{healthy_port}", command[2])
    cases = {0: program, 1: program.replace("healthy", "other")}
    for expected, text in cases.items():
        assert (
            subprocess.run([sys.executable, "-c", text], stderr=subprocess.DEVNULL, check=False).returncode
            == expected
        )
    closed = re.sub(r"//127.0.0.1:\d+", "//127.0.0.1:9", program)
    assert (
        subprocess.run([sys.executable, "-c", closed], stderr=subprocess.DEVNULL, check=False).returncode == 1
    )


def test_unit_keeps_open_what_kvwatch_needs() -> None:
    """The unit is hardened, and leaves other users' processes and the driver's devices within reach."""
    service = unit()
    for capabilities in ("AmbientCapabilities", "CapabilityBoundingSet"):
        assert service[capabilities] == "CAP_SYS_PTRACE CAP_DAC_READ_SEARCH"
    assert (service["ProtectProc"], service["ProcSubset"], service["PrivateUsers"]) == (
        "default",
        "all",
        "no",
    )
    assert (service["DevicePolicy"], service["DeviceAllow"]) == ("closed", "char-nvidia* rw")
    assert service["PrivateDevices"] == "no"
    assert "PrivateNetwork" not in service
    assert (service["DynamicUser"], service["NoNewPrivileges"], service["ProtectSystem"]) == (
        "yes",
        "yes",
        "strict",
    )


def test_history_has_a_place_that_may_be_written() -> None:
    """The unit's state folder; in the image a folder of its user and of group 0, for compose's volume."""
    assert (unit()["StateDirectory"], unit()["StateDirectoryMode"]) == ("kvwatch", "0750")
    owner, group = instruction("USER").split(":")[0], "0"
    assert instruction("RUN") == f"install -d -o {owner} -g {group} -m 0770 {SYSTEM_FOLDER}"
    volumes = [volume for volume in services("gpu")["kvwatch-gpu"]["volumes"] if not volume.startswith(".")]
    assert volumes == [f"kvwatch-history:{SYSTEM_FOLDER}"]
    assert "kvwatch-history" in load_yaml("docker-compose.yml")["volumes"]
    # Root without the capability to write where it may not: the group lets it.
    assert services("gpu")["kvwatch-gpu"]["user"] == f"0:{group}"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    """Systemd finds no unknown setting in the unit."""
    text = (ROOT / "deploy" / "systemd" / "kvwatch.service").read_text(encoding="utf-8")
    copy = tmp_path / "kvwatch.service"
    copy.write_text(text.replace("/opt/kvwatch/bin/kvwatch run", "/bin/true run"), encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
