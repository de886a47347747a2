"""Numbers that public vLLM threads printed, beside what the cost model says; named as in the case library.

Cases that only test an identity of the printed numbers are here with it. The explanation stands where a
thread printed a number of another thing: 8.11 GiB of one rank beside the tokens of the smallest, for example.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvwatch.cost.hf import read_hf_config
from kvwatch.cost.vllm import BlockPlan, VllmOptions, plan_blocks
from tests.cost.agreement import GIB, Outcome, load

if TYPE_CHECKING:
    from collections.abc import Iterator


class Case(NamedTuple):
    """A server whose model has full attention only: the model's numbers, and the lines that it printed."""

    layers: int
    kv_heads: int
    ranks: int
    length: int
    version: tuple[int, ...]
    blocks: int
    """Of the pool, which together with the tokens is in every thread."""
    token_bytes: int
    """Bytes of a token on each rank."""
    tokens: int
    gib: float | None
    concurrency: float | None
    other_rank: bool = False
    """The GiB are those of another rank than the one with the fewest blocks."""


class Check(NamedTuple):
    """One printed number, what the cost model says, and why they differ where they do."""

    case: str
    quantity: str
    printed: float
    ours: float
    digits: int = 0
    explanation: str = ""

    @property
    def result(self) -> str:
        """Say whether ours is the printed number, to its last digit."""
        if abs(self.ours - self.printed) <= 0.5 * 10**-self.digits + 1e-12:
            return "exact"
        return "explained" if self.explanation else "off"


CASES = {
    "C01": Case(32, 8, 1, 20_000, (0, 6, 3), 1952, 131_072, 31_232, 3.81, 1.56),
    "C02": Case(32, 8, 1, 29_000, (0, 6, 3), 1478, 131_072, 23_648, 2.89, 0.82),
    "C04": Case(94, 4, 4, 32_768, (0, 10, 0), 11_180, 48_128, 178_880, 8.11, None, other_rank=True),
    "C06": Case(48, 8, 2, 131_072, (0, 7, 2), 5096, 98_304, 81_536, 8.69, None, other_rank=True),
    "C07": Case(80, 8, 1, 2048, (0, 7, 2), 1381, 327_680, 22_096, None, 10.79),
    "C08": Case(32, 8, 1, 2048, (0, 7, 3), 127_626, 131_072, 2_042_016, None, 997.08),
    "C09": Case(32, 32, 1, 4096, (0, 2, 7), 229, 524_288, 3664, None, None),
    "C10": Case(80, 8, 1, 8192, (0, 4, 2), 378, 327_680, 6048, None, None),
    "C12": Case(62, 8, 2, 196_608, (0, 29, 1), 15_051, 126_976, 240_816, 28.74, 1.22, other_rank=True),
    "C13": Case(62, 8, 1, 196_608, (0, 11, 0), 3321, 253_952, 53_136, 12.57, None),
    "C39": Case(28, 8, 1, 40_960, (0, 28, 1), 2761, 114_688, 44_176, 4.72, None),
    "C43": Case(92, 8, 1, 131_072, (0, 10, 0), 102_564, 376_832, 1_641_024, None, None),
}
"""Of C08 the thread names no model; C43 counts the ranks together."""


def uniform(
    layers: int, kv_heads: int, ranks: int, length: int, version: tuple[int, ...], width: int = 128
) -> BlockPlan:
    """Return the plan of a server whose model has full attention only."""
    spec = read_hf_config(
        {
            "architectures": ["Qwen3MoeForCausalLM"],
            "hidden_size": 4096,
            "num_hidden_layers": layers,
            "num_attention_heads": max(64, kv_heads),
            "num_key_value_heads": kv_heads,
            "head_dim": width,
            "max_position_embeddings": 262_144,
            "dtype": "bfloat16",
        }
    )
    return plan_blocks(spec, VllmOptions(engine_version=version, tensor_parallel=ranks, max_model_len=length))


