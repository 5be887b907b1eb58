"""What a study may say, and what is refused in one message."""

import re

import a_study
import declared
import pytest
import tiny

from scalelab import systems
from scalelab.config import fields, files
from scalelab.helpers import names
from scalelab.records import study_file
from scalelab.studies import expand, finetunings, spec
from scalelab.tasks import glue
from scalelab.training import blueprint

ROWS = {"title": "X", "stages": (), "shapes": (), "variants": ()}
STUDIES = sorted(p.stem for p in (tiny.ROOT / "configs/studies").glob("*.py"))


def test_every_field_of_a_study_is_explained_with_an_example() -> None:
    """In the comments of its dataclass, which --help and the site print."""
    for line in fields.describe(spec.StudySpec).splitlines():
        name = line.partition("=")[0].strip().removeprefix("--config.")
        if not name.startswith("pretrain."):
            _, _, text = re.sub(r"\s{2,}", "\0", line.strip()).partition("\0")
            assert re.search(r'"[^"]+"|\(\)|True', text), line


LADDERS = {  # runs a seed; objectives_8 has SpanBERT at equal FLOPs only at nano and world
    "ladder_bert_to_albert": 5, "ladder_bert_to_roberta": 5, "ladder_mlm_to_electra": 5,
    "mask_rate": 10, "objectives_8": 10,
}  # fmt: skip
# Runs a seed.
SYNTHETIC = {"depth_or_width": 6, "sizes": 7, "norms": 6, "tuned_family": 33,
             "t5_objectives": 7, "t5_spans": 8, "t5_data": 8, "t5_scaling": 5,
             "t5_architectures": 10, "bart_noises": 6, "seq2seq_pretraining": 6, "seq2seq_parts": 6,
             "autoregressive_or_autoencoding": 5, "before_transformers": 19,
             "language_model_sizes": 31, "spans": 3, "tokenizers": 8, "auxiliary_lm": 4,
             "compatibility": 9, "memory": 10}  # fmt: skip
OWN_SCALES = {"quickstart", "encoders", "family", *LADDERS, *SYNTHETIC}


@pytest.mark.parametrize("name", sorted({*STUDIES} - OWN_SCALES))
@pytest.mark.parametrize("scale", ["full", "medium", "small", "tiny"])
def test_studies_of_the_repository_resolve(name: str, scale: str, tmp_path) -> None:
    made = spec.resolve(
        tiny.config_module(f"studies/{name}").get_config(f"scale={scale}").to_dict()
    )
    assert made.name == name
    assert made.scale == scale
    assert expand.expand_runs(made)


@pytest.mark.parametrize(
    ("name", "systems"),
    [("quickstart", {"bert", "gpt2"}), ("encoders", {"bert", "albert", "electra"})],
)
def test_some_studies_have_one_scale(name: str, systems: set[str], tmp_path) -> None:
    module = tiny.config_module(f"studies/{name}")
    made = spec.resolve(module.get_config("seeds=1").to_dict())
    assert {r.system for r in expand.expand_runs(made)} == systems
    with pytest.raises(ValueError, match="one scale"):
        module.get_config("scale=tiny")


@pytest.mark.parametrize(
    ("name", "runs"),
    [(name, SYNTHETIC[name]) for name in SYNTHETIC if name[:3] in ("t5_", "bar", "com")]
    + [("seq2seq_pretraining", 18)],  # three numbers of examples
)
def test_encoder_decoders_on_real_text(name: str, runs: int, tmp_path) -> None:
    module = tiny.config_module(f"studies/{name}")
    with pytest.raises(ValueError, match="needs a text and pairs"):
        module.get_config("scale=nano")
    text = "".join(f" = Title {i} = \n\n a b c {i}\n\n" for i in range(40))
    (tmp_path / "text").mkdir()
    (tmp_path / "text/wiki.train.raw").write_text(text)
    given = f"scale=nano,corpus=wikitext:{tmp_path}/text,data={tmp_path},seeds=1"
    made = spec.resolve(module.get_config(given).to_dict())
    assert len(expand.expand_runs(made)) == runs and made.hypotheses
    both = {"dialogsum"} if name == "t5_spans" else set()
    assert {line[1] for line in made.hypotheses} == {"multi30k_de"} | both
    if name == "t5_data":
        for arm, count in {"whole": 40, "passes_16": 1}.items():
            made = (tmp_path / f"text-{arm}/wiki.train.raw").read_text()
            assert len(re.findall("= Title", made)) == count


