"""How much of a text should T5 drop, and in how long spans?

  python -m scalelab.study run --config=configs/studies/t5_spans.py:seeds=3 --workdir=DIR

| arm | dropped tokens | mean length of a span |
|---|--:|--:|
| default | 15% | 3 |
| rate_10, rate_25, rate_50 | 10%, 25%, 50% | 3 |
| independent | 15% | 1.18 |
| span_2, span_5, span_10 | 15% | 2, 5, 10 |

Tokens that are dropped independently of each other, 15% of them, make spans of 1 / 0.85 = 1.18
tokens. Texts of at most 64 tokens drop about ten, so span_10 drops them as one span.
Raffel et al. 2020, 3.3.3, 3.3.4 and tables 6 and 7, find small differences: 50% and spans of 10 are
somewhat worse, spans of 3 somewhat better than independent tokens. Scales, text, pairs, recipe and
scores are those of t5_objectives.py.
"""

import ml_collections

from scalelab.config import files

RATES, SPANS = (10, 25, 50), (2, 5, 10)


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study."""
    config, shape = files.load(files.FOLDER / "studies/t5_objectives.py").settings(arguments)
    config.name = "t5_spans"
    config.title = "T5's spans"
    config.question = "How much of a text should T5 drop, and in how long spans?"
    arms = {f"rate_{rate}": f"noise_rate={rate / 100}" for rate in RATES}
    arms |= {"independent": "mean_span=1.18"} | {f"span_{n}": f"mean_span={n}" for n in SPANS}
    for arm, option in arms.items():
        config.variants[arm] = (f"format_options.{option}",)
    config.stages.main = dict(
        systems=("t5",), shapes=(shape,), variants=("default", *arms), finetune="all"
    )
    config.stage_order = ("main",)
    config.hypotheses = tuple(
        (f"default ~ {arm}", task, 5) for task in config.finetune.tasks for arm in arms
    )
    return config
