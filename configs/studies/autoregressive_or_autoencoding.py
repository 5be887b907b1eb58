"""BERT, BERT without NSP, GPT-2, XLNet and GLM at equal FLOPs: what an order of prediction adds.

  python -m scalelab.study run --workdir=runs/autoregressive_or_autoencoding \
    --config=configs/studies/autoregressive_or_autoencoding.py

| run | objective | format |
|---|---|---|
| bert | MLM + NSP | segment pairs |
| bert, mlm | MLM | sentences of one document |
| gpt2 | left to right | sentences |
| xlnet | the last sixth of a random order | segments, with a memory of 64 tokens |
| glm | blanks in random order, each from left to right | sentences with blanks |

All have the FLOPs of BERT at this budget, so XLNet pays for its second stream and its memory with
tokens. The text is the synthetic language of configs/studies/family.py at scale=synthetic, and the
scores are its minimal pairs and two of its tasks. GPT-2 is scored from left to right, BERT and
XLNet with one hidden token at a time. GLM reads a sentence as one blank, which is longer than those
it was trained on, so no hypothesis compares its minimal pairs.
Arguments are those of family.py without `scale`.
"""

import ml_collections

from scalelab.config import files


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study."""
    family = files.load(files.FOLDER / "studies/family.py")
    config, shape, flops = family.at_synthetic(arguments)
    config.name = "autoregressive_or_autoencoding"
    config.title = "Autoregressive, autoencoding, or a permuted order"
    config.question = "Does predicting in a random order beat masks and left to right?"
    config.finetune.tasks = ("qnli", "mnli")
    # The unigram tokenizer finds 501 pieces in this text.
    config.system_fields.xlnet = ("tokenizer.kind=wordpiece", "system_options.memory_len=64")
    same = family.equal_flops(config, flops)
    config.variants.flops = same
    config.variants.mlm = ("objective=mlm", "data.format=doc_sentences", *same)
    family.add_stages(
        config,
        shape,
        {"bert": ("flops", "mlm"), "gpt2": ("flops",), "xlnet": ("flops",), "glm": ("flops",)},
    )
    config.allow = ("matched",)
    config.figures = ("loss_by_tokens", "loss_by_flops")
    config.hypotheses = family.hypotheses(
        config,
        "xlnet flops > bert flops",
        "xlnet flops > bert mlm",
        "xlnet flops > gpt2 flops",
    )
    glm = "glm flops > bert flops", "glm flops > gpt2 flops"
    config.hypotheses += tuple((line, task) for line in glm for task in ("mnli_m", "qnli"))
    return config
