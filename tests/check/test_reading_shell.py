"""Shell scripts and command lines: which servers they start, with which settings, in which lines."""

from __future__ import annotations

import pytest

from tests.check.declared import declared, declared_files, lines, messages, only, stated

ONE_SERVER = {
    "plain": "vllm serve acme/chat --max-model-len 8192",
    "module": "python3 -m vllm.entrypoints.openai.api_server --model acme/chat --max-model-len 8192",
    "continued": "vllm serve acme/chat \\\n  --max-model-len 8192",
    "quoted": "vllm serve 'acme/chat' --max-model-len \"8192\"",
    "exec": "exec vllm serve acme/chat --max-model-len=8192",
    "background": "nohup vllm serve acme/chat --max-model-len 8192 > log 2>&1 &",
    "variable": "LEN=8192\nvllm serve acme/chat --max-model-len $LEN",
    "variable-in-word": "LEN=8192\nvllm serve acme/chat --max-model-len=${LEN}",
    "default": "vllm serve ${MODEL:-acme/chat} --max-model-len ${LEN:-8192}",
    "assigned-default": ': "${LEN:=8192}"\nvllm serve acme/chat --max-model-len "$LEN"',
    "split-variable": "ARGS='--max-model-len 8192'\nvllm serve acme/chat $ARGS",
    "array": 'ARGS=(--max-model-len 8192)\nARGS+=(--max-num-seqs 8)\nvllm serve acme/chat "${ARGS[@]}"',
    "environment": "env HF_HOME=/x vllm serve acme/chat --max-model-len 8192",
    "nested-shell": "bash -lc 'vllm serve acme/chat --max-model-len 8192'",
    "nested-shell-variable": 'LEN=8192\nbash -c "vllm serve acme/chat --max-model-len $LEN"',
    "ssh": "ssh -p 22 me@gpu1 'vllm serve acme/chat --max-model-len 8192'",
    "tmux": "tmux new-session -d -s chat 'vllm serve acme/chat --max-model-len 8192'",
    "screen": "screen -dmS chat vllm serve acme/chat --max-model-len 8192",
    "srun": "srun --gres=gpu:1 vllm serve acme/chat --max-model-len 8192",
    "function": "start() {\n  vllm serve acme/chat --max-model-len 8192\n}\nstart",
    "after-and": "cd /srv && . venv/bin/activate && vllm serve acme/chat --max-model-len 8192",
    "heredoc-before": "cat <<EOF\nvllm serve other\nEOF\nvllm serve acme/chat --max-model-len 8192",
    "here-string": "read X <<< 'vllm serve other'\nvllm serve acme/chat --max-model-len 8192",
    "comment-before": "# vllm serve other\nvllm serve acme/chat --max-model-len 8192  # --max-model-len 1",
    "docker": "docker run --rm -it --gpus all vllm/vllm-openai:v0.28.0 acme/chat --max-model-len 8192",
    "docker-module": "docker run vllm/vllm-openai:v0.9.1 --model acme/chat --max-model-len 8192",
    "podman-entrypoint": (
        "podman run --entrypoint vllm -v=/a:/b registry.acme/x:1 serve acme/chat --max-model-len 8192"
    ),
    "docker-behind-sudo": (
        "sudo -E docker run vllm/vllm-openai:v0.28.0 --model acme/chat --max-model-len 8192"
    ),
    "docker-behind-ssh": (
        "ssh gpu1 docker run vllm/vllm-openai:v0.28.0 --model acme/chat --max-model-len 8192"
    ),
    "docker-exec": "docker exec -it box vllm serve acme/chat --max-model-len 8192",
    "restarted": "while true; do\n  vllm serve acme/chat --max-model-len 8192\n  sleep 1\ndone",
    "docker-shell": "docker run -e A=1 acme/image:1 bash -c 'vllm serve acme/chat --max-model-len 8192'",
}

