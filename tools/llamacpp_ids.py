# ruff: noqa: E501
"""Write the token ids of llama.cpp's own tokenizer, with which tests/models/test_gguf_tokenizer.py compares ours.

    npm install --ignore-scripts node-llama-cpp@3.22.1 @node-llama-cpp/linux-x64@3.22.1    # in an empty folder
    python tools/llamacpp_ids.py FOLDER tests/models/llamacpp_ids.json.xz

The vocabularies are trained here, on texts that no split has divided, so that their merges reach over every boundary
that a split can make.
"""

from __future__ import annotations

import json
import lzma
import random
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gguf import GGUFWriter
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from fastreader.models.gguf.splits import SPLITS

NODE = """
import {getLlama} from "node-llama-cpp";
import fs from "fs";
const llama = await getLlama({gpu: false, build: "never", maxThreads: 1, logLevel: "error"});
const texts = JSON.parse(fs.readFileSync(process.argv[2], "utf8"));
const ids = {};
for (const path of process.argv.slice(3)) {
    const model = (await llama.loadModel({modelPath: path, vocabOnly: true}))._model;
    ids[path] = {trusted: texts.map(t => [...model.tokenize(t, true)]), plain: texts.map(t => [...model.tokenize(t, false)])};
}
fs.writeFileSync(process.argv[2] + ".ids", JSON.stringify(ids));
process.exit(0);
"""
FRAGMENTS = """
It was 1984.|a  1 b|12345 people|IT'S DONE|she'd gone|we'LL|don't|I'm|you've|'tis|l'été|Année|École|naïve café
    x == 2024:|Total: 1,234,567.89|3.14159|0x1F|10^-6|v1.2.3-rc4|$5.00|50%|100€|№ 7|x²+y³=½|Ⅷ|١٢٣|१२३४|１２３|٣٫١٤
価格は1234円|東京タワー|今天天气很好，我们去公园。|「引用」|カタカナ|ひらがな|한국어 문장입니다|가나다 123|繁體中文|龍
Привет, мир|приветМир|МОСКВА 2020|Καλημέρα κόσμε|שלום עולם|مرحبا بالعالم|नमस्ते दुनिया|สวัสดีชาวโลก|ภาษาไทย|বাংলা ভাষা
camelCaseWord|HTTPServer2|snake_case_name|UPPER|lowerUPPERlower|iPhone15Pro|McDonald's|e.g.|U.S.A.|and/or|C++|F#|.NET
def f(x):|return x[0] + "a";|for (int i = 0; i < 10; ++i) {|<div class="b">|</div>|// comment|# -*- coding|a->b|a::b|==|!==|&&
https://example.org/a?b=c&d=1|me@example.com|#tag|@name|~/.bashrc|C:\\Users\\x|{"k": [1, 2]}|`code`|**bold**|_it_
😀|👩‍👩‍👧|🇩🇪|❤️|👍🏽|→|∑|≤|…|—|“quoted”|‘single’|«guillemets»|。|、|！|？|；|·|¿|¡|†|™|©|°|µ|ﬁ|ß|ŉ|ǅ|ʰ|ª
e\u0301|n\u0303o|a\u0308\u0304|\u0301|\u200b|\u200d|\ufeff|\u00ad|\u2028|\u2029|\u0085|\u00a0|\u3000|\u2003|\u1680|\u0378|\ue000
"""
SPACES = (
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\n\n\n",
    "\t",
    "\t\t",
    "\r\n",
    "\r",
    " \n",
    "\n ",
    "  \n  ",
    "\u00a0",
    "\u3000",
    "\u0085",
    "",
    "",
    "",
)
MARKS = (
    "<|endoftext|>",
    "<|eot|>",
    "<\uff5cUser\uff5c>",
    "<pad tok>",
    "<think>",
    "        ",
    "<|im_end|>",
    "</s>",
    "<s>",
    "<unk>",
    "[\u00e9nd]",
)


def made_texts() -> list[str]:
    """Return the texts that are compared."""
    draw = random.Random(49)
    fragments = [
        f.encode().decode("unicode_escape") if "\\u" in f else f
        for f in FRAGMENTS.strip("\n").replace("\n", "|").split("|")
    ]
    texts = [
        "",
        " ",
        "  ",
        "\n",
        "\n\n",
        " \n ",
        "a",
        " a",
        "  a",
        "a ",
        "a  ",
        "a\n",
        "\na",
        "  1",
        "\n\n1. Item\n\n2. Item",
        *fragments,
    ]
    texts += [f"{mark}{text}" for mark in MARKS for text in ("", "a", " a")] + [
        f"a {mark} b{mark}{mark}" for mark in MARKS
    ]
    while len(texts) < 420:
        parts = [draw.choice(fragments) + draw.choice(SPACES) for _ in range(draw.randint(2, 6))]
        if draw.random() < 0.15:
            parts.insert(draw.randrange(len(parts)), draw.choice(MARKS) + draw.choice(("a", " a", "\n\na")))
        texts.append(draw.choice(SPACES) + "".join(parts))
    return texts


