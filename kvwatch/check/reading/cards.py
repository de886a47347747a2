"""On which cards a server's ranks are, by the devices it is given and the engine's own rules. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.check.reading.starts import Devices, Sight
from kvwatch.findings.words import count as counted
from kvwatch.flags.launch import Origin

if TYPE_CHECKING:
    from kvwatch.flags.launch import Launch

_NO_DEVICE = frozenset({"", "-1", "none", "void", "NoDevFiles"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a server's ranks are; `cards` None where that is not known, with a reason where one can be told.

    `own` are whole devices that nothing else is given; they are named after the server later.
    """

    cards: tuple[str, ...] | None = None
    own: int = 0
    why: str | None = None


def place(devices: Devices, launch: Launch, *, unsettled: bool) -> Placement:
    """Return where a server's ranks are. `unsettled`: CUDA_VISIBLE_DEVICES is set to something unknown."""
    chosen = _option(launch, "--device-ids") if launch.engine == "vllm" else None
    narrowed = None if unsettled else (launch.visible_devices or None)
    if launch.origin("visible_devices") is Origin.STATED and not unsettled and not launch.visible_devices:
        return Placement(cards=())
    if devices.sight is Sight.UNKNOWN or unsettled:
        return Placement(why="which devices it sees is not settled by the files")
    if launch.device == "none" or launch.n_gpu_layers == 0:
        return Placement(cards=())
    if devices.sight is Sight.OWN:
        if narrowed is not None:
            count = len([name for name in narrowed.split(",") if name.strip() not in _NO_DEVICE])
            return _own(min(count, devices.count), launch)
        return _own(devices.count, launch)
    seen = _seen(devices, narrowed)
    if seen is None:
        return Placement(why="CUDA_VISIBLE_DEVICES names a device that the container is not given")
    if chosen is not None:
        seen = _seen(Devices(sight=Sight.LISTED, names=seen) if seen else Devices(sight=Sight.ALL), chosen)
    if devices.sight is Sight.UNSAID and narrowed is None and chosen is None and not _points(launch):
        return Placement()
    return _ranks(seen, launch, devices.node)


def _points(launch: Launch) -> bool:
    """Tell whether a llama-server's own options name a device."""
    if launch.engine == "vllm":
        return False
    main = launch.split_mode == "none" and _option(launch, "--main-gpu", "-mg") is not None
    return main or launch.device is not None


def _seen(devices: Devices, narrowed: str | None) -> tuple[str, ...] | None:
    """Return the devices that are seen, in order; empty where those are all of the machine's.

    None where an index points at a device that is not there.
    """
    if narrowed is None:
        return devices.names if devices.sight is Sight.LISTED else ()
    found: list[str] = []
    for name in (part.strip() for part in narrowed.split(",")):
        if name in _NO_DEVICE:
            break  # CUDA stops at the first entry that is no device
        if name.isdecimal() and devices.sight is Sight.LISTED:
            if int(name) >= len(devices.names):
                return None
            found.append(devices.names[int(name)])
        else:
            found.append(name)
    return tuple(found)


def _ranks(seen: tuple[str, ...] | None, launch: Launch, node: str | None) -> Placement:
    if launch.engine != "vllm":
        return _llamacpp(seen, launch, node)
    count = world_size(launch)
    if count is None:
        only = seen if seen is not None and len(seen) == 1 else None
        return Placement(
            cards=_named(only, node) if only else None, why=None if only else "its ranks are not known"
        )
    if not seen:
        # All devices of the machine: the first ones are used (vLLM, rank i on device i).
        return Placement(cards=_named(tuple(str(index) for index in range(count)), node))
    if len(seen) < count:
        return Placement(why=f"it has {count} ranks and sees {counted(len(seen), 'device')}")
    return Placement(cards=_named(seen[:count], node))


def _llamacpp(seen: tuple[str, ...] | None, launch: Launch, node: str | None) -> Placement:
    """Return a llama-server's cards: every device that it sees, unless told (--device, --main-gpu)."""
    if launch.split_mode == "none":
        main = _option(launch, "--main-gpu", "-mg") or "0"
        names = seen or (main if main.isdecimal() else "",)
        index = int(main) if main.isdecimal() and seen else 0
        return Placement(cards=_named(names[index : index + 1], node) or None)
    if launch.device is not None:
        chosen = [part.strip() for part in launch.device.split(",")]
        indexes = [int(part[4:]) for part in chosen if part.startswith("CUDA") and part[4:].isdecimal()]
        if len(indexes) != len(chosen):
            return Placement(why="--device names devices that are no CUDA indexes")
        if seen and any(index >= len(seen) for index in indexes):
            return Placement(why="--device names a device that it does not see")
        return Placement(cards=_named(tuple(seen[i] if seen else str(i) for i in indexes), node))
    if not seen:
        return Placement(why="it uses every device of its machine, and which there are is in no file")
    return Placement(cards=_named(seen, node))


def _own(count: int, launch: Launch) -> Placement:
    ranks = world_size(launch) if launch.engine == "vllm" else count
    if ranks is not None and ranks > count:
        return Placement(why=f"it has {ranks} ranks and asks for {counted(count, 'device')}")
    return Placement(own=count if ranks is None else ranks)


def world_size(launch: Launch) -> int | None:
    """Return how many devices of one machine a vLLM server's ranks take; None where that is not known."""
    sizes = (launch.tensor_parallel, launch.pipeline_parallel, launch.data_parallel)
    if any(size is None for size in sizes) or _option(launch, "--nnodes", "-n") not in (None, "1"):
        return None
    tensor, pipeline, data = (size or 1 for size in sizes)
    local = _option(launch, "--data-parallel-size-local", "-dpl")
    if local is not None:
        if not local.isdecimal():
            return None
        data = int(local)
    return tensor * pipeline * data


def _option(launch: Launch, *names: str) -> str | None:
    """Return the value of an option that no field stands for."""
    for tokens in reversed(launch.unknown):
        name, equals, value = tokens[0].partition("=")
        if name.replace("_", "-") in names:
            return value if equals else tokens[1] if len(tokens) > 1 else None
    return None


def _named(names: tuple[str, ...] | None, node: str | None) -> tuple[str, ...]:
    return tuple(name if node is None else f"{node}/{name}" for name in names or ())
