"""Compiles the stand-in for libnvidia-ml.so.1, once for each source text and set of hidden symbols."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("nvml_standin.c")
FLAGS = (
    "-std=gnu11",
    "-O1",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-shared",
    "-fPIC",
    "-pthread",
    "-Wl,-soname,libnvidia-ml.so.1",
)


def build(cache: Path | None = None, *, hidden: tuple[str, ...] = ()) -> Path:
    """Return a folder that holds `libnvidia-ml.so.1`, to be put into LD_LIBRARY_PATH.

    `hidden` names symbols that the library shall lack, as an old driver does. Raises CalledProcessError
    when the compiler refuses, FileNotFoundError when there is no gcc.
    """
    cache = cache or Path(tempfile.gettempdir()) / f"kvwatch-nvml-standin-{os.getuid()}"
    key = hashlib.sha256(SOURCE.read_bytes() + repr((FLAGS, sorted(hidden))).encode()).hexdigest()[:16]
    folder = cache / key
    if (folder / "libnvidia-ml.so.1").exists():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=cache))
    flags = list(FLAGS)
    if hidden:
        script = work / "symbols.map"
        script.write_text("{ global: *; local: " + " ".join(f"{name};" for name in hidden) + " };\n")
        flags.append(f"-Wl,--version-script={script}")
    subprocess.run(
        ["gcc", *flags, "-o", work / "libnvidia-ml.so.1", SOURCE], check=True, capture_output=True, text=True
    )
    try:
        work.rename(folder)
    except OSError:  # another process was faster
        shutil.rmtree(work)
    return folder


def write_scenario(path: Path, text: str) -> None:
    """Replace the scenario at once: a reader sees the old or the new text, never half of one."""
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)


def environment(library: Path, scenario: Path) -> dict[str, str]:
    """Return this process's environment with the stand-in in front of any real driver."""
    return {**os.environ, "LD_LIBRARY_PATH": str(library), "KVWATCH_NVML_SCENARIO": str(scenario)}
