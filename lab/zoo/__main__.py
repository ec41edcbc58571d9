"""`python -m lab.zoo train` trains the models; `train-head` makes an EAGLE-3 head for a chat
model from nothing else than it; `inflate` writes a larger target."""

import argparse
import json
import random
import re
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.prompts.corpus import Corpus, load_corpus
from benchmarks.prompts.tasks import Source, make_task
from cluster.built_in_models import DRAFTERS, TARGET, inflated_target, model_path, smollm2_path
from cluster.cache import cache_dir
from engine.cpu.prepack import has_bf16_products
from engine.learning.training import DEPTH
from engine.model import PackedModel
from engine.verifiers.native import NativeVerifier
from lab.zoo.batches import Sampler
from lab.zoo.chat import train_tokenizer
from lab.zoo.distillation import answer_tasks, distil
from lab.zoo.head_training import acceptance, train_head
from lab.zoo.own_text import GENERAL, KINDS, write_shards
from lab.zoo.recipe import DRAFTER_RECIPES, TARGET_RECIPE
from lab.zoo.target_states import observed_shards
from lab.zoo.training import keep_freed_memory, save_model, train_target, trainable

_TOKENIZER_TASKS = 20_000
_TOKENIZER_FILE_CHARS = 20_000
_ANSWER_BATCHES = 10
_WRITER_KV_TOKENS = 2**15
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.zoo", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser("train", help="make the tokenizer, the target and the drafters")
    train.add_argument(
        "--work",
        type=Path,
        default=cache_dir() / "training",
        help="where checkpoints lie; a training that was stopped goes on from there",
    )
    train.add_argument(
        "--only", choices=DRAFTERS, nargs="+", help="distil only these, from the target in place"
    )
    head = commands.add_parser("train-head", help="let a target write, train an EAGLE-3 head on it")
    head.add_argument(
        "--target",
        type=_llama,
        default=str(smollm2_path()),
        help="directory of a Llama with a chat template; by default where the default target lies",
    )
    head.add_argument("--work", type=Path, help="text, checkpoint, curve and head")
    head.add_argument("--name", default="head", help="of the head's folder in `--work`")
    head.add_argument(
        "--start", type=Path, help="a head of this target whose weights the training begins with"
    )
    head.add_argument("--kinds", choices=KINDS, nargs="+", default=[GENERAL], help="of text")
    head.add_argument(
        "--tokens", type=_parameters, default=4 * 10**6, help="of each kind, for example 4M"
    )
    head.add_argument("--epochs", type=int, default=3)
    head.add_argument(
        "--compact",
        action="store_true",
        help="leave out the output matrix, the target's own rows: half the size, for Spindle alone",
    )
    head.add_argument("--threads", type=int, help="of the processor; by default all")
    inflate = commands.add_parser("inflate", help="write a larger target that computes the same")
    inflate.add_argument("--params", type=_parameters, required=True, help="for example 90M")
    arguments = parser.parse_args()
    if arguments.command == "inflate":
        print(inflated_target(arguments.params))
        return
    keep_freed_memory()
    if arguments.command == "train-head":
        if arguments.threads is not None:
            torch.set_num_threads(arguments.threads)
        _make_head(arguments, arguments.work or cache_dir() / "heads" / arguments.target.name)
        return
    corpus = load_corpus()
    if arguments.only is None:
        _make_target(corpus, arguments.work)
    _make_drafters(corpus, arguments.only or DRAFTERS)


def _make_target(corpus: Corpus, work: Path) -> None:
    rng = random.Random("tokenizer")
    source = Source(corpus)
    tasks = [make_task(source, rng) for _ in range(_TOKENIZER_TASKS)]
    tokenizer = train_tokenizer(
        [text[:_TOKENIZER_FILE_CHARS] for text in corpus.code]
        + corpus.prose * 2
        + [f"{task.prompt}\n{task.answer}" for task in tasks]
    )
    sampler = Sampler(tokenizer, corpus, TARGET_RECIPE.mix)
    target = train_target(TARGET_RECIPE, tokenizer, sampler, work)
    save_model(target, tokenizer, model_path(TARGET))


def _make_drafters(corpus: Corpus, names: tuple[str, ...]) -> None:
    tokenizer: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(model_path(TARGET))
    target = LlamaForCausalLM.from_pretrained(model_path(TARGET), dtype=torch.float32)
    answered = answer_tasks(target, tokenizer, corpus, _ANSWER_BATCHES)
    trainable(target)
    for recipe in DRAFTER_RECIPES:
        if recipe.name in names:
            sampler = Sampler(tokenizer, corpus, recipe.mix, answered)
            save_model(distil(recipe, target, sampler), tokenizer, model_path(recipe.name))


def _make_head(arguments: argparse.Namespace, work: Path) -> None:
    path, kinds = arguments.target, list(dict.fromkeys(arguments.kinds))
    tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    dtype = torch.bfloat16 if has_bf16_products() else torch.float32
    writer = PackedModel.load(path, dtype=dtype, device="cpu", kv_tokens=_WRITER_KV_TOKENS)
    for kind in kinds:
        write_shards(NativeVerifier(writer), tokenizer, work, kind, arguments.tokens)
    del writer
    target = LlamaForCausalLM.from_pretrained(path, dtype=dtype).eval()
    texts = [text for kind in kinds for text in observed_shards(target, work, kind, held_out=False)]
    held_out = {kind: observed_shards(target, work, kind, held_out=True) for kind in kinds}
    if not texts:
        raise SystemExit("all of the text is held out; write more: --tokens")
    epochs, name = arguments.epochs, arguments.name
    head = train_head(target, texts, held_out, epochs, work, name, arguments.start)
    for kind, some in held_out.items():
        print(f"{kind}, held out: {acceptance(target, head, some)}")
    folder = work / name
    head.save(folder, DEPTH, path.name, output_matrix=not arguments.compact)
    print(f"{folder} is an EAGLE-3 head for {path.name}")


def _llama(text: str) -> Path:
    """The directory of a Llama: of another family the states would not be those that it serves
    with."""
    config = Path(text) / "config.json"
    if not config.is_file():
        raise argparse.ArgumentTypeError(
            f"{text} has no config.json: name the directory of a checkpoint, or fetch the default "
            "one with `python -m cluster.fetch`"
        )
    kind = json.loads(config.read_text()).get("model_type")
    if kind != "llama":
        raise argparse.ArgumentTypeError(
            f"{text} has model_type {kind!r}, and only targets of model_type 'llama' are learnt "
            "from; take a head that was trained with speculators, which kind eagle3 serves"
        )
    return Path(text)


def _parameters(text: str) -> int:
    """A count such as 90M, 1.5B or 350000000."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMB]?)", text.upper())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a count such as 90M")
    return round(float(match[1]) * _UNITS[match[2]])


if __name__ == "__main__":
    main()