NO_SERVER = {
    "echo": "echo vllm serve acme/chat",
    "echo-of-docker": "echo docker run vllm/vllm-openai:v0.28.0 --model acme/chat",
    "pkill": "pkill -f 'llama-server -m x'",
    "bench": "vllm bench serve --model acme/chat",
    "pip": "pip install vllm",
    "other-container": "docker run --gpus all nvidia/cuda:12 nvidia-smi",
    "variable-only": "CMD='vllm serve acme/chat'",
}


@pytest.mark.parametrize("text", ONE_SERVER.values(), ids=ONE_SERVER)
def test_a_command_is_one_server(text: str) -> None:
    """However it is written, the model and the length are those that would run."""
    declaration = declared(start__sh=f"#!/bin/bash\n{text}\n")
    server = only(declaration)
    assert (server.launch.engine, server.launch.model) == ("vllm", "acme/chat")
    assert server.launch.full_length_tokens == 8192
    assert declaration.problems == ()


@pytest.mark.parametrize("text", NO_SERVER.values(), ids=NO_SERVER)
def test_other_commands_are_no_servers(text: str) -> None:
    """What only names a server's program starts none, and that is said."""
    declaration = declared(start__sh=f"#!/bin/sh\n{text}\n")
    assert declaration.servers == ()
    assert messages(declaration) == ["start.sh:1: no command of vLLM or llama-server was found in it"]


def test_settings_keep_the_lines_they_stand_in() -> None:
    """Continuation lines, quotes over lines, arrays: each option has its own line."""
    server = only(
        declared(
            start__sh="""\
            #!/bin/bash
            export CUDA_VISIBLE_DEVICES=1
            ARGS=(
              --max-num-seqs 32
            )
            exec vllm serve acme/chat \\
              --gpu-memory-utilization 0.8 \\
              --max-model-len \\
                32768 \\
              "${ARGS[@]}"
            """
        )
    )
    assert server.place.line == 6
    assert lines(server) == {
        "full_length_tokens": 8,
        "model": 6,
        "request_limit": 4,
        "share_ratio": 7,
        "visible_devices": 2,
    }


def test_a_shell_inside_a_shell_keeps_lines() -> None:
    """The text behind `bash -c` has lines of its own in the file."""
    server = only(
        declared(
            start__sh="""\
            docker run --gpus all acme/image:1 \\
              bash -c "
                set -e
                vllm serve acme/chat \\
                  --max-model-len 4096
              "
            """
        )
    )
    assert lines(server) == {"full_length_tokens": 5, "model": 4}


def test_loops_over_known_words_are_servers_each() -> None:
    """A loop is run for each word; what is computed stays unknown."""
    declaration = declared(
        start__sh="""\
        for gpu in 0 1; do
          CUDA_VISIBLE_DEVICES=$gpu llama-server -m /m/$gpu.gguf -c 8192 -np 4 --port $((8080 + gpu)) &
        done
        for i in {2..3}; do CUDA_VISIBLE_DEVICES=$i vllm serve m$i & done
        for i in $(seq 4 5); do CUDA_VISIBLE_DEVICES=$i vllm serve x & done
        """
    )
    assert [(server.launch.model, server.cards) for server in declaration.servers] == [
        ("/m/0.gguf", ("0",)),
        ("/m/1.gguf", ("1",)),
        ("m2", ("2",)),
        ("m3", ("3",)),
        ("x", None),
    ]
    assert len({server.name for server in declaration.servers}) == 5
    assert "start.sh:5: $i is set in no file given: CUDA_VISIBLE_DEVICES is not known" in messages(
        declaration
    )


def test_unknown_variables_are_reported_and_never_guessed() -> None:
    """A setting from an unknown variable is stated and has no value; other settings stay."""
    declaration = declared(start__sh="vllm serve $MODEL --max-model-len $LEN --api-key $KEY --port $PORT")
    server = only(declaration)
    assert stated(server) == {"full_length_tokens": None, "port": None}
    assert server.launch.model is None
    assert set(server.unresolved) == {"$MODEL", "$LEN"}
    assert messages(declaration) == [
        "start.sh:1: $LEN is set in no file given: --max-model-len is not known",
        "start.sh:1: $MODEL is set in no file given: the model is not known",
    ]


