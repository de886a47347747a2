"""kvwatch's own configuration: what it says of servers, read by the configuration's own reader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvwatch.check.declaration import DeclaredServer, Place, Problem
from kvwatch.check.reading.cards import Placement
from kvwatch.check.reading.settle import Settled
from kvwatch.check.reading.starts import Start
from kvwatch.check.reading.yaml_nodes import Mapping, Node
from kvwatch.check.reading.yaml_values import at, items_at
from kvwatch.config import ConfigError, parse_config
from kvwatch.config_models import Config, Server, keys_of
from kvwatch.engines import ADAPTERS
from kvwatch.flags import llamacpp, vllm
from kvwatch.flags.launch import Launch

if TYPE_CHECKING:
    from kvwatch.check.reading.given_files import GivenFile
    from kvwatch.check.reading.notebook import Notebook

_FIELDS = {
    "full_length_tokens": "full_length_tokens",
    "request_limit": "request_limit",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "pool_tokens": "pool_tokens",
    "kv_unified": "kv_unified",
    "cache_dtype": "cache_dtype",
    "share_ratio": "share_ratio",
    "kv_cache_memory_bytes": "pin_bytes",
    "tensor_parallel": "tensor_parallel",
    "pipeline_parallel": "pipeline_parallel",
    "hybrid_manager": "hybrid_manager",
}
"""Field of the configuration -> field of the launch."""
_OF_LLAMACPP = frozenset({"pool_tokens", "kv_unified"})


def is_own_config(document: Node) -> bool:
    """Say whether a document is kvwatch's configuration: its keys, and servers by URL where it has some."""
    if not isinstance(document, Mapping) or not set(document.items) <= set(keys_of(Config)):
        return False
    servers = items_at(document, "servers")
    return all(isinstance(server, Mapping) for server in servers) and (
        bool(servers) or bool({"listen", "nvml", "share_limit", "scrape"} & set(document.items))
    )


def read_own_config(
    file: GivenFile, document: Node, notebook: Notebook
) -> tuple[list[Settled], float | None]:
    """Return the servers whose settings a configuration states, and its limit on shares if it has one."""
    try:
        config = parse_config(file.text, file.name, ADAPTERS)
    except ConfigError as error:
        for problem in error.problems:
            where = Place(file=file.name, line=problem.line)
            message = f"{problem.key}: {problem.message}" if problem.key else problem.message
            notebook.note(Problem(place=where, message=message))
        return [], None
    nodes = items_at(document, "servers")
    servers = [
        settled
        for node, server in zip(nodes, config.servers, strict=False)
        if (settled := _server(file, node, server, notebook)) is not None
    ]
    limit = config.share_limit_ratio if at(document, "share_limit") is not None else None
    return servers, limit


def _server(file: GivenFile, node: Node, server: Server, notebook: Notebook) -> Settled | None:
    stated: dict[str, Any] = {
        name: value for key, name in _FIELDS.items() if (value := getattr(server, key)) is not None
    }
    if not stated and server.model_config_path is None:
        return None
    place = Place(file=file.name, line=node.line)
    engine = _engine(server, stated)
    if engine is None:
        message = f"{server.name}: neither its engine nor a setting that only one has; say `engine: vllm`"
        notebook.note(Problem(place=place, message=message))
        return None
    lines = node.lines if isinstance(node, Mapping) else {}
    spelled = {name: info.alias or name for name, info in Server.model_fields.items()}
    places = {
        name: Place(file=file.name, line=lines.get(spelled[key], node.line))
        for key, name in _FIELDS.items()
        if name in stated
    }
    if server.model_config_path is not None:
        places["model"] = Place(file=file.name, line=lines.get("model_config", node.line))
    path = None if server.model_config_path is None else str(server.model_config_path)
    start = Start(name=server.name, place=place, words=(), span=(node.line, node.last_line), model_path=path)
    launch = Launch(engine=engine, stated=frozenset(stated), **stated)
    declared = DeclaredServer(name=server.name, place=place, launch=launch, places=places)
    return Settled(server=declared, placement=Placement(), start=start)


def _engine(server: Server, stated: dict[str, Any]) -> str | None:
    if server.engine in (vllm.ENGINE, llamacpp.ENGINE):
        return server.engine
    path = str(server.model_config_path or "")
    if _OF_LLAMACPP & stated.keys() or path.endswith(".gguf"):
        return llamacpp.ENGINE
    only = {"share_ratio", "pin_bytes", "tensor_parallel", "pipeline_parallel", "hybrid_manager"}
    is_folder = bool(path) and not path.endswith(".gguf")
    return vllm.ENGINE if only & stated.keys() or is_folder else None
