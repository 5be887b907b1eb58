"""What tests of studies share."""

import pathlib

import pytest

from scalelab.config.pretraining import Config
from scalelab.studies import expand

PASS_TOKENS = {"segment_pair": 154_163_042, "doc_sentences": 97_718_060}  # Table 7.1


@pytest.fixture(autouse=True)
def no_corpus_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Budgets in passes are then those of WikiText-103."""

    def tokens(config: Config, workdir: pathlib.Path) -> int:
        return PASS_TOKENS[config.data.format]

    monkeypatch.setattr(expand, "pass_tokens", tokens)