def byte_level(texts: list[str]) -> dict[str, Any]:
    """Return the metadata of a byte-level vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1600, initial_alphabet=alphabet, show_progress=False, max_token_length=9)
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens, types = sorted(model["vocab"], key=model["vocab"].get), []
    types = [1] * len(tokens)
    # Control tokens stand before, among and behind the others, and words that no merge makes are tokens as well.
    for place, (token, kind) in enumerate({**dict.fromkeys(MARKS, 3), "<think>": 4, "        ": 4}.items()):
        tokens.insert(place * 170, token)
        types.insert(place * 170, kind)
    whole = ["\u0120people", "UPPER", "\u0120World", "camelCaseWord", "MOSCOW"]
    tokens, types = tokens + [w for w in whole if w not in tokens], types + [1] * sum(w not in tokens for w in whole)
    merges = [" ".join(m) if isinstance(m, list) else m for m in model["merges"]]
    return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types,
            "tokenizer.ggml.merges": merges, "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 170}  # fmt: skip


def sentence_pieces(texts: list[str]) -> dict[str, Any]:
    """Return the metadata of a SentencePiece vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(vocab_size=1700, show_progress=False, max_token_length=9, limit_alphabet=500)
    plain = [text.translate(str.maketrans(dict.fromkeys("<>\r\u0085\n", " "))) for text in texts]
    tokenizer.train_from_iterator([("\u2581" + t).replace(" ", "\u2581") for t in plain], trainer)
    vocabulary = json.loads(tokenizer.to_str())["model"]["vocab"]
    pieces = sorted(vocabulary, key=vocabulary.get)
    first = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{i:02X}>" for i in range(256)),
        *(m for m in MARKS if m not in ("<unk>", "<s>", "</s>")),
        "\n\n",
    ]
    types = [2, 3, 3, *[6] * 256, *(4 if m in ("<think>", "        ") else 3 for m in first[259:-1]), 4]
    tokens = first + [p for p in pieces if p not in first]
    merged = [t for t in tokens[len(first) :] if len(t) > 1]
    scores = {token: -float(i) for i, token in enumerate(merged)}
    return {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": types + [1] * (len(tokens) - len(types)),
            "tokenizer.ggml.scores": [scores.get(t, 0.0 if i < len(first) else -1e4) for i, t in enumerate(tokens)]}  # fmt: skip


def write(path: Path, metadata: dict[str, Any]) -> None:
    """Write a GGUF file that has a vocabulary and nothing else."""
    writer = GGUFWriter(path, "llama")
    for name, value in {
        "context_length": 64,
        "embedding_length": 8,
        "block_count": 1,
        "feed_forward_length": 8,
    }.items():
        writer.add_uint32(f"llama.{name}", value)
    writer.add_uint32("llama.attention.head_count", 1)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    for key, value in metadata.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_uint32(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def main(folder: str, out: str) -> None:
    """Write the ids of every case to `out`, by the node_modules in `folder`."""
    texts = made_texts()
    plain = [text for text in texts if not any(mark in text for mark in MARKS)]
    vocabularies = {"bytes": byte_level(plain), "pieces": sentence_pieces(plain)}
    assert all(len(set(v["tokenizer.ggml.tokens"])) == len(v["tokenizer.ggml.tokens"]) for v in vocabularies.values())
    # Phi-3's special tokens take the white space after them, and it has no tokens of white space that a user defined.
    pieces = vocabularies["pieces"]["tokenizer.ggml.tokens"]
    phi3 = [f"\u2603{i}" if token in ("\n\n", "        ") else token for i, token in enumerate(pieces)]
    cases: dict[str, tuple[str, dict[str, Any]]] = {name: ("bytes", {"tokenizer.ggml.pre": name}) for name in SPLITS}
    cases |= {
        "pieces": ("pieces", {}),
        "pieces without a space": ("pieces", {"tokenizer.ggml.add_space_prefix": False}),
        "pieces of Phi-3": ("pieces", {"general.name": "Phi-3 mini", "tokenizer.ggml.tokens": phi3}),
    }
    with TemporaryDirectory(dir=folder) as scratch:
        given, script = Path(scratch) / "texts.json", Path(scratch) / "ids.mjs"
        given.write_text(json.dumps(texts))
        script.write_text(NODE)
        paths = {name: str(Path(scratch) / f"{i}.gguf") for i, name in enumerate(cases)}
        for name, (vocabulary, changed) in cases.items():
            write(Path(paths[name]), vocabularies[vocabulary] | changed)
        subprocess.run(["node", str(script), str(given), *paths.values()], cwd=folder, check=True, timeout=600)
        found = json.loads(Path(f"{given}.ids").read_text())
    rows: list[Any] = []
    table = {}
    for name, (vocabulary, changed) in cases.items():
        ids = found[paths[name]]
        if ids not in rows:
            rows.append(ids)
        table[name] = {"vocabulary": vocabulary, "changed": changed, "ids": rows.index(ids)}
    content = {"texts": texts, "vocabularies": vocabularies, "cases": table, "ids": rows}
    with lzma.open(out, "wt", encoding="utf-8", preset=9) as stream:
        json.dump(content, stream, separators=(",", ":"))


if __name__ == "__main__":
    main(*sys.argv[1:])
