"""Asks NVML in a process of its own and streams what it answered as JSON lines.

A call into a wedged driver cannot be interrupted, a library that crashes takes its process along, and one
that was loaded is never unloaded: so the driver is asked here, and the parent (`kvwatch.sources.nvml`)
replaces this process at need. It reports and judges nothing, and imports little, because it must stay
small.

Standard input, one line for each poll; the end of input ends the process:

    {"poll": 7, "last": [2], "skip": [5]}         GPU indices to ask last, and not at all

Standard output. `opening` and `asking` say what may hang next; an error is [code, text] or [exception, text]:

    {"poll": 7, "opening": 0}                     first contact: initialises the GPU, which can take seconds
    {"poll": 7, "driver": {"version": "570.1", "count": 3}}       or {"error": [9, "Driver Not Loaded"]}
    {"poll": 7, "asking": 0}
    {"poll": 7, "device": {"index": 0, "uuid": "GPU-1", "name": "L40S", "seconds": 0.01, "errors": {},
        "memory": {"version": 2, "total": 4, "reserved": 1, "free": 1, "used": 2},
        "lists": {"compute": [[pid, used or null]], "graphics": [], "mps": []},
        "instances": [{"uuid": "MIG-1", "gpu_instance": 5, ...}]}}   where MIG is on: no memory, no lists
    {"poll": 7, "end": true}

What failed is absent and stands in `errors` under device, name, memory, instances, compute, graphics or mps.

`--module NAME` puts another module in pynvml's place. It needs, with pynvml's signatures, nvmlInit,
nvmlShutdown, nvmlSystemGetDriverVersion, nvmlDeviceGetCount, nvmlDeviceGetHandleByIndex,
nvmlDeviceGetUUID, nvmlDeviceGetName, nvmlDeviceGetMemoryInfo(handle, version=None) -> total, used, free
and with a version reserved, nvmlMemory_v2, and
nvmlDeviceGet{Compute,Graphics,MPSCompute}RunningProcesses_v3(handle) -> objects with pid and
usedGpuMemory. It may have the lists' _v2, nvmlDeviceGetMigMode, nvmlDeviceGetMaxMigDeviceCount,
nvmlDeviceGetMigDeviceHandleByIndex, nvmlDeviceGetGpuInstanceId: a function that is not there counts as
code 13. Its errors are exceptions with NVML's code in `value`.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import signal
import sys
import time

TYPE_CHECKING = False  # importing typing costs a megabyte
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from typing import Any

NOT_SUPPORTED, NOT_FOUND, INSUFFICIENT_SIZE, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH = 3, 6, 7, 13, 25
DRIVER_GONE = (1, 9, 12, 18)
"""Codes that are no device's fault: initialise again."""
LISTS = (("compute", "Compute"), ("graphics", "Graphics"), ("mps", "MPSCompute"))
ATTEMPTS = 3
"""pynvml sizes a process list for twice the processes it first saw; more start in between only in a burst."""
PR_SET_PDEATHSIG = 1


