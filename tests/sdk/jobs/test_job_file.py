# SPDX-License-Identifier: Apache-2.0
"""Job files: their values, their faults with lines, and changes by the command line."""

import json
import sys
from dataclasses import fields
from pathlib import Path
from textwrap import dedent

import jsonschema
import pytest
from job_files import abouts_of, faults_of

from sagemaker_dist.errors import OptionError, dotted
from sagemaker_dist.jobs.job_file import job_schema, read_job_file
from sagemaker_dist.planning.request import (
    FileSystemInput,
    InstanceGroup,
    S3Input,
    TrainingOptions,
)
from sagemaker_dist.runners import RecordingRunner

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DOCS = Path(__file__).parents[3] / "docs"
WHOLE = """
    entry_point = "train.py"
    source_dir = "code"
    role = "arn:aws:iam::123456789012:role/training"
    image_uri = "123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1"
    output_path = "s3://models/out"
    subnets = ["subnet-0a1b2c3d"]
    security_group_ids = ["sg-0a1b2c3d"]
    hyperparameters = { lr = 0.1, layers = [1, 2] }
    tags = { team = "vision" }

    [distribution.smdist.dataparallel]
    fusion_bytes = 1048576

    [environment]
    LOG = "1"

    [inputs]
    test = "s3://data/test"
    home = "efs://fs-0123456789abcdef0/home"
    [inputs.train]
    uri = "s3://data/train"
    input_mode = "FastFile"
    [inputs.shared]
    uri = "fsx://fs-0123456789abcdef0/mount"
    writable = true

    [[instance_groups]]
    instance_group_name = "one"
    instance_type = "ml.c5.xlarge"
    instance_count = 1
    """


GROUPS = WHOLE.partition("[[instance_groups]]")[2]


def test_every_kind_of_key(job_file, tmp_path, monkeypatch):
    """Keys are the names of options; tables stand for dicts and classes."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    path = job_file(WHOLE)
    job = read_job_file(path).job(instance_groups=None, instance_type="ml.c5.xlarge")

    assert str(tmp_path / "code") == job.source_dir
    assert "train.py" == job.entry_point
    assert {"lr": 0.1, "layers": [1, 2]} == job.hyperparameters
    assert S3Input(uri="s3://data/train", input_mode="FastFile") == job.inputs["train"]
    shared = FileSystemInput(uri="fsx://fs-0123456789abcdef0/mount", writable=True)
    assert shared == job.inputs["shared"]
    assert "s3://data/test" == job.inputs["test"]
    assert [{"Key": "team", "Value": "vision"}] == job.request()["Tags"]
    assert {"LOG": "1"} == job.request()["Environment"]


def test_instance_groups(job_file):
    """An array of tables becomes InstanceGroups."""
    path = job_file("[[instance_groups]]".join([WHOLE.partition("[distribution")[0], GROUPS]))
    job = read_job_file(path).job()

    expected = InstanceGroup(
        instance_group_name="one", instance_type="ml.c5.xlarge", instance_count=1
    )
    assert [expected] == job.instance_groups


def test_the_job_runs(job_file, tmp_path):
    """The job of a file runs to its end."""
    path = job_file('entry_point = "train.py"\ninstance_type = "local_process"')
    runner = RecordingRunner()
    name = read_job_file(path).job(runner=runner).submit()

    assert name.startswith("torch-training-")
    assert str(tmp_path) == runner.requests[0]["LocalSource"]["Folder"]


def test_paths_begin_beside_the_file(tmp_path, monkeypatch):
    """Relative paths start at the file's directory; those of --set at the current directory."""
    folder, here = tmp_path / "project", tmp_path / "elsewhere"
    (folder / "data").mkdir(parents=True)
    (here / "other").mkdir(parents=True)
    (folder / "train.py").touch()
    (folder / "extra.py").touch()
    (folder / "job.toml").write_text(
        'entry_point = "train.py"\ndependencies = ["extra.py"]\ninstance_type = "local_process"\n'
        'output_path = "file://out"\ninputs = { a = "file://data", b = { uri = "file://data" } }\n'
    )
    monkeypatch.chdir(here)
    job = read_job_file("../project/job.toml", ["inputs.a=file://other"]).job()

    assert str(folder / "train.py") == str(Path(job.entry_point).resolve())
    assert [folder / "extra.py"] == [Path(each).resolve() for each in job.dependencies]
    assert (folder / "out").as_uri() == job.output_path
    assert (here / "other").as_uri() == job.inputs["a"]
    assert (folder / "data").as_uri() == job.inputs["b"].uri


