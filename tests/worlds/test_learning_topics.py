"""NSP is learned from topics, by a whole run on a corpus of the grammar world."""

import jax
import numpy as np
import pytest
import tiny

from scalelab import train
from scalelab.config import pretraining as config_lib
from scalelab.data.loading import load_data
from scalelab.training import pretrained
from scalelab.worlds import corpus, discourse
from scalelab.worlds.discourse import World
from scalelab.worlds.lexicon import NUMBERS, Sizes, noun, verb

pytestmark = pytest.mark.ci

SIZES = Sizes(num_topics=6, num_nouns=2, num_verbs=2, num_adjectives=1, num_qualities=1)
MAX_LEN, NUM_STEPS = 64, 500


def topic_words(world: World) -> dict[str, int]:
    """Each noun and verb form -> its topic."""
    found = {}
    for number, topic in enumerate(world.lexicon.topics):
        forms = [noun(stem, num) for stem in topic.nouns for num in NUMBERS]
        forms += [verb(stem, form) for stem in topic.verbs for form in ("sg", "pl", "participle")]
        found |= dict.fromkeys(forms, number)
    return found


def follows(opened: pretrained.Pretrained, batch: dict[str, np.ndarray]) -> np.ndarray:
    """Whether the model says that B follows A, for each pair: bool [B]."""
    net = opened.net

    def logits(model, rows):
        return model.pair_logits(model(rows, train=False)[0])

    found = net.apply({"params": opened.params}, batch, method=logits)
    return np.asarray(jax.device_get(found)).argmax(-1) == 0


def test_nsp_is_learnt_from_topics(tmp_path) -> None:
    world = discourse.draw(SIZES, seed=0)
    (tmp_path / "world").mkdir()
    corpus.write_grammar(world, 0, 1200, tmp_path / "world")
    config = config_lib.resolve(
        tiny.values(
            f"system=bert,shape=2x32x1,corpus=wikitext:{tmp_path}/world,steps={NUM_STEPS}",
            tokenizer__vocab_size=130,
            model__max_len=MAX_LEN,
            model__dropout_rate=0.0,
            format_options__short_rate=0.0,
            short__max_len=MAX_LEN,
            short__batch_size=32,
            long__example_rate=0.0,
            optim__learning_rate=5e-3,
            eval__every_steps=NUM_STEPS,
            eval__num_examples=512,
            machine__loader="numpy",
            machine__cache_dir=str(tmp_path / "cache"),
            machine__compile_cache_dir=None,
            machine__num_workers=1,
        )
    )
    result = train.train(train.pretraining(config, tmp_path / "run"))
    assert result["eval"][str(MAX_LEN)]["nsp_accuracy"] > 0.75

    # What the model goes by: it takes a random sentence for the next one if the topic is the same.
    opened = pretrained.load(tmp_path / "run")
    store = load_data(config, opened.system, progress=False).phases[0].valid
    batch = store.gather(np.arange(len(store)))
    batch["examples"] = np.arange(len(store), dtype=np.int32)
    topics = []
    for tokens, middle, end in zip(
        batch["tokens"], batch["second_starts"], batch["lengths"], strict=True
    ):
        segments = (opened.tokenizer.decode(part) for part in (tokens[:middle], tokens[middle:end]))
        known = topic_words(world)
        topics.append([{known[w] for w in s.split() if w in known} for s in segments])
    same = np.array([len(a | b) == 1 for a, b in topics])
    predicted, random = follows(opened, batch), batch["random_second"] == 1
    assert same[~random].all() and 20 < (same & random).sum()
    assert predicted[~random].mean() > 0.75
    assert predicted[random & ~same].mean() < 0.3
    assert predicted[random & same].mean() > 0.5
