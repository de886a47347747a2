"""The Dockerfile by hadolint's rules, and the unit by systemd's own measure of exposure."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from kvwatch import __version__

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "deploy" / "systemd" / "kvwatch.service"

# Of 100; 25 when this was written. What is left is what the unit's HOLEs are for.
EXPOSURE_LIMIT = 26


def steps() -> list[tuple[str, str]]:
    """Return the Dockerfile's instructions, continued lines joined."""
    text = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(kind, rest) for kind, rest in (line.split(maxsplit=1) for line in lines)]


def all_of(kind: str) -> list[str]:
    """Return what stands behind every instruction of a kind."""
    return [rest for name, rest in steps() if name == kind]


def test_base_images_are_pinned_and_slim() -> None:
    """Each stage has an exact Debian and Python, the same one, and never `latest` (DL3006, DL3007)."""
    bases = {rest.split()[0] for rest in all_of("FROM")}
    assert len(bases) == 1
    assert re.fullmatch(r"python:3\.\d+-slim-[a-z]+", bases.pop())


def test_only_known_instructions_in_their_safe_form() -> None:
    """COPY and never ADD (DL3020), lists for what is run (DL3025), one ENTRYPOINT, CMD and HEALTHCHECK."""
    assert {kind for kind, _ in steps()} <= {
        "FROM", "WORKDIR", "COPY", "RUN", "LABEL", "ENV", "USER", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"
    }  # fmt: skip
    for kind in ("ENTRYPOINT", "CMD"):
        (words,) = all_of(kind)
        assert isinstance(json.loads(words), list)
    (check,) = all_of("HEALTHCHECK")
    assert isinstance(json.loads(check.partition("CMD ")[2]), list)
    # What is copied into the image is copied with its stage named, or below a WORKDIR (DL3045).
    assert all(rest.startswith("/") for rest in all_of("WORKDIR"))


def test_what_is_run_leaves_nothing_behind() -> None:
    """No cache of pip (DL3042), no sudo, cd or pipe (DL3004, DL3003, DL4006), no package of Debian's."""
    for rest in all_of("RUN"):
        words = set(shlex.split(rest))
        assert not words & {"sudo", "cd", "|", "apt-get", "apt", "curl", "wget"}
        if "install" in words and any(word.endswith("pip") for word in words):
            assert "--no-cache-dir" in words


def test_the_last_user_is_no_root_and_labels_say_what_it_is() -> None:
    """The image ends as a number that is not 0 (DL3002), with the labels by which registries describe it."""
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", all_of("USER")[-1])
    (labels,) = all_of("LABEL")
    for name in ("title", "description", "licenses"):
        assert f"org.opencontainers.image.{name}=" in labels
    assert f'org.opencontainers.image.version="{__version__}"' in labels


def test_a_refused_configuration_is_not_tried_again_and_again() -> None:
    """The unit ends with status 2, which is kvwatch's for a configuration that it refuses."""
    text = UNIT.read_text(encoding="utf-8")
    assert "RestartPreventExitStatus=2\n" in text
    assert "ConfigurationDirectory=kvwatch\n" in text


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_the_unit_is_exposed_no_more_than_it_was() -> None:
    """By `systemd-analyze security` the unit stays below the limit."""
    done = subprocess.run(
        [
            "systemd-analyze",
            "security",
            "--no-pager",
            "--offline=true",
            f"--threshold={EXPOSURE_LIMIT}",
            UNIT,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-300:] + done.stderr
