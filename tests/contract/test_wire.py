# SPDX-License-Identifier: Apache-2.0
"""What the SDK writes, every image of its version or newer reads back."""

import json
from pathlib import Path

import pytest
from error_fields import fields_of, fields_raised
from hypothesis import given
from hypothesis import strategies as st

from sagemaker_dist.contract import (
    VERSION,
    DataParallel,
    MiB,
    ModelParallel,
    parse,
    parse_engine,
    parse_framework,
    render,
    spell,
)
from sagemaker_dist.contract.hyperparameter_format import MAX_CHARACTERS
from sagemaker_dist.errors import SkewError

GOLDEN = Path(__file__).parent / "golden"
SECONDS = st.integers(1, 86_400)
SMALL = st.none() | st.integers(0, MiB)
OPTIONS = st.builds(
    DataParallel,
    processes_per_host=st.none() | st.integers(1, 1024),
    fusion_bytes=st.integers(MiB, 4096 * MiB),
    timeout_seconds=SECONDS,
    start_timeout_seconds=SECONDS,
    lanes=st.none() | st.integers(1, 16),
    chunk_bytes=st.none() | st.integers(1024, MiB // 4).map(lambda lines: 64 * lines),
    one_shot_bytes=SMALL,
    single_owner_bytes=SMALL,
    arriving_bytes=SMALL,
    shard_weights=st.none() | st.lists(st.integers(0, 65_535), min_size=1).filter(any),
    integrity=st.sampled_from(["off", "crc32c", "mac"]),
    encrypt=st.booleans(),
    gpu_collectives=st.sampled_from(["auto", "nccl", "staged"]),
    silence_seconds=st.integers(5, 900),
    max_restarts=st.integers(0, 1000),
)

RANKS = st.integers(1, 1 << 20)
MODELS = st.builds(
    ModelParallel,
    pipeline_parallel_degree=st.just("auto") | RANKS,
    microbatches=st.just("auto") | RANKS,
    pipeline=st.sampled_from(["auto", "simple", "interleaved", "1f1b", "zero_bubble"]),
    placement_strategy=st.sampled_from(["cluster", "spread", "DPT", "PTD"]),
    memory_weight=st.none() | st.floats(0, 1),
    device_memory=st.none() | st.integers(1, 1 << 60) | st.just("16 GB"),
    sharding=st.sampled_from(["optimizer", "full"]),
    shard_degree=st.none() | RANKS,
    gradient_clipping=st.none() | st.floats(0.1, 1e6),
    bf16=st.booleans(),
    offload_activations=st.booleans(),
    offload_optimizer=st.booleans(),
    global_batch_size=st.none() | RANKS,
    seed=st.integers(0, 2**63 - 1),
    engine=OPTIONS.filter(lambda options: len(options.shard_weights or ()) < 50),
)


@given(options=OPTIONS | MODELS)
def test_round_trip(options):
    """What the SDK writes, the container reads back unchanged, raw or encoded once more."""
    text = render(options)

    assert options == parse(text)
    assert options == parse(json.dumps(text))
    assert getattr(options, "engine", options) == parse_engine(text)


def test_golden_version_1_parses_forever():
    """The first document ever written still means what it meant."""
    expected = DataParallel(
        processes_per_host=2,
        fusion_bytes=8 * MiB,
        timeout_seconds=120,
        start_timeout_seconds=60,
    )

    assert expected == parse((GOLDEN / "v1.json").read_text())


def test_golden_version_2_parses_forever():
    """The second document, with the options that tune the engine."""
    expected = DataParallel(
        processes_per_host=4,
        fusion_bytes=32 * MiB,
        timeout_seconds=240,
        start_timeout_seconds=30,
        lanes=4,
        chunk_bytes=256 * 1024,
        one_shot_bytes=0,
        single_owner_bytes=64 * 1024,
        arriving_bytes=224 * 1024,
        shard_weights=(1, 2, 0),
    )

    assert expected == parse((GOLDEN / "v2.json").read_text())


def test_golden_version_3_parses_forever():
    """The third document, which splits a model."""
    expected = ModelParallel(
        pipeline_parallel_degree=4,
        microbatches=8,
        pipeline="interleaved",
        active_microbatches=6,
        placement_strategy="spread",
        memory_weight=0.8,
        device_memory="16GiB",
        sharding="full",
        shard_degree=2,
        gradient_clipping=1.0,
        bf16=True,
        global_batch_size=64,
        seed=7,
        engine=DataParallel(processes_per_host=4, shard_weights=(1, 2)),
    )

    assert expected == parse((GOLDEN / "v3.json").read_text())


def test_golden_version_4_parses_forever():
    """The fourth document, of TensorFlow."""
    text = (GOLDEN / "v4.json").read_text()

    assert DataParallel(processes_per_host=4, shard_weights=(1, 2)) == parse(text)
    assert "tensorflow" == parse_framework(text)


def test_golden_version_5_parses_forever():
    """The fifth document, whose connections between hosts are protected."""
    text = (GOLDEN / "v5.json").read_text()

    assert DataParallel(processes_per_host=4, integrity="mac", encrypt=True) == parse(text)
    assert parse_framework(text) is None


def test_golden_version_6_parses_forever():
    """The sixth document, which says how tensors on GPUs travel within a host."""
    text = (GOLDEN / "v6.json").read_text()

    assert DataParallel(processes_per_host=4, gpu_collectives="staged") == parse(text)
    assert parse_framework(text) is None


def test_gpu_collectives_need_a_newer_image():
    """A document says nothing of protection that is off, and both together are of version 6."""
    text = render(DataParallel(gpu_collectives="nccl"))

    assert (6, False) == (json.loads(text)["version"], "encrypt" in text)
    assert 6 == json.loads(render(DataParallel(gpu_collectives="nccl", encrypt=True)))["version"]
    with pytest.raises(SkewError) as caught:
        parse(text.replace('"version":6', '"version":5'))
    assert [("dataparallel.gpu_collectives", "unknown")] == fields_of(caught.value)


def test_golden_version_7_parses_forever():
    """The seventh document: how long a host may be silent, and how often ranks are restarted."""
    text = (GOLDEN / "v7.json").read_text()
    options = DataParallel(processes_per_host=4, silence_seconds=120, max_restarts=3)

    assert options == parse(text)
    assert parse_framework(text) is None


@pytest.mark.parametrize(
    "option", [{"silence_seconds": 10}, {"max_restarts": 1}, {"elastic_min": 1}]
)
def test_options_of_version_7_need_a_newer_image(option):
    """A document says nothing of defaults; an older image refuses what it cannot do."""
    text = render(DataParallel(**option))

    assert (7, False) == (json.loads(text)["version"], "encrypt" in text)
    assert "silence" not in render(DataParallel(gpu_collectives="nccl"))
    with pytest.raises(SkewError) as caught:
        parse(text.replace('"version":7', '"version":6'))
    assert [("dataparallel.elastic_min", "unknown")] == fields_of(caught.value)


def test_golden_version_8_parses_forever():
    """The eighth document: layers that are split over ranks."""
    options = ModelParallel(tensor_parallel_degree=2, microbatches=4)

    assert options == parse((GOLDEN / "v8.json").read_text())


def test_split_layers_need_a_newer_image():
    """A document without split layers says nothing of them; an older image refuses those with."""
    text = render(ModelParallel(tensor_parallel_degree=2, engine=DataParallel(encrypt=True)))

    assert 8 == json.loads(text)["version"]
    assert "tensor_parallel_degree" not in render(ModelParallel())
    with pytest.raises(SkewError) as caught:
        parse(text.replace('"version":8', '"version":7'))
    assert [("modelparallel.tensor_parallel_degree", "unknown")] == fields_of(caught.value)


def test_golden_version_9_parses_forever():
    """The ninth document: computation in float16."""
    options = ModelParallel(fp16=True, microbatches=4)

    assert options == parse((GOLDEN / "v9.json").read_text())


def test_float16_needs_a_newer_image():
    """A document without float16 says nothing of it; an older image refuses one with it."""
    text = render(ModelParallel(fp16=True))

    assert 9 == json.loads(text)["version"]
    assert "fp16" not in render(ModelParallel(tensor_parallel_degree=2))
    with pytest.raises(SkewError) as caught:
        parse(text.replace('"version":9', '"version":8'))
    assert [("modelparallel.fp16", "unknown")] == fields_of(caught.value)


def test_golden_version_10_parses_forever():
    """The tenth document: activations in the host's memory."""
    options = ModelParallel(
        pipeline_parallel_degree=2, offload_activations=True, activation_loading_horizon=8
    )

    assert options == parse((GOLDEN / "v10.json").read_text())


def test_golden_version_11_parses_forever():
    """The eleventh document: gradients that each microbatch reduces to shards."""
    options = ModelParallel(
        pipeline_parallel_degree=2, sharding="full", gradient_reduction="microbatch"
    )

    assert options == parse((GOLDEN / "v11.json").read_text())


@pytest.mark.parametrize(
    "options", [{"sharding": "full", "gradient_reduction": "step"}, {"sharding": "auto"}]
)
def test_shards_that_the_planner_chooses_need_a_newer_image(options):
    """An older image refuses the key by name, and does not know the value."""
    text = render(ModelParallel(**options))

    assert 11 == json.loads(text)["version"]
    assert ModelParallel(**options) == parse(text)
    assert "gradient_reduction" not in render(ModelParallel(sharding="full"))
    if "gradient_reduction" in options:
        with pytest.raises(SkewError) as caught:
            parse(text.replace('"version":11', '"version":10'))
        assert [("modelparallel.gradient_reduction", "unknown")] == fields_of(caught.value)


def test_golden_version_12_parses_forever():
    """The twelfth document: sequences that are split between split layers."""
    options = ModelParallel(tensor_parallel_degree=2, sequence_parallel=True)

    assert options == parse((GOLDEN / "v12.json").read_text())


def test_split_sequences_need_a_newer_image():
    text = render(ModelParallel(tensor_parallel_degree=2, sequence_parallel=True))

    assert 12 == json.loads(text)["version"]
    assert "sequence" not in render(ModelParallel(tensor_parallel_degree=2))
    with pytest.raises(SkewError) as caught:
        parse(text.replace('"version":12', '"version":11'))
    assert [("modelparallel.sequence_parallel", "unknown")] == fields_of(caught.value)


def test_golden_version_13_parses_forever():
    """The thirteenth document: optimizer state in the host's memory."""
    options = ModelParallel(pipeline_parallel_degree=2, offload_optimizer=True)

    assert options == parse((GOLDEN / "v13.json").read_text())


def test_optimizer_offload_needs_a_newer_image():
    """A document without it has no such key; an older image refuses the key by name."""
    text = render(ModelParallel(offload_optimizer=True))

    assert 13 == json.loads(text)["version"]
    assert "offload_optimizer" not in render(ModelParallel(sharding="auto"))
    with pytest.raises(SkewError) as caught:
        parse(text.replace('"version":13', '"version":11'))
    assert [("modelparallel.offload_optimizer", "unknown")] == fields_of(caught.value)


@pytest.mark.parametrize("horizon", [None, 2])
def test_offload_needs_a_newer_image(horizon):
    """A document without offload has neither key; an older image refuses those with."""
    text = render(ModelParallel(offload_activations=True, activation_loading_horizon=horizon))

    assert 10 == json.loads(text)["version"]
    assert "activation" not in render(ModelParallel(tensor_parallel_degree=2))
    with pytest.raises(SkewError) as caught:
        parse(text.replace('"version":10', '"version":9'))
    about = "modelparallel.activation_loading_horizon"
    assert [(about, "unknown")] == fields_of(caught.value)


@pytest.mark.parametrize("options", [DataParallel(), ModelParallel()])
def test_only_protection_needs_a_newer_image(options):
    """Older images refuse protection, which they would lack, and read everything else."""
    engine = DataParallel(encrypt=True)
    is_split = isinstance(options, ModelParallel)
    protected = ModelParallel(engine=engine) if is_split else engine

    assert (3 if is_split else 2) == json.loads(render(options))["version"]
    assert "encrypt" not in render(options)
    for framework in (None, "torch", "tensorflow"):
        assert 5 == json.loads(render(protected, framework))["version"]
    older = render(protected).replace('"version":5', '"version":4')
    about = "modelparallel.engine.encrypt" if is_split else "dataparallel.encrypt"
    with pytest.raises(SkewError) as caught:
        parse(older)
    assert [(about, "unknown")] == fields_of(caught.value)


@pytest.mark.parametrize("framework", [None, "torch"])
def test_torch_needs_no_newer_image(framework):
    """Images from before TensorFlow go on reading what they know."""
    text = render(DataParallel(), framework)

    assert render(DataParallel()) == text
    assert parse_framework(text) is None


@pytest.mark.parametrize("version", [2, 3, 5, 6, 8, VERSION])
def test_goldens_of_the_versions_that_we_write_are_what_we_write(version):
    """Changing a document without a new version is caught here.

    Version 2 says all of data parallelism: older images go on reading it.
    """
    golden = (GOLDEN / f"v{version}.json").read_text().strip()

    assert golden == render(parse(golden), parse_framework(golden))


def test_document_fits_sagemaker():
    """One line of fewer than 2,500 characters, also with the longest values."""
    text = render(
        DataParallel(
            processes_per_host=1024,
            fusion_bytes=4096 * MiB,
            timeout_seconds=86_400,
            lanes=16,
            chunk_bytes=16 * MiB,
            one_shot_bytes=MiB,
            single_owner_bytes=MiB,
            arriving_bytes=64 * MiB,
            shard_weights=(65_535,) * 350,
            integrity="crc32c",
            encrypt=True,
            gpu_collectives="staged",
            silence_seconds=900,
            max_restarts=1000,
        )
    )

    assert "\n" not in text
    assert MAX_CHARACTERS > len(text)


def test_weights_of_too_many_hosts_do_not_fit():
    """What SageMaker would refuse is refused before it is sent."""
    for options in (DataParallel(shard_weights=(65_535,) * 400), ModelParallel(plan="p" * 2500)):
        refused = fields_raised(lambda options=options: render(options))

        assert [("distribution", "too_long")] == refused
    assert MAX_CHARACTERS < len(spell(ModelParallel(plan="p" * 2500)))


def test_newer_document_names_both_versions():
    """An old image says which version it got and which it reads."""
    with pytest.raises(SkewError) as caught:
        parse('{"version":99,"dataparallel":{}}')

    assert [("version", "skew")] == fields_of(caught.value)
    assert str(caught.value) == (
        "sagemaker_dist_config is a document of version 99: this image reads versions up to"
        f" {VERSION}. Use an image whose sagemaker-dist-runtime reads version 99, or a"
        f" sagemaker-dist that writes version {VERSION}."
    )


@pytest.mark.parametrize(
    ("text", "about", "kind"),
    [
        ("", "", "not_json"),
        ("[1]", "", "type"),
        ("{}", "version", "type"),
        ('{"version":true,"dataparallel":{}}', "version", "type"),
        ('{"version":1}', "dataparallel", "missing"),
        ('{"version":1,"dataparallel":[]}', "dataparallel", "missing"),
        ('{"version":1,"dataparallel":{"lane":4}}', "dataparallel.lane", "unknown"),
        ('{"version":1,"dataparallel":{},"tensorparallel":{}}', "tensorparallel", "unknown"),
        ('{"version":2,"modelparallel":{}}', "modelparallel", "unknown"),
        ('{"version":3}', "modelparallel", "missing"),
        ('{"version":3,"dataparallel":{},"modelparallel":{}}', "modelparallel", "conflict"),
        ('{"version":3,"dataparallel":{},"framework":"tensorflow"}', "framework", "unknown"),
        ('{"version":4,"dataparallel":{},"framework":"jax"}', "framework", "unknown"),
        ('{"version":3,"modelparallel":{"lane":4}}', "modelparallel.lane", "unknown"),
        (
            '{"version":3,"modelparallel":{"engine":{"lane":4}}}',
            "modelparallel.engine.lane",
            "unknown",
        ),
    ],
)
def test_other_documents_are_refused(text, about, kind):
    """A document that is not ours is refused."""
    with pytest.raises(SkewError) as caught:
        parse(text)

    assert [(about, kind)] == fields_of(caught.value)
