# SPDX-License-Identifier: Apache-2.0
"""Jobs as processes of this machine, with a launcher that runs the test's script."""

import json
import os
import tarfile
from pathlib import Path

import pytest
from local_jobs import log, run

from sagemaker_dist.errors import JobError, OptionError, SetupError
from sagemaker_dist.runners import LocalRunner
from sagemaker_dist.runners.local import machine_checks

pytestmark = pytest.mark.timeout(120)


def members(path):
    with tarfile.open(path) as archive:
        return {
            member.name: archive.extractfile(member).read().decode()
            for member in archive.getmembers()
            if member.isfile()
        }


def model_of(description):
    return Path(description["ModelArtifacts"]["S3ModelArtifacts"].removeprefix("file://"))


def test_a_host_finds_what_sagemaker_gives_it(runner, request_for, script, data, tmp_path):
    """A host has the configuration files, the linked data, the directories and the environment."""
    script("""
        import json, os
        config = {p.stem: json.loads(p.read_text()) for p in base.glob("input/config/*.json")}
        config["files"] = sorted(p.relative_to(base).as_posix() for p in base.rglob("*"))
        config["data"] = (base / "input/data/training/numbers.txt").read_text()
        config["environment"] = dict(os.environ)
        (base / "model" / f"{host}.json").write_text(json.dumps(config))
    """)
    channel = {
        "ChannelName": "training",
        "DataSource": {"FileDataSource": {"FileUri": data}},
    }
    described = run(runner, request_for(InputDataConfig=[channel], Environment={"COLOUR": "green"}))
    second = json.loads(members(model_of(described))["algo-2.json"])

    assert "1 2 3" == second["data"]
    assert {
        "training": {
            "TrainingInputMode": "File",
            "S3DistributionType": "FullyReplicated",
            "RecordWrapperType": "None",
        }
    } == second["inputdataconfig"]
    assert {
        "current_host": "127.0.0.2",
        "current_instance_type": "local_process",
        "current_group_name": "homogeneousCluster",
        "hosts": ["127.0.0.1", "127.0.0.2"],
        "instance_groups": [
            {
                "instance_group_name": "homogeneousCluster",
                "instance_type": "local_process",
                "hosts": ["127.0.0.1", "127.0.0.2"],
            }
        ],
        "network_interface_name": "lo",
    } == second["resourceconfig"]
    assert {
        "sagemaker_submit_directory": f'"{tmp_path}/src"',
        "sagemaker_program": '"train.py"',
    } == second["hyperparameters"]
    assert {"checkpoints", "code", "input/data/training", "model", "output/data"} <= set(
        second["files"]
    )
    environment = second["environment"]
    assert {
        "AWS_REGION": "us-east-1",
        "COLOUR": "green",
        "CURRENT_HOST": "127.0.0.2",
        "SAGEMAKER_BASE_DIR": f"{tmp_path}/jobs/job/hosts/algo-2",
        "TRAINING_JOB_ARN": "arn:aws:sagemaker:us-east-1:000000000000:training-job/job",
        "TRAINING_JOB_NAME": "job",
    }.items() <= environment.items()
    assert 1024 < int(environment["SMDIST_MASTER_PORT"]) < 65536


def test_a_launcher_around_the_driver_does_not_leak_in(runner, request_for, script, monkeypatch):
    """RANK and similar variables of a launcher of the driver do not reach a host."""
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "SMDIST_SECRET", "TORCHELASTIC_RUN_ID"):
        monkeypatch.setenv(name, "1")
    script("""
        import os
        assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "SM_HOSTS"} & set(os.environ)
        assert "TORCHELASTIC_RUN_ID" not in os.environ
    """)

    assert "Completed" == run(runner, request_for(hosts=1))["TrainingJobStatus"]


def test_models_of_all_hosts_become_one(runner, request_for, script, tmp_path):
    """Files of all hosts are merged; of different files the first host's is used, and the log names
    it.
    """
    script("""
        import os
        (base / "model" / "shared").mkdir()
        (base / "model" / "shared" / "same").write_text("same")
        (base / "model" / "clash").write_text(host)
        (base / "model" / host).write_text(host)
        (base / "output" / "data" / "metrics").write_text("1")
    """)
    output = tmp_path / "out put"
    described = run(runner, request_for(OutputDataConfig={"S3OutputPath": output.as_uri()}))

    assert "Completed" == described["TrainingJobStatus"]
    assert output / "job" / "output" / "model.tar.gz" == model_of(described)
    assert {
        "algo-1": "algo-1",
        "algo-2": "algo-2",
        "clash": "algo-1",
        "shared/same": "same",
    } == members(model_of(described))
    assert {"metrics": "1"} == members(output / "job" / "output" / "output.tar.gz")
    assert (
        "[sagemaker-dist] hosts wrote different files clash; the first host's file is used"
        in log(runner)
    )


