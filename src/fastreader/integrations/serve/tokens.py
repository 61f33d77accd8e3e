"""`/tokenize` and `/detokenize`: the token ids that the other paths read for a text, and the text of token ids."""

from __future__ import annotations

from typing import Any

from fastreader.core.checks import expect
from fastreader.integrations.serve.answers import check_bytes
from fastreader.integrations.serve.bodies import DetokenizeRequest, TokenizeRequest
from fastreader.integrations.serve.chat import chat_prompt
from fastreader.integrations.serve.completions import check_ids
from fastreader.integrations.serve.packed_reader import MOST_TOKENS, PackedReader
from fastreader.reader.prompts.encoder import Seam


def answer_tokenize(request: TokenizeRequest, reader: PackedReader) -> dict[str, Any]:
    """Return the token ids of a prompt as `/v1/completions` reads it, or of a chat up to the next answer."""
    encoder = reader.encoder
    if request.prompt is None:
        check_bytes(reader, "messages", "".join(message.content for message in request.messages or ()))
        tokens = chat_prompt(request, encoder)
    else:
        check_bytes(reader, "prompt", request.prompt)
        tokens = encoder.closed(Seam(), request.prompt, trusted=True)
        if request.add_special_tokens is not False and tokens[: len(encoder.bos)] != encoder.bos:
            tokens = encoder.bos + tokens
    texts = encoder.tokenizer.convert_ids_to_tokens(tokens) if request.return_token_strs else None
    return {"count": len(tokens), "max_model_len": reader.max_length, "tokens": tokens, "token_strs": texts}


def answer_detokenize(request: DetokenizeRequest, reader: PackedReader) -> dict[str, Any]:
    """Return the text of token ids, special tokens included."""
    count = len(request.tokens)
    expect(count <= MOST_TOKENS, "tokens", f"at most {MOST_TOKENS:,}", f"{count:,}")
    check_ids(reader, "tokens", request.tokens)
    return {"prompt": reader.encoder.text(request.tokens, special_tokens=True)}
