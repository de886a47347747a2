"""Systemd units: ExecStart over lines, variables and their files, instances, drop-ins."""

from __future__ import annotations

from tests.check.declared import declared, declared_files, lines, messages, only, stated

UNIT = """\
[Unit]
Description=chat

[Service]
User=vllm
Environment=CUDA_VISIBLE_DEVICES=1 "LEN=8192"
Environment='EXTRA=--max-num-seqs 32'
EnvironmentFile=-/etc/default/more
EnvironmentFile=/etc/default/chat
ExecStart=/opt/venv/bin/vllm serve /models/chat \\
    # a comment between
    --max-model-len ${LEN} \\
    --gpu-memory-utilization=${SHARE} \\
    $EXTRA
Restart=always

[Install]
WantedBy=multi-user.target
"""


def test_a_unit_is_a_server_with_its_lines() -> None:
    """`${X}` is one word, `$X` is split, comments between continued lines are none of it."""
    declaration = declared_files(
        {"units/chat.service": UNIT, "units/chat": "# beside\nSHARE='0.6'\n", "more": "A=1\n"}
    )
    server = only(declaration)
    assert (server.name, server.cards) == ("chat", ("1",))
    assert stated(server) == {
        "full_length_tokens": 8192,
        "model": "/models/chat",
        "request_limit": 32,
        "share_ratio": 0.6,
        "visible_devices": "1",
    }
    assert lines(server) == {
        "full_length_tokens": 12,
        "model": 10,
        "request_limit": 7,
        "share_ratio": 13,
        "visible_devices": 6,
    }
    assert declaration.problems == ()


def test_a_file_of_variables_that_is_not_there_is_told() -> None:
    """Needed or not (`-`): what it sets is unknown, and then no default is certain."""
    declaration = declared_files(
        {
            "llama.service": (
                "[Service]\nEnvironmentFile=-/etc/llama.env\nExecStart=/bin/llama-server -m a.gguf $ARGS\n"
            )
        }
    )
    server = only(declaration)
    assert server.launch.defaulted == frozenset()
    assert messages(declaration) == [
        "llama.service:3: $ARGS is set in no file given: any option may stand there",
        (
            "llama.service:3: /etc/llama.env is not among the files given: the variables "
            "that it sets are not known"
        ),
    ]


def test_an_instance_is_the_name_behind_the_at_sign() -> None:
    """`vllm@chat.service` has one, the template `vllm@.service` has not."""
    text = (
        "[Service]\nExecStart=/usr/bin/vllm serve /models/%i --served-model-name 100%% --max-model-len 4096\n"
    )
    instance = only(declared_files({"vllm@chat.service": text}))
    template = declared_files({"vllm@.service": text})
    assert (instance.launch.model, instance.launch.served_names) == ("/models/chat", ("100%",))
    assert only(template).launch.model is None
    assert messages(template) == ["vllm@.service:2: %i is set in no file given: the model is not known"]


def test_a_drop_in_changes_its_unit() -> None:
    """An empty ExecStart= takes the unit's away; variables are added."""
    server = only(
        declared_files(
            {
                "chat.service.d/10-gpu.conf": "[Service]\nEnvironment=CUDA_VISIBLE_DEVICES=3\n",
                "chat.service.d/20-exec.conf": (
                    "[Service]\nExecStart=\nExecStart=vllm serve b --max-model-len $LEN\n"
                ),
                "chat.service": "[Service]\nEnvironment=LEN=4096\nExecStart=vllm serve a\n",
            }
        )
    )
    assert (server.name, server.launch.model, server.cards) == ("chat", "b", ("3",))
    assert server.launch.full_length_tokens == 4096
    assert server.place.file == "chat.service.d/20-exec.conf"


def test_units_that_run_shells_containers_and_scripts() -> None:
    """What ExecStart starts is followed: prefixes, `sh -c`, `docker run`, a script among the files."""
    declaration = declared_files(
        {
            "a.service": (
                "[Service]\nExecStart=-/bin/sh -c 'exec vllm serve ma --max-model-len $$LEN'\n"
                "Environment=LEN=1k\n"
            ),
            "b.service": (
                "[Service]\nExecStart=/usr/bin/docker run --gpus device=2 "
                "vllm/vllm-openai:v0.28.0 --model mb\n"
            ),
            "c.service": "[Service]\nExecStart=/opt/serve/run.sh mc\n",
            "run.sh": "#!/bin/sh\nexec llama-server -m $1 -c 4096\n",
            "d.service": "[Service]\nExecStart=/usr/bin/nginx\n",
        }
    )
    assert [(server.name, server.launch.model) for server in declaration.servers] == [
        ("a", "ma"),
        ("b", "mb"),
        ("c", "mc"),
    ]
    assert declaration.servers[0].launch.full_length_tokens == 1000
    assert declaration.servers[1].cards == ("2",)


def test_a_shells_text_over_continued_lines_is_one_command() -> None:
    """What stands in the second line belongs to the command, with its own line and the unit's variables."""
    server = only(
        declared(
            vllm__service="""\
            [Service]
            Environment=SHARE=0.7
            ExecStart=/bin/bash -lc 'exec vllm serve acme/chat \\
                --gpu-memory-utilization "$SHARE" \\
                --max-num-seqs 8'
            """
        )
    )
    assert stated(server) | {"model": None} == {"model": None, "share_ratio": 0.7, "request_limit": 8}
    assert (server.where("share_ratio").line, server.where("request_limit").line) == (4, 5)