def test_an_uncompressed_model_is_a_directory(runner, request_for, script):
    script("(base / 'model' / 'weights').write_text(host)")
    output = {"S3OutputPath": "", "CompressionType": "NONE"}
    described = run(runner, request_for(hosts=1, OutputDataConfig=output))

    assert "algo-1" == (model_of(described) / "weights").read_text()


def test_trees_go_and_the_data_stays(runner, request_for, data, tmp_path):
    """Removing a host's tree does not follow links to the user's data."""
    channel = {"ChannelName": "a", "DataSource": {"S3DataSource": {"S3Uri": data}}}
    run(runner, request_for(InputDataConfig=[channel]))

    assert not (tmp_path / "jobs" / "job" / "hosts").exists()
    assert "1 2 3" == (tmp_path / "my data" / "numbers.txt").read_text()


def test_a_channel_of_one_file_holds_that_file(runner, request_for, script, data):
    script("assert (base / 'input/data/a/numbers.txt').read_text() == '1 2 3'")
    source = {"S3DataSource": {"S3Uri": data + "/numbers.txt"}}
    described = run(
        runner, request_for(InputDataConfig=[{"ChannelName": "a", "DataSource": source}])
    )

    assert "Completed" == described["TrainingJobStatus"]


def test_checkpoints_survive_and_the_next_job_finds_them(runner, request_for, script, tmp_path):
    script("""
        path = base / "checkpoints" / "step"
        (base / "model" / "seen").write_text(path.read_text() if path.exists() else "none")
        path.write_text("7")
    """)
    config = {"S3Uri": (tmp_path / "checkpoints").as_uri()}
    first = run(runner, request_for("first", hosts=1, CheckpointConfig=config))
    second = run(runner, request_for("second", hosts=1, CheckpointConfig=config))

    assert {"seen": "none"} == members(model_of(first))
    assert {"seen": "7"} == members(model_of(second))


def test_checkpoints_may_be_removed_with_their_directory(runner, request_for, script, tmp_path):
    """A script may remove the checkpoint directory, as Keras's BackupAndRestore does."""
    script("""
        import os, shutil
        folder = os.environ["SM_CHECKPOINT_DIR"]
        assert os.path.samefile(folder, base / "checkpoints")
        shutil.rmtree(folder)
    """)
    config = {"S3Uri": (tmp_path / "kept").as_uri()}
    described = run(runner, request_for(hosts=1, CheckpointConfig=config))

    assert "Completed" == described["TrainingJobStatus"]
    assert not (tmp_path / "kept").exists()


def test_checkpoints_without_a_place_stay_with_the_job(runner, request_for, script, tmp_path):
    script("(base / 'checkpoints' / 'step').write_text('7')")
    run(runner, request_for(hosts=1))

    assert "7" == (tmp_path / "jobs" / "job" / "checkpoints" / "step").read_text()


def test_description_has_the_shape_of_sagemaker(runner, request_for):
    described = run(runner, request_for())
    steps = [step["Status"] for step in described["SecondaryStatusTransitions"]]

    assert ["Starting", "Training", "Uploading", "Completed"] == steps
    assert described["CreationTime"] <= described["TrainingStartTime"]
    assert described["TrainingStartTime"] <= described["TrainingEndTime"]
    assert "" == described["OutputDataConfig"]["KmsKeyId"]
    assert 2 == described["ResourceConfig"]["InstanceCount"]
    assert "FailureReason" not in described


def test_output_arrives_in_order_with_its_host(runner, request_for, script):
    """Each line begins with its host's name once; progress bars are not split."""
    script("""
        print("plain")
        print(f"[{host} rank 0] marked")
        print("half", end="\\r")
        print("done", end="")
    """)
    described = run(runner, request_for(hosts=1))

    assert "Completed" == described["TrainingJobStatus"]
    assert [
        "[algo-1] plain\n",
        "[algo-1 rank 0] marked\n",
        "[algo-1] half\r",
        "[algo-1] done\n",
        "[sagemaker-dist] no model was saved: SM_MODEL_DIR is empty on every host\n",
    ] == list(runner.logs("job"))
    logs = Path(runner.logs_at("job"))
    assert ["all.log", "supervisor.log"] == sorted(each.name for each in logs.iterdir())