def plan_case(name: str) -> BlockPlan:
    """Return the plan of a case's server."""
    case = CASES[name]
    return uniform(case.layers, case.kv_heads, case.ranks, case.length, case.version)


def checks() -> Iterator[Check]:
    """Yield every number of every case."""
    for name in CASES:
        yield from _uniform_checks(name)
    yield from _refused_start()
    yield from _windows_in_a_refused_start()
    yield from _delta_net()
    yield from _latent_hybrid()
    yield from _latent_ratio()
    yield from _tables()
    yield from _identities()
    yield from _two_releases()


def compare_cases() -> list[Outcome]:
    """Compare every printed number."""
    return [
        Outcome(
            family=check.case, result=check.result, detail=f"{check.quantity}: {check.ours}, {check.printed}"
        )
        for check in checks()
    ]


def _uniform_checks(name: str) -> Iterator[Check]:
    case, plan = CASES[name], plan_case(name)
    yield Check(name, "bytes of a token", case.token_bytes, plan.bytes_per_token)
    yield Check(name, "tokens", case.tokens, plan.kv_cache_size_tokens(case.blocks) or 0)
    if case.gib is not None:
        why = "the line is of another rank; the smallest rank decides" if case.other_rank else ""
        yield Check(name, "GiB", case.gib, case.blocks * plan.bytes_per_block / GIB, 2, why)
    if case.concurrency is not None:
        yield Check(name, "concurrency", case.concurrency, plan.max_concurrency(case.blocks) or 0, 2)


def _refused_start() -> Iterator[Check]:
    plan = plan_case("C12")
    yield Check("C12", "GiB for 196,608", 23.25, plan.start_blocks * plan.bytes_per_block / GIB, 2)
    yield Check("C12", "GiB for 190,272", 22.5, plan.resident_blocks(190_272) * plan.bytes_per_block / GIB, 2)
    yield Check("C43", "usage with one block", 9.75010481e-06, 1 / (CASES["C43"].blocks - 1), 14)


def _windows_in_a_refused_start() -> Iterator[Check]:
    spec = read_hf_config({**load("configs")["gpt-oss-20b"], "num_hidden_layers": 36, "layer_types": None})
    plan = plan_blocks(
        spec, VllmOptions(engine_version=(0, 11, 0), max_model_len=131_072, max_num_batched_tokens=1024)
    )
    yield Check("C15", "blocks", 8192 + 73, plan.start_blocks)
    yield Check("C15", "GiB for 131,072", 4.54, plan.start_blocks * plan.bytes_per_block / GIB, 2)


DELTA_NET = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "hidden_size": 5120,
    "num_hidden_layers": 64,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "full_attention_interval": 4,
    "linear_num_value_heads": 48,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 262_144,
    "dtype": "bfloat16",
}


def _delta_net() -> Iterator[Check]:
    options: dict[str, Any] = {"cache_dtype": "fp8_e4m3", "tensor_parallel": 2, "max_model_len": 131_072}
    plan = plan_blocks(read_hf_config(DELTA_NET), VllmOptions(**options, max_num_batched_tokens=2048))
    yield Check("C16", "bytes of a page", 1_605_632, max(group.page_bytes for group in plan.groups))
    yield Check("C16", "blocks of 4.99 GiB", 208, plan.num_blocks(int(4.99 * GIB)))
    yield Check("C16", "blocks of a request", 90, plan.start_blocks)
    yield Check("C16", "tokens", 302_921, plan.kv_cache_size_tokens(208) or 0)
    yield Check("C16", "concurrency", 2.31, plan.max_concurrency(208) or 0, 2)


