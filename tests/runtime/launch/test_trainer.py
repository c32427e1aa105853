# SPDX-License-Identifier: Apache-2.0
"""Jobs of SageMaker's ModelTrainer whose `distributed=` is ours: what its channels say is done."""

import json
import shutil
import tarfile
from pathlib import Path

import pytest

import sagemaker_dist
from sagemaker_dist.contract import KEY, DataParallel, render
from sagemaker_dist.errors import LaunchError, OptionError
from smdist.config import read_runtime_config
from smdist.launch.user_code import install_requirements

DRIVER = Path(sagemaker_dist.__file__).parent / "trainer/driver/sagemaker_dist_driver.py"
OPTIONS = DataParallel(processes_per_host=2)
SHOW = """
import json, os, sys
seen = {"argv": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ)}
path = os.path.join(os.environ["SM_MODEL_DIR"], os.environ["RANK"] + ".json")
json.dump(seen, open(path, "w"))
"""
SENT = {  # as ModelTrainer writes them: text as it is, all else JSON
    "z": "3",
    "text": 'it\'s "q"\n$HOME ü',
    "a.b": "true",
    "rate": "1e-3",
    "nested": '{"b": 1, "a": null}',
}


@pytest.fixture
def channels(tmp_path):
    """SageMaker's directory of one host with what ModelTrainer sends; its parts as arguments."""

    def write(script=SHOW, *, distributed=None, code=True, sent=SENT, **source):
        base, data = tmp_path / "base", tmp_path / "base/input/data"
        (base / "input/config").mkdir(parents=True)
        (data / "sm_drivers").mkdir(parents=True)
        if distributed is None:
            distributed = {KEY: json.loads(render(OPTIONS))}
        source = {"source_dir": "source", "entry_script": "train.py"} | source
        (data / "sm_drivers/distributed.json").write_text(json.dumps(distributed))
        (data / "sm_drivers/sourcecode.json").write_text(json.dumps(source))
        (base / "input/config/hyperparameters.json").write_text(json.dumps(sent))
        if code:
            (data / "code").mkdir()
            (data / "code/train.py").write_text(script)
        return base

    return write


def read(base, **environ):
    return read_runtime_config({"SAGEMAKER_BASE_DIR": str(base), **environ})


def test_channels_say_what_to_start(channels):
    base = channels()
    config = read(base)

    assert OPTIONS == config.options
    assert base / "input/data/code" == config.code == config.source.directory
    assert ("train.py", "") == (config.source.program, config.source.submit_directory)
    assert "" == config.source.requirements
    assert SENT == config.texts
    assert list(SENT) == list(config.texts)


@pytest.mark.parametrize("distributed", [{}, {"process_count_per_node": 8, "smp": None}])
def test_what_is_not_ours_is_left_alone(channels, distributed):
    """ModelTrainer's own Torchrun, or nothing."""
    config = read(channels(distributed=distributed))

    assert config.options is None
    assert config.texts is None
    assert config.source.directory is None


def test_a_tuner_sends_the_code_as_a_tarball(channels):
    """Its API has no channel for it; it names two hyperparameters instead, as plain text."""
    sent = {"sagemaker_program": "train.py", "sagemaker_submit_directory": "s3://b/c.tar.gz"}
    base = channels(code=False, sent={**sent, "lr": "0.5", "_tuning_objective_metric": "loss"})
    config = read(base)

    assert OPTIONS == config.options
    assert base / "code" == config.code
    assert "s3://b/c.tar.gz" == config.source.submit_directory
    assert {"lr": "0.5"} == config.texts


def test_train_serves_a_tuners_job(stage, channels, tmp_path):
    """Ranks, of a tarball and with the requirements that SourceCode names."""
    code = tmp_path / "code.tar.gz"
    with tarfile.open(code, "w:gz") as archive:
        for name, text in (("train.py", SHOW), ("needs.txt", "numpy\n")):
            (tmp_path / name).write_text(text)
            archive.add(tmp_path / name, arcname=name)
    sent = {"sagemaker_program": "train.py", "sagemaker_submit_directory": str(code), "lr": "0.5"}
    base = channels(code=False, sent=sent, requirements="needs.txt")
    run = stage.train(base)

    assert 0 == run.wait(60), run.said()
    for rank in ("0", "1"):
        seen = json.loads((base / f"model/{rank}.json").read_text())
        assert ["--lr", "0.5"] == seen["argv"]
        assert str(base / "code") == seen["cwd"]
    assert "Requirement already satisfied: numpy" in run.said()


def test_both_ways_at_once_are_refused(channels):
    base = channels(sent={KEY: json.dumps(render(OPTIONS))})

    with pytest.raises(OptionError) as caught:
        read(base)

    assert ((KEY,), "conflict") == (caught.value.about, caught.value.kind)


def test_a_command_beside_ranks_is_refused(channels):
    """ModelTrainer takes both, and would run the command alone."""
    with pytest.raises(OptionError) as caught:
        read(channels(command="bash run.sh"))

    assert (("source_code", "command"), "conflict") == (caught.value.about, caught.value.kind)