def test_texts_of_the_study_of_data(tmp_path) -> None:
    """A repeated text is a beginning; every second document is shuffled, or a copy, or none is."""
    module = tiny.config_module("studies/t5_data")
    texts = (" ".join(f"{i}.{j}" for j in range(9)) for i in range(300))
    head = " = Title = \n\n = = Part of it = = \n\n"
    documents = [f"{head} {text} \n" for text in texts]
    assert module.change([*documents], "passes_16") == documents[:8]
    sizes = [len(module.change([""] * 20_000, f"passes_{number}")) for number in (4, 16, 64)]
    assert sizes == [2300, 575, 143]
    with pytest.raises(ValueError, match="leave tokens= out"):
        module.get_config("tokens=3e6")
    dirty, copies = (module.change([*documents], arm) for arm in ("dirty", "copies"))
    assert dirty[::2] == documents[::2] == copies[::2]
    for old, new, copy in zip(documents[1::2], dirty[1::2], copies[1::2], strict=True):
        assert old != new and sorted(old.split()) == sorted(new.split())
        assert new.startswith(head) and new.count("\n") == 5
        assert copy in documents[:100]
    long = [f"{head} {i} b . {i} c . {i} d . \n" for i in range(300)]
    copies, once = (module.change([*long], arm) for arm in ("copies", "deduplicated"))
    assert len(once) == len({*copies}) < 250 and {*once} == {*copies}
    dirty, clean = (module.change([*long], arm) for arm in ("dirty", "cleaned"))
    assert [text for text in dirty if text.endswith(". \n")] == clean != dirty


@pytest.mark.parametrize("name", SYNTHETIC)
def test_studies_of_the_synthetic_scale(name: str) -> None:
    module = tiny.config_module(f"studies/{name}")
    made = spec.resolve(module.get_config("seeds=2").to_dict())
    assert len(expand.expand_runs(made)) == 2 * SYNTHETIC[name] and made.hypotheses
    with pytest.raises(ValueError, match="one scale|expected one of synthetic, nano"):
        module.get_config("scale=tiny")


@pytest.mark.parametrize("name", LADDERS)
@pytest.mark.parametrize("scale", ["medium", "synthetic"])
def test_a_ladder_changes_one_thing_a_rung(name: str, scale: str, tmp_path) -> None:
    given = f"scale={scale},corpus=builtin,data=/d,evaluations=/y,seeds=1"
    made = spec.resolve(tiny.config_module(f"studies/{name}").get_config(given).to_dict())
    runs = expand.expand_runs(made)
    assert made.name == name
    assert len(runs) == LADDERS[name] + (name == "objectives_8" and scale in ("nano", "synthetic"))
    variants = {(run.system, run.shape, run.variant) for run in runs}
    assert len(variants) == len(runs)
    assert {score for _, score in made.hypotheses} >= {"pairs" if scale == "synthetic" else "blimp"}
    flops = {blueprint.draw(run.config).costs[0].train for run in runs}
    assert name != "mask_rate" or len(flops) == 5


@pytest.mark.parametrize("scale", ["nano", "micro", "synthetic"])
def test_the_family_has_every_system_that_pretrains(scale: str, tmp_path) -> None:
    module = tiny.config_module("studies/family")
    given = f"scale={scale},corpus=builtin,data=/d,evaluations=/y"
    made = spec.resolve(module.get_config(given).to_dict())
    runs = expand.expand_runs(made)
    made = {name: systems.load(name) for name in names.module_names("systems")}
    known = {
        name for name, own in made.items()
        if not own.HAS_SOURCE and own.ORDER == "shuffled" and declared.get(name).transformer
    }  # fmt: skip
    assert {r.system for r in runs if r.stage == "tokens"} == known
    per_step = {
        run.system: blueprint.draw(run.config).costs[0].train
        for run in runs
        if run.seed == 0 and run.stage == "tokens"
    }
    apart = {name for name, flops in per_step.items() if abs(flops / per_step["bert"] - 1) > 0.05}
    assert scale == "micro" or apart == {r.system for r in runs if r.stage == "flops"}
    with pytest.raises(ValueError, match="scale 'full': expected one of nano, .*, synthetic"):
        module.get_config("scale=full")