def test_a_value_that_the_engine_cannot_read_is_told() -> None:
    """Next to a variable, which is told as such; a port changes nothing that is reckoned."""
    declaration = declared(start__sh="vllm serve a/b --kv-cache-memory 2GiB --max-num-seqs $N --port x")
    assert messages(declaration) == [
        "start.sh:1: $N is set in no file given: --max-num-seqs is not known",
        "start.sh:1: --kv-cache-memory-bytes cannot be read (not an integer): what it sets is not known",
    ]


def test_words_that_may_be_any_options_leave_no_default() -> None:
    """Behind `$EXTRA` any option may stand, so that nothing is the default for certain."""
    known = only(declared(start__sh="vllm serve acme/chat --max-model-len 4096"))
    doubtful = only(declared(start__sh="vllm serve acme/chat --max-model-len 4096 $EXTRA"))
    assert known.launch.tensor_parallel == 1
    assert doubtful.launch.tensor_parallel is None
    assert doubtful.launch.defaulted == frozenset()
    assert stated(doubtful) == stated(known)


def test_a_flag_before_an_open_word_does_not_swallow_it() -> None:
    """`--enforce-eager $EXTRA`: the flag takes no value, so any option may follow."""
    server = only(declared(start__sh="vllm serve acme/chat --enforce-eager $EXTRA --max-num-seqs $N"))
    assert server.unresolved == ("$EXTRA", "$N")
    assert server.launch.defaulted == frozenset()


def test_what_a_condition_sets_is_unknown_behind_it() -> None:
    """Inside a branch a variable is what the branch sets; behind it, it may be either."""
    declaration = declared(
        start__sh="""\
        LEN=4096
        if [ -n "$BIG" ]; then
          LEN=32768
          CUDA_VISIBLE_DEVICES=0 vllm serve inside --max-model-len $LEN
        fi
        vllm serve behind --max-model-len $LEN
        """
    )
    inside, behind = declaration.servers
    assert (inside.launch.full_length_tokens, behind.launch.full_length_tokens) == (32768, None)
    assert [line for line in messages(declaration) if "condition" in line] == [
        "start.sh:4: starts only under a condition that no file settles; it is counted as if it always does"
    ]


def test_options_that_a_condition_adds_may_be_any() -> None:
    """`$EXTRA` is empty or an option: it is no model's name, and leaves no default for certain."""
    text = (
        'EXTRA=""\n[ -n "$SLOW" ] && EXTRA="--enforce-eager"\nvllm serve acme/chat --max-num-seqs 4 $EXTRA\n'
    )
    for written in (text, text.replace("&&", "\nif true; then").replace('eager"', 'eager"; fi')):
        server = only(declared(start__sh=written))
        assert (server.launch.model, server.launch.request_limit) == ("acme/chat", 4)
        assert server.launch.defaulted == frozenset()


def test_a_script_reads_and_runs_others() -> None:
    """`source` brings variables, `bash FILE ARGS` the servers of that file, which count once."""
    declaration = declared_files(
        {
            "run/start.sh": '#!/bin/bash\nsource ./settings.sh\nbash run/one.sh acme/chat "$LEN"\n',
            "run/settings.sh": "export LEN=8192\n",
            "run/one.sh": '#!/bin/bash\nvllm serve "$1" --max-model-len $2\n',
        }
    )
    server = only(declaration)
    assert (server.launch.model, server.launch.full_length_tokens) == ("acme/chat", 8192)
    assert (server.place.file, server.place.line) == ("run/one.sh", 2)