def test_a_broken_file_is_named(channels):
    base = channels()
    (base / "input/data/sm_drivers/sourcecode.json").write_text("[")

    with pytest.raises(LaunchError) as caught:
        read(base)

    assert ("sourcecode.json",) == caught.value.about


@pytest.mark.parametrize("start", [pytest.param("train", marks=pytest.mark.slow), "driver"])
def test_ranks_run_where_the_code_lies(stage, channels, start):
    """Both by our `train` and at the end of ModelTrainer's shell."""
    base = channels(requirements="needs.txt")
    (base / "input/data/code/needs.txt").write_text("numpy\n")
    (base / "input/data/code/tarfile.py").write_text("raise ImportError('it is the script's')")
    in_code = f"import os, runpy; os.chdir({str(base / 'input/data/code')!r}); runpy.run_path"
    driver = f"{in_code}({str(DRIVER)!r}, run_name='__main__')"
    run = stage.train(base) if start == "train" else stage.run(base, "-c", driver)

    assert 0 == run.wait(60), run.said()
    for rank in ("0", "1"):
        seen = json.loads((base / f"model/{rank}.json").read_text())
        expected = [part for name, text in SENT.items() for part in (f"--{name}", text)]
        assert expected == seen["argv"] == json.loads(seen["env"]["SM_USER_ARGS"])
        assert str(base / "input/data/code") == seen["cwd"] == seen["env"]["SM_SOURCE_DIR"]
        assert SENT["text"] == seen["env"]["SM_HP_TEXT"]
        assert ("true", "true") == (seen["env"]["SM_HP_A.B"], seen["env"]["SM_HP_A_B"])
        assert {"a.b": True, "z": 3, "rate": 0.001} == {
            name: json.loads(seen["env"]["SM_HPS"])[name] for name in ("a.b", "z", "rate")
        }
        assert KEY not in seen["env"]["SM_DISTRIBUTED_CONFIG"]
        assert "dataparallel" in json.loads(seen["env"]["SM_DISTRIBUTED_CONFIG"])
    is_installed = "Requirement already satisfied: numpy" in run.said()
    assert (start == "train") == is_installed


def test_a_tarball_in_the_channel_is_unpacked(channels):
    base = channels(source_dir="s3://bucket/my-code.tar.gz")
    code = base / "input/data/code"
    with tarfile.open(code / "my-code.tar.gz", "w:gz") as archive:
        archive.add(code / "train.py", arcname="train.py")
    (code / "train.py").unlink()
    config = read(base)

    assert str(code / "my-code.tar.gz") == config.source.submit_directory
    assert code == config.code
    assert "" == read(base, SMDIST_PREPARED="1").source.submit_directory


@pytest.mark.parametrize(
    ("given", "requirements"),
    [(None, ""), ("deep/needs.txt", "deep/needs.txt"), ("auto", "requirements.txt")],
)
def test_only_named_requirements_are_installed(channels, given, requirements):
    base = channels(requirements=given)

    assert requirements == read(base).source.requirements
    assert "" == read(base, SMDIST_PREPARED="1").source.requirements


def test_missing_requirements_are_named(channels):
    config = read(channels(requirements="needs.txt"))

    with pytest.raises(LaunchError) as caught:
        install_requirements(config.source, config.code, {})

    assert (("requirements",), "missing") == (caught.value.about, caught.value.kind)


def test_automatic_requirements_may_be_missing(channels):
    config = read(channels(requirements="auto"))

    install_requirements(config.source, config.code, {})


def test_a_private_index_is_asked_by_sagemakers_script(channels):
    """CA_REPOSITORY_ARN: that script knows how to log in to AWS CodeArtifact."""
    base = channels(requirements="needs.txt")
    scripts = base / "input/data/sm_drivers/scripts"
    scripts.mkdir()
    script = scripts / "install_requirements.py"
    script.write_text("import pathlib, sys; pathlib.Path('asked').write_text(sys.argv[1])")
    (base / "input/data/code/needs.txt").touch()
    config = read(base, CA_REPOSITORY_ARN="arn:aws:codeartifact:...")
    install_requirements(config.source, config.code, {})

    assert str(config.code / "needs.txt") == (config.code / "asked").read_text()
    assert read(base).source.installer is None


def test_an_image_without_the_runtime_says_so(stage, channels, tmp_path):
    """The driver needs nothing of ours to say what is missing; here it may not look for it."""
    driver = Path(shutil.copy(DRIVER, tmp_path))
    text = driver.read_text().replace("/opt/ml/output/failure", str(tmp_path / "failure"))
    driver.write_text(text.replace('find_spec("smdist")', 'find_spec("not_there")'))
    run = stage.run(channels(), str(driver))

    assert 1 == run.wait()
    assert "The image has no sagemaker-dist-runtime" in (tmp_path / "failure").read_text()
    assert "sagemaker-dist image build" in run.said()
