"""FastreaderCrossEncoder: a reader behind the calls of sentence-transformers' CrossEncoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fastreader.core.checks import expect
from fastreader.integrations.common import named_reader
from fastreader.passages.ranking import rerank


class FastreaderCrossEncoder:
    """A reranker for a stack that takes a `CrossEncoder`: `predict` and `rank` take its arguments.

    A relevance model's scores are those that its card gives; other readers' are the relevance that `rerank` gives, in
    [0, 1]. Needs no library.

    Args:
        model_name_or_path: what `Reader.load` loads; ignored with `reader`.
        reader: a reader to use instead.
        device, dtype, precision: arguments of `Reader.load`.
        method: a method of `fastreader.rerank`; None takes the model's own.
        prompts: instructions by name, besides the model's.
        default_prompt_name: of the instruction that is taken without `prompt` and `prompt_name`.
        max_batch_tokens: at most this many tokens are computed in one pass.
        cache: a `PassageCache`, so that documents are read once for "query_likelihood"; None reads all.
    """

    def __init__(
        self,
        model_name_or_path: str = "smollm2-135m",
        *,
        reader: Any = None,
        device: str | None = None,
        dtype: str | None = None,
        precision: str = "fast",
        method: str | None = None,
        prompts: dict[str, str] | None = None,
        default_prompt_name: str | None = None,
        max_batch_tokens: int | None = None,
        cache: Any = None,
    ) -> None:
        self.prompts, self.method, self.max_batch_tokens = dict(prompts or {}), method, max_batch_tokens
        known = default_prompt_name is None or default_prompt_name in self.prompts
        expect(known, "default_prompt_name", f"one of {sorted(self.prompts)} or None", default_prompt_name)
        self.default_prompt_name = default_prompt_name
        self.reader = reader or named_reader(model_name_or_path, device or "auto", dtype or "auto", precision)
        self.cache = cache
        self.num_labels = 1

    def predict(
        self,
        inputs: Any = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        *,
        activation_fn: Callable[[Any], Any] | None = None,
        apply_softmax: bool | None = False,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        sentences: Any = None,
    ) -> Any:
        """Return the score of one (query, document) pair, or float32 [N] of a list of pairs.

        Args:
            inputs: a pair of texts, or a list of pairs.
            prompt_name, prompt: the instruction, by name or as a text.
            batch_size, show_progress_bar: taken for the library's sake; a pass holds what memory allows.
            activation_fn: from a tensor of raw scores to scores; None takes the model's.
            apply_softmax: taken for the library's sake; there is one label.
            convert_to_numpy: return an array; otherwise a list of tensors.
            convert_to_tensor: return a tensor.
            sentences: the name of `inputs` in sentence-transformers before 6.

        Raises:
            InputError: if an item is not a pair of texts, or no prompt has that name.
        """
        import torch

        given = sentences if inputs is None else inputs
        listed = given.tolist() if isinstance(given, np.ndarray) else given
        expect(isinstance(listed, Sequence) and not isinstance(listed, str), "inputs", "a list of pairs", given)
        one = len(listed) == 2 and all(isinstance(text, str) for text in listed)
        pairs = (
            [tuple(listed)] if one else [tuple(pair) if isinstance(pair, (list, tuple)) else pair for pair in listed]
        )
        for i, pair in enumerate(pairs):
            texts = isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(text, str) for text in pair)
            expect(texts, f"inputs[{i}]", "two texts, a query and a document", pair)
        values, scores = self._scores(pairs, self._instruction(prompt_name, prompt))
        found = torch.from_numpy(scores).float()
        if activation_fn is not None:
            found = activation_fn(torch.from_numpy(values).float()[:, None]).squeeze(-1)
        result: Any = found if convert_to_tensor else found.numpy() if convert_to_numpy else list(found)
        return result[0] if one else result

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        top_k: int | None = None,
        return_documents: bool = False,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        activation_fn: Callable[[Any], Any] | None = None,
    ) -> list[dict[str, Any]]:
        """Return documents by falling score, as {"corpus_id": index, "score": score} and "text" if wanted.

        The other arguments are documented at `predict`; a `top_k` of None returns all documents.
        """
        expect(isinstance(documents, Sequence) and not isinstance(documents, str), "documents", "a list", documents)
        scores = self.predict(
            [(query, document) for document in documents], prompt_name, prompt, activation_fn=activation_fn
        )
        rows: list[dict[str, Any]] = []
        for i in np.argsort(-scores, kind="stable").tolist()[:top_k]:
            text = {"text": documents[i]} if return_documents else {}
            rows.append({"corpus_id": i, "score": float(scores[i]), **text})
        return rows

    def _instruction(self, name: str | None, prompt: str | None) -> str | None:
        if prompt is not None:
            return prompt
        name = self.default_prompt_name if name is None else name
        return self.prompts.get(name, name) if name is not None else None

    def _scores(self, pairs: Sequence[Any], instruction: str | None) -> tuple[Any, Any]:
        """Return the raw scores and the scores of pairs, float64 [N] each."""
        if getattr(self.reader, "is_reranker", False) and self.method in (None, "relevance"):
            found = self.reader.relevance_scores(pairs, instruction=instruction, max_batch_tokens=self.max_batch_tokens)
            return found.logits, found.scores
        places: dict[str, list[int]] = {}
        for i, (query, _) in enumerate(pairs):
            places.setdefault(query, []).append(i)
        lists = [[pairs[i][1] for i in members] for members in places.values()]
        options: Any = {"method": self.method, "instruction": instruction, "max_batch_tokens": self.max_batch_tokens}
        options["cache"] = self.cache
        values, scores = np.zeros(len(pairs)), np.zeros(len(pairs))
        rankings = rerank(self.reader, list(places), lists, progress=False, **options) if places else []
        for ranked, members in zip(rankings, places.values(), strict=True):
            for result in ranked:
                place = members[result.index]
                scores[place] = result.relevance
                values[place] = result.relevance if result.value is None else result.value
        return values, scores
