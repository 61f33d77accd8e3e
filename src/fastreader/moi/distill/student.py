"""Student: a causal LM with LoRA adapters whose packed log-likelihoods have gradients."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fastreader.core.checked import checked
from fastreader.core.checks import expect
from fastreader.core.tree import PrefixTree, TokenPairs, TreeStats
from fastreader.errors import ContextOverflowError, MissingExtraError
from fastreader.models.config.facts import context_length, lm_head, logit_scale_of, rotary_regimes
from fastreader.models.config.windows import layer_windows
from fastreader.models.loading.load import load
from fastreader.models.loading.options import LoadOptions
from fastreader.models.loading.revision import revision
from fastreader.models.passes.attention import ATTENTION_NAME, KEYWORD, TreePass, register
from fastreader.models.rewriting.quantised import method
from fastreader.models.supported import refuse, why_changed, why_unsupported
from fastreader.moi.distill.agreement import compare_with_original
from fastreader.moi.distill.gradients import GradientKeys, logprobs
from fastreader.moi.distill.lessons import Lesson
from fastreader.moi.distill.settings import LoraSettings
from fastreader.reader.prompts.encoder import TextEncoder
from fastreader.reader.prompts.pieces import encode
from fastreader.reader.prompts.template import Template


@checked
class Student:
    """A transformers causal LM under LoRA adapters (PEFT).

    The given model stays unchanged: the student is a structural copy around the same, frozen weights.

    Args:
        model: a transformers causal LM on one device.
        tokenizer: its tokenizer.
        name: its name in messages.
        lora: settings of the adapter.

    Attributes:
        encoder: turns text into tokens.
        lora: settings of the adapter.
        revision: fingerprint of the frozen weights and chat template, see `models.revision`.
        max_length: longest input in tokens; None if the config sets no limit.

    Raises:
        MissingExtraError: if PEFT is not installed.
        UnsupportedModelError: if the architecture cannot run on a packed tree, the weights are quantised, or the packed
            pass and the model's own forward disagree on a short text.
    """

    def __init__(self, model: Any, tokenizer: Any, name: str, lora: LoraSettings | None = None) -> None:
        peft = _peft()
        expect(callable(getattr(model, "forward", None)), "model", "a transformers causal LM", model)
        refuse(name, why_unsupported(model))
        if scheme := method(model):
            refuse(name, f"its weights are quantised by {scheme}, and a student trains around weights in plain types")
        refuse(name, why_changed(model), "packed trees run only in a changed copy of the model: ")
        self.name = name
        self.encoder = TextEncoder(tokenizer)
        self.revision = revision(model, tokenizer)
        self.tokenizer = tokenizer
        self.lora = lora or LoraSettings()
        self._checkpointing = False
        self._own_attention = model.config._attn_implementation
        targets = self.lora.target_modules
        adapter = peft.LoraConfig(
            task_type="CAUSAL_LM",
            r=self.lora.rank,
            lora_alpha=self.lora.alpha,
            lora_dropout=self.lora.dropout,
            target_modules=targets if isinstance(targets, str) else list(targets),
        )
        self.peft: Any = peft.get_peft_model(_frozen_copy(model), adapter)
        self.model: Any = self.peft.get_base_model()
        config = self.model.config.get_text_config()
        self._windows = layer_windows(config, name)
        self._regimes = rotary_regimes(config)
        self.max_length = context_length(config, self._regimes)
        self._head = lm_head(self.model, name)
        self._scale = logit_scale_of(config)
        self._softcap: float | None = getattr(config, "final_logit_softcapping", None)
        register()
        self.model.config._attn_implementation = ATTENTION_NAME
        self.train(False)
        compare_with_original(name, self.pair_logprobs, _frozen_copy(model), self.max_length)

    @classmethod
    def load(
        cls,
        model: str | os.PathLike[str] | tuple[Any, Any],
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "auto",
        lora: LoraSettings | None = None,
    ) -> Student:
        """Load a student.

        Args:
            model: same as `Reader.load`; a (transformers model, tokenizer) pair stays unchanged.
            device: "auto" uses CUDA if available; a pair stays on its own device.
            dtype: type of the frozen weights and the activations: "auto" as stored, "bfloat16", "float32", ...; for
                half types the adapter is float32.
            lora: settings of the adapter.

        Raises:
            ModelNotFoundError, ModelFileError, InputError: as `Reader.load`.
            MissingExtraError, UnsupportedModelError: as `Student`.
        """
        options = LoadOptions(model, device, dtype, "exact", keep_integers=False)
        if not options.by_name:
            expect(isinstance(model, (tuple, list)), "model", "a name, or a pair of model and tokenizer", model)
        loaded = load(options)
        return cls(loaded.model, loaded.tokenizer, loaded.name, lora)

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self._head.weight.device

    def parameters(self) -> list[torch.nn.Parameter]:
        """Return the adapter's weights, the only ones that are trained."""
        return [p for p in self.peft.parameters() if p.requires_grad]

    def train(self, on: bool = True, *, gradient_checkpointing: bool = False) -> None:
        """Turn the adapter's dropout on or off, while the model's dropout stays off.

        Args:
            on: whether the student trains.
            gradient_checkpointing: keep only the layers' inputs while training.
        """
        self.peft.eval()
        for name, module in self.peft.named_modules():
            if "lora_dropout" in name:
                module.train(bool(on))
        if not (on and gradient_checkpointing):
            return
        if not self._checkpointing:  # each call would add a hook; older releases of transformers lack the first name
            enable = getattr(self.model, "activation_checkpointing_enable", None)
            (enable or self.model.gradient_checkpointing_enable)({"use_reentrant": False})
            self._checkpointing = True
        for module in self.model.modules():
            if hasattr(module, "gradient_checkpointing"):
                module.training = True  # checkpointing reads this flag; the children keep theirs

    def loglikelihood(self, sequences: TokenPairs) -> tuple[Tensor, TreeStats]:
        """Score each continuation, all in one packed pass, with gradients to the adapter.

        Args:
            sequences: S (context, continuation) pairs of token ids, each with at least one token.

        Returns:
            (float64 [S], nats; tokens given and computed)

        Raises:
            InputError: if there are no sequences, or one has no token.
            ContextOverflowError: if a sequence is longer than the model's context.
        """
        lengths = [len(c) + len(t) - 1 for c, t in sequences]
        longest = max(lengths, default=0)
        if self.max_length is not None and longest > self.max_length:
            raise ContextOverflowError(
                f"a sequence of {longest} tokens; the context of {self.name} is {self.max_length}"
            )
        if len({self._regimes.of(length) for length in lengths}) > 1:
            raise ContextOverflowError(
                f"orderings of up to {longest} tokens are on both sides of {self._regimes.threshold}, where the rotary "
                f"embedding of {self.name} changes; one pass cannot hold both"
            )
        tree = PrefixTree.build(sequences)
        values = self.pair_logprobs(tree).double()
        counts = torch.from_numpy(tree.offsets).diff()
        rows = torch.arange(len(counts)).repeat_interleave(counts).to(self.device)
        pairs = torch.from_numpy(tree.pairs).to(self.device)
        totals = torch.zeros(len(counts), dtype=torch.float64, device=self.device)
        return totals.index_add(0, rows, values[pairs]), tree.stats

    def pair_logprobs(self, tree: PrefixTree) -> Tensor:
        """Return the log-probability of each (source, target) pair of the tree: [R]."""
        device = self.device
        state = TreePass(GradientKeys(tree, device), self._windows, context=self.max_length)
        ids = torch.from_numpy(tree.token_ids).to(device)[None]
        positions = torch.from_numpy(tree.positions).to(device, torch.int64)[None]
        output = self.model.base_model(input_ids=ids, position_ids=positions, use_cache=False, **{KEYWORD: state})
        states: Tensor = output.last_hidden_state[0]
        state.check_calls(self.name)
        sources, targets = (torch.from_numpy(x).to(device) for x in (tree.sources, tree.targets))
        head = self._head
        return logprobs(states[sources], head.weight, targets, head.bias, self._scale, self._softcap)

    def adapter(self) -> dict[str, Tensor]:
        """Return the adapter's weights by PEFT's names."""
        weights: dict[str, Tensor] = _peft().get_peft_model_state_dict(self.peft, save_embedding_layers=False)
        return weights

    def set_adapter(self, weights: dict[str, Tensor]) -> None:
        """Restore weights from `adapter`.

        Raises:
            InputError: if the weights belong to another adapter.
        """
        own, theirs = ({k: v.shape for k, v in values.items()} for values in (self.adapter(), weights))
        expect(own == theirs, "weights", f"the {len(own)} weights of this adapter", f"{len(theirs)} others")
        _peft().set_peft_model_state_dict(self.peft, weights)

    def save_adapter(self, folder: str | os.PathLike[str]) -> None:
        """Write the adapter as PEFT reads it: adapter_model.safetensors and adapter_config.json."""
        expect(not Path(folder).is_file(), "folder", "a folder, not a file", folder)
        self.peft.save_pretrained(os.fspath(folder), save_embedding_layers=False)

    def merged(self) -> Any:
        """Return a separate transformers model with the adapter merged, for `Reader.load` with `tokenizer`."""
        model = copy.deepcopy(self.peft).merge_and_unload()
        model.config._attn_implementation = self._own_attention
        return model.eval()

    def export(self, folder: str | os.PathLike[str]) -> None:
        """Write `merged` and the tokenizer as a model folder."""
        expect(not Path(folder).is_file(), "folder", "a folder, not a file", folder)
        self.merged().save_pretrained(Path(folder))
        self.tokenizer.save_pretrained(Path(folder))


