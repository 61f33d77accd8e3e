"""lm-eval: a model `fastreader`, for `python -m fastreader.integrations.lm_eval --model fastreader ...`."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fastreader.core.checks import check_choice, check_int, expect
from fastreader.core.protocol import ScoringReader
from fastreader.errors import InputError, MissingExtraError
from fastreader.reader.fitting import leave_room
from fastreader.reader.prompts.chat_template import render_chat

try:
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import model_registry
    from lm_eval.models.utils import (
        has_bos_prefix,
        normalize_gen_kwargs,
        postprocess_generated_text,
        resolve_max_length,
    )
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
    from tqdm import tqdm
except ImportError as error:
    raise MissingExtraError("lm-eval", "lm-eval") from error

NAME = "fastreader"
_log = logging.getLogger(__name__)
_SAMPLING = ("temperature", "top_k", "top_p")
_GENERATION = ("until", "max_gen_toks", "do_sample", *_SAMPLING)

Pair = tuple[list[int], list[int]]
Request = tuple[tuple[str, str] | None, list[int], list[int]]


class FastreaderLM(TemplateLM):
    """A model of the evaluation harness that scores all requests of a call in packed passes.

    With precision="exact" the numbers equal those that lm-eval's HFLM gives in float32. Texts are generated as the
    task's `generation_kwargs` say; of the model's generation config only the end tokens count.

    Args:
        pretrained: what `Reader.load` loads, or a reader.
        device: argument of `Reader.load`; None chooses.
        batch_size, max_batch_size: taken for the harness's sake; passes are planned from free memory.
        max_batch_tokens: at most this many tokens are computed in one pass; None decides from free memory.
        max_length: at most this many tokens of context; None takes the model's.
        max_gen_toks: number of new tokens if a task sets none.
        add_bos_token: whether a beginning of text precedes a text; None leaves it to the tokenizer.
        prefix_token_id: token before a text without context; None takes the beginning, else the end of text.
        enable_thinking: passed to the chat template if it is not None.
        chat_template_args: further variables of the chat template.
        seed: of sampling.
        **options: further arguments of `Reader.load`: dtype, precision, products, check, trust_remote_code, adapter.

    Raises:
        InputError: if an argument is out of range, or `options` are given for a reader.
        ModelNotFoundError, UnsupportedModelError: if `Reader.load` raises it.
    """

    def __init__(
        self,
        pretrained: Any = "smollm2-135m",
        *,
        device: str | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        max_batch_tokens: int | None = None,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        add_bos_token: bool | None = None,
        prefix_token_id: int | None = None,
        enable_thinking: bool | None = None,
        chat_template_args: Mapping[str, Any] | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__()
        check_int("max_batch_tokens", max_batch_tokens, optional=True)
        check_int("max_length", max_length, optional=True)
        check_int("max_gen_toks", max_gen_toks)
        check_int("seed", seed, 0)
        self.batch_size, self.max_batch_size = batch_size, max_batch_size
        self.max_batch_tokens, self.max_gen_toks, self.seed = max_batch_tokens, max_gen_toks, seed
        self.add_bos_token, self.custom_prefix_token_id = add_bos_token, prefix_token_id
        thinking = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
        self.chat_template_args = {**(chat_template_args or {}), **thinking}
        self.reader: Any = pretrained
        if isinstance(pretrained, ScoringReader):
            expect(not options, "options", "none for a reader that is already loaded", sorted(options))
        else:
            from fastreader.reader.reader import Reader

            self.reader = Reader.load(pretrained, device or "auto", **options)
        self.tokenizer = self.reader.encoder.tokenizer
        limit = self.reader.max_length
        longest = resolve_max_length(None, self.tokenizer) if limit is None else limit
        expect(max_length is None or limit is None or max_length <= limit, "max_length", f"at most {limit}", max_length)
        self.max_length = max_length or longest

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        end = self.tokenizer.eos_token_id
        expect(end is not None, "pretrained", "a model whose tokenizer has an end of text", self.reader.name)
        return int(end)

    @property
    def prefix_token_id(self) -> int:
        """The token before a text without context."""
        own = self.custom_prefix_token_id
        return int(self.reader.encoder.prefix_token()) if own is None else own

    @property
    def tokenizer_name(self) -> str:
        """The tokenizer's name, by which the harness keeps rendered requests."""
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def get_model_info(self) -> dict[str, Any]:
        """Return what the harness saves with its results: the reader's own description."""
        about = self.reader.describe()
        return {"model_dtype": about["dtype"], "model_revision": about.get("revision", ""), "fastreader": about}

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Return a text's token ids, by HFLM's rule for the beginning of text."""
        special = self.add_bos_token if add_special_tokens is None else add_special_tokens
        if add_special_tokens is None and has_bos_prefix(string, self.tokenizer.decode(self.prefix_token_id)):
            special = False
        options = {} if special is None else {"add_special_tokens": special}
        return list(self.tokenizer.encode(string, **options))

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Return a conversation in the model's chat template.

        As in HFLM, a template that rejects a system message is applied without it, and a warning says so.
        """

        def written(turns: list[dict[str, str]]) -> str:
            opened = add_generation_prompt
            return render_chat(self.tokenizer, turns, self.chat_template_args, generation=opened, unfinished=not opened)

        try:
            return written(chat_history)
        except InputError as error:
            rest = [message for message in chat_history if message["role"] != "system"]
            if len(rest) == len(chat_history):
                raise
            _log.warning("the chat template fails with a system message (%s), so it is left out", error)
            return written(rest)

    def _loglikelihood_tokens(
        self, requests: Sequence[Request], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        """Score requests ((context, continuation) as text or None, and both as token ids), a pass after another."""
        pairs = [self._fitted(i, context, continuation) for i, (_, context, continuation) in enumerate(requests)]
        results: list[tuple[float, bool]] = [(0.0, True)] * len(pairs)
        if not pairs:
            return results
        trees = self.reader.plan(pairs, self.max_batch_tokens)
        with tqdm(total=len(pairs), desc="Running loglikelihood requests", disable=disable_tqdm) as bar:
            # One pass a call, so that the harness's cache keeps what is done when a run is interrupted.
            for tree in trees:
                members = tree.sequence_ids.tolist()
                own = replace(tree, sequence_ids=np.arange(len(members)))
                scores = self.reader.score([pairs[i] for i in members], trees=[own])
                values = zip(members, scores.logprob.tolist(), scores.is_greedy.tolist(), strict=True)
                for i, logprob, greedy in values:
                    results[i] = (logprob, greedy)
                    if requests[i][0] is not None:
                        self.cache_hook.add_partial("loglikelihood", requests[i][0], results[i])
                bar.update(len(members))
        return results

    def _fitted(self, index: int, context: list[int], continuation: list[int]) -> Pair:
        """Return a request with its context cut on the left, as HFLM cuts it."""
        expect(bool(context), f"requests[{index}]: context", "at least one token", context)
        expect(bool(continuation), f"requests[{index}]: continuation", "at least one token", continuation)
        name = f"requests[{index}]: continuation"
        kept = leave_room(context, len(continuation), self.max_length, "truncate", name="context", new_name=name)
        if cut := len(context) - len(kept):
            _log.warning("requests[%d]: cut %d tokens off the left of the context", index, cut)
        return list(kept), continuation

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        """Return the log-likelihood of whole texts, in nats, in the harness's windows of at most `max_length`."""
        windows: list[Request] = []
        owners: list[int] = []
        for i, request in enumerate(requests):
            tokens = self.tok_encode(request.args[0])
            for window in get_rolling_token_windows(tokens, self.prefix_token_id, self.max_length, context_len=1):
                windows.append((None, *make_disjoint_window(window)))
                owners.append(i)
        totals = [0.0] * len(requests)
        scores = self._loglikelihood_tokens(windows, disable_tqdm=disable_tqdm)
        for owner, (logprob, _) in zip(owners, scores, strict=True):
            totals[owner] += logprob
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return the texts that follow the contexts, generated together for requests with equal options."""
        texts = [""] * len(requests)
        groups: dict[str, list[int]] = {}
        for i, request in enumerate(requests):
            groups.setdefault(json.dumps(request.args[1], sort_keys=True, default=repr), []).append(i)
        for members in groups.values():
            options, until = self._options(requests[members[0]].args[1])
            new, limit = options["max_new_tokens"], self.max_length
            expect(new < limit, "max_gen_toks", f"less than max_length, {limit}", new)
            contexts = [self.tok_encode(requests[i].args[0]) for i in members]
            # The harness counts the last new token, as engines do.
            prompts = [leave_room(c, new, limit, "truncate", name="context", last_counts=True) for c in contexts]
            progress = False if disable_tqdm else None
            written = self.reader.generate(
                prompts, seed=self.seed, max_batch_tokens=self.max_batch_tokens, progress=progress, **options
            )
            for i, (generation,) in zip(members, written, strict=True):
                decoded = self.tokenizer.decode(generation.token_ids, skip_special_tokens=True)
                texts[i] = postprocess_generated_text(decoded, stop=until, think_end_token=None)
                self.cache_hook.add_partial("generate_until", requests[i].args, texts[i])
        return texts

    def _options(self, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """Return the options of `Reader.generate` and the strings that end a text, from a task's generation_kwargs.

        Raises:
            InputError: if an option is not one of those that the reader has.
        """
        values = dict(normalize_gen_kwargs(dict(given), self.max_gen_toks))
        beams = values.pop("num_beams", 1)
        expect(beams == 1, "num_beams", "1, because a reader has no beam search", beams)
        for name in values:
            check_choice("generation_kwargs", name, _GENERATION)
        until = [text for text in values["until"] if text]
        options = {"max_new_tokens": values["max_gen_toks"], "temperature": 0.0}
        if values["do_sample"]:
            options |= {name: values[name] for name in _SAMPLING if name in values}
            expect(options["temperature"] > 0, "temperature", "above 0 with do_sample=True", options["temperature"])
        ends = list(dict.fromkeys([*until, self.tokenizer.decode(self.eot_token_id)]))
        options["stop"] = ends
        return options, ends


# By its path, so that it is registered once even if this module also runs as __main__.
if NAME not in model_registry:
    model_registry.register(NAME, target="fastreader.integrations.lm_eval:FastreaderLM")


def main(arguments: Iterable[str] | None = None) -> None:
    """Run lm-eval's own command line, which knows the model `fastreader` here.

    Args:
        arguments: of the command line, without the program's name; None takes the process's own.
    """
    import sys

    from lm_eval.__main__ import cli_evaluate

    if arguments is not None:
        sys.argv = [sys.argv[0], *arguments]
    cli_evaluate()


if __name__ == "__main__":
    main()
