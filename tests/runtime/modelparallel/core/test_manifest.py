# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint holds is found by any name that its reader knows."""

import json

import pytest

from sagemaker_dist.errors import OptionErrors, raise_all
from smdist.modelparallel.core.manifest import (
    Group,
    Manifest,
    ManifestEntry,
    OptimizerState,
    model_faults,
    options_for,
    state_faults,
)
from smdist.modelparallel.core.manifest_document import manifest_of

TIED = ManifestEntry(name="wte.weight", aliases=("head.weight",), shape=(4, 2), dtype="float32")
BIAS = ManifestEntry(name="head.bias", shape=(4,), dtype="float32")
SLOW, FAST = {"lr": 0.1}, {"lr": 0.9}


def state(*groups, kind="SGD", options=("lr",)):
    made = tuple(Group(names=names, options=of) for names, of in groups)
    return OptimizerState(kind=kind, options=options, groups=made, keys={"a": ("momentum_buffer",)})


def test_it_survives_as_plain_types():
    """Whoever reads it may have another version of the classes."""
    manifest = Manifest(
        model="GPT", entries=(TIED, BIAS), state=state((("a",), SLOW)), run={"step": 3}
    )
    document = manifest.document()

    assert manifest == manifest_of(document)
    assert 2 == len(json.loads(json.dumps(document))["entries"])


def nested(depth):
    found = ()
    for _ in range(depth):
        found = (found, found)
    return found


@pytest.mark.parametrize("wrong", [3, nested(60), "a\x1b[2J", [-1]])
@pytest.mark.parametrize(
    "path",
    [
        *((name,) for name in ("model", "entries", "state", "layout", "run", "more")),
        *(("entries", 0, name) for name in ("name", "aliases", "shape", "dtype")),
        *(("state", name) for name in ("kind", "options", "groups", "keys")),
        *(("state", "groups", 0, name) for name in ("names", "options")),
    ],
)
def test_wrong_contents_are_named_at_once(path, wrong):
    """Whatever is in a field, it is neither hashed nor printed, and one error names the field."""
    manifest = Manifest(model="GPT", entries=(TIED, BIAS), state=state((("a",), SLOW)))
    document = json.loads(json.dumps(manifest.document()))
    where = document
    for key in path[:-1]:
        where = where[key]
    where[path[-1]] = wrong

    with pytest.raises(ValueError, match=path[-1] if path != ("more",) else "fields") as caught:
        manifest_of(document)
    assert str(caught.value).isprintable()


def test_tied_ones_are_found_by_every_name():
    """Also where the reader has them untied, or in another order."""
    saved = Manifest(model="GPT", entries=(TIED, BIAS))
    turned = ManifestEntry(name="head.weight", aliases=("wte.weight",), shape=(4, 2))
    untied = (
        ManifestEntry(name="wte.weight", shape=(4, 2)),
        ManifestEntry(name="head.weight", shape=(4, 2)),
        BIAS,
    )

    assert TIED == saved.found_for(turned)
    assert [] == list(model_faults(saved, Manifest(model="GPT", entries=untied), strict=True))


def test_every_fault_is_told():
    """Missing, too much, of another shape."""
    saved = Manifest(model="GPT", entries=(TIED, BIAS))
    here = Manifest(
        model="MLP", entries=(ManifestEntry(name="head.bias", shape=(5,)), ManifestEntry(name="x"))
    )
    strict = list(model_faults(saved, here, strict=True))

    assert [
        (("strict",), "missing"),
        (("strict",), "surplus"),
        (("head.bias",), "shape"),
    ] == [(fault.about, fault.kind) for fault in strict]
    assert ["shape"] == [fault.kind for fault in model_faults(saved, here, strict=False)]
    with pytest.raises(OptionErrors) as caught:
        raise_all(strict)

    origin = "the checkpoint was saved from GPT and is loaded into MLP."
    either = "Load it into the model that was saved, or pass strict=False to load what both have."
    sizes = "Create the model with the shapes of the checkpoint."
    assert [
        f"the checkpoint lacks x: {origin} {either}",
        f"the model lacks wte.weight: {origin} {either}",
        "head.bias has shape (5,) in the model, and shape (4,) in the checkpoint:"
        f" {origin} {sizes}",
    ] == list(map(str, caught.value.faults))


def test_options_follow_the_names():
    """Whatever groups there are now; what had different options cannot be one group."""
    saved = state((("a", "b"), SLOW), (("c",), FAST))
    at = [Group(names=names, options={}) for names in (("c",), ("b",), ("a", "c"), ())]

    assert FAST == options_for(saved, at[0], 0, 3)
    assert SLOW == options_for(saved, at[1], 1, 3)
    assert options_for(saved, at[2], 0, 2) is None
    assert FAST == options_for(saved, at[3], 1, 2)
    assert {} == options_for(saved, at[3], 1, 3)


def test_optimizer_of_another_kind_is_told():
    """By the options that only one of them has."""
    saved = Manifest(model="GPT", entries=(), state=state((("a",), SLOW)))
    adam = state((("a", "z"), SLOW), kind="Adam", options=("betas", "lr"))

    assert [
        (("load_optimizer",), "class"),
        (("load_optimizer",), "unknown"),
    ] == [(fault.about, fault.kind) for fault in state_faults(saved, adam)]
