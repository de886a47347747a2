"""`kvwatch plan`: will these servers fit these cards, before they start."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvwatch.planning.footprint import Footprint
    from kvwatch.planning.question import Card, GgufFile, Question, Server, VllmModel
    from kvwatch.planning.specification import Request

FITS, DOES_NOT_FIT, USAGE = 0, 1, 2

NOTES = """\
It asks the other way round than `kvwatch cost`: a card, a model, a length and a number of requests are
given; whether that fits, which pin or share to put, what is left and what each lever buys is the answer.
Sizes are bytes, or numbers with MiB or GiB. What nobody has measured is not assumed: a server that never ran
has an unknown need for activations, CUDA graphs and its context, and the answer says how much is left for it.

examples:
  kvwatch plan /models/chat-8b --card 46068MiB --length 8192 --concurrency 16
  kvwatch plan /models/chat-8b --card 46068MiB --length 8192 --concurrency 16 --log chat.log
  kvwatch plan /models/chat-70b --card 4x80GiB --tp 4 --length 32768 --concurrency 8 --cache-dtype fp8
  kvwatch plan --card 46068MiB --server chat=/models/chat-8b,length=8192,concurrency=16 \\
      --measured embed=11154MiB,kv=1.72GiB,tokens=12480
  kvwatch plan small.gguf --card 24GiB --length 8192 --concurrency 4 --cache-type-k q8_0 --cache-type-v q8_0
  kvwatch plan plan.yaml

A measurement names a server that is asked for: what it held beside its KV cache is then what it will hold.
Or one that stays as it is. Totals are those of nvidia-smi or of kvwatch once, caches those of its log.

