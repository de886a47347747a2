"""Docker compose files: services as the commands that they start, their devices, variables and mounts."""

from __future__ import annotations

import pytest

from kvwatch.check.rules import check
from kvwatch.check.verdict import Finding, Severity
from tests.check.declared import declared, declared_files, lines, messages, only, stated

RESERVED = """\
        deploy: {{resources: {{reservations: {{devices: [{{driver: nvidia, {}, capabilities: [gpu]}}]}}}}}}
"""


def service(body: str) -> str:
    """Return a compose file with one service, `chat`."""
    return f"services:\n  chat:\n    image: vllm/vllm-openai:v0.28.0\n{body}"


COMMANDS = {
    "text": "    command: --model acme/chat --max-model-len 8192\n",
    "list": '    command: ["--model", "acme/chat", "--max-model-len", "8192"]\n',
    "list-of-lines": "    command:\n      - --model=acme/chat\n      - --max-model-len=8192\n",
    "folded": "    command: >\n      --model acme/chat\n      --max-model-len 8192\n",
    "literal": "    command: |\n      --model acme/chat\n      --max-model-len 8192\n",
    "plain-over-lines": "    command: --model acme/chat\n      --max-model-len 8192\n",
    "positional": "    command: acme/chat --max-model-len 8192\n",
    "entrypoint": "    entrypoint: [vllm, serve]\n    command: acme/chat --max-model-len 8192\n",
    "shell": "    entrypoint: /bin/sh -c\n    command: ['exec vllm serve acme/chat --max-model-len 8192']\n",
    "shell-variable": (
        "    environment: {LEN: 8192}\n"
        "    entrypoint: [sh, -c]\n    command: ['vllm serve acme/chat --max-model-len $$LEN']\n"
    ),
    "json-in-quotes": (
        '    command: >\n      --model acme/chat --max-model-len 8192 --hf-overrides \'{"a": "b c"}\'\n'
    ),
}


@pytest.mark.parametrize("body", COMMANDS.values(), ids=COMMANDS)
def test_a_service_is_one_server(body: str) -> None:
    """Command and entrypoint, as text or as a list, behind the image's own entrypoint or instead of it."""
    server = only(declared(compose__yml=service(body)))
    assert (server.name, server.version) == ("chat", (0, 28, 0))
    assert (server.launch.model, server.launch.full_length_tokens) == ("acme/chat", 8192)


def test_a_folded_command_keeps_its_lines() -> None:
    """Folding joins lines; the settings still stand where they were written."""
    server = only(
        declared(
            compose__yml="""\
            services:
              chat:
                image: vllm/vllm-openai:v0.28.0
                command: >
                  --model acme/chat
                  --max-model-len 8192
                  --gpu-memory-utilization
                  0.6
            """
        )
    )
    assert lines(server) == {"full_length_tokens": 6, "model": 5, "share_ratio": 7}


def test_an_image_of_llama_cpp_takes_settings_from_variables() -> None:
    """LLAMA_ARG_* as a mapping; other services are no servers."""
    declaration = declared(
        compose__yml="""\
        services:
          db: {image: "postgres:17"}
          small:
            image: ghcr.io/ggml-org/llama.cpp:server-cuda-b11434
            environment:
              LLAMA_ARG_CTX_SIZE: 16384
              LLAMA_ARG_N_PARALLEL: "4"
              LLAMA_ARG_HOST: 0.0.0.0
            command: -m /models/a.gguf
        """
    )
    server = only(declaration)
    assert (server.launch.engine, server.launch.ctx_size, server.launch.parallel) == ("llamacpp", 16384, 4)
    assert lines(server)["ctx_size"] == 6


DEVICES = {
    "ids": ('device_ids: ["1"]', ("1",)),
    "several-ids": ('device_ids: ["2", "3"]', ("2",)),
    "one-string": ('device_ids: ["GPU-0a1b"]', ("GPU-0a1b",)),
    "count": ("count: 1", ("0",)),
    "count-all": ("count: all", ("0",)),
    "nothing": ("options: {}", ("0",)),
    "unknown": ("count: $COUNT", None),
}