class CallError(Exception):
    """A failed call: NVML's code, or the name of what pynvml raised instead, and a text."""

    def __init__(self, code: int | str, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text

    @property
    def wire(self) -> list[int | str]:
        """The pair that goes over the wire."""
        return [self.code, self.text]


class Session:
    """One use of the library: initialised once and kept, initialised again after the driver went away."""

    def __init__(self, library: Any, write: Callable[[dict[str, Any]], None]) -> None:
        self._library = library
        self._write = write
        self._initialised = False
        self._opened: set[int] = set()
        self._driver_gone = False

    def poll(self, number: int, last: Collection[int], skip: Collection[int]) -> None:
        """Answer one poll: the driver, each GPU as soon as it is read, the end."""

        def say(**fields: Any) -> None:
            self._write({"poll": number, **fields})

        try:
            count, version = self._open(say, {*last, *skip})
        except CallError as error:
            self.close()
            say(driver={"error": error.wire})
            say(end=True)
            return
        say(driver={"version": version, "count": count})
        for index in sorted(range(count), key=lambda index: (index in last, index)):
            if index in skip:
                continue
            say(asking=index)
            say(device=self._gpu(index))
        if self._driver_gone:
            self.close()
        say(end=True)

    def close(self) -> None:
        """Let the driver go; failures do not matter any more."""
        if self._initialised:
            self._initialised = self._driver_gone = False
            self._opened.clear()
            with contextlib.suppress(CallError):
                self._call("nvmlShutdown")

    def _open(self, say: Callable[..., None], later: Collection[int]) -> tuple[int, str | None]:
        """Initialise what is not yet, so that later calls are quick: their deadline is shorter."""
        if not self._initialised:
            self._call("nvmlInit")
            self._initialised = True
        count = self._call("nvmlDeviceGetCount")
        for index in range(count):
            if index in later or index in self._opened:
                continue
            say(opening=index)
            try:
                self._call("nvmlDeviceGetHandleByIndex", index)
            except CallError:
                continue  # told when it is asked
            self._opened.add(index)
        try:
            version = self._call("nvmlSystemGetDriverVersion")
        except CallError as error:
            if error.code in DRIVER_GONE:
                raise
            version = None
        return count, version

    def _gpu(self, index: int) -> dict[str, Any]:
        started = time.monotonic()
        record: dict[str, Any] = {"index": index, "uuid": None, "errors": {}}
        try:
            handle = self._call("nvmlDeviceGetHandleByIndex", index)
            record["uuid"] = self._call("nvmlDeviceGetUUID", handle)
        except CallError as error:
            record["errors"]["device"] = error.wire
        else:
            self._name(handle, record)
            if self._is_divided(handle, record):
                record["instances"] = []
                self._instances(handle, record)
            else:
                self._holdings(handle, record)
            self._opened.add(index)
        self._driver_gone |= any(error[0] in DRIVER_GONE for error in record["errors"].values())
        record["seconds"] = time.monotonic() - started
        return record

    def _name(self, handle: Any, record: dict[str, Any]) -> None:
        try:
            record["name"] = self._call("nvmlDeviceGetName", handle)
        except CallError as error:
            record["errors"]["name"] = error.wire

    def _holdings(self, handle: Any, record: dict[str, Any]) -> None:
        """Read the memory and who holds it, each apart."""
        try:
            record["memory"] = self._memory(handle)
        except CallError as error:
            record["errors"]["memory"] = error.wire
        lists = record["lists"] = {}
        for name, kind in LISTS:
            try:
                lists[name] = [[process.pid, process.usedGpuMemory] for process in self._list(handle, kind)]
            except CallError as error:
                record["errors"][name] = error.wire

    def _memory(self, handle: Any) -> dict[str, int]:
        try:
            info = self._call("nvmlDeviceGetMemoryInfo", handle, self._library.nvmlMemory_v2)
        except CallError as error:
            if error.code not in (FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH):
                raise
        else:
            return {
                "version": 2,
                "total": info.total,
                "reserved": info.reserved,
                "free": info.free,
                "used": info.used,
            }
        info = self._call("nvmlDeviceGetMemoryInfo", handle)
        return {"version": 1, "total": info.total, "free": info.free, "used": info.used}

    def _is_divided(self, handle: Any, record: dict[str, Any]) -> bool:
        """Tell whether MIG is on now; what is pending waits for a reset."""
        try:
            return self._call("nvmlDeviceGetMigMode", handle)[0] == 1  # type: ignore[no-any-return]
        except CallError as error:
            if error.code not in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):
                record["errors"]["instances"] = error.wire
            return False

    def _instances(self, handle: Any, record: dict[str, Any]) -> None:
        """Read the MIG instances, by new handles each time: a reconfiguration may reuse the old ones."""
        try:
            slots = self._call("nvmlDeviceGetMaxMigDeviceCount", handle)
        except CallError as error:
            record["errors"]["instances"] = error.wire
            return
        for slot in range(slots):
            instance: dict[str, Any] = {"errors": {}}
            try:
                found = self._call("nvmlDeviceGetMigDeviceHandleByIndex", handle, slot)
                instance["uuid"] = self._call("nvmlDeviceGetUUID", found)
            except CallError as error:
                if error.code != NOT_FOUND:  # else a hole, and others may follow it
                    record["errors"]["instances"] = error.wire
                continue
            self._name(found, instance)
            self._holdings(found, instance)
            with contextlib.suppress(CallError):
                instance["gpu_instance"] = self._call("nvmlDeviceGetGpuInstanceId", found)
            record["instances"].append(instance)

    def _list(self, handle: Any, kind: str) -> Sequence[Any]:
        """Ask for one process list by `_v3`, else `_v2`: wrappers without a suffix hide what is missing."""
        function = f"nvmlDeviceGet{kind}RunningProcesses_v3"
        attempt = 1
        while True:
            try:
                return self._call(function, handle)  # type: ignore[no-any-return]
            except CallError as error:
                if error.code == FUNCTION_NOT_FOUND and function.endswith("_v3"):
                    function = f"nvmlDeviceGet{kind}RunningProcesses_v2"
                elif error.code == INSUFFICIENT_SIZE and attempt < ATTEMPTS:
                    attempt += 1
                else:
                    raise

    def _call(self, name: str, *arguments: Any) -> Any:
        """Call the library; whatever it raises leaves as CallError.

        NVMLError is unhashable and breaks on `==`; UnicodeDecodeError comes out of strings, TypeError out of
        lists, and NVMLLibraryMismatchError is no NVMLError.
        """
        function = getattr(self._library, name, None)
        if function is None:
            raise CallError(FUNCTION_NOT_FOUND, f"{name}: not in {self._library.__name__}")
        try:
            answer = function(*arguments)
        except Exception as error:  # noqa: BLE001 - a foreign library's
            code = getattr(error, "value", None)
            raise CallError(
                code if isinstance(code, int) else type(error).__name__, f"{name}: {error}"
            ) from None
        return answer.decode("utf-8", "replace") if isinstance(answer, bytes) else answer


def main(arguments: list[str]) -> int:
    """Answer polls until the input ends."""
    # Ctrl-C goes to the whole terminal, `systemctl kill` to all of a unit: they mean the parent.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # The library may print: what it says goes to stderr, the wire is a descriptor that it does not know.
    wire = os.dup(1)
    os.dup2(2, 1)
    if not __package__:
        # Started by its path, so that no installed package is needed; --module may name one of kvwatch's own.
        sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))  # noqa: PTH100, PTH120
    name = arguments[1] if len(arguments) > 1 and arguments[0] == "--module" else "pynvml"

    def write(fields: dict[str, Any]) -> None:
        line = json.dumps(fields, separators=(",", ":")).encode() + b"\n"
        while line:
            line = line[os.write(wire, line) :]

    session = Session(importlib.import_module(name), write)
    try:
        for line in sys.stdin:
            request = json.loads(line)
            session.poll(request["poll"], request["last"], request["skip"])
    except BrokenPipeError:
        return 0
    session.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
