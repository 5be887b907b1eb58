"""What a study may say, and what is refused in one message."""

import a_study
import pytest
import tiny

from scalelab.studies import expand, spec

STUDIES = sorted(p.stem for p in (tiny.ROOT / "configs/studies").glob("*.py"))


@pytest.mark.parametrize("name", [name for name in STUDIES if name != "quickstart"])
@pytest.mark.parametrize("scale", ["full", "small", "tiny"])
def test_studies_of_the_repository_resolve(name: str, scale: str, tmp_path) -> None:
    made = spec.resolve(
        tiny.config_module(f"studies/{name}").get_config(f"scale={scale}").to_dict()
    )
    assert made.name == name
    assert made.scale == scale
    assert expand.runs(made, tmp_path)


def test_the_quickstart_has_one_scale(tmp_path) -> None:
    module = tiny.config_module("studies/quickstart")
    made = spec.resolve(module.get_config("seeds=1").to_dict())
    assert [r.system for r in expand.runs(made, tmp_path)] == ["bert", "gpt2", "roberta"]
    with pytest.raises(ValueError, match="one scale"):
        module.get_config("scale=tiny")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stages": {}}, "no runs"),
        ({"stages": {"main": a_study.stage(systems=())}}, r"stages.main.systems is empty"),
        ({"stages": {"main": a_study.stage(shapes=())}}, r"stages.main.shapes is empty"),
        ({"stages": {"main": a_study.stage(systems=("bret",))}}, "unknown 'bret': .*'bert'"),
        ({"stages": {"main": a_study.stage(shapes=("2x9x1",))}}, "2 heads do not divide"),
        ({"stages": {"main": a_study.stage(shapes=("2-8-1",))}}, "expected AxHxL"),
        ({"stages": {"main": a_study.stage(shapes=("compound:1",))}}, "no stage comes before"),
        ({"stages": {"main": a_study.stage(variants=("half",))}}, "unknown 'half'"),
        ({"stages": {"main": a_study.stage(finetune="best:x")}}, "expected all, none or best:k"),
        ({"finetune__tasks": ("sst",)}, "unknown task 'sst': .*'sst2'"),
        ({"finetune__recipe": "thesiss"}, "unknown recipe 'thesiss'"),
        ({"free": ("sistem",)}, "unknown 'sistem': .*'system'"),
        ({"variants": {"half": ()}}, "must have 'baseline'"),
        ({"variants": {"baseline": ("seed=1",)}}, "changes nothing: .*got .'seed=1'"),
        ({"name": "a/b"}, "expected a word"),
        ({"seeds": 0}, "at least 1"),
        ({"pretrain__net__width": 7}, "does not divide"),
    ],
)
def test_bad_studies(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        a_study.make(**changes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [("scale=tini", "expected one of full, small, tiny"), ("skale=tiny", "'scale'"),
     ("seeds=two", "expected a number")],
)  # fmt: skip
def test_bad_arguments(arguments: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny.config_module("study").get_config(arguments)


def test_a_path_may_have_commas() -> None:
    given = tiny.config_module("study").parse("corpus=text:/a,b/*.txt,data=/x,scale=tiny")
    assert given == {"corpus": "text:/a,b/*.txt", "data": "/x", "scale": "tiny"}
