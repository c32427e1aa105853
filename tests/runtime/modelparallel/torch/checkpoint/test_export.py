# SPDX-License-Identifier: Apache-2.0
"""transformers opens what is exported, from one process and from stages."""

import json
from pathlib import Path

import pytest
import torch
import zoo
from checkpoints import LAYOUTS, running
from safetensors.torch import load_file

from sagemaker_dist.contract.model_parallel import ModelParallel
from sagemaker_dist.errors import OptionError
from smdist.modelparallel.torch.checkpoint import export, gather_state_dict

IDS = torch.arange(3, 11)[None]


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=IDS, use_cache=False).logits


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_exported_model_computes_the_same(tmp_path, name):
    """An export has tied weights once; a later export into one file removes the older files."""
    model = zoo.tiny(name).model
    export(tmp_path, model, max_file_bytes=20_000)
    files = sorted(each.name for each in tmp_path.glob("model*"))
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    split = type(model).from_pretrained(tmp_path)
    export(tmp_path, model)
    whole = type(model).from_pretrained(tmp_path)

    assert {*files} == {*index["weight_map"].values(), "model.safetensors.index.json"}
    assert ("lm_head.weight" in index["weight_map"]) is not model.config.tie_word_embeddings
    assert torch.equal(logits(model), logits(split))
    assert torch.equal(logits(model), logits(whole))
    assert ["model.safetensors"] == [each.name for each in tmp_path.glob("model*")]


def export_stages(rank, size, folder):
    from smdist.modelparallel.torch import session
    from smdist.modelparallel.torch.parallel import parallelize

    torch.set_num_threads(1)
    specimen = zoo.tiny("gpt2")
    session.init(ModelParallel(**LAYOUTS["two"].options))
    try:
        split = parallelize(specimen.model, example=specimen.batch, costs="estimate")
        export(folder, split)
    finally:
        session.end()


def test_stages_write_a_file_each(world, tmp_path):
    """A parameter tied over two stages is written by the first stage."""
    world.run(export_stages, str(tmp_path), size=2)
    model = zoo.tiny("gpt2").model
    found = type(model).from_pretrained(tmp_path)

    assert 2 == len(list(Path(tmp_path).glob("model-*-of-00002.safetensors")))
    assert torch.equal(logits(model), logits(found))


def export_shards(rank, size, folder):
    with running("sharded", seed=0) as run:
        run.steps(1)
        export(folder, run.model)
        return {name: value.tolist() for name, value in gather_state_dict(run.model).items()}


def test_shards_come_together(world, tmp_path):
    """Tensor by tensor, whatever the sizes."""
    expected = world.run(export_shards, str(tmp_path))[0]
    found = {}
    for file in tmp_path.glob("*.safetensors"):
        found |= load_file(file)

    assert {"head.weight"} == set(expected) - set(found)
    for name, value in found.items():
        assert expected[name] == value.tolist()


def test_types_that_the_format_lacks_are_named(tmp_path):
    """A tensor type that safetensors lacks is refused before any file is written."""
    model = torch.nn.Module()
    model.register_buffer("phase", torch.zeros(2, dtype=torch.complex64))

    with pytest.raises(OptionError) as caught:
        export(tmp_path / "new", model)

    assert (("phase",), "unsupported_dtype") == (caught.value.about, caught.value.kind)
    assert not (tmp_path / "new").exists()
