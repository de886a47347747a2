"""One server's pool before it starts: bounds, refusals, and silence where nothing is certain."""

from __future__ import annotations

import re

import pytest

from kvwatch.check.declaration import Card
from kvwatch.check.verdict import Severity
from tests.check.fleet import GIB, found, model, server
from tests.check.uniform_model import uniform_config
from tests.cost.agreement import load

UNIFORM = uniform_config(32, 8)
"""131,072 bytes a token, 2 MiB a block of 16."""
REFUSED = "pool-below-one-request"


def test_weights_alone_can_prove_a_refusal() -> None:
    """0.50 of the card less the weights is an upper bound: below one request it is certain."""
    finding = found(
        server(
            "a",
            "vllm serve m --gpu-memory-utilization 0.5 --max-model-len 65536",
            model=model(UNIFORM, 16 * GIB),
        )
    )[REFUSED]
    assert "needs 8.00 GiB" in finding.message
    assert "at most 6.49 GiB = 0.50 x 44.99 GiB - 16.00 GiB of weights" in finding.message
    assert "raise gpu_memory_utilization to 0.54 or more" in finding.message


def test_an_upper_bound_that_is_large_enough_promises_nothing() -> None:
    """Weights say nothing of activations: no finding, and no claim that it starts."""
    assert REFUSED not in found(
        server(
            "a",
            "vllm serve m --gpu-memory-utilization 0.6 --max-model-len 65536",
            model=model(UNIFORM, 16 * GIB),
        )
    )


def test_a_measured_footprint_is_exact() -> None:
    """The share less what was measured is the pool."""
    message = found(
        server(
            "a",
            "vllm serve m --gpu-memory-utilization 0.6 --max-model-len 65536",
            model=model(UNIFORM, 16 * GIB),
            measured_bytes=20 * GIB,
        )
    )[REFUSED].message
    assert "6.99 GiB = 0.60 x 44.99 GiB - 20.00 GiB measured: 1.01 GiB short" in message
    assert "at most" not in message


@pytest.mark.parametrize(
    "options",
    [
        "--quantization fp8",
        "--cpu-offload-gb 10",
        "--load-format dummy",
        "-q bitsandbytes",
        "--hf-overrides '{}'",
        "--speculative-config '{\"num_speculative_tokens\": 3}'",
        "--max-model-len auto",
        "--max-model-len '${LENGTH}'",
        "--dtype '${TYPE}'",
    ],
)
def test_what_may_change_the_pool_or_the_model_silences_the_refusal(options: str) -> None:
    """Less is loaded, the model is another, or the length is not known: nothing is certain."""
    length = "" if "max-model-len" in options else " --max-model-len 65536"
    command = f"vllm serve m --gpu-memory-utilization 0.5{length} {options}"
    assert REFUSED not in found(server("a", command, model=model(UNIFORM, 16 * GIB)))


def test_a_checkpoint_of_32_bits_is_served_in_16() -> None:
    """Half of its bytes are the bound, unless --dtype float32 keeps them."""
    wide = model(UNIFORM, 30 * GIB, F32=30 * GIB)
    command = "vllm serve m --gpu-memory-utilization 0.5 --max-model-len 32768"
    assert REFUSED not in found(server("a", command, model=wide))
    assert REFUSED in found(server("a", f"{command} --dtype float32", model=wide))


def test_the_length_that_mends_it_starts_and_one_more_does_not() -> None:
    """The message's length is the greatest."""
    command = "vllm serve m --kv-cache-memory-bytes 2G --max-model-len {}"
    message = found(server("a", command.format(32768), model=model(UNIFORM)))[REFUSED].message
    longest = int(re.search(r"--max-model-len to ([\d,]+)", message)[1].replace(",", ""))  # type: ignore[index]
    assert longest == 16_368  # 1,024 blocks, one of them the null block
    assert REFUSED not in found(server("a", command.format(longest), model=model(UNIFORM)))
    assert REFUSED in found(server("a", command.format(longest + 1), model=model(UNIFORM)))


def test_the_pin_that_mends_it_starts() -> None:
    """So does the pin, to the byte."""
    command = "vllm serve m --kv-cache-memory-bytes {} --max-model-len 32768"
    numbers = found(server("a", command.format("2G"), model=model(UNIFORM)))[REFUSED].numbers
    least = int(numbers["minimum_pool_bytes"])
    assert REFUSED not in found(server("a", command.format(least), model=model(UNIFORM)))
    assert REFUSED in found(server("a", command.format(least - 1), model=model(UNIFORM)))


def test_the_null_block_is_charged_from_0_29() -> None:
    """A pool of exactly one request starts before it, and not after; without a release it is not refused."""
    command = "vllm serve m --kv-cache-memory-bytes 2G --max-model-len 16384"
    for version, refused in (((0, 28, 0), False), ((0, 29, 0), True), (None, False)):
        rules = found(server("a", command, version=version, model=model(UNIFORM)))
        assert (REFUSED in rules) is refused