exit status: 0 fits, 1 does not fit or cannot tell, 2 usage error
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of `kvwatch plan`, and what it teaches."""
    from kvwatch.planning.keys import KEYS  # noqa: PLC0415

    command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.epilog = NOTES
    command.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="config.json, model folder, GGUF, an id in the local Hugging Face cache, or a plan file (.yaml)",
    )
    command.add_argument(
        "--card",
        action="append",
        default=[],
        metavar="[NAME=][Nx]SIZE",
        help="a card's memory, such as 46068MiB; several: 2x46068MiB, or repeat it",
    )
    command.add_argument("--ceiling", metavar="X", help="what all servers together may take (default 0.95)")
    command.add_argument("--name", metavar="NAME", help="what to call MODEL's server (default: its folder)")
    command.add_argument(
        "--server",
        action="append",
        default=[],
        metavar="NAME=MODEL,KEY=VALUE,...",
        help="a further server; the keys are the options below",
    )
    command.add_argument(
        "--measured",
        action="append",
        default=[],
        metavar="[NAME=]SIZE[,kv=SIZE][,tokens=N][,length=N]",
        help="what a server was seen to hold; without a name, MODEL's",
    )
    command.add_argument(
        "--log", action="append", default=[], metavar="[NAME=]FILE", help="the same, from its start-up log"
    )
    command.add_argument("--json", action="store_true", help="print everything as JSON; null is unknown")
    groups = {
        "": command.add_argument_group("the server"),
        "vllm": command.add_argument_group("vLLM"),
        "llamacpp": command.add_argument_group("llama-server"),
    }
    for name, key in KEYS.items():
        option = f"--{name.replace('_', '-')}"
        groups[key.engine].add_argument(option, metavar=key.metavar, help=key.text or None)


def run_plan(options: argparse.Namespace) -> int:
    """Print whether it fits; return the exit status."""
    from kvwatch.planning.answer import Verdict, answer  # noqa: PLC0415
    from kvwatch.planning.errors import PlanError, SpecificationError  # noqa: PLC0415

    try:
        found = answer(_question(options))
        if options.json:
            from kvwatch.planning.document import plan_document  # noqa: PLC0415

            print(json.dumps(plan_document(found), indent=2, ensure_ascii=False))
        else:
            from kvwatch.planning.text import render_plan  # noqa: PLC0415

            print(render_plan(found), end="")
    except SpecificationError as error:
        print(f"kvwatch plan: {error}", file=sys.stderr)
        return USAGE
    except PlanError as error:
        print(f"kvwatch plan: {error}", file=sys.stderr)
        return DOES_NOT_FIT
    return FITS if found.verdict is Verdict.FITS else DOES_NOT_FIT


def _question(options: argparse.Namespace) -> Question:
    """Gather the question: what was written, then the model files and logs that it names."""
    from kvwatch.planning.command_line import written  # noqa: PLC0415
    from kvwatch.planning.errors import SpecificationError  # noqa: PLC0415
    from kvwatch.planning.question import Question  # noqa: PLC0415
    from kvwatch.planning.specification import placed_on  # noqa: PLC0415

    if options.model is not None and options.model.endswith((".yaml", ".yml")):
        cards, requests = _plan_file(options)
    else:
        cards, requests = written(options)
    if not cards:
        raise SpecificationError("which card? add --card 46068MiB")
    if not requests:
        raise SpecificationError("which servers? name a MODEL, or --server, or --measured")
    names = [request.name for request in requests]
    if len(set(names)) < len(names):
        raise SpecificationError("two servers have one name; give each its own (--name, --server NAME=...)")
    servers = tuple(_server(request, placed_on(request, cards), cards) for request in requests)
    return Question(cards=cards, servers=servers)


def _plan_file(options: argparse.Namespace) -> tuple[tuple[Card, ...], tuple[Request, ...]]:
    from kvwatch.config_yaml import UnreadableError, parse_yaml, read_text  # noqa: PLC0415
    from kvwatch.planning.errors import SpecificationError  # noqa: PLC0415
    from kvwatch.planning.keys import KEYS  # noqa: PLC0415
    from kvwatch.planning.plan_file import plan_of  # noqa: PLC0415

    others = ("card", "ceiling", "name", "server", "measured", "log", *KEYS)
    given = [name for name in others if getattr(options, name)]
    if given:
        raise SpecificationError(
            f"--{given[0].replace('_', '-')}: a plan file holds cards, servers and measurements itself"
        )
    try:
        document = parse_yaml(read_text(Path(options.model)))
    except UnreadableError as error:
        line = "" if error.position is None else f":{error.position.line}"
        raise SpecificationError(f"{options.model}{line}: {error.message}") from None
    if document.problems:
        _, position, message = document.problems[0]
        raise SpecificationError(f"{options.model}:{position.line}: {message}")
    try:
        return plan_of(document.value)
    except SpecificationError as error:
        raise SpecificationError(f"{options.model}: {error}") from None


def _server(request: Request, cards: tuple[str, ...], all_cards: tuple[Card, ...]) -> Server:
    from kvwatch.planning.errors import SpecificationError  # noqa: PLC0415
    from kvwatch.planning.question import Server  # noqa: PLC0415

    values = request.values
    card = next(card for card in all_cards if card.name == cards[0])
    footprint = _footprint(request, cards, card)
    if request.model is None and footprint is None:
        raise SpecificationError(f"{request.name}: neither a model nor a measurement")
    if request.model is not None and ("length" not in values or "concurrency" not in values):
        raise SpecificationError(f"{request.name}: how long, how many? add length and concurrency")
    return Server(
        name=request.name,
        cards=cards,
        model=None if request.model is None else _found(request, card),
        model_name=request.model,
        length_tokens=values.get("length"),
        concurrency=values.get("concurrency"),
        weights_bytes=values.get("weights"),
        working_bytes=values.get("working"),
        footprint=footprint,
    )


def _footprint(request: Request, cards: tuple[str, ...], card: Card) -> Footprint | None:
    """Return what was measured, from the process, from its log, or from both."""
    from kvwatch.planning.errors import SpecificationError  # noqa: PLC0415
    from kvwatch.planning.footprint import logged, merged  # noqa: PLC0415
    from kvwatch.startup_log.reading import read_log  # noqa: PLC0415

    if request.log is None:
        return request.footprint
    try:
        with Path(request.log).open("rb") as stream:
            log = read_log(stream)
    except OSError as error:
        raise SpecificationError(f"{request.log}: {error.strerror or error}") from None
    if not log.starts:
        raise SpecificationError(f"{request.log}: no start of vLLM or llama-server is in it")
    ranks = None if request.model is None else len(cards)
    footprint = logged(log.starts[-1], card_bytes=card.total_bytes, ranks=ranks)
    return footprint if request.footprint is None else merged(request.footprint, footprint)


def _found(request: Request, card: Card) -> VllmModel | GgufFile:
    """Return a server's model; raise PlanError that names it where its files do not say enough."""
    from kvwatch.cost.spec import ModelSpecError  # noqa: PLC0415
    from kvwatch.planning.errors import PlanError  # noqa: PLC0415
    from kvwatch.readings import SourceError  # noqa: PLC0415

    try:
        return _model(request, card)
    except (ModelSpecError, SourceError) as error:
        raise PlanError(f"{request.name}: {request.model}: {error}") from error


def _model(request: Request, card: Card) -> VllmModel | GgufFile:
    from kvwatch.cost.hf import read_hf_config  # noqa: PLC0415
    from kvwatch.cost.llamacpp import LlamaModel, LlamaOptions  # noqa: PLC0415
    from kvwatch.cost.vllm import VllmOptions, default_batched_tokens  # noqa: PLC0415
    from kvwatch.cost.weights import gguf_weights  # noqa: PLC0415
    from kvwatch.planning.question import GgufFile, VllmModel  # noqa: PLC0415
    from kvwatch.planning.specification import options_of  # noqa: PLC0415
    from kvwatch.sources.checkpoint import read_checkpoint  # noqa: PLC0415
    from kvwatch.sources.model_path import find_model  # noqa: PLC0415

    found = find_model(request.model or "")
    if found.gguf is not None:
        given: dict[str, Any] = options_of(request.values, "llamacpp", request.name)
        embedding = found.gguf.tensors.get("token_embd.weight")
        return GgufFile(
            llama=LlamaModel.from_header(found.gguf),
            options=LlamaOptions(**given),
            weights=gguf_weights([found.gguf]),
            embedding_bytes=None if embedding is None else embedding.size_bytes,
        )
    given = options_of(request.values, "vllm", request.name)
    given.setdefault("max_num_batched_tokens", default_batched_tokens(card.total_bytes, card.name))
    given["max_num_seqs"] = request.values.get("concurrency")
    return VllmModel(
        spec=read_hf_config(found.config or {}),
        options=VllmOptions(**given),
        weights=read_checkpoint(found.path.parent),
    )