def test_logs_can_be_followed(runner, request_for, script, tmp_path):
    """logs(follow=True) yields output before the job has ended."""
    script(f"""
        import pathlib, time
        print("first")
        while not pathlib.Path({str(tmp_path)!r}, "go").exists():
            time.sleep(0.02)
        print("second")
    """)
    seen = []
    for segment in runner.logs(runner.start(request_for(hosts=1)), follow=True):
        seen += [segment] if segment else []
        if seen:
            (tmp_path / "go").touch()

    assert ["[algo-1] first\n", "[algo-1] second\n"] == seen[:2]


def test_a_name_is_used_once(runner, request_for):
    run(runner, request_for(hosts=1))
    with pytest.raises(OptionError) as caught:
        runner.start(request_for(hosts=1))

    assert (("job_name",), "conflict") == (caught.value.about, caught.value.kind)
    assert (
        f"job_name is 'job': a job of this name exists in {runner.root}."
        " Pass another name, or leave job_name out."
    ) == str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["../escaped", ".", "a/b", "", "a" * 64, f"a{'-' * 62}b", "a-", "a\n", 1],
)
def test_a_name_that_sagemaker_refuses_is_refused(runner, request_for, name):
    """A raw request cannot leave the folder of the jobs by its name; nothing is written."""
    with pytest.raises(OptionError) as caught:
        runner.start(request_for(name))

    assert (("TrainingJobName",), "option") == (caught.value.about, caught.value.kind)
    assert not runner.root.exists()
    assert not list(runner.root.parent.glob("escaped*"))


def test_no_folder_outside_of_the_jobs_is_a_job(runner, request_for):
    run(runner, request_for("first", hosts=1))
    inner = LocalRunner(root=runner.root / "inner")
    inner.root.mkdir()
    with pytest.raises(JobError) as caught:
        inner.describe("../first")

    assert "not_found" == caught.value.kind


def test_unknown_job(runner):
    with pytest.raises(JobError) as caught:
        runner.describe("other")

    assert "not_found" == caught.value.kind


def test_missing_runtime_is_found_before_anything_starts(runner, request_for, monkeypatch):
    monkeypatch.setattr(machine_checks, "find_spec", lambda _: None)
    with pytest.raises(SetupError) as caught:
        runner.start(request_for())

    assert "no_runtime" == caught.value.kind
    assert not runner.root.exists()


def test_other_systems_are_told(request_for, monkeypatch):
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(SetupError) as caught:
        LocalRunner().start(request_for())

    assert (("instance_type",), "not_linux") == (caught.value.about, caught.value.kind)
    assert "darwin" in caught.value.why.split()


def source_of(folder, only=None, *dependencies):
    return {
        "Folder": str(folder),
        "Only": only,
        "Dependencies": [str(each) for each in dependencies],
    }


def test_the_source_may_be_the_folder_that_the_jobs_lie_in(runner, request_for, script, tmp_path):
    """If source_dir contains the jobs' folders, hosts get the code without them."""
    script("""
        import pathlib
        assert pathlib.Path(__file__) == base / "code" / "train.py"
        seen = sorted(str(path.relative_to(base)) for path in (base / "code").rglob("*.py"))
        (base / "model" / host).write_text(" ".join(seen))
    """)
    (tmp_path / "src" / "part").mkdir()
    (tmp_path / "src" / "part" / "a.py").touch()
    inside = LocalRunner(root=tmp_path / "src" / "jobs")
    described = run(inside, request_for(LocalSource=source_of(tmp_path / "src")))

    assert "Completed" == described["TrainingJobStatus"]
    assert "code/part/a.py code/train.py" == members(model_of(described))["algo-2"]


def test_code_that_cannot_be_copied_fails_the_job(runner, request_for, tmp_path):
    described = run(runner, request_for(LocalSource=source_of(tmp_path / "src", "other.py")))

    assert "Failed" == described["TrainingJobStatus"]
    assert "missing_file" == described["RootCause"]["kind"]
    assert f"{tmp_path}/src/other.py" in described["FailureReason"]
    assert "" == Path(runner.logs_at("job"), "supervisor.log").read_text()


def test_a_moved_checkpoint_folder_is_where_the_script_looks(
    runner, request_for, script, tmp_path, monkeypatch
):
    """The launcher passes the directory of checkpoint_local_path to the script."""
    root = Path(__file__).parents[3]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(root / "container"), str(root)]))
    script("""
        import os, pathlib
        pathlib.Path(os.environ["SM_CHECKPOINT_DIR"], "step").write_text("7")
    """)
    config = {"S3Uri": (tmp_path / "kept").as_uri(), "LocalPath": "/opt/ml/saved/here"}
    described = run(runner, request_for(hosts=1, CheckpointConfig=config))

    assert "Completed" == described["TrainingJobStatus"], log(runner)
    assert "7" == (tmp_path / "kept" / "step").read_text()
