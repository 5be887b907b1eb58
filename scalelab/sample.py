"""Continues texts with a run that predicts the next token, or masked tokens.

  python -m scalelab.sample --run=RUN --prompt="Once upon a time" [--temperature=0.8 --top_p=0.9]

RUN is the run folder of a pre-training, or of an import from Hugging Face. Without a temperature
the best token is taken at each step; --num_beams searches further. A text starts with the tokens
that begin a training text, such as [CLS]. If there are none, an empty prompt starts from the
end-of-text token. A text ends at the end-of-text token, or else at the token that ends a training
text, such as [SEP]. A model that reads a source needs a --source for each prompt; without prompts,
its texts start from its start token. A model that fills the masks of its source, such as glm,
writes the text of a single mask, or the source with all masks filled. The texts drawn for a prompt
depend only on --seed, the prompt and its source.

A model that predicts masked tokens gets --max_new_tokens masks behind the prompt. It draws each
--sweeps times, given all other tokens (Gibbs sampling, Wang and Cho 2019).
"""

import argparse
import functools
import json
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from scalelab.config import cli
from scalelab.resources import host

if TYPE_CHECKING:
    import numpy as np

    from scalelab.decode.choose import Rules
    from scalelab.decode.loop import Continuation
    from scalelab.eval.placement import Placed
    from scalelab.training.pretrained import Pretrained

RULES = ("repetition_penalty", "temperature", "top_k", "top_p", "repetition_stop")
# Flags that models that predict the next token, or masked tokens, have no use for: their defaults.
UNUSED = {
    "next": {"sweeps": 10, "order": "random"},
    "masked": {
        "num_beams": 1,
        "length_penalty": 1.0,
        "repetition_penalty": None,
        "repetition_stop": None,
    },
}  # fmt: skip


def parser() -> cli.Parser:
    """Returns the command line."""
    made = cli.Parser("python -m scalelab.sample", __doc__, setup=host.keep_freed)
    add = made.add_argument
    add("--run", required=True, metavar="RUN", help="run folder of a pre-training, such as of gpt2")
    add("--prompt", action="append", default=[], metavar="TEXT",
        help="a text to continue; may be given again")  # fmt: skip
    add("--source", action="append", default=[], metavar="TEXT",
        help="a source to read first; may be given again")  # fmt: skip
    add("--file", metavar="FILE", help="a file with prompts, one a line")
    for name, kind, text in (
        ("num_samples", cli.positive, "texts for each prompt; default: 1"),
        ("max_new_tokens", cli.positive, "tokens to add at most; default: 50"),
        ("temperature", float, "temperature of the draw; 0, the default: the best token"),
        ("top_k", int, "draw among the N best tokens"),
        ("top_p", float, "draw among the fewest best tokens of this total probability"),
        ("num_beams", cli.positive, "width of a beam search; default: 1"),
        ("length_penalty", float, "power of the length that divides the log probability of a beam;"
         " default: 1"),
        ("repetition_penalty", float, "lower the scores of tokens in the text; 1.2 is usual"),
        ("repetition_stop", int, "end a text when its last N tokens occur in it before"),
        ("sweeps", cli.positive, "how often a masked model draws each new token; default: 10"),
        ("seed", cli.natural, "seed of the draws; default: 0"),
        ("batch_size", cli.positive, "texts at a time; default: 8"),
        ("tensor_parallel", cli.positive, "devices that share the model; texts are split over all"
         " others; default: 1"),
    ):  # fmt: skip
        add(f"--{name}", type=kind, metavar="N", help=text)
    add("--order", choices=("random", "left_to_right"),
        help="order of a masked model's draws; default: random")  # fmt: skip
    add("--special", action="store_true",
        help="read the text of a special token in a prompt or source, such as <extra_id_0>, as"
        " this token; default: as plain text")  # fmt: skip
    add("--json", action="store_true", help="print one JSON object a line")
    made.set_defaults(num_samples=1, max_new_tokens=50, temperature=0.0, seed=0, batch_size=8,
                      tensor_parallel=1)  # fmt: skip
    return made


