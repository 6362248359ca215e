"""How byte-level vocabularies split text into words before merging: the regular expressions by their GGUF name.

A GGUF file names the pre-tokenizer of its vocabulary (`tokenizer.ggml.pre`) instead of carrying it. The expressions
are those of the models' own tokenizer.json; each splits what the ones before it left, and both matches and gaps are
kept. Names follow llama.cpp's list.
"""

from poem.dataclass import dataclass

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{{0}}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{{0}}"
_CJK = "[一-龥\u3040-ゟ゠-ヿ]+"
_PUNCTUATED = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"""
_ALPHABETS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥ"
    "ῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"


def _llama(
    letters: str = r"\p{L}", digits: str = r"\p{N}{1,3}", other: str = r"[^\s\p{L}\p{N}]", contractions: str = _CONTRACTIONS + "|"
) -> str:
    return rf"{contractions}[^\r\n\p{{L}}\p{{N}}]?{letters}+|{digits}| ?{other}+[\r\n]*|{_SPACES}"


def _cased(contractions: str, digits: str, line_ends: str = r"[\r\n/]") -> str:
    return _CASED.replace("{0}", contractions) + rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+{line_ends}*|{_SPACES}"


def _without_han(pattern: str) -> str:
    return pattern.replace(_UPPER, _UPPER[:-1] + r"&&[^\p{Han}]]").replace(_LOWER, _LOWER[:-1] + r"&&[^\p{Han}]]")


@dataclass(frozen=True, slots=True)
class Split:
    """How a vocabulary's words are found.

    patterns: applied in order. ignore_merges: a word that is itself a token is taken whole. nfc: text is brought to
    Unicode's composed form first. add_bos: a text starts with the bos token unless the file says otherwise.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    nfc: bool = False
    add_bos: bool = False


_FAMILIES: dict[str, Split] = {
    "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de gigachat a.x-4.0 mellum modern-bert jais trillion granite-docling exaone4":
        Split((_GPT2,)),
    "mpt olmo": Split((_GPT2,), nfc=True),
    "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2": Split((r"\p{N}", _GPT2)),
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano":
        Split((_llama(),), ignore_merges=True, add_bos=True),
    "dbrx smaug-bpe glm4 chatglm-bpe": Split((_llama(),)),
    "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez": Split((_llama(digits=r"\p{N}"),), nfc=True),
    "stablelm2 hunyuan solar-open grok-2": Split((_llama(digits=r"\p{N}"),)),
    "qwen35": Split((_llama(r"[\p{L}\p{M}]", r"\p{N}", r"[^\s\p{L}\p{M}\p{N}]"),), nfc=True),
    "ufakzeka": Split((_llama(digits=r"\p{N}", contractions=""),)),
    "laguna": Split((r"[^\n]+|[\n]+", _llama(digits=r"\p{N}"))),
    "minicpm5": Split((r"\p{N}{1,3}", _llama(digits=r"\p{N}+")), ignore_merges=True),
    "tekken": Split((_cased("", r"\p{N}"),), ignore_merges=True, add_bos=True),
    "gpt-4o llama4 kanana2 talkie minimax-m2": Split((_cased(_CONTRACTIONS + "?", r"\p{N}{1,3}"),)),
    "tiny_aya cohere2moe": Split((r"\d{1,3}(?=(?:\d{3})*\b)", _cased(_CONTRACTIONS + "?", r"\p{N}{1,3}"))),
    "kimi-k2": Split((r"[\p{Han}]+|" + _without_han(_cased(_CONTRACTIONS + "?", r"\p{N}{1,3}", r"[\r\n]")),)),
    "youtu": Split((
        "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|" + _CJK, _cased(_CONTRACTIONS + "?", r"\p{N}"),
    ), ignore_merges=True),
    "deepseek-v3 hunyuan-dense joyai-llm hy_v4": Split((r"\p{N}{1,3}", _CJK, rf"{_PUNCTUATED}[\r\n]*|{_SPACES}")),
    "spark2_5": Split((r"\p{N}{1,3}", _CJK, rf"{_PUNCTUATED}|[\r\n]|\s+(?!\S)|\s+", r"\p{N}")),
    "deepseek-llm": Split((
        r"[\r\n]", rf"\s?[{_ALPHABETS}]+", "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+", r"\s+$", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}+",
    )),
    "deepseek-coder": Split((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}")),
    "falcon": Split((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    "poro-chat bloom gpt3-finnish": Split((_BLOOM,)),
    "viking": Split((_BLOOM, r"\p{N}")),
    "superbpe": Split((r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
    "bailingmoe bailingmoe2 llada-moe": Split((
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    )),
    "seed-coder": Split((
        _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
    )),
    "exaone-moe": Split((
        _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
    )),
    "default": Split((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
}  # fmt: skip
SPLITS: dict[str, Split] = {name: split for names, split in _FAMILIES.items() for name in names.split()}