def score_rows(
    student: Student, lesson: Lesson, rows: npt.NDArray[np.int64], observation: str, template: Template
) -> tuple[Tensor, TreeStats]:
    """Score a lesson's orderings `rows` in one packed pass: (float64 [len(rows)] in nats, tokens given and computed).

    Raises:
        InputError: if the template puts the question before the passages.
        ContextOverflowError: if an ordering is longer than the student's context.
    """
    pieces = encode(student.encoder, template, lesson.example.question, lesson.example.passages, [])
    after = pieces.question_at is None
    expect(after, "template", "the question after the passages, which condition it", "the question first")
    orders = lesson.permutations[rows].tolist()
    sequences = [(pieces.head + pieces.body(o) + pieces.question_lead, pieces.question) for o in orders]
    if observation == "joint":
        sequences += [(pieces.head, pieces.body(order)) for order in orders]
    values, stats = student.loglikelihood(sequences)
    return values.reshape(-1, len(orders)).sum(dim=0), stats


def _frozen_copy(model: Any) -> Any:
    """Return new modules and config around the same weights, without gradients."""
    shared = {id(p): torch.nn.Parameter(p.detach(), requires_grad=False) for p in model.parameters()}
    return copy.deepcopy(model, shared).eval()


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise MissingExtraError("peft", "distill") from error
    return peft