def test_scale_world_needs_no_data(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = "~/.cache/scalelab/worlds/grammar-20000-10000"  # the same on every machine
    (tmp_path / folder[2:]).mkdir(parents=True)  # not written now
    module = tiny.config_module("studies/objectives_8")
    made = module.get_config("scale=synthetic")
    assert made.pretrain.data.corpus == f"wikitext:{folder}"
    assert (made.finetune.data, made.evaluation_data) == (f"{folder}/glue", folder)
    with pytest.raises(ValueError, match="with corpus=, give data=, evaluations="):
        module.get_config("scale=synthetic,corpus=builtin")


def test_the_default_tasks_are_the_largest_of_glue() -> None:
    assert [*study_file.FIVE_LARGEST] == [task.name for task in glue.FIVE_LARGEST]


def test_a_word_stays_a_word_and_none_is_off() -> None:
    lines = "machine.remat=none", "model.ffn_width=None", "optim.beta1=0.8"
    assert fields.parse_fields(lines) == {
        "machine.remat": "none", "model.ffn_width": None, "optim.beta1": 0.8,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stages": {}}, "no runs"),
        ({"stages": {"main": a_study.stage(systems=())}}, r"stages.main.systems is empty"),
        ({"stages": {"main": a_study.stage(systems=("bret",))}}, "unknown 'bret': .*'bert'"),
        ({"stages": {"main": a_study.stage(shapes=("2x9x1",))}}, "2 heads"),
        ({"stages": {"main": a_study.stage(shapes=("2-8-1",))}}, "expected AxHxL"),
        ({"stages": {"main": a_study.stage(shapes=("compound:1",))}}, "expected AxHxL"),
        ({"stages": {"main": a_study.stage(finetune="best:2")}}, "finetune: unknown 'best:2'"),
        ({"finetune__tasks": ("sst",)}, "unknown task 'sst': .*'sst2'"),
        ({"evaluations": ("blmp",)}, "unknown evaluation 'blmp': .*'blimp'"),
        ({"evaluations": ("blimp",)}, "evaluation_data"),
        ({"evaluation_shares": (0.5,)}, "evaluation_shares: expected config.evaluations"),
        ({"evaluation_shares": (1,)}, "number in .0, 1."),
        ({"evaluations": ("blimp",), "evaluation_fields": ("blmp.rule=pll",)}, "'blmp'.*'blimp'"),
        ({"evaluations": ("blimp",), "evaluation_fields": ("blimp.rul=pll",)}, "'rule'"),
        ({"evaluations": ("blimp",), "evaluation_fields": ("blimp.per_group=-3",)}, "0 or more"),
        ({"free": ("sistem",)}, "unknown 'sistem': .*'system'"),
        ({"variants": {"half": ()}}, "must have 'default'"),
        ({"name": "a/b"}, "expected a word"),
        ({"seeds": 0}, "at least 1"),
        ({"pretrain__model__width": 7}, "does not divide"),
        ({"matched": "tokenz"}, "config.matched: .*'tokenz'.*'tokens'"),
        ({"tables": ("larg",)}, "config.tables: .*'larg'.*'large'"),
        ({"rows": {"x": ROWS | {"stages": ("min",)}}}, "config.rows.x.stages: unknown 'min'"),
        ({"rows": {"x": ROWS | {"shape": ()}}}, "unknown config field 'rows.x.shape'"),
        ({"rows": {"../x": ROWS}}, "'../x': expected a word"),
        ({"figures": ("loss_by_tim",)}, "config.figures: unknown .*'loss_by_time'"),
        ({"hypotheses": ("1x",)}, "config.hypotheses: unknown '1x'"),
        ({"hypotheses": (5,)}, "config.hypotheses: 5: expected .'A > B', score"),
        ({"hypotheses": (("bert > gpt", "loss"),)}, r"config.hypotheses: .*'gpt2'"),
        ({"hypotheses": (("bert > gpt2", "sst2"),)}, "'sst2' is not measured"),
        (
            {"hypotheses": (("2x8x1 > 2x16x1", "loss"),)},
            "no two rows to compare of the same system",
        ),
        ({"hypotheses": ("bert > gpt2", "loss")}, "'bert > gpt2' has no score: write"),
        ({"primary": "sst"}, "config.primary: score 'sst' is not measured"),
        (
            {"hypotheses": (("mask_rate=0.4 > mask_rate=0.15", "loss"),)},
            "study has mask_rate: 0.15",
        ),
        ({"allow": ("optim.lerning_rate",)}, "config.allow: unknown .*'optim.learning_rate'"),
        ({"allow": ("machine.prefetch",)}, "config.allow: unknown 'machine.prefetch'"),
        ({"variants": {"default": (), "half": "mask_rate=x0.5"}}, "variants.half: expected words"),
    ],
)
def test_bad_studies(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        expand.expand_runs(a_study.make(**changes))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (("epohcs=2",), "config.finetune.fields: .*'epohcs'.*'epochs'"),
        (("epochs",), "expected field=value"),
        (("epochs=many",), "fine-tuning on wnli: config.epochs: expected float"),
        (("epochs=-1",), "fine-tuning on wnli: config.epochs = -1"),
    ],
)
def test_bad_fields_of_fine_tunings(fields, message, tmp_path) -> None:
    """Before anything starts: at the latest when the study's file is written."""
    with pytest.raises(ValueError, match=message):
        made = a_study.make(finetune__tasks=("wnli",), finetune__fields=fields)
        expand.write(made, expand.expand_runs(made), tmp_path, "")


