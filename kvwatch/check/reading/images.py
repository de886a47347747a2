"""What a container image's name says: the engine's release, and the command that its entrypoint starts with.

Entrypoints: `docker/Dockerfile` of vLLM (the module until the 0.10 releases, `vllm serve` in 0.26 and later),
`.devops/cuda.Dockerfile` of llama.cpp (target server: `/app/llama-server`; full: `/app/tools.sh`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_VLLM_TAG = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?:\.\d+|\.?post\d+)?(?![\d.]|\.?dev|-?rc|\+)", re.ASCII)
_LLAMACPP_TAG = re.compile(r"(?:^|-)b(\d{3,6})$", re.ASCII)
_PINNED = re.compile(r"vllm(?:\[[\w,-]*\])?(?:==|@)v?(\d+\.\d+\.\d+)(?![\w.]*(?:rc|dev))", re.ASCII)

MODULE = ("python3", "-m", "vllm.entrypoints.openai.api_server")
SERVE = ("vllm", "serve")
_LAST_MODULE = (0, 10)
_FIRST_SERVE = (0, 26)


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image as its name tells.

    Attributes:
        entrypoint: the words before the container's own; None where they are not known.
        doubt: why the entrypoint may be another; None where it is certain.

    """

    entrypoint: tuple[str, ...] | None = None
    version: tuple[int, ...] | None = None
    doubt: str | None = None


def read_image(reference: str, words: tuple[str, ...]) -> Image:
    """Return what an image's reference says of a container that is given `words`."""
    path, _, digest = reference.partition("@")
    repository, colon, tag = path.rpartition(":")
    if not colon or "/" in tag:
        repository, tag = path, ""
    name = repository.rpartition("/")[2].lower()
    tag = "" if digest and not tag else tag
    if name.startswith("vllm-openai"):
        return _vllm(_release(tag), words, certain=name == "vllm-openai")
    if name == "llama.cpp":
        build = _LLAMACPP_TAG.search(tag)
        version = (int(build[1]),) if build else None
        if tag.startswith("server"):
            return Image(entrypoint=("llama-server",), version=version)
        if tag.startswith("full") and words[:1] in (("--server",), ("-s",)):
            return Image(entrypoint=("llama-server",), version=version)
        return Image(version=version)
    return _other(name, words)


def _vllm(version: tuple[int, ...] | None, words: tuple[str, ...], *, certain: bool) -> Image:
    doubt = None if certain else "the entrypoint of this image is not known; `vllm serve` is taken for it"
    if version is not None and version[:2] <= _LAST_MODULE:
        return Image(entrypoint=MODULE, version=version, doubt=doubt)
    if version is not None and version[:2] < _FIRST_SERVE and words and not words[0].startswith("-"):
        # One of the two ignores a model that stands by itself.
        doubt = (
            "a model without --model is ignored by the entrypoint of older images, and this one may be such"
        )
        return Image(entrypoint=MODULE, version=version, doubt=doubt)
    return Image(entrypoint=SERVE, version=version, doubt=doubt)


def _other(name: str, words: tuple[str, ...]) -> Image:
    """Take an image for the engine that it is called by, where it is given nothing but options."""
    if not words or not words[0].startswith("-"):
        return Image()
    entrypoint = SERVE if "vllm" in name else ("llama-server",) if "llama" in name else None
    doubt = "the entrypoint of this image is not known; `{}` is taken for it, from the image's name"
    return Image(entrypoint=entrypoint, doubt=doubt.format(" ".join(entrypoint)) if entrypoint else None)


def _release(tag: str) -> tuple[int, ...] | None:
    match = _VLLM_TAG.match(tag)
    return tuple(int(part) for part in match.groups()) if match else None


def pinned_release(text: str) -> tuple[int, ...] | None:
    """Return the vLLM release that a text pins (`vllm==0.11.0`); None where it pins none, or two."""
    found = {match[1] for match in _PINNED.finditer(text)}
    return tuple(int(part) for part in found.pop().split(".")) if len(found) == 1 else None