def read_prompts(given: argparse.Namespace) -> list[str]:
    """Returns the prompts that the flags give.

    Raises:
      ValueError: there is none, or flags do not go together.
    """
    prompts = list(given.prompt)
    if given.file is not None:
        prompts += pathlib.Path(given.file).read_text("utf-8", "replace").splitlines()
    prompts = prompts or [""] * len(given.source)
    if not prompts:
        raise ValueError("no prompt: give --prompt=TEXT, or --file=FILE with one a line")
    if given.source and len(given.source) != len(prompts):
        raise ValueError(
            f"{len(prompts)} prompts and {len(given.source)} sources: give one --source for each"
            " prompt, or leave all prompts out"
        )
    samples, beams = given.num_samples, given.num_beams or 1
    ruled = [f"--{name}" for name in RULES if getattr(given, name)]
    if beams > 1 and (ruled or samples > beams):
        raise ValueError(
            f"--num_beams={beams} gives at most that many samples, and has no use for"
            f" {', '.join(ruled) or f'--num_samples={samples}'}"
        )
    if beams == 1 and given.length_penalty is not None:
        raise ValueError("--length_penalty ranks the texts of a beam search: give --num_beams too")
    if beams == 1 and samples > 1 and given.temperature == 0:
        raise ValueError(
            f"--num_samples={samples} would give the same text again and again; set"
            " --temperature=1 to draw"
        )
    return prompts


class Prompt(NamedTuple):
    """A text to continue, encoded."""

    text: str  # as the user gave it
    ids: list[int]
    begun: "np.ndarray"  # ids [n] int32, after the tokens that begin a text
    source: "np.ndarray"  # ids [m] int32 in their frame; m = 0: the model reads none
    blanks: int = 0  # masks of the source that are to be filled; 0: the model fills none


Texts = Iterator[tuple[int, int, "Continuation"]]  # place of the prompt, number of the sample, text


def encode(asked: argparse.Namespace, texts: Sequence[str], opened: "Pretrained") -> list[Prompt]:
    """Encodes prompts, and their sources if the model reads any.

    Raises:
      ValueError: a source has no tokens, or the masks in it do not suit the model or the flags.
    """
    import numpy as np

    from scalelab import formats, systems

    tokenizer, special = opened.tokenizer, opened.tokenizer.special_ids
    read = tokenizer.encode
    if asked.special:
        read = functools.partial(tokenizer.encode_special, roles=special)
    ids = [read(text).tolist() for text in texts]
    if not asked.source:
        begin = opened.frame_text(causal=True).begin
        starts = begin or [special[role] for role in ("eos", "bos") if role in special]
        begun = [np.array([*begin, *row] or starts[:1], np.int32) for row in ids]
        return [Prompt(*own, np.empty(0, np.int32)) for own in zip(texts, ids, begun, strict=True)]
    start, frame = systems.special_ids(opened.system, special)["start"], tokenizer.frame()
    made, fills = [], formats.has_array(opened.config.data.format, "blanks")
    for text, row, source in zip(texts, ids, asked.source, strict=True):
        found = read(source)
        if not source.strip() or not len(found):
            raise ValueError(f"the source {source!r} has no words: give at least one")
        framed = np.concatenate([frame.begin, found, frame.end]).astype(np.int32)
        own = Prompt(text, row, np.array([start, *row], np.int32), framed)
        made.append(
            own._replace(blanks=_count_blanks(opened, asked, source, own)) if fills else own
        )
    return made


def continuations(asked: argparse.Namespace, prompts: list[Prompt], opened: "Pretrained") -> Texts:
    """Continues prompts as the flags say; yields texts behind short sources first.

    Raises:
      ValueError: a flag is out of range, a prompt is empty, or the model has too few positions.
    """
    import numpy as np

    from scalelab.decode import beam, loop, stepper
    from scalelab.eval import placement

    if not all(len(prompt.begun) for prompt in prompts):
        raise ValueError(
            f"the prompt is empty, and the tokenizer in {opened.tokenizer_dir} has no end-of-text"
            " token to start from: give at least a word"
        )
    rules, max_len = _rules(asked), opened.config.model.max_len
    loop.check([prompt.begun for prompt in prompts], asked.max_new_tokens, max_len)
    placed = placement.place(opened, asked.tensor_parallel)
    sizes = {"max_new_tokens": asked.max_new_tokens, "max_len": max_len, "end_token": _end(opened)}
    made, sizes["rows"] = stepper.prepare(placed.net, placed.params), placed.rows
    searched = asked.num_beams > 1
    for part, own, samples in _batches(
        asked, prompts, 1 if searched else asked.num_samples, placed
    ):
        ids = [prompt.begun for prompt in own]
        sizes["sources"] = [prompt.source for prompt in own] if asked.source else None
        if searched:
            ranks = {name: getattr(asked, name) for name in ("num_beams", "length_penalty")}
            found = beam.search(made, ids, **ranks, **sizes)
            for (place, _), best in zip(part, found, strict=False):
                for sample, text in enumerate(best[: asked.num_samples]):
                    yield place, sample, text
            continue
        whole = [np.concatenate([prompt.source, prompt.begun]) for prompt in own]
        keys = loop.text_keys(asked.seed, whole, samples)
        ends = [prompt.blanks for prompt in own] if own[0].blanks else None
        texts = loop.generate(made, ids, rules, keys=keys, ends=ends, **sizes)
        for (place, sample), text in zip(part, texts, strict=False):
            yield place, sample, text


