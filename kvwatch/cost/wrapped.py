"""Models that wrap a language model: which object of their config describes it, and which rule reads that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvwatch.cost.families import RULES

if TYPE_CHECKING:
    from collections.abc import Mapping

NESTED = ("thinker_config", "text_config", "llm_config", "language_config", "decoder_config")
"""Names of the object that describes the language model (0.32.0, transformers_utils/config.py)."""

LAYER_COUNTS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "decoder_layers")

_WRAPPERS: dict[str, str] = {
    "LlamaForCausalLM": """
        AriaForConditionalGeneration BeeForConditionalGeneration ChameleonForConditionalGeneration
        DeepseekVLForCausalLM Idefics3ForConditionalGeneration LlamaNemotronVLModel
        LlamaNemotronVLForSequenceClassification Llama_Nemotron_Nano_VL LlavaForConditionalGeneration
        LlavaNextForConditionalGeneration LlavaNextVideoForConditionalGeneration
        MantisForConditionalGeneration KananaVForConditionalGeneration OpenVLAForActionPrediction
        SmolVLMForConditionalGeneration UltravoxModel VoxtralForConditionalGeneration
        Eagle2_5_VLForConditionalGeneration Emu3ForConditionalGeneration HCXVisionForCausalLM
        HCXVisionV2ForCausalLM TarsierForConditionalGeneration GraniteSpeechForConditionalGeneration
        GraniteSpeechPlusForConditionalGeneration Granite4VisionForConditionalGeneration
        AyaVisionForConditionalGeneration H2OVLChatModel MiniCPMV MiniCPMO Molmo2ForConditionalGeneration""",
    "MistralForCausalLM": "Mistral3ForConditionalGeneration PixtralForConditionalGeneration",
    "Qwen2ForCausalLM": """
        AudioFlamingo3ForConditionalGeneration BagelForConditionalGeneration DotsOCRForCausalLM
        InternVLChatModel InternVLForConditionalGeneration InternS1ForConditionalGeneration
        LlavaOnevisionForConditionalGeneration LlavaOnevision2ForConditionalGeneration MiDashengLMModel
        MoonshotKimiaForCausalLM NVLM_D Ovis Ovis2_5 Ovis2_6ForCausalLM Ovis2_6_MoeForCausalLM
        Qwen2VLForConditionalGeneration Qwen2_5_VLForConditionalGeneration
        Qwen2AudioForConditionalGeneration Qwen2_5OmniModel Qwen2_5OmniForConditionalGeneration
        SkyworkR1VChatModel Tarsier2ForConditionalGeneration OpenCUAForConditionalGeneration
        FunASRForConditionalGeneration FireRedASR2ForConditionalGeneration
        MusicFlamingoForConditionalGeneration VibeVoiceAsrForConditionalGeneration JinaVLForRanking
        RForConditionalGeneration""",
    "Qwen3ForCausalLM": """
        ColQwen3 OpsColQwen3Model Qwen3VLForConditionalGeneration Qwen3ASRForConditionalGeneration
        Qwen3ASRRealtimeGeneration LightOnOCRForConditionalGeneration IsaacForConditionalGeneration
        KeyeForConditionalGeneration KeyeVL1_5ForConditionalGeneration QianfanOCRForConditionalGeneration
        Cosmos3ForConditionalGeneration FunAudioChatForConditionalGeneration JinaForRanking MossAudioModel
        MossTranscribeDiarizeForConditionalGeneration Qwen3ASRForcedAlignerForTokenClassification
        Qwen3VLNemotronEmbedModel StepVLForConditionalGeneration""",
    "Qwen3MoeForCausalLM": """Qwen3VLMoeForConditionalGeneration Qwen3OmniMoeForConditionalGeneration
        ClefOmniForJointSchema InternS1ProForConditionalGeneration""",
    "Qwen3_5ForCausalLM": """Qwen3_5ForConditionalGeneration Qwen3_5MoeForConditionalGeneration
        ColQwen3_5 InternS2PreviewForConditionalGeneration MiniCPMV4_6ForConditionalGeneration
        MiniCPMV4_7ForConditionalGeneration""",
    "Cohere2ForCausalLM": "Cohere2VisionForConditionalGeneration",
    "OPTForCausalLM": "Blip2ForConditionalGeneration",
    "GemmaForCausalLM": "PaliGemmaForConditionalGeneration ColPaliForRetrieval",
    "Gemma3ForCausalLM": "Gemma3ForConditionalGeneration",
    "Gemma3nForCausalLM": "Gemma3nForConditionalGeneration",
    "Gemma4ForCausalLM": """Gemma4ForConditionalGeneration Gemma4UnifiedForConditionalGeneration
        DiffusionGemmaForBlockDiffusion""",
    "Glm4ForCausalLM": """Glm4vForConditionalGeneration GlmOcrForConditionalGeneration
        GlmAsrForConditionalGeneration""",
    "Glm4MoeForCausalLM": "Glm4vMoeForConditionalGeneration",
    "ChatGLMModel": "GLM4VForCausalLM",
    "DeepseekV2ForCausalLM": """"DeepseekVLV2ForCausalLM DeepseekOCRForCausalLM DeepseekOCR2ForCausalLM
        UnlimitedOCRForCausalLM""",
    "DeepseekV3ForCausalLM": "KimiVLForConditionalGeneration KimiK25ForConditionalGeneration",
    "Ernie4_5_MoeForCausalLM": "Ernie4_5_VLMoeForConditionalGeneration",
    "Ernie4_5ForCausalLM": "PaddleOCRVLForConditionalGeneration",
    "Exaone4ForCausalLM": "Exaone4_5_ForConditionalGeneration",
    "HunYuanDenseV1ForCausalLM": "HunYuanVLForConditionalGeneration",
    "Lfm2ForCausalLM": "Lfm2VlForConditionalGeneration ColBERTLfm2Model",
    "Llama4ForCausalLM": "Llama4ForConditionalGeneration",
    "MiMoV2FlashForCausalLM": "MiMoV2OmniForCausalLM",
    "MiniMaxText01ForCausalLM": "MiniMaxVL01ForConditionalGeneration",
    "NemotronHForCausalLM": """NemotronH_Nano_VL_V2 NemotronH_Nano_VL NemotronH_Nano_Omni_Reasoning_V3
        NemotronH_Super_Omni_Reasoning_V3 NemotronH_Omni_Reasoning_V3""",
    "MuseGlimmerForCausalLM": "MuseGlimmerForConditionalGeneration",
    "PanguEmbeddedForCausalLM": "OpenPanguVLForConditionalGeneration",
    "PersimmonForCausalLM": "FuyuForCausalLM",
    "Phi3ForCausalLM": "Phi3VForCausalLM Phi4MMForCausalLM Phi4ForCausalLMV",
    "Step3TextForCausalLM": "Step3VLForConditionalGeneration",
    "Step3p5ForCausalLM": "Step3p7ForConditionalGeneration",
    "BailingMoeV3ForCausalLM": "BailingMoeV3VLForConditionalGeneration",
}

WRAPPERS: dict[str, str] = {name: inner for inner, names in _WRAPPERS.items() for name in names.split()}
"""Wrapping architecture -> the language model's where the inner object does not say."""