def test_every_fault_at_once_with_its_line(job_file):
    """Faults of the file and of the job are reported together, in the order of lines."""
    path = job_file("""
        entry_point = "train.py"
        role = "training"
        instance_tpye = "ml.c5.xlarge"
        instance_count = "2"
        instance_type = "ml.c5.9xlage"

        [distribution.smdit.dataparallel]
        fusion_bytes = 5

        [hyperparameters]
        when = 1979-05-27
        "a b" = 1

        [inputs.train]
        uri = "s3://data"
        input_mod = "File"
        """)

    assert [
        "job.toml:3: instance_tpye: no such key exists. Did you mean 'instance_type'?",
        "job.toml:4: instance_count is '2': it is a string. Write an integer.",
        "job.toml:5: instance_type is 'ml.c5.9xlage': SageMaker training has no such instance"
        " type. Did you mean 'ml.c5.9xlarge'?",
        "job.toml:7: distribution has the key 'smdit': no such key exists. Did you mean 'smdist'?",
        "job.toml:11: hyperparameters.when: no option of a job is a date. Put the value in quotes.",
        "job.toml:12: hyperparameters has the name 'a b': the script gets it as --name, so"
        " whitespace, '=' and a leading '-' are not allowed. Correct the name.",
        "job.toml:16: inputs.train.input_mod: no such key exists. Did you mean 'input_mode'?",
    ] == faults_of(path)


def test_every_fault_of_one_distribution(job_file):
    """Wrong types beside wrong values, in one table."""
    path = job_file("""
        entry_point = "train.py"
        instance_type = "local"

        [distribution.smdist.dataparallel]
        silence_seconds = 1
        integrity = "md5"
        encrypt = "yes"
        max_restarts = "many"
        """)

    assert {"silence_seconds", "integrity", "encrypt", "max_restarts"} == {
        about[-1] for about in abouts_of(path)
    }


@pytest.mark.parametrize(
    ("more", "line", "about"),
    [
        ("instance_count = 0", 4, "instance_count"),
        ("[hyperparameters]\nx = 1\n'a b' = 2", 6, 'hyperparameters."a b"'),
        (
            "[distribution.smdist.dataparallel]\n\nfusion_bytes = 5",
            6,
            "distribution.smdist.dataparallel.fusion_bytes",
        ),
        ("[inputs]\na = 's3://data/c'\nb = 'nowhere'", 6, "inputs.b.uri"),
        ("[environment]\n'A B' = 'a'", 5, 'environment."A B"'),
        ("[inputs.a]\n\nuri = 'S3://data'", 6, "inputs.a.uri"),
        ("[inputs]\n'c c' = 's3://data/c'", 5, 'inputs."c c"'),
        ("\n[tags]\n'aws:x' = '1'", 6, 'tags."aws:x"'),
        ("subnets = ['subnet-1']", 4, "subnets"),
        ("subnets = [\n  'subnet-1',\n  'x',\n]\nsecurity_group_ids = ['sg-1']", 6, "subnets[1]"),
        ("framework = 'jax'", 4, "framework"),
        ("tags = 3", 4, "tags"),
        ("use_spot_instances = 1", 4, "use_spot_instances"),
        ("inputs = 5", 4, "inputs"),
        ("[inputs.a]\ninput_mode = 'File'", 4, "inputs.a"),
        ("[inputs.a]\nuri = 3", 5, "inputs.a.uri"),
    ],
)
def test_place_of_a_fault(job_file, more, line, about):
    """A fault has the line of the innermost key that it is about."""
    head = 'entry_point = "train.py"\nrole = "training"\ninstance_type = "ml.c5.xlarge"\n'
    path = job_file(head + more)

    assert [about] == [dotted(each) for each in abouts_of(path)]
    assert faults_of(path)[0].startswith(f"job.toml:{line}: ")


def test_what_is_left_out_has_no_line(job_file):
    """The fault of a missing key has the file's name without a line."""
    path = job_file('entry_point = "train.py"')

    assert {("instance_type",), ("role",)} == {*abouts_of(path)}
    assert all(each.startswith("job.toml: ") for each in faults_of(path))


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("a = \n", "job.toml:1: the line is not valid TOML"),
        ('a = 1\nb = "', "job.toml:2: the line is not valid TOML"),
    ],
)
def test_no_toml(job_file, text, where):
    """The error of a text that is not TOML has its line."""
    assert faults_of(job_file(text))[0].startswith(where)


DEEP = "[" * 3000 + "]" * 3000


@pytest.mark.parametrize(
    "more",
    [
        f"hyperparameters.a = {DEEP}",
        "hyperparameters" + ".a" * 60_000 + " = 1",
        f"[hyperparameters{'.a' * 60_000}]\nb = 1",
        f"hyperparameters = {{ a = 1, b{'.a' * 60_000} = 1 }}",
    ],
    ids=["arrays", "tables", "header", "inline"],
)
@pytest.mark.timeout(20)
def test_too_deep(job_file, more):
    """A value nested thousands of levels deep is an error, not a crash."""
    path = job_file(f'entry_point = "train.py"\n{more}\n')

    assert faults_of(path)[0].startswith(
        "job.toml cannot be read: tables and arrays in the file are nested more than 100 levels"
        " deep."
    )