def _latent_hybrid() -> Iterator[Check]:
    plan = plan_blocks(
        read_hf_config(load("configs")["kimi-linear-48b"]),
        VllmOptions(
            engine_version=(0, 11, 1), tensor_parallel=2, max_model_len=120_000, max_num_batched_tokens=2048
        ),
    )
    yield Check("C19", "tokens of a block", 960, plan.groups[0].block_size)
    yield Check("C19", "tokens", 75_840, plan.kv_cache_size_tokens(318) or 0)
    yield Check("C19", "concurrency", 2.48, plan.max_concurrency(318) or 0, 2)
    yield Check("C19", "GiB", 2.3, 318 * plan.bytes_per_block / GIB, 1)


def _latent_ratio() -> Iterator[Check]:
    plan = plan_blocks(read_hf_config(load("configs")["deepseek-v3"]), VllmOptions(tensor_parallel=8))
    heads = uniform(61, 128, 8, 4096, (0, 7, 0), width=192)
    why = "latent weights changed the pool as well"
    yield Check("C21", "bytes of a token", 70_272, plan.bytes_per_token)
    yield Check("C21", "of unfolded heads", 749_568, heads.bytes_per_token)
    yield Check("C21", "tokens, times", 9.38, heads.bytes_per_token / plan.bytes_per_token, 2, why)


def _tables() -> Iterator[Check]:
    """Yield a table's GiB of Llama 3.1; of the 405B it counts the 16 heads that its first files stored."""
    for case, layers, kv_heads, rows in (
        ("C36", 32, 8, ((1024, 0.125, 3), (16_000, 1.95, 2), (128_000, 15.62, 2))),
        ("C37", 80, 8, ((1024, 0.313, 3), (16_000, 4.88, 2), (128_000, 39.06, 2))),
        ("C38", 126, 16, ((1024, 0.984, 3), (128_000, 123.05, 2))),
    ):
        plan = uniform(layers, kv_heads, 1, 131_072, (0, 32, 0))
        for tokens, gib, digits in rows:
            yield Check(case, f"GiB of {tokens:,}", gib, plan.bytes_per_token * tokens / GIB, digits)


def _identities() -> Iterator[Check]:
    """Yield the two numbers that say the same thing of a hybrid; neither says what the pool holds."""
    for case, tokens, length, concurrency in (
        ("C41", 620_944, 262_144, 2.37),
        ("C42", 260_006, 8192, 31.74),
        ("C42", 1_077_542, 262_144, 4.11),
    ):
        yield Check(case, f"tokens / {length:,}", concurrency, tokens / length, 2)


WINDOWS = {
    "architectures": ["Gemma4ForCausalLM"],
    "model_type": "gemma4_text",
    "hidden_size": 5376,
    "num_hidden_layers": 60,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "num_global_key_value_heads": 4,
    "attention_k_eq_v": True,
    "head_dim": 256,
    "global_head_dim": 512,
    "sliding_window": 1024,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 10,
    "num_kv_shared_layers": 0,
    "max_position_embeddings": 262_144,
    "dtype": "bfloat16",
}


def _two_releases() -> Iterator[Check]:
    """Yield what two releases print of one pool: one group's share of it, and concurrency x full length."""
    spec = read_hf_config(WINDOWS)
    before, after = (
        plan_blocks(
            spec, VllmOptions(engine_version=version, max_model_len=131_072, max_num_batched_tokens=2048)
        )
        for version in ((0, 20, 0), (0, 21, 0))
    )
    blocks = before.num_blocks(50 * GIB)
    why = "the thread rounds, and does not say the exact pool or the options"
    stored = sum(group.bytes_per_block / group.block_size for group in before.groups)
    yield Check("C44", "bytes of a token, all layers", 901_120, stored)
    yield Check("C44", "bytes that a token adds", 81_920, after.bytes_per_token)
    yield Check("C44", "tokens by 0.20.0", 55_000, before.kv_cache_size_tokens(blocks) or 0, 0, why)
    yield Check("C44", "tokens by 0.21.0", 525_000, after.kv_cache_size_tokens(blocks) or 0, 0, why)