def test_a_refusal_that_hangs_on_the_cards_name_is_no_error() -> None:
    """A card of 80 GiB takes 8,192 batched tokens by default, an A100 2,048: windows are charged by them."""
    card = Card(name="0", total_bytes=80 * GIB)
    gemma = model(load("configs")["gemma-3-27b-text"])
    command = "vllm serve m --max-model-len 131072 --kv-cache-memory-bytes {}G"
    severities = {
        text: found(server("a", command.format(text), model=gemma), cards=(card,))[REFUSED].severity
        for text in ("12", "15")
    }
    assert severities == {"12": Severity.ERROR, "15": Severity.WARNING}
    stated = command.format("15") + " --max-num-batched-tokens 8192"
    assert found(server("a", stated, model=gemma), cards=(card,))[REFUSED].severity is Severity.ERROR
    assert REFUSED not in found(server("a", command.format("18"), model=gemma), cards=(card,))


def test_the_models_own_length_counts_where_none_is_set() -> None:
    """262,144 tokens by config.json need 32 GiB."""
    message = found(server("a", "vllm serve m --kv-cache-memory-bytes 10G", model=model(UNIFORM)))[
        REFUSED
    ].message
    assert "one request of 262,144 tokens (the model's own: none is set) needs 32.00 GiB" in message


def test_a_pooling_models_own_length_is_not_certain() -> None:
    """Its tokenizer may lower it."""
    pooling = model({**UNIFORM, "architectures": ["Qwen3ForCausalLM"]})
    command = "vllm serve m --runner pooling --kv-cache-memory-bytes 1G"
    assert "length-over-model" not in found(server("a", command, model=pooling))
    embedding = model(load("configs")["bge-base-en"])
    assert REFUSED not in found(server("a", "vllm serve m --gpu-memory-utilization 0.1", model=embedding))


def test_one_request_at_a_time_is_no_fault_where_it_is_meant() -> None:
    """--max-num-seqs 1 says that two are not wanted."""
    command = "vllm serve m --kv-cache-memory-bytes 6G --max-model-len 32768"
    assert "length-just-in-case" in found(server("a", command, model=model(UNIFORM)))
    assert "length-just-in-case" not in found(
        server("a", f"{command} --max-num-seqs 1", model=model(UNIFORM))
    )


def test_two_of_the_length_that_is_named_fit_and_of_one_more_do_not() -> None:
    """The length of two is the greatest."""
    numbers = found(
        server("a", "vllm serve m --kv-cache-memory-bytes 6G --max-model-len 32768", model=model(UNIFORM))
    )["length-just-in-case"].numbers
    two = int(numbers["length_of_two_tokens"])
    command = "vllm serve m --kv-cache-memory-bytes 6G --max-model-len {}"
    assert "length-just-in-case" not in found(server("a", command.format(two), model=model(UNIFORM)))
    assert "length-just-in-case" in found(server("a", command.format(two + 1), model=model(UNIFORM)))


@pytest.mark.parametrize(
    "scaling, length, over",
    [
        (None, 262_145, True),
        ({"rope_type": "linear", "factor": 2.0}, 300_000, False),
        ({"rope_type": "yarn", "factor": 2.0}, 300_000, False),
        ({"rope_type": "llama3", "factor": 8.0}, 300_000, True),
    ],
)
def test_a_stretched_model_may_be_longer(scaling: dict[str, object] | None, length: int, over: bool) -> None:  # noqa: FBT001
    """A scaling that some release multiplies by is no refusal."""
    config = UNIFORM if scaling is None else {**UNIFORM, "rope_scaling": scaling}
    rules = found(
        server("a", f"vllm serve m --kv-cache-memory-bytes 40G --max-model-len {length}", model=model(config))
    )
    assert ("length-over-model" in rules) is over


def test_the_variable_that_allows_long_requests_is_respected() -> None:
    """VLLM_ALLOW_LONG_MAX_MODEL_LEN lets the engine start."""
    from dataclasses import replace  # noqa: PLC0415

    long = server(
        "a", "vllm serve m --kv-cache-memory-bytes 40G --max-model-len 262145", model=model(UNIFORM)
    )
    allowed = replace(long.launch, unknown=(("VLLM_ALLOW_LONG_MAX_MODEL_LEN=1",),))
    assert "length-over-model" not in found(replace(long, launch=allowed))


def test_recurrent_layers_hold_states_of_every_request() -> None:
    """A hybrid's request of one token holds many blocks, and the limit is counted with them."""
    hybrid = model(load("configs")["bamba-9b"])
    command = "vllm serve m --kv-cache-memory-bytes 6G --max-model-len 4096 --max-num-seqs 1024"
    message = found(server("a", command, model=hybrid))["request-limit-beyond-pool"].message
    assert "exceeds available Mamba cache blocks" in message


def test_an_unknown_architecture_is_named_and_nothing_is_guessed() -> None:
    """The note has the model's detail; no pool rule speaks."""
    rules = found(
        server(
            "a",
            "vllm serve m --kv-cache-memory-bytes 1G --max-model-len 65536",
            model_detail="unknown_architecture: architecture FooForCausalLM",
        )
    )
    assert "FooForCausalLM" in rules["unknown-model"].message
    assert REFUSED not in rules
