"""Continues texts with a run that predicts the next token.

  python -m scalelab.sample --run=RUN --prompt="Once upon a time" [--temperature=0.8 --top_p=0.9]

RUN is the run folder of a pre-training, or of an import from Hugging Face. Without a temperature
the best token is taken at each step; --num_beams searches further. An empty prompt starts from the
end-of-text token. A net that reads a source needs a --source for each prompt; without prompts, its
texts start from its start token. The texts drawn for a prompt depend only on --seed, the prompt and
its source.
"""

import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from absl import flags

from scalelab.config import cli
from scalelab.resources import malloc
from scalelab.runs import environment

if TYPE_CHECKING:
    import numpy as np

    from scalelab.decode.loop import Continuation
    from scalelab.runs.pretrained import Pretrained

RUN = flags.DEFINE_string("run", None, "Run folder of a causal system, such as gpt2.")
PROMPT = flags.DEFINE_multi_string("prompt", [], "A text to continue; may be given again.")
SOURCE = flags.DEFINE_multi_string("source", [], "A source to read first; may be given again.")
FILE = flags.DEFINE_string("file", None, "A file with prompts, one a line.")
NUM_SAMPLES = flags.DEFINE_integer("num_samples", 1, "Texts for each prompt.", lower_bound=1)
MAX_NEW_TOKENS = flags.DEFINE_integer("max_new_tokens", 50, "Tokens to add at most.", lower_bound=1)
TEMPERATURE = flags.DEFINE_float("temperature", 0.0, "Temperature of the draw; 0: the best token.")
TOP_K = flags.DEFINE_integer("top_k", None, "Draw among the K best tokens.")
TOP_P = flags.DEFINE_float(
    "top_p", None, "Draw among the fewest best tokens of this total probability."
)
NUM_BEAMS = flags.DEFINE_integer("num_beams", 1, "Width of a beam search.", lower_bound=1)
REPETITION_PENALTY = flags.DEFINE_float(
    "repetition_penalty", None, "Lower the scores of tokens in the text; 1.2 is usual."
)
REPETITION_STOP = flags.DEFINE_integer(
    "repetition_stop", None, "End a text when its last N tokens occur in it before."
)
SEED = flags.DEFINE_integer("seed", 0, "Seed of the draws.", lower_bound=0)
BATCH_SIZE = flags.DEFINE_integer("batch_size", 8, "Texts at a time.", lower_bound=1)
TENSOR_PARALLEL = flags.DEFINE_integer(
    "tensor_parallel", 1, "Devices that share the net; texts are split over all others.",
    lower_bound=1,
)  # fmt: skip
JSON = flags.DEFINE_bool("json", False, "Print one JSON object a line.")

RULES = (REPETITION_PENALTY, TEMPERATURE, TOP_K, TOP_P, REPETITION_STOP)


def read_prompts() -> list[str]:
    """Returns the prompts that the flags give.

    Raises:
      ValueError: there is none, or flags do not go together.
    """
    prompts = list(PROMPT.value)
    if FILE.value is not None:
        prompts += pathlib.Path(FILE.value).read_text("utf-8", "replace").splitlines()
    prompts = prompts or [""] * len(SOURCE.value)
    if not prompts:
        raise ValueError("no prompt: give --prompt=TEXT, or --file=FILE with one a line")
    if SOURCE.value and len(SOURCE.value) != len(prompts):
        raise ValueError(
            f"{len(prompts)} prompts and {len(SOURCE.value)} sources: give one --source for each"
            " prompt, or leave all prompts out"
        )
    samples, beams = NUM_SAMPLES.value, NUM_BEAMS.value
    ruled = [f"--{flag.name}" for flag in RULES if flag.value]
    if beams > 1 and (ruled or samples > beams):
        raise ValueError(
            f"--num_beams={beams} gives at most that many samples, and has no use for"
            f" {', '.join(ruled) or f'--num_samples={samples}'}"
        )
    if beams == 1 and samples > 1 and TEMPERATURE.value == 0:
        raise ValueError(
            f"--num_samples={samples} would give the same text again and again; set"
            " --temperature=1 to draw"
        )
    return prompts


