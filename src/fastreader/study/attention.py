"""Where the answers' tokens of the noise layouts look, for the first questions of a study."""

from __future__ import annotations

from collections.abc import Sequence

from fastreader.data import Example
from fastreader.errors import InputError
from fastreader.jsonl import ResultLog
from fastreader.noise.attention import answer_attention
from fastreader.study.cache import CachedReader
from fastreader.study.config import Study
from fastreader.study.folder import ATTENTION, RunFolder
from fastreader.study.method import Asked
from fastreader.study.methods.noise import Noise
from fastreader.study.registry import make


def keep_attention(study: Study, run: RunFolder, reader: CachedReader, examples: Sequence[Example], name: str) -> None:
    """Write, for each of the first `study.noise.attention` questions, the attention of each layout's answer.

    The answers are those in the run's rows; layouts without passages or with an empty answer have none.
    """
    methods = {
        config.label: method
        for config in study.methods
        if isinstance(method := make(config, study), Noise) and (method.spec.gold or method.spec.retrieved)
    }
    seed = study.seeds[0]
    said = {
        (row["question_id"], row["method"]): row["answer"]
        for row in run.rows()
        if row["reader"] == name and row["seed"] == seed and row["answer"]
    }
    tree = reader.tree_reader()
    with ResultLog(run.file(ATTENTION), resume=True) as log:
        for example in examples[: study.noise.attention]:
            key = f"{example.id} | {name}"
            asked = {label: said[example.id, label] for label in methods if (example.id, label) in said}
            if key in log or not asked:
                continue
            first = methods[next(iter(asked))]
            materials = first.materials(Asked(reader, [example], seed, examples), example)
            by_layout = {methods[label].spec.name: answer for label, answer in asked.items()}
            try:
                found = answer_attention(tree, materials, by_layout, template=first.template)
            except InputError as error:
                log.append(key, {"question_id": example.id, "reader": name, "error": str(error), "layouts": {}})
                continue
            layouts = {layout: attention.to_dict() for layout, attention in found.items()}
            log.append(key, {"question_id": example.id, "reader": name, "error": None, "layouts": layouts})
