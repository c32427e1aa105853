# SPDX-License-Identifier: Apache-2.0
"""A checkpoint is one file of Keras's, loaded under any layout and by Keras alone."""

import os
import time

import numpy as np

BATCH, SAMPLES = 16, 64


def fit(rank, _size, path, degree, epochs, kind):
    """Train in a pipeline of `degree` ranks, from a checkpoint or up to one; return losses."""
    import keras
    from keras_models import MODELS, loss_of, made

    import smdist.modelparallel.tensorflow as smp

    keras.config.set_floatx("float64")
    smp.init({"pipeline_parallel_degree": degree, "microbatches": 4})
    model = smp.DistributedModel(made("residual"), costs="estimate")
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss=loss_of("residual"))
    x, y = MODELS["residual"][1](SAMPLES)
    start = model.load_checkpoint(path) if kind == "resume" else 0
    history = model.fit(
        x, y, batch_size=BATCH, shuffle=False, epochs=epochs, initial_epoch=start, verbose=0
    )
    if kind == "save":
        model.save(path)
    return history.history["loss"], model.predict(x[:8], verbose=0)


def alone(_rank, _size, path):
    """Load a checkpoint with Keras alone; return its predictions and optimizer steps."""
    import keras
    from keras_models import MODELS

    keras.config.set_floatx("float64")
    model = keras.models.load_model(path)
    x, _ = MODELS["residual"][1](SAMPLES)
    return model.predict(x[:8], verbose=0), int(model.optimizer.iterations.numpy())


def test_training_goes_on_under_another_layout(keras_world, tmp_path):
    """Losses after a restart on one rank or two are those of a run without a restart."""
    path = str(tmp_path / "model.keras")
    left, in_use = (tmp_path / f".model.keras.{name}.keras" for name in ("killed00", "writing0"))
    for each, age in ((left, 7200), (in_use, 60)):
        each.touch()
        os.utime(each, (time.time() - age,) * 2)
    [(expected, _), _] = keras_world.run(fit, path, 2, 4, "", size=2, deadline=120)
    [(begun, predicted), _] = keras_world.run(fit, path, 2, 2, "save", size=2, deadline=120)
    [(one, _)] = keras_world.run(fit, path, 1, 4, "resume", size=1, deadline=120)
    [_, (two, _)] = keras_world.run(fit, path, 2, 4, "resume", size=2, deadline=120)
    [(by_keras, steps)] = keras_world.run(alone, path, size=1, deadline=60)

    np.testing.assert_allclose(begun + one, expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(begun + two, expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(by_keras, predicted, rtol=0, atol=1e-10)
    assert 2 * SAMPLES // BATCH == steps
    assert {in_use.name, "model.keras"} == {each.name for each in tmp_path.iterdir()}


def numbered(_rank, _size, folder):
    """Return the numbers of files, before and after all but one were removed."""
    from smdist.modelparallel.tensorflow.keras_checkpoint.numbered_files import NumberedFiles

    files = NumberedFiles(folder, "ckpt")
    before = files.numbers()
    files.keep_last(1)
    return before, files.numbers()


def test_only_names_that_are_written_have_numbers(keras_world, tmp_path):
    """Another spelling of a number would be that of a file that does not exist."""
    for name in ("ckpt-7", "ckpt-007", "ckpt-٣", "ckpt-0", "ckpt-1x", "other-3"):
        (tmp_path / f"{name}.keras").touch()
    assert [([0, 7], [7])] == keras_world.run(numbered, tmp_path, size=1, deadline=60)


def bytes_of_one_value(_rank, _size, path, kind):
    """Return a value of an HDF5 file in an archive, and how many bytes were read for it."""
    import io
    import zipfile

    import h5py

    from smdist.modelparallel.tensorflow.keras_checkpoint.archive_member import opened_member

    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        for number in range(4):
            file[f"vars/{number}"] = np.full(2**18, number, "float32")
    with zipfile.ZipFile(path, "w", kind) as archive:
        archive.writestr("first.json", "{}")
        archive.writestr("model.weights.h5", content.getvalue())
    with opened_member(path, "model.weights.h5") as member, h5py.File(member) as file:
        value = file["vars/2"][()]
        return set(value.tolist()), value.size, getattr(member, "num_read", None)


def test_a_rank_reads_the_values_that_it_needs(keras_world, tmp_path):
    """One of four values takes the bytes of one; compressed archives are read as well."""
    path = tmp_path / "model.keras"
    [stored] = keras_world.run(bytes_of_one_value, path, 0, size=1, deadline=60)
    [deflated] = keras_world.run(bytes_of_one_value, path, 8, size=1, deadline=60)

    assert ({2.0}, 2**18) == stored[:2] == deflated[:2]
    assert 2**20 <= stored[2] < 1.1 * 2**20


def wrong_file(rank, _size, path):
    """Load a file that is damaged, and one that does not exist; return the errors' fields."""
    from keras_models import MODELS, loss_of, made

    import smdist.modelparallel.tensorflow as smp

    smp.init({"pipeline_parallel_degree": 2, "microbatches": 4})
    model = smp.DistributedModel(made("residual"), costs="estimate")
    model.compile(optimizer="sgd", loss=loss_of("residual"))
    x, y = MODELS["residual"][1](BATCH)
    model.train_on_batch(x, y)
    found = []
    for each in (path, path + ".missing.keras"):
        try:
            model.load_checkpoint(each)
        except smp.KerasCheckpointError as error:
            found.append((error.about, error.kind))
    return found


def test_damaged_and_missing_files_are_refused_on_every_rank(keras_world, tmp_path):
    """Each rank raises an error that names the file."""
    path = tmp_path / "damaged.keras"
    path.write_bytes(b"PK\x03\x04 no archive")
    answers = keras_world.run(wrong_file, str(path), size=2, deadline=60)

    assert [[(("path",), "unreadable"), (("path",), "missing_file")]] * 2 == answers