MODEL_TYPES: dict[str, str] = {
    "aria_text": "LlamaForCausalLM",
    "bailing_moe_v3": "BailingMoeV3ForCausalLM",
    "chatglm": "ChatGLMModel",
    "cohere": "CohereForCausalLM",
    "cohere2": "Cohere2ForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "deepseek_v32": "DeepseekV32ForCausalLM",
    "diffusion_gemma_text": "Gemma4ForCausalLM",
    "emu3_text_model": "LlamaForCausalLM",
    "ernie4_5": "Ernie4_5ForCausalLM",
    "ernie4_5_moe": "Ernie4_5_MoeForCausalLM",
    "ernie4_5_vl_moe_text": "Ernie4_5_MoeForCausalLM",
    "exaone4": "Exaone4ForCausalLM",
    "exaone4_5_text": "Exaone4ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma3n_text": "Gemma3nForCausalLM",
    "gemma4_text": "Gemma4ForCausalLM",
    "gemma4_unified_text": "Gemma4ForCausalLM",
    "glm4": "Glm4ForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "glm4v_moe_text": "Glm4MoeForCausalLM",
    "glm4v_text": "Glm4ForCausalLM",
    "glm_ocr_text": "Glm4ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "granite": "GraniteForCausalLM",
    "granite4_vision_text": "GraniteForCausalLM",
    "granitemoehybrid": "GraniteMoeHybridForCausalLM",
    "hunyuan_vl_text": "HunYuanDenseV1ForCausalLM",
    "hyperclovax": "HyperCLOVAXForCausalLM",
    "internlm2": "InternLM2ForCausalLM",
    "internlm3": "InternLM3ForCausalLM",
    "kimi_k2": "DeepseekV3ForCausalLM",
    "kimi_linear": "KimiLinearForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "lfm2_moe": "Lfm2MoeForCausalLM",
    "llama": "LlamaForCausalLM",
    "llama4_text": "Llama4ForCausalLM",
    "minicpm": "MiniCPMForCausalLM",
    "minimax_m2": "MiniMaxM2ForCausalLM",
    "minimax_text_01": "MiniMaxText01ForCausalLM",
    "ministral3": "Ministral3ForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "nemotron_h": "NemotronHForCausalLM",
    "opt": "OPTForCausalLM",
    "paddleocr_vl_text": "Ernie4_5ForCausalLM",
    "phi": "PhiForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2_5_omni_text": "Qwen2ForCausalLM",
    "qwen2_5_vl_text": "Qwen2ForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen2_vl_text": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
    "qwen3_omni_moe_text": "Qwen3MoeForCausalLM",
    "qwen3_vl_moe_text": "Qwen3MoeForCausalLM",
    "qwen3_vl_text": "Qwen3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "step3_text": "Step3TextForCausalLM",
    "step3p5": "Step3p5ForCausalLM",
    "t5_gemma_module": "Gemma2ForCausalLM",
}
"""`model_type` of an inner object -> the architecture whose rule reads it."""


def unwrap(architecture: str, config: Mapping[str, Any]) -> tuple[str, Mapping[str, Any], bool]:
    """Return the language model's architecture, its object, and whether that is a nested one.

    An architecture that wraps nothing is returned as it is, unless its file nests the dimensions.
    """
    inner: Mapping[str, Any] = config
    for name in NESTED:
        nested = inner.get(name)
        if isinstance(nested, dict):
            inner = nested
    if architecture in WRAPPERS:
        own = _inner_architecture(inner) if inner is not config else None
        return own or WRAPPERS[architecture], inner, inner is not config
    if inner is not config and architecture in RULES and not any(name in config for name in LAYER_COUNTS):
        return architecture, inner, True
    return architecture, config, False


def _inner_architecture(inner: Mapping[str, Any]) -> str | None:
    names = inner.get("architectures")
    if isinstance(names, list) and names and names[0] in RULES:
        return str(names[0])
    model_type = inner.get("model_type")
    return MODEL_TYPES.get(model_type) if isinstance(model_type, str) else None