@pytest.mark.parametrize("devices,cards", DEVICES.values(), ids=DEVICES)
def test_reserved_devices_are_the_cards(devices: str, cards: tuple[str, ...] | None) -> None:
    """A number is the first so many; of all devices vLLM's only rank takes the first."""
    text = service("    command: --model acme/chat\n") + RESERVED.format(devices).replace(
        "        ", "    ", 1
    )
    assert only(declared(compose__yml=text)).cards == cards


VISIBLE = {
    "gpus-all": ("    gpus: all\n    command: --model x -tp 2\n", ("0", "1")),
    "nvidia-visible": (
        "    runtime: nvidia\n    environment: [NVIDIA_VISIBLE_DEVICES=1]\n    command: --model x\n",
        ("1",),
    ),
    "cuda-inside-ids": (
        (
            "    gpus: [{device_ids: ['4', '6']}]\n"
            "    environment: [CUDA_VISIBLE_DEVICES=1]\n    command: --model x\n"
        ),
        ("6",),
    ),
    "cuda-beyond-ids": (
        (
            "    gpus: [{device_ids: ['4']}]\n    environment: [CUDA_VISIBLE_DEVICES=1]\n"
            "    command: --model x\n"
        ),
        None,
    ),
    "more-ranks-than-devices": ("    gpus: [{device_ids: ['4']}]\n    command: --model x -tp 2\n", None),
    "none": ("    environment: {CUDA_VISIBLE_DEVICES: ''}\n    command: --model x\n", ()),
    "nothing-said": ("    command: --model x\n", None),
}


@pytest.mark.parametrize("body,cards", VISIBLE.values(), ids=VISIBLE)
def test_visible_devices_are_the_cards(body: str, cards: tuple[str, ...] | None) -> None:
    """CUDA_VISIBLE_DEVICES counts among the devices that the container is given."""
    assert only(declared(compose__yml=service(body))).cards == cards


def test_anchors_and_merge_keys_are_written_out() -> None:
    """`<<: *common`: what the service says itself goes first."""
    declaration = declared(
        compose__yml="""\
        x-common: &common
          image: vllm/vllm-openai:v0.28.0
          environment: {CUDA_VISIBLE_DEVICES: "0"}
        services:
          chat:
            <<: *common
            command: --model acme/chat
          embed:
            <<: [*common]
            environment: {CUDA_VISIBLE_DEVICES: "1"}
            command: --model acme/embed
        """
    )
    assert {server.name: server.cards for server in declaration.servers} == {"chat": ("0",), "embed": ("1",)}


def test_a_service_extends_another_and_an_override_changes_it() -> None:
    """`extends` in the same files, and compose.override.yml over compose.yml."""
    declaration = declared_files(
        {
            "deploy/compose.yml": """\
            services:
              base: {image: "vllm/vllm-openai:v0.28.0", environment: {CUDA_VISIBLE_DEVICES: "0"}}
              chat:
                extends: {service: base}
                command: --model acme/chat --max-model-len 8192
              gone:
                extends: {file: other.yml, service: base}
                image: vllm/vllm-openai:v0.28.0
                command: --model acme/gone
            """,
            "deploy/compose.override.yml": """\
            services:
              chat:
                command: --model acme/chat --max-model-len 4096
            """,
        }
    )
    chat = next(server for server in declaration.servers if server.name == "chat")
    assert (chat.launch.full_length_tokens, chat.cards) == (4096, ("0",))
    assert messages(declaration)[0] == (
        "deploy/compose.yml:7: extends 'base', which is in no file given: what it sets is not known"
    )


def test_variables_come_from_env_beside_and_from_files_given() -> None:
    """`.env`, a file given and an exporting script settle `${...}`; a service's env_file does not."""
    compose = service(
        "    env_file: [chat.env]\n    command: --model ${MODEL} --max-model-len ${LEN:-4096}"
        " --max-num-seqs ${SEQS} --block-size ${BLOCK:?}\n"
    )
    server = only(
        declared_files(
            {
                "compose.yml": compose,
                ".env": 'MODEL="acme/chat" # comment\n',
                "settings.sh": "#!/bin/sh\nexport SEQS=16\n",
                "chat.env": "LEN=1\nBLOCK=32\nCUDA_VISIBLE_DEVICES=3\n",
            }
        )
    )
    assert stated(server) == {
        "block_size": None,
        "full_length_tokens": 4096,
        "model": "acme/chat",
        "request_limit": 16,
        "visible_devices": "3",
    }
    assert server.unresolved == ("${BLOCK:?}",)


