"""What the public config.json files say, typed from them, and the parameter totals that the hub shows for their weights.

One entry per public model id of the packages: package, transformers class, the keys of config.json that shape the
model or its arithmetic, and the total (a tied head counted once).
"""

from typing import Any, NamedTuple


class Public(NamedTuple):
    package: str
    cls: str
    config: dict[str, Any]
    parameters: int


def _llama(hidden: int, layers: int, heads: int, kv_heads: int, inter: int, **more: Any) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": inter,
        "vocab_size": 128256,
        "rms_norm_eps": 1e-05,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "max_position_embeddings": 131072 if more["rope_scaling"] else 8192,
        **more,
    }


def _scaled(factor: float) -> dict[str, Any]:
    return {
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    }


def _smollm(hidden: int, layers: int, heads: int, kv_heads: int, inter: int, theta: int) -> dict[str, Any]:
    more = {"vocab_size": 49152, "rope_theta": theta, "rope_scaling": None, "tie_word_embeddings": True}
    return _llama(hidden, layers, heads, kv_heads, inter, **more)


def _mistral(hidden: int, layers: int, heads: int, inter: int, vocab: int, theta: float, window: int | None) -> dict[str, Any]:
    return {
        "model_type": "mistral",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": inter,
        "vocab_size": vocab,
        "rms_norm_eps": 1e-05,
        "rope_theta": theta,
        "sliding_window": window,
        "tie_word_embeddings": False,
    }


def _qwen(hidden: int, layers: int, heads: int, kv_heads: int, inter: int, vocab: int, tied: bool, eps: float) -> dict[str, Any]:
    return {
        "model_type": "qwen2",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": inter,
        "vocab_size": vocab,
        "rms_norm_eps": eps,
        "rope_theta": 1000000.0,
        "sliding_window": 131072,
        "use_sliding_window": False,
        "tie_word_embeddings": tied,
    }


LLAMA, MISTRAL, QWEN = ("llama_3", "LlamaForCausalLM"), ("mistral", "MistralForCausalLM"), ("qwen_2", "Qwen2ForCausalLM")

_8B, _70B = (4096, 32, 32, 8, 14336), (8192, 80, 64, 8, 28672)

PUBLIC = {
    "llama3-8b": Public(*LLAMA, _llama(*_8B, rope_scaling=None), 8_030_261_248),
    "llama3-70b": Public(*LLAMA, _llama(*_70B, rope_scaling=None), 70_553_706_496),
    "llama31-8b": Public(*LLAMA, _llama(*_8B, rope_scaling=_scaled(8.0)), 8_030_261_248),
    "llama31-70b": Public(*LLAMA, _llama(*_70B, rope_scaling=_scaled(8.0)), 70_553_706_496),
    "llama31-405b": Public(*LLAMA, _llama(16384, 126, 128, 8, 53248, rope_scaling=_scaled(8.0)), 405_853_388_800),
    "llama32-1b": Public(
        *LLAMA, _llama(2048, 16, 32, 8, 8192, head_dim=64, rope_scaling=_scaled(32.0), tie_word_embeddings=True), 1_235_814_400
    ),
    "llama32-3b": Public(
        *LLAMA, _llama(3072, 28, 24, 8, 8192, head_dim=128, rope_scaling=_scaled(32.0), tie_word_embeddings=True), 3_212_749_824
    ),
    "llama33-70b": Public(*LLAMA, _llama(*_70B, head_dim=128, rope_scaling=_scaled(8.0)), 70_553_706_496),
    "smollm2-135m": Public(*LLAMA, _smollm(576, 30, 9, 3, 1536, 100000), 134_515_008),
    "smollm2-360m": Public(*LLAMA, _smollm(960, 32, 15, 5, 2560, 100000), 361_821_120),
    "smollm2-1.7b": Public(*LLAMA, _smollm(2048, 24, 32, 32, 8192, 130000), 1_711_376_384),
    "mistral-7b-v0.1": Public(*MISTRAL, _mistral(4096, 32, 32, 14336, 32000, 10000.0, 4096), 7_241_732_096),
    "mistral-7b-v0.2": Public(*MISTRAL, _mistral(4096, 32, 32, 14336, 32000, 1000000.0, None), 7_241_732_096),
    "mistral-7b-v0.3": Public(*MISTRAL, _mistral(4096, 32, 32, 14336, 32768, 1000000.0, None), 7_248_023_552),
    "mistral-nemo-12b": Public(*MISTRAL, _mistral(5120, 40, 32, 14336, 131072, 1000000.0, None), 12_247_782_400),
    "mistral-small-22b": Public(*MISTRAL, _mistral(6144, 56, 48, 16384, 32768, 1000000.0, None), 22_247_282_688),
    "mistral-small-24b": Public(*MISTRAL, _mistral(5120, 40, 32, 32768, 131072, 100000000.0, None), 23_572_403_200),
    "mistral-large-123b": Public(*MISTRAL, _mistral(12288, 88, 96, 28672, 32768, 1000000.0, None), 122_610_069_504),
    "qwen2-0.5b": Public(*QWEN, _qwen(896, 24, 14, 2, 4864, 151936, True, 1e-06), 494_032_768),
    "qwen2-1.5b": Public(*QWEN, _qwen(1536, 28, 12, 2, 8960, 151936, True, 1e-06), 1_543_714_304),
    "qwen2-7b": Public(*QWEN, _qwen(3584, 28, 28, 4, 18944, 152064, False, 1e-06), 7_615_616_512),
    "qwen2-72b": Public(*QWEN, _qwen(8192, 80, 64, 8, 29568, 152064, False, 1e-05), 72_706_203_648),
    "qwen2-72b-instruct": Public(*QWEN, _qwen(8192, 80, 64, 8, 29568, 152064, False, 1e-06), 72_706_203_648),
    "qwen25-0.5b": Public(*QWEN, _qwen(896, 24, 14, 2, 4864, 151936, True, 1e-06), 494_032_768),
    "qwen25-1.5b": Public(*QWEN, _qwen(1536, 28, 12, 2, 8960, 151936, True, 1e-06), 1_543_714_304),
    "qwen25-3b": Public(*QWEN, _qwen(2048, 36, 16, 2, 11008, 151936, True, 1e-06), 3_085_938_688),
    "qwen25-7b": Public(*QWEN, _qwen(3584, 28, 28, 4, 18944, 152064, False, 1e-06), 7_615_616_512),
    "qwen25-14b": Public(*QWEN, _qwen(5120, 48, 40, 8, 13824, 152064, False, 1e-05), 14_770_033_664),
    "qwen25-14b-instruct": Public(*QWEN, _qwen(5120, 48, 40, 8, 13824, 152064, False, 1e-06), 14_770_033_664),
    "qwen25-32b": Public(*QWEN, _qwen(5120, 64, 40, 8, 27648, 152064, False, 1e-05), 32_763_876_352),
    "qwen25-32b-instruct": Public(*QWEN, _qwen(5120, 64, 40, 8, 27648, 152064, False, 1e-06), 32_763_876_352),
    "qwen25-72b": Public(*QWEN, _qwen(8192, 80, 64, 8, 29568, 152064, False, 1e-05), 72_706_203_648),
    "qwen25-72b-instruct": Public(*QWEN, _qwen(8192, 80, 64, 8, 29568, 152064, False, 1e-06), 72_706_203_648),
}
