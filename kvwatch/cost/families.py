"""Which rule reads which architecture: one table, keyed on `architectures` and `model_type`.

Each rule names the engine file that it follows; tables name architectures as vLLM 0.32.0 registers them
(model_executor/models/registry.py), and those that it dropped, with the release that had them last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kvwatch.cost import encoders, latent, linear, mamba, mixed, recurrent, singles
from kvwatch.cost.attention import decoder, derived_heads, own_heads
from kvwatch.cost.windows import alternating_windows, no_windows, periodic

if TYPE_CHECKING:
    from kvwatch.cost.attention import Reading
    from kvwatch.cost.fields import Fields

Rule = Callable[["Fields"], "Reading"]

_RULES: tuple[tuple[Rule, str], ...] = (
    (
        decoder(),
        """ApertusForCausalLM AquilaForCausalLM AquilaModel ArceeForCausalLM ArcticForCausalLM
        BailingMoeForCausalLM BailingMoeV2ForCausalLM BitNetForCausalLM CohereForCausalLM
        DeepseekForCausalLM Ernie4_5ForCausalLM Ernie4_5_MoeForCausalLM ExaoneForCausalLM
        Fairseq2LlamaForCausalLM FlexOlmoForCausalLM GemmaForCausalLM GlmForCausalLM Glm4ForCausalLM
        Glm4MoeForCausalLM GraniteForCausalLM GraniteMoeForCausalLM GraniteMoeSharedForCausalLM GritLM
        HeliumForCausalLM HunYuanDenseV1ForCausalLM HunYuanMoEV1ForCausalLM HYV3ForCausalLM
        HyperCLOVAXForCausalLM InternLM3ForCausalLM IQuestCoderForCausalLM Jais2ForCausalLM LLaMAForCausalLM
        LlamaForCausalLM LlamaModel MiniMaxM2ForCausalLM Ministral3ForCausalLM MinistralForCausalLM
        MistralForCausalLM MistralModel MixtralForCausalLM NanbeigeForCausalLM NemotronForCausalLM
        OlmoForCausalLM Olmo2ForCausalLM OuroForCausalLM PanguEmbeddedForCausalLM Param2MoEForCausalLM
        PhiForCausalLM Phi3ForCausalLM PhiMoEForCausalLM Qwen3ForCausalLM Qwen3Model Qwen3MoeForCausalLM
        SarvamMoEForCausalLM SeedOssForCausalLM SmolLM3ForCausalLM SolarForCausalLM SolarOpenForCausalLM
        Starcoder2ForCausalLM TeleChat3ForCausalLM CodeLlamaForCausalLM DeepSeekCoderForCausalLM""",
    ),
    (
        decoder(derived_heads),
        """BaiChuanForCausalLM BaichuanForCausalLM InternLMForCausalLM InternLM2ForCausalLM MiMoForCausalLM
        MiniCPMForCausalLM OlmoeForCausalLM OrionForCausalLM PersimmonForCausalLM Qwen2ForCausalLM
        Qwen2Model Qwen2MoeForCausalLM StableLmForCausalLM StableLMEpochForCausalLM TeleChatForCausalLM
        TeleChat2ForCausalLM TeleFLMForCausalLM XverseForCausalLM Grok1ForCausalLM Grok1ModelForCausalLM
        MolmoForCausalLM""",
    ),
    (
        decoder(own_heads, no_windows),
        """BloomForCausalLM CLIPModel GPT2LMHeadModel GPTJForCausalLM GPTNeoXForCausalLM JAISLMHeadModel
        OPTForCausalLM QWenLMHeadModel""",
    ),
    (decoder(windows=alternating_windows), "GptOssForCausalLM"),
    (decoder(windows=no_windows), "Dots1ForCausalLM MotifForCausalLM"),
    (decoder(windows=periodic(0)), "LagunaForCausalLM MellumForCausalLM"),
    (
        decoder(windows=periodic(4, full_first=True)),
        "CwmForCausalLM GraniteSWAForCausalLM GraniteMoeSWAForCausalLM",
    ),
    (decoder(windows=periodic(2)), "Gemma2ForCausalLM Gemma2Model VaultGemmaForCausalLM"),
    (mixed.read_gemma3, "Gemma3ForCausalLM"),
    (mixed.read_gemma3_text, "Gemma3TextModel"),
    (
        decoder(windows=periodic(4, name="sliding_window_pattern", added=1)),
        "Cohere2ForCausalLM Cohere2MoeForCausalLM",
    ),
    (decoder(windows=periodic(4)), "Olmo3ForCausalLM"),
    (decoder(windows=periodic(4, name="global_attn_every_n_layers")), "AfmoeForCausalLM"),
    (
        decoder(windows=periodic(4, name="sliding_window_pattern")),
        "Exaone4ForCausalLM ExaoneMoeForCausalLM ExaoneMoEForCausalLM",
    ),
    (mixed.read_falcon, "FalconForCausalLM RWForCausalLM"),
    (mixed.read_chatglm, "ChatGLMModel ChatGLMForConditionalGeneration"),
    (mixed.read_bigcode, "GPTBigCodeForCausalLM"),
    (mixed.read_nested_heads, "DbrxForCausalLM MPTForCausalLM MptForCausalLM"),
    (mixed.read_latent_keys, "MiniCPM3ForCausalLM"),
    (mixed.read_gemma3n, "Gemma3nForCausalLM"),
    (mixed.read_gemma4, "Gemma4ForCausalLM"),
    (mixed.read_llama4, "Llama4ForCausalLM"),
    (mixed.read_mimo_v2, "MiMoV2FlashForCausalLM MiMoV2ForCausalLM"),
    (mixed.read_step3, "Step3TextForCausalLM"),
    (mixed.read_step3p5, "Step3p5ForCausalLM"),
    (mixed.read_variable_heads, "DeciLMForCausalLM"),
    (mixed.read_looped, "IQuestLoopCoderForCausalLM"),
    (singles.read_hrm, "HrmTextForCausalLM"),
    (singles.read_step1, "Step1ForCausalLM"),
    (singles.read_rnj1, "Rnj1ForCausalLM"),
    (singles.read_plamo3, "Plamo3ForCausalLM"),
    (singles.read_muse_glimmer, "MuseGlimmerForCausalLM"),
    (
        latent.read_latent,
        """AXK1ForCausalLM DeepseekV2ForCausalLM DeepseekV3ForCausalLM DeepseekV32ForCausalLM
        GlmMoeDsaForCausalLM Glm4MoeLiteForCausalLM KimiK2ForCausalLM MistralLarge3ForCausalLM
        PanguUltraMoEForCausalLM SarvamMLAForCausalLM""",
    ),
    (latent.read_doubled, "LongcatFlashForCausalLM LongcatFlashNgramForCausalLM"),
    (recurrent.pure(mamba.mamba_state), "MambaForCausalLM FalconMambaForCausalLM"),
    (recurrent.pure(mamba.mamba2_file_state), "Mamba2ForCausalLM"),
    (mamba.read_jamba, "JambaForCausalLM JambaForSequenceClassification"),
    (mamba.read_bamba, "BambaForCausalLM"),
    (mamba.read_granite_hybrid, "GraniteMoeHybridForCausalLM"),
    (mamba.read_falcon_h1, "FalconH1ForCausalLM"),
    (mamba.read_nemotron_h, "NemotronHForCausalLM NemotronHPuzzleForCausalLM"),
    (mamba.read_zamba2, "Zamba2ForCausalLM"),
    (mamba.read_plamo2, "Plamo2ForCausalLM"),
    (linear.read_lfm2, "Lfm2ForCausalLM Lfm2MoeForCausalLM"),
    (
        linear.read_delta,
        "Qwen3NextForCausalLM Qwen3_5ForCausalLM Qwen3_5MoeForCausalLM OlmoHybridForCausalLM",
    ),
    (linear.read_kimi_linear, "KimiLinearForCausalLM"),
    (linear.read_bailing_linear, "BailingMoeV2_5ForCausalLM"),
    (linear.read_bailing_kimi, "BailingMoeV3ForCausalLM"),
    (linear.read_minimax, "MiniMaxText01ForCausalLM MiniMaxM1ForCausalLM MiniMaxForCausalLM"),
    (
        encoders.read_encoder,
        """BertModel BertForMaskedLM BertForSequenceClassification BertForTokenClassification
        BertSpladeSparseEmbeddingModel BgeM3EmbeddingModel ErnieModel ErnieForSequenceClassification
        ErnieForTokenClassification GteModel GteNewModel GteNewForSequenceClassification HF_ColBERT
        ColBERTModernBertModel ColBERTJinaRobertaModel EmbeddingGemma2Model LlamaBidirectionalModel
        LlamaBidirectionalForSequenceClassification ModernBertModel ModernBertForSequenceClassification
        ModernBertForTokenClassification NomicBertModel OpenAIPrivacyFilterForTokenClassification
        RobertaModel RobertaForMaskedLM SiglipModel VoyageQwen3BidirectionalEmbedModel
        RobertaForSequenceClassification RobertaForTokenClassification XLMRobertaModel
        XLMRobertaForSequenceClassification XLMRobertaForTokenClassification""",
    ),
    (encoders.read_crossing, "WhisperForConditionalGeneration BartForConditionalGeneration BartModel"),
)

RULES: dict[str, Rule] = {name: rule for rule, names in _RULES for name in names.split()}
"""Architecture -> the rule that reads its config."""

_POOLING = """
CLIPModel JinaForRanking BertModel BertForMaskedLM BertForSequenceClassification BertForTokenClassification
BertSpladeSparseEmbeddingModel BgeM3EmbeddingModel ErnieModel ErnieForSequenceClassification
ErnieForTokenClassification Gemma3TextModel GteModel GteNewModel GteNewForSequenceClassification
HF_ColBERT ColBERTModernBertModel ColBERTJinaRobertaModel JambaForSequenceClassification
LlamaBidirectionalModel LlamaBidirectionalForSequenceClassification ModernBertModel
ModernBertForSequenceClassification ModernBertForTokenClassification NomicBertModel Qwen3Model
RobertaModel RobertaForMaskedLM RobertaForSequenceClassification RobertaForTokenClassification
XLMRobertaModel XLMRobertaForSequenceClassification XLMRobertaForTokenClassification
"""
POOLING = frozenset(_POOLING.split())
"""Architectures that the engine serves as pooling models unless told otherwise."""

POOLING_SUFFIXES = (
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForTextEncoding",
    "ForRewardModeling",
    "ForRewardModel",
    "RewardModel",
    "ForProcessRewardModel",
    "EmbeddingModel",
    "ForImageClassification",
)
"""Endings that make a pooling model of a decoder (0.32.0, config/model.py `_SUFFIX_TO_DEFAULTS`)."""


def rule_of(architecture: str) -> tuple[Rule, bool] | None:
    """Return an architecture's rule and whether it is served as a pooling model; None where unknown."""
    if architecture in RULES:
        return RULES[architecture], architecture in POOLING
    for suffix in POOLING_SUFFIXES:
        base = architecture.removesuffix(suffix)
        for causal in (f"{base}ForCausalLM", f"{base}LMHeadModel"):
            if base != architecture and causal in RULES:
                return RULES[causal], True
    return None