def test_replicas_meet_on_the_same_cards() -> None:
    """Every replica of a service gets the same devices."""
    server = only(declared(compose__yml=service("    command: --model x\n    scale: 3\n    gpus: all\n")))
    assert server.replicas == 3


def test_an_image_of_another_name_is_taken_by_its_name_and_told() -> None:
    """Only options, and `vllm` in the image's name: said, because it may be wrong."""
    text = (
        "services:\n  a:\n    image: acme/my-vllm:1\n    command: --model x\n  b:\n"
        "    image: acme/x\n    command: --port 1\n"
    )
    declaration = declared(compose__yml=text)
    assert only(declaration).name == "a"
    assert messages(declaration) == [
        (
            "compose.yml:3: the entrypoint of this image is not known; `vllm serve` is "
            "taken for it, from the image's name"
        )
    ]


def test_a_template_in_a_value_is_unknown_and_the_rest_is_read() -> None:
    """Jinja in a compose file that is YAML all the same."""
    declaration = declared(
        compose__yml=service("    command: [--model, acme/chat, --max-model-len, '{{ length }}']\n")
    )
    assert stated(only(declaration)) == {"full_length_tokens": None, "model": "acme/chat"}
    assert messages(declaration) == [
        "compose.yml:4: {{ length }} is set in no file given: --max-model-len is not known"
    ]


def test_an_unknown_tag_leaves_the_image_and_an_unknown_image_is_told() -> None:
    """`vllm/vllm-openai:${TAG}` starts vLLM of an unknown release; `${IMAGE}` may start anything."""
    declaration = declared(
        compose__yml="""\
        services:
          tag: {image: "vllm/vllm-openai:${TAG}", command: --model a}
          small: {image: "ghcr.io/ggml-org/llama.cpp:server-cuda-${BUILD}", command: -m a.gguf}
          any: {image: "${IMAGE}", command: --model b}
          web: {image: "${WEB}", command: --port 80}
        """
    )
    assert {server.name: server.version for server in declaration.servers} == {"tag": None, "small": None}
    assert messages(declaration)[0] == (
        "compose.yml:4: ${IMAGE} is set in no file given: which image gets these options?"
    )


def test_services_of_two_profiles_need_not_meet() -> None:
    """Each beside the one that always runs is 0.85; all three are 1.15: possible, no error."""

    def one(name: str, share: float, profile: str) -> str:
        return (
            f"  {name}:\n    image: vllm/vllm-openai:v0.28.0\n    profiles: {profile}\n"
            f"    environment: [CUDA_VISIBLE_DEVICES=0]\n"
            f"    command: --model x --gpu-memory-utilization {share}\n"
        )

    def judged(first: str, second: str) -> Finding:
        text = "services:\n" + one("chat", 0.55, "[]") + one("day", 0.3, first) + one("night", 0.3, second)
        return next(
            found for found in check(declared(compose__yml=text)) if found.rule == "shares-over-limit"
        )

    apart, beside = judged("[day]", "[night]"), judged("[all, day]", "[all]")
    assert apart.severity is Severity.WARNING
    assert "With one compose profile at a time it is 0.85. Edit" in apart.message
    assert beside.severity is Severity.ERROR
    assert "profile" not in beside.message


def test_a_number_of_replicas_that_no_file_settles_is_told() -> None:
    """One is counted, and said to be."""
    declaration = declared(compose__yml=service("    command: --model x\n    scale: ${N}\n"))
    assert only(declaration).replicas == 1
    assert messages(declaration)[0] == (
        "compose.yml:5: ${N} is set in no file given: how many start is not known, one is counted"
    )
