"""How llama.cpp splits a text before a byte-level vocabulary's merges, by the name in `tokenizer.ggml.pre`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Split:
    """What a name in `tokenizer.ggml.pre` means.

    Attributes:
        patterns: regular expressions; each isolates its matches in the pieces that the patterns before it left.
        ignore_merges: whether a piece that is a token is never merged from its bytes.
        add_bos: whether a beginning of text precedes a text if the file does not say.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_ENDING = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DIGITS = (r"\p{N}", _GPT2)
_LLAMA3 = rf"{_ENDING}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"
_QWEN2 = rf"{_ENDING}|{_WORD}|\p{{N}}|{_SYMBOLS}|{_SPACES}"
_QWEN35 = "|".join((_ENDING, r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}", r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*", _SPACES))
# Like llama.cpp, which knows upper and lower case of ASCII letters only.
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]*[\p{L}&&[^A-Z]]+",
    r"[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]+[\p{L}&&[^A-Z]]*",
)
_CASED_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_TEKKEN = rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}|{_CASED_SYMBOLS}|{_SPACES}"
_GPT4O = rf"{_CASED[0]}{_ENDING}?|{_CASED[1]}{_ENDING}?|\p{{N}}{{1,3}}|{_CASED_SYMBOLS}|{_SPACES}"
_HAN_AND_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_DEEPSEEK_WORD = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    _HAN_AND_KANA,
    rf"{_DEEPSEEK_WORD}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
)
# llama.cpp lets no class of these hold white space, though the blocks do.
_DEEPSEEK_ASIAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff&&[^\\s]]+"
_DEEPSEEK_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-"
    "\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec"
    "\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-"
    "\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"
    "\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17"
    "\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-"
    "\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK_MARKS = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3001-\u3002]+"
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_DEEPSEEK_LETTERS}]+",
    _DEEPSEEK_MARKS,
    r"\s+\z",
    _DEEPSEEK_ASIAN,
    r"\p{N}+",
)
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_PUNCTUATION = r"[\p{P}\$\+<=>\^~\|`]+"
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")
_JAIS2_SPACES = "|".join(rf"\s{{{n}}}(?!\S)" for n in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2"))

_KINDS: dict[Split, str] = {
    Split(_DEFAULT): "default",
    Split((_GPT2,)): "gpt-2 phi-2 gigachat a.x-4.0 mellum exaone4 mpt olmo jais trillion granite-docling",
    Split(_DIGITS): "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
    Split((_LLAMA3,), ignore_merges=True, add_bos=True): (
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2"
    ),
    Split((_LLAMA3,)): "dbrx smaug-bpe glm4 chatglm-bpe",
    Split((_QWEN2,)): "qwen2 deepseek-r1-qwen kormo megrez stablelm2 hunyuan solar-open grok-2",
    Split((_QWEN35,)): "qwen35",
    Split((rf"{_WORD}|\p{{N}}|{_SYMBOLS}|{_SPACES}",)): "ufakzeka",
    Split((r"[^\n]+|[\n]+", _QWEN2)): "laguna",
    Split((r"\p{N}{1,3}", rf"{_ENDING}|{_WORD}|\p{{N}}+|{_SYMBOLS}|{_SPACES}"), ignore_merges=True): "minicpm5",
    Split((rf"{_ENDING}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|\s*[\r\n]+|{_JAIS2_SPACES}|\s",)): "jais-2",
    Split((rf"{_ENDING}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",)): "seed-coder",
    Split((rf"{_ENDING}|{_WORD}|\p{{N}}|{_SYMBOLS}|\s*[\r\n]|\s+(?!\S)|\s+",)): "bailingmoe bailingmoe2 llada-moe",
    Split(_DEEPSEEK3): "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
    Split(_DEEPSEEK_LLM): "deepseek-llm",
    Split((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_ASIAN, r"\p{N}")): "deepseek-coder",
    Split((_PUNCTUATION, _GPT2, "[0-9][0-9][0-9]")): "falcon",
    Split((_BLOOM,)): "bloom poro-chat gpt3-finnish",
    Split((_BLOOM, r"\p{N}")): "viking",
    Split((_TEKKEN,), ignore_merges=True, add_bos=True): "tekken",
    Split((_GPT4O,)): "gpt-4o llama4 kanana2 talkie minimax-m2",
    Split((r"\p{N}+", "[0-9]{1,3}(?=(?:[0-9]{3})*(?![0-9]))")): "superbpe",
}
SPLITS = {name: split for split, names in _KINDS.items() for name in names.split()}