def test_container_options_decide_devices_mounts_and_name() -> None:
    """`docker run`: --gpus, --name, -e, -v, --env-file."""
    declaration = declared_files(
        {
            "start.sh": """\
            docker run -d --name=chat --gpus '"device=2,3"' -e LLAMA_ARG_CTX_SIZE=8192 --env-file chat.env \\
              -v /data/models:/models ghcr.io/ggml-org/llama.cpp:server-cuda-b11434 -m /models/a.gguf
            """,
            "chat.env": "# limits\nLLAMA_ARG_N_PARALLEL=2\n",
        }
    )
    server = only(declaration)
    assert (server.name, server.version, server.cards) == ("chat", (11434,), ("2", "3"))
    assert (server.launch.ctx_size, server.launch.parallel) == (8192, 2)
    assert server.places["parallel"].file == "chat.env"
    assert server.model_detail == "/data/models/a.gguf is not on this machine"


def test_docker_hands_out_the_first_of_a_number() -> None:
    """`--gpus 1` is card 0 for every container that asks so."""
    declaration = declared(
        a__sh="docker run --name a --gpus 1 vllm/vllm-openai:v0.28.0 --model x",
        b__sh="docker run --name b --gpus=1 vllm/vllm-openai:v0.28.0 --model y",
    )
    assert [server.cards for server in declaration.servers] == [("0",), ("0",)]


def test_a_missing_file_of_variables_leaves_llama_servers_without_defaults() -> None:
    """Any LLAMA_ARG_ variable may stand in it."""
    declaration = declared(
        start__sh="docker run --env-file gone.env ghcr.io/ggml-org/llama.cpp:server-b11434 -m /a.gguf -c 4096"
    )
    server = only(declaration)
    assert server.launch.defaulted == frozenset()
    assert server.launch.ctx_size == 4096
    assert "start.sh:1: gone.env is not among the files given: the variables that it sets are not known" in (
        messages(declaration)
    )


@pytest.mark.parametrize(
    "tag,version",
    [
        ("v0.11.0", (0, 11, 0)),
        ("v0.8.5.post1", (0, 8, 5)),
        ("v0.28.0-cu129", (0, 28, 0)),
        ("v0.11.0rc1", None),
        ("latest", None),
        ("nightly-1a2b3c", None),
        ("v0.28.0@sha256:00", (0, 28, 0)),
    ],
)
def test_the_release_is_in_the_tag(tag: str, version: tuple[int, ...] | None) -> None:
    """A release candidate and a moving tag are no release."""
    server = only(declared(start__sh=f"docker run vllm/vllm-openai:{tag} --model acme/chat"))
    assert server.version == version


def test_a_release_that_the_script_pins_is_the_version() -> None:
    """`pip install vllm==0.11.0` in the script; two different pins are none."""
    one = only(declared(start__sh="pip install vllm==0.11.0\nvllm serve acme/chat"))
    two = only(declared(start__sh="pip install vllm==0.11.0\n# vllm==0.12.0\nvllm serve acme/chat"))
    assert (one.version, two.version) == ((0, 11, 0), None)


def test_a_model_by_itself_is_doubtful_where_an_image_may_ignore_it() -> None:
    """Older entrypoints ignore a model without --model and serve their default."""
    declaration = declared(start__sh="docker run vllm/vllm-openai:v0.14.1 acme/chat")
    assert only(declaration).launch.model is None
    assert messages(declaration) == [
        (
            "start.sh:1: a model without --model is ignored by the entrypoint of older "
            "images, and this one may be such"
        )
    ]


def test_a_command_behind_an_entrypoint_that_has_it_is_told() -> None:
    """`vllm serve` as the arguments of an image that starts with it fails at start."""
    declaration = declared(start__sh="docker run vllm/vllm-openai:v0.28.0 vllm serve acme/chat")
    assert only(declaration).launch.model == "acme/chat"
    assert messages(declaration) == [
        "start.sh:1: the image's entrypoint is `vllm serve` already; give it only the options"
    ]