def resamplings(asked: argparse.Namespace, prompts: list[Prompt], opened: "Pretrained") -> Texts:
    """Continues prompts with a masked model; raises as `continuations`.

    Special tokens are never drawn.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np
    from flax.typing import ArrayPytree

    from scalelab.decode import gibbs, loop
    from scalelab.eval import placement, token_scores

    count, special = asked.max_new_tokens, opened.tokenizer.special_ids
    frame, max_len = opened.frame_text(causal=False), opened.config.model.max_len
    masks = np.full(count, special["mask"])
    rows = [np.concatenate([frame.begin, p.ids, masks, frame.end]) for p in prompts]
    loop.check([row[count:] for row in rows], count, max_len)
    placed = placement.place(opened, asked.tensor_parallel)

    def score(params: ArrayPytree, tokens: jax.Array, *given: jax.Array) -> jax.Array:
        batch = {"tokens": tokens, "lengths": given[0], "examples": jnp.arange(len(tokens))}
        found = token_scores.log_chances(placed.net, params, batch, given[1][:, None])[:, 0]
        return found.at[:, list(special.values())].set(-jnp.inf)

    sizes = {"count": count, "sweeps": asked.sweeps, "order": asked.order}
    sizes |= {"rules": _rules(asked), "mask": special["mask"]}
    for part, own, samples in _batches(asked, prompts, asked.num_samples, placed):
        ids = [rows[place] for place, _ in part]
        tokens, lengths = loop.fill(ids + ids[-1:] * (len(own) - len(ids)), max_len)
        starts = lengths - np.int32(len(frame.end) + count)
        keys = loop.text_keys(asked.seed, [np.array(prompt.ids) for prompt in own], samples)
        given = placed.put((tokens, lengths, starts, keys))
        drawn = jax.device_get(gibbs.sample(score, placed.params, *given, **sizes))
        for (place, sample), row, start in zip(part, drawn, starts, strict=False):
            yield place, sample, loop.Continuation(row[start : start + count], "length")


def _rules(asked: argparse.Namespace) -> "Rules":
    from scalelab.decode.choose import Rules

    return Rules(**{name: getattr(asked, name) for name in RULES})


def _batches(
    asked: argparse.Namespace, prompts: list[Prompt], num_samples: int, placed: "Placed"
) -> Iterator[tuple[list[tuple[int, int]], list[Prompt], list[int]]]:
    """Yields the place and sample of each text of a batch, and prompts and samples filled up."""
    order = range(len(prompts))
    if asked.source:  # sources of one length need little padding
        order = sorted(order, key=lambda i: (len(prompts[i].source), len(prompts[i].begun)))
    rows = [(place, sample) for place in order for sample in range(num_samples)]
    size = placed.round_up(min(asked.batch_size, len(rows)))
    for begin in range(0, len(rows), size):
        part = rows[begin : begin + size]
        filled = part + part[-1:] * (size - len(part))
        yield part, [prompts[place] for place, _ in filled], [sample for _, sample in filled]


def _check(asked: argparse.Namespace, opened: "Pretrained") -> str:
    """Returns "next" or "masked", what the model predicts; fills in the defaults of its flags."""
    from scalelab.config.fields import frozen_names

    system, path = opened.config.system, opened.path
    predicts = "next" if opened.system.PREDICTS == "next" else opened.predicts
    if predicts not in UNUSED:
        raise ValueError(
            f"{path} is a {system} trained on {opened.config.objective!r}; expected a model that"
            " predicts the next token, or masked tokens"
        )
    if unused := [f"--{name}" for name in UNUSED[predicts] if getattr(asked, name) is not None]:
        raise ValueError(
            f"{system} predicts {predicts} tokens and has no use for {', '.join(unused)}: leave"
            " them out"
        )
    if opened.system.HAS_SOURCE != bool(asked.source):
        ours = ("no source: leave --source out", "a source: give --source=TEXT")
        raise ValueError(f"the model of {system} in {path} reads {ours[opened.system.HAS_SOURCE]}")
    if frozen_names(opened.system) or not asked.source:
        opened.check_alone()
    for name, default in (UNUSED["next"] | UNUSED["masked"]).items():
        if getattr(asked, name) is None:
            setattr(asked, name, default)
    return predicts


def _count_blanks(
    opened: "Pretrained", asked: argparse.Namespace, source: str, prompt: Prompt
) -> int:
    """Returns how many masks of a source are to be filled: the prompt may fill the first ones.

    Raises:
      ValueError: the source has no mask, or its prompt fills all; or a flag is for one mask alone.
    """
    mask = opened.tokenizer.special_ids["mask"]
    masks, ended = int((prompt.source == mask).sum()), prompt.ids.count(_end(opened))
    if not masks:
        name = opened.tokenizer.token(mask)
        raise ValueError(
            f"--source={source!r} has no mask token, and {opened.config.system} writes only the"
            f" texts of masks: give one, such as --special --source='The {name} flows.'"
        )
    if ended >= masks:
        raise ValueError(f"--source={source!r}: its prompt fills all masks: shorten it")
    defaults = UNUSED["masked"].items()  # flags for a single text
    given = [f"--{name}" for name, default in defaults if getattr(asked, name) != default]
    if given and masks - ended > 1:
        raise ValueError(
            f"{', '.join(given)}: needs a --source with one mask to fill, found {masks - ended}"
        )
    return masks - ended


def _end(opened: "Pretrained") -> int | None:
    """Returns the id of the token that ends a text, None without one."""
    if (found := opened.tokenizer.special_ids.get("eos")) is not None:
        return found
    return next(iter(opened.frame_text(causal=False).end), None)


def _fill_blanks(
    source: "np.ndarray", mask: int, written: Sequence[int], end: int | None
) -> list[int]:
    """Returns a source [n] with its masks replaced by texts; a mask without a text stays.

    Args:
      source: token ids.
      mask: id of the mask.
      written: the texts of all masks, one after another.
      end: id of the token between two of them; None: there is one text.
    """
    import numpy as np

    tokens = np.array(written, np.int32)
    parts = np.split(tokens, np.flatnonzero(tokens == end) + 1)
    texts = (part[part != end] for part in parts)
    filled = [next(texts, [mask]) if token == mask else [token] for token in source]
    return [int(token) for part in filled for token in part]


def main(given: argparse.Namespace) -> None:
    """Continues and prints."""
    texts = read_prompts(given)
    from scalelab.training import pretrained

    opened = pretrained.load(given.run)
    predicts, tokenizer, frame = _check(given, opened), opened.tokenizer, opened.tokenizer.frame()
    host.configure_jax(opened.config.machine.compile_cache_dir, opened.config.model.dtype)
    prompts, mask = encode(given, texts, opened), tokenizer.special_ids.get("mask")
    found = (resamplings if predicts == "masked" else continuations)(given, prompts, opened)
    if given.source:
        try:
            found = sorted(found, key=lambda text: text[:2])
        except ValueError as error:
            longest = max(len(prompt.source) for prompt in prompts)
            if longest <= opened.config.model.max_len:
                raise
            message = f"a --source has {longest} tokens, special ones included: {error}"
            raise ValueError(message) from error
    for place, sample, text in found:
        prompt, tokens = prompts[place], text.tokens.tolist()
        written = [*prompt.ids, *tokens]
        whole, head = tokenizer.decode(written), tokenizer.decode(prompt.ids)
        tail = whole.removeprefix(head) if whole.startswith(head) else tokenizer.decode(tokens)
        if prompt.blanks and int((prompt.source == mask).sum()) > 1:
            source = prompt.source[len(frame.begin) : len(prompt.source) - len(frame.end)]
            whole = tokenizer.decode(_fill_blanks(source, mask, written, _end(opened)))
        name = f"{place + 1}" + f".{sample + 1}" * (given.num_samples > 1)
        if prompt.blanks and text.ended_by == "length":
            print(f"note: text {name} has masks that are not filled to their end: raise"
                  f" --max_new_tokens={given.max_new_tokens}", file=sys.stderr)  # fmt: skip
        if given.json:
            made = {"prompt": prompt.text, "text": whole, "continuation": tail, "tokens": tokens}
            made |= {"sample": sample, "ended_by": text.ended_by}
            made |= {} if text.score is None else {"score": text.score}
            print(json.dumps(made, ensure_ascii=False), flush=True)
        else:
            print(f"[{name}] {whole}\n", flush=True)


if __name__ == "__main__":
    cli.run(main, parser())
