"""Find the model's file of a declared server, where it is on this machine; nothing is ever downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kvwatch.check.reading.command_words import host_path
from kvwatch.flags import vllm
from kvwatch.plan import GgufModel, Model
from kvwatch.readings import Reason, SourceError
from kvwatch.sources.model import ModelFiles
from kvwatch.sources.model_path import find_model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvwatch.check.declaration import DeclaredServer
    from kvwatch.check.reading.starts import Start

Found = tuple[Model | GgufModel | None, str | None]
"""The model, or why there is none."""


class ModelFinder:
    """Find models by what files call them; `given` maps a server's or a model's name to a path."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given
        self._files = ModelFiles()
        self.used: set[str] = set()

    def find(self, server: DeclaredServer, start: Start) -> Found:
        """Return a server's model as far as it can be read here."""
        names = [server.name, server.launch.model or "", *(server.launch.served_names or ())]
        given = next((name for name in names if name in self._given), None)
        if given is not None:
            self.used.add(given)
            return self._read(self._given[given], server)
        if start.model_path is not None:
            return self._read(start.model_path, server)
        name = server.launch.model
        if name is None:
            return None, "no file says which model it serves"
        outside = host_path(name, start.mounts)
        if start.contained and name.startswith("/") and outside == name:
            return None, f"{name} is a path inside its container; give --model {server.name}=PATH"
        beside = Path(start.place.file).parent / outside
        for path in (outside, str(beside)):
            found = self._read(path, server)
            if found[0] is not None or Path(path).suffix == ".gguf":
                break
        return found if found[0] is not None else self._read(outside, server)

    def _read(self, path: str, server: DeclaredServer) -> Found:
        try:
            model = self._files.read(find_model(path).path)
        except SourceError as error:
            return None, _missing(path) if error.reason is Reason.NOT_FOUND else error.detail
        except (OSError, ValueError) as error:
            return None, str(error)
        wanted = Model if server.launch.engine == vllm.ENGINE else GgufModel
        if not isinstance(model, wanted):
            kind = "a config.json" if wanted is Model else "a GGUF file"
            return None, f"{path}: the cost of this engine is known from {kind} only"
        return model, None


def _missing(path: str) -> str:
    is_id = path.count("/") == 1 and not path.startswith(("/", ".", "~"))
    place = "in this machine's Hugging Face cache" if is_id else "on this machine"
    return f"{path} is not {place}"