def test_a_model_with_a_source_takes_tasks_whose_answers_are_words() -> None:
    """A T5 has no class head."""
    stage = dict(systems=("t5",), shapes=("2x8x1",), variants=("default",), finetune="all")
    asked = {"stages": {"main": stage}, "finetune__tasks": ("wnli", "stsb")}
    words = a_study.make(**asked, finetune__fields=("head.kind=words",))
    kinds = [finetunings.load_task(words.finetune, task).kind for task in words.finetune.tasks]
    assert kinds == ["words", "words"]
    for lines in (), ("wnli.head.kind=words",):  # none, or one of two
        with pytest.raises(ValueError, match="'t5' reads a source, which tasks"):
            a_study.make(**asked, finetune__fields=lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [("scale=tini", "full, medium, .*tiny"), ("skale=tiny", "'scale'"),
     ("seeds=two", "expected a number"),
     ("tiny", "'tiny': expected name=value, such as scale=tiny")],
)  # fmt: skip
def test_bad_arguments(arguments: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny.config_module("study").get_config(arguments)


def test_the_study_in_the_docs_resolves(tmp_path) -> None:
    text = (tiny.ROOT / "docs/tutorials/own_study.md").read_text()
    (code,) = re.findall(r"```python title=\S+\n(.*?)```", text, re.DOTALL)
    path = tmp_path / "mask_rates.py"
    path.write_text(code)
    made = spec.resolve(files.load(path).get_config("scale=small,data=/d").to_dict())
    runs = expand.expand_runs(made)
    assert [run.config.mask_rate for run in runs if run.seed == 0] == [0.15, 0.3, 0.4]
    assert len(made.hypotheses) == 2


@pytest.mark.parametrize("scale", ["", "scale=tiny", "scale=small", "scale=medium", "scale=full"])
def test_the_study_in_the_readme_resolves_at_every_scale(scale: str, tmp_path, monkeypatch) -> None:
    """At each its claim has two rows to compare."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".cache/scalelab/worlds/quickstart").mkdir(parents=True)  # not written now
    text = (tiny.ROOT / "README.md").read_text()
    (code,) = re.findall(r"```python title=\S+\n(.*?)```", text, re.DOTALL)
    path = tmp_path / "dropout.py"
    path.write_text(code)
    made = spec.resolve(files.load(path).get_config(scale).to_dict())
    runs = [run for run in expand.expand_runs(made) if run.seed == 0]
    assert len(made.hypotheses) == 1
    assert [run.config.model.dropout_rate for run in runs] == [0.1, 0.0]


def test_names_of_the_release_before_are_read_with_a_warning(capsys) -> None:
    module = tiny.config_module("studies/family")
    config = module.get_config("scale=world,corpus=builtin,data=/d,yardsticks=/y,seeds=1")
    assert (config.scale, config.evaluation_data) == ("synthetic", "/y")
    lines = [["albert > bert", "blimp"]]
    made = spec.resolve(config.to_dict() | {"yardsticks": ("blimp",), "claims": lines})
    assert made.evaluations == ("blimp",) and made.lines[0] == ("albert > bert", "blimp")
    assert len(made.lines) == 1  # those of the earlier name replace the base study's
    assert capsys.readouterr().err.count("warning: ") == 4