def continuations(
    prompts: "Sequence[np.ndarray]", opened: "Pretrained", sources: "Sequence[np.ndarray]" = ()
) -> "Iterator[tuple[int, int, Continuation]]":
    """Continues prompts as the flags say.

    Args:
      prompts: token ids, each [n], n >= 1.
      opened: the run.
      sources: token ids of each prompt's source; (): the net reads none.

    Yields:
      For each text the place of its prompt, its sample number and its new tokens.

    Raises:
      ValueError: a flag is out of range, or the net has too few positions.
    """
    import numpy as np

    from scalelab.decode import beam, loop, stepper
    from scalelab.decode import prompts as prompts_lib
    from scalelab.decode.choose import Rules
    from scalelab.eval import placement

    rules = Rules(**{flag.name: flag.value for flag in RULES})
    max_len = opened.config.net.max_len
    prompts_lib.check(prompts, MAX_NEW_TOKENS.value, max_len)
    sizes = {
        "max_new_tokens": MAX_NEW_TOKENS.value,
        "max_len": max_len,
        "end_token": opened.tokenizer.special_ids.get("eos"),
    }
    placed = placement.place(opened, TENSOR_PARALLEL.value)
    sizes["rows"] = placed.rows
    made = stepper.prepare(placed.net, placed.params)
    searched = NUM_BEAMS.value > 1
    samples = range(1 if searched else NUM_SAMPLES.value)
    rows = [(place, sample) for place in range(len(prompts)) for sample in samples]
    size = placed.round_up(min(BATCH_SIZE.value, len(rows)))
    for begin in range(0, len(rows), size):
        part = rows[begin : begin + size]
        filled = part + part[-1:] * (size - len(part))  # the last ones fill the batch
        ids, numbers = [prompts[place] for place, _ in filled], [sample for _, sample in filled]
        read = [sources[place] for place, _ in filled] if sources else None
        if searched:
            found = beam.search(made, ids, num_beams=NUM_BEAMS.value, sources=read, **sizes)
            for (place, _), best in zip(part, found, strict=False):
                for sample, text in enumerate(best[: NUM_SAMPLES.value]):
                    yield place, sample, text
        else:
            whole = [np.concatenate(pair) for pair in zip(read, ids, strict=True)] if read else ids
            keys = loop.text_keys(SEED.value, whole, numbers)
            texts = loop.generate(made, ids, rules, keys=keys, sources=read, **sizes)
            for (place, sample), text in zip(part, texts, strict=False):
                yield place, sample, text


def main(argv: list[str]) -> None:
    """Reads the flags, continues and prints."""
    del argv
    run, texts = cli.required(RUN.value, "run"), read_prompts()
    malloc.keep_freed()
    import numpy as np

    from scalelab.config.fields import frozen_names
    from scalelab.decode import prompts as prompts_lib
    from scalelab.runs import pretrained

    opened = pretrained.load(run)
    if opened.system.PREDICTS != "next":
        raise ValueError(
            f"{run} is a run of {opened.config.system}, which does not predict the next token:"
            " python -m scalelab.fill_mask fills masks; give a run of a left-to-right system"
        )
    if opened.system.HAS_SOURCE != bool(SOURCE.value):
        ours = ("no source: leave --source out", "a source: give --source=TEXT")
        raise ValueError(
            f"the net of {opened.config.system} in {run} reads {ours[opened.system.HAS_SOURCE]}"
        )
    if frozen_names(opened.system) or not SOURCE.value:
        opened.check_alone()
    environment.configure_jax(opened.config.machine.compile_cache_dir, opened.config.net.dtype)
    tokenizer = opened.tokenizer
    ids = tokenizer.encode_batch(texts)
    starts = [tokenizer.special_ids[r] for r in ("eos", "bos") if r in tokenizer.special_ids]
    if not (starts or SOURCE.value) and not all(map(len, ids)):
        raise ValueError(
            f"the prompt is empty, and the tokenizer in {opened.tokenizer_dir} has no end-of-text"
            " token to start from: give at least a word"
        )
    if SOURCE.value:
        frame, start = tokenizer.frame(), tokenizer.special_ids[vars(opened.system)["START"]]
        rows = tokenizer.encode_batch(SOURCE.value)
        read = [np.concatenate([frame.begin, row, frame.end]).astype(np.int32) for row in rows]
        begun = prompts_lib.begin(ids, read, start)
    else:
        read = []
        begun = [row if len(row) else np.array(starts[:1], np.int32) for row in ids]
    for place, sample, found in continuations(begun, opened, read):
        begin, tokens = ids[place].tolist(), found.tokens.tolist()
        whole, head = tokenizer.decode([*begin, *tokens]), tokenizer.decode(begin)
        tail = whole.removeprefix(head) if whole.startswith(head) else tokenizer.decode(tokens)
        if JSON.value:
            made = {"prompt": texts[place], "text": whole, "continuation": tail, "tokens": tokens}
            made |= {"sample": sample, "ended_by": found.ended_by}
            made |= {} if found.score is None else {"score": found.score}
            print(json.dumps(made, ensure_ascii=False), flush=True)
        else:
            name = f"{place + 1}" + f".{sample + 1}" * (NUM_SAMPLES.value > 1)
            print(f"[{name}] {whole}\n", flush=True)


if __name__ == "__main__":
    cli.run(main)
