"""One start of a llama-server as its lines come in: devices, contexts, slots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch.startup_log import llamacpp_lines as lines
from kvwatch.startup_log.amounts import MIB, mib
from kvwatch.startup_log.facts import Device, Failure, Memory, Slots, Start
from kvwatch.startup_log.llamacpp_context import MOST_DEVICES, PER_CONTEXT, Context, add, device_name, is_over
from kvwatch.startup_log.llamacpp_failures import LlamaFailure

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvwatch.startup_log.unwrap import Entry

_MOST_CONTEXTS = 64


class LlamaStart:
    """Collects one start."""

    def __init__(self, entry: Entry, asleep: LlamaStart | None = None) -> None:
        """Begin with an empty start, or with what is known of the same process before it slept."""
        self.source, self.line, self.moment = entry.source, entry.number, entry.moment
        self.build: str | None = None if asleep is None else asleep.build
        self._woken = asleep is not None
        self.model: str | None = None
        self.loading = False
        self.ready = False
        self.ended = False
        self._drafting = False
        self._trial = False
        self.devices: dict[str, dict[str, int | str]] = {} if asleep is None else asleep.devices
        self._weights: dict[str, int] = {}
        self._contexts: list[Context] = []
        self._failure = LlamaFailure()
        self._later: Failure | None = None
        self._slots: dict[str, int | str] = {}
        self._fit_seen = False
        self._deficit: int | None = None
        self._reduced: tuple[int, int] | None = None

    def read(self, entry: Entry) -> bool:
        """Take a line in; say whether it meant anything."""
        text = entry.text
        known = self._read_place(text)
        if self._trial:
            return self._read_trial(text) or known
        known = self._read_device(text) or self._read_memory(text) or self._read_context(text) or known
        if self._read_slots(text):
            # A server that wakes says no more than that it made its slots.
            self.ready, known = self.ready or self._woken, True
        if lines.READY.search(text):
            self.ready = known = True
        return self._read_failure(entry) or known

    def _read_place(self, text: str) -> bool:
        build = lines.BUILD.search(text)
        if build is not None:
            number = next(part for part in build.groups() if part is not None)
            # "build 0 (unknown)" is what a build without git says.
            self.build = self.build or (f"b{number}" if int(number) else None)
        loading = lines.LOADING.search(text)
        if lines.DRAFT.search(text):
            self._drafting = True
        if loading is not None and not self._trial:
            self.loading = True
            if not self._drafting and self.model is None:
                self.model = loading.group(1) or loading.group(2)
        if lines.TRIAL_BEGINS.search(text):
            self._trial = self._fit_seen = True
        return build is not None or loading is not None or self._trial or lines.BEGIN.search(text) is not None

    def _read_trial(self, text: str) -> bool:
        """Read what `--fit` projects; the contexts that it tries allocate nothing."""
        deficit, reduced = lines.DEFICIT.search(text), lines.REDUCED.search(text)
        if deficit is not None:
            self._deficit = int(deficit.group(1)) * MIB
        if reduced is not None:
            first = int(reduced.group(1)) if self._reduced is None else self._reduced[0]
            self._reduced = first, int(reduced.group(2))
        if lines.TRIAL_ENDS.search(text) or lines.SLOTS.search(text):
            self._trial = False
        return self._read_device(text) or deficit is not None or reduced is not None

    def _read_device(self, text: str) -> bool:
        if "MiB" not in text and "|" not in text:
            return False
        told = lines.DEVICE.search(text)
        if told is not None:
            self._device(told.group(1), told.group(2), total=int(told.group(3)), free=int(told.group(4)))
            return True
        used = lines.USING.search(text)
        if used is not None:
            self._device(used.group(1), used.group(2), free=int(used.group(3)))
            return True
        row = lines.BREAKDOWN.search(text)
        if row is not None:
            self._device(row.group(1), row.group(2), total=int(row.group(3)))
        return row is not None

    def _device(
        self, name: str, description: str | None, *, total: int | None = None, free: int | None = None
    ) -> None:
        if name not in self.devices and len(self.devices) >= MOST_DEVICES:
            return
        device = self.devices.setdefault(name, {})
        if description is not None:
            device.setdefault("description", description)
        if total is not None:
            device.setdefault("total_bytes", total * MIB)
        if free is not None:
            device.setdefault("free_bytes", free * MIB)

    def _read_memory(self, text: str) -> bool:
        if "MiB" not in text and " MB" not in text:
            return False
        model = lines.MODEL.search(text)
        if model is not None:
            self.loading = True
            add(self._weights, model.group(1), mib(model.group(2)))
            return True
        for name, pattern, adds in PER_CONTEXT:
            found = pattern.search(text)
            if found is not None:
                buffers = self._context().buffers[name]
                if not adds:
                    buffers.pop(device_name(found.group(1)), None)
                add(buffers, found.group(1), mib(found.group(2)))
                return True
        return self._read_totals(text)

    def _read_totals(self, text: str) -> bool:
        size = lines.CACHE_SIZE.search(text) or lines.KV_SIZE.search(text)
        if size is not None:
            context = self._context()
            context.kv_sizes = (context.kv_sizes or 0) + mib(size.group(1))
            types = lines.TYPES.search(text)
            if types is not None:
                context.types = (types.group(1) or types.group(3)), types.group(2)
            return True
        recurrent = lines.RECURRENT_SIZE.search(text)
        if recurrent is not None:
            context = self._context()
            context.recurrent_sizes = (context.recurrent_sizes or 0) + mib(recurrent.group(1))
            return True
        falcon = lines.FALCON.search(text)
        if falcon is not None:
            self._context().kv_sizes = mib(falcon.group(1))
        for pattern, kind, device in lines.OLD:
            found = pattern.search(text)
            if found is not None:
                buffers = self._weights if kind == "weights" else self._context().buffers[kind]
                buffers[device] = mib(found.group(1))
                return True
        return falcon is not None

    def _read_context(self, text: str) -> bool:
        begins = lines.CONTEXT.search(text) is not None
        if begins and (not self._contexts or self._contexts[-1].settings or "constructing" in text):
            fresh = not self._contexts or is_over(self._contexts[-1], text)
            if fresh and len(self._contexts) < _MOST_CONTEXTS:
                self._contexts.append(Context())
        setting = lines.SETTING.search(text)
        if setting is not None:
            self._context().settings[setting.group(1)] = setting.group(2)
        return begins or setting is not None

    def _read_slots(self, text: str) -> bool:
        slots, length = lines.SLOTS.search(text), lines.SLOT_LENGTH.search(text)
        if slots is not None:
            self._slots.setdefault("count", int(slots.group(1)))
            if slots.group(2) is not None:
                self._slots.setdefault("length", int(slots.group(2)))
            if slots.group(3) is not None:
                self._slots.setdefault("unified", slots.group(3))
        if length is not None:
            self._slots.setdefault("length", int(length.group(1) or length.group(2)))
        return slots is not None or length is not None

    def _read_failure(self, entry: Entry) -> bool:
        if not self.ready:
            known = self._failure.read(entry.text, entry.number)
            self.ended = self._failure.ended
            return known
        if "out of memory" not in entry.text and "failed to allocate" not in entry.text:
            return False
        later = LlamaFailure()
        later.ended = later.read(entry.text, entry.number)
        self._later = self._later or later.result(context=None, deficit=None)
        return later.ended

    def _context(self) -> Context:
        if not self._contexts:
            self._contexts.append(Context())
        return self._contexts[-1]

    def finish(self) -> Start:
        """Return what the start said."""
        main = self._contexts[0] if self._contexts else Context()
        devices = self._all_devices()
        on_gpu = [device for device in devices if not device.is_host and device.held_bytes]
        counted = on_gpu or [device for device in devices if device.held_bytes]
        n_ctx = _integer(main.settings.get("n_ctx"))
        kv_bytes = _total(context.kv_bytes for context in self._contexts)
        if on_gpu and any(context.buffers["kv"] for context in self._contexts):
            kv_bytes = sum(device.kv_bytes for device in on_gpu)
        count, unified = self._slots.get("count"), self._unified(main)
        return Start(
            engine="llama.cpp",
            source=self.source,
            line=self.line,
            moment=self.moment,
            version=self.build,
            model=self.model,
            ready=self.ready,
            memory=Memory(
                total_bytes=_total_of(counted, "total_bytes"),
                free_bytes=_total_of(counted, "free_bytes"),
                weights_bytes=sum(device.weights_bytes for device in counted) if self._weights else None,
                activation_bytes=(
                    sum(device.compute_bytes for device in counted)
                    if any(context.buffers["compute"] for context in self._contexts)
                    else None
                ),
                kv_bytes=kv_bytes,
            ),
            kv_tokens=n_ctx if n_ctx is not None else self._pool_tokens(unified),
            max_model_len=_integer(self._slots.get("length")) or _integer(main.settings.get("n_ctx_seq")),
            recurrent_bytes=_total(context.recurrent_bytes for context in self._contexts),
            host_bytes=(sum(device.held_bytes for device in devices if device.is_host) if on_gpu else None),
            slots=Slots(
                count=_integer(count) if count is not None else _integer(main.settings.get("n_seq_max")),
                unified=unified,
                cache_type_k=None if main.types is None else main.types[0],
                cache_type_v=None if main.types is None else main.types[1],
                ubatch_size=_integer(main.settings.get("n_ubatch")),
                fit_seen=self._fit_seen,
                reduced_from=None if self._reduced is None else self._reduced[0],
                contexts=max(1, len(self._contexts)),
            ),
            devices=devices,
            settings={},
            configuration={},
            failure=None if self.ready else self._failure.result(context=n_ctx, deficit=self._deficit),
            later_failure=self._later,
        )

    def _unified(self, main: Context) -> bool | None:
        text = self._slots.get("unified") or main.settings.get("kv_unified")
        return None if text is None else text == "true"

    def _pool_tokens(self, unified: bool | None) -> int | None:  # noqa: FBT001 - three states
        """Return the pool by the slots; a shared pool may be larger than what a slot may claim of it."""
        count, length = self._slots.get("count"), self._slots.get("length")
        if unified is not False or not isinstance(count, int) or not isinstance(length, int):
            return None
        return count * length

    def _all_devices(self) -> tuple[Device, ...]:
        held: dict[str, dict[str, int]] = {}
        for name, size in self._weights.items():
            held.setdefault(name, {})["weights_bytes"] = size
        for context in self._contexts:
            for kind, buffers in context.buffers.items():
                for name, size in buffers.items():
                    device = held.setdefault(name, {})
                    device[f"{kind}_bytes"] = device.get(f"{kind}_bytes", 0) + size
        names = dict.fromkeys([*self.devices, *held])
        return tuple(
            Device(name=name, **self.devices.get(name, {}), **held.get(name, {}))  # type: ignore[arg-type]
            for name in names
        )


def _integer(value: object) -> int | None:
    text = str(value)
    return int(text) if text.isdecimal() and text.isascii() else None


def _total(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _total_of(devices: list[Device], name: str) -> int | None:
    """Return a sum over devices; None where one of them does not say."""
    values = [getattr(device, name) for device in devices]
    return None if not values or None in values else sum(values)