@pytest.mark.timeout(10)
def test_a_file_without_end():
    """Reading stops after a million characters: of a device there are ever more."""
    with pytest.raises(OptionError) as caught:
        read_job_file("/dev/zero")

    assert "too_long" == caught.value.kind


def test_number_without_end(job_file):
    """A number with too many digits for Python is an error."""
    assert faults_of(job_file("a = " + "9" * 5000))[0].startswith("job.toml cannot be read")


def test_mark_of_windows(job_file):
    """A byte order mark at the beginning of the file is ignored."""
    path = job_file("")
    path.write_bytes(b"\xef\xbb\xbfentry_pint = 'train.py'\n")

    assert ("entry_pint",) in abouts_of(path)


@pytest.mark.parametrize(
    "more",
    [
        "source_dir = '~no-such-user-of-ours/x'",
        "dependencies = ['~no-such-user-of-ours/x']",
        "source_dir = 'a\\u0000'",
    ],
)
def test_paths_that_are_none(job_file, more):
    """A ~user without a home, and a text that is no valid path, are errors."""
    more = more.replace("'", '"')
    path = job_file(f'entry_point = "train.py"\ninstance_type = "local_process"\n{more}\n')

    assert faults_of(path)[0].startswith("job.toml:3: ")


def test_place_that_is_none(job_file):
    """A channel's URI that is no valid path is an error."""
    path = job_file("""
        entry_point = "train.py"
        instance_type = "local_process"
        inputs = { a = "file://a\\u0000" }
        """)

    assert "'a'" in faults_of(path)[0]


@pytest.mark.parametrize("channel", ["'s3://data'", "{ uri = 's3://data' }"])
def test_a_channel_like_a_key(job_file, channel):
    """A channel may not be named DataSource, a key of SageMaker's API."""
    path = job_file(f"inputs.DataSource = {channel}\n")

    assert ("inputs", "DataSource") in abouts_of(path)


def test_no_file(tmp_path):
    """The error names a file that does not exist."""
    assert faults_of(tmp_path / "job.toml")[0].startswith(f"{tmp_path}/job.toml cannot be read")


def test_schema_has_every_option():
    """The schema has every option, with its description."""
    properties = job_schema()["properties"]

    assert {field.name for field in fields(TrainingOptions)} == set(properties)
    assert "Number of hosts. Default 1." == properties["instance_count"]["description"]
    assert "lanes" in json.dumps(properties["distribution"])


def test_schema_is_one():
    """The schema is valid, and a validator finds the same faults as our check."""
    schema = job_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)

    assert [] == list(validator.iter_errors(tomllib.loads(dedent(WHOLE))))
    assert [] != list(validator.iter_errors({"instance_tpye": "x"}))
    assert [] != list(validator.iter_errors({"instance_count": "2"}))


def test_schema_in_the_documents():
    """docs/job.schema.json equals the current schema."""
    assert job_schema() == json.loads((DOCS / "job.schema.json").read_text())


def test_example_of_the_documents(job_file):
    """The example in docs/job_file.md is a valid job."""
    page = (DOCS / "job_file.md").read_text()
    example = page.partition("```toml\n")[2].partition("```")[0]
    job = read_job_file(job_file(example)).job()

    assert 2 == job.instance_count
    assert {"validation", "training"} == set(job.inputs)


def test_keys_outside_of_their_table_and_values_inside_of_a_channel(job_file):
    """The fault of a key in the wrong table names the right table."""
    path = job_file("""\
        entry_point = "train.py"
        role = "training"
        instance_type = "ml.c5.9xlarge"
        output_path = "s3://my-bucket/models"
        source_dir = "code"
        input = "s3://my-bucket"
        processes_per_host = 2

        [distribution.smdist.dataparallel]
        lanes = 2

        [inputs.training]
        uri = "s3://my-bucket/training"
        distribution = "Sharded"

        [smdist.dataparallel]
        lanes = 2
    """)

    assert [
        "job.toml:6: input: no such key exists. Did you mean 'inputs'?",
        "job.toml:7: processes_per_host: no such key exists. Write it below"
        " [distribution.smdist.dataparallel].",
        "job.toml:14: distribution of channel 'training' is 'Sharded': SageMaker has no such"
        " value. Did you mean 'ShardedByS3Key'?",
        "job.toml:16: smdist: no such key exists. Write it below distribution, as"
        " [distribution.smdist].",
    ] == faults_of(path)
