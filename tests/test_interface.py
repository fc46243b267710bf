"""The weights of an encoder are the ones that were asked for."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from pipeline.encoders.interface import load_encoder
from pipeline.encoders.s3d import S3D
from pipeline.encoders.s3d_weights import randomize
from pipeline.formats.files import sha256_of_file
from tests.examples import encode_settings

pytestmark = pytest.mark.usefixtures("one_thread")
SETTINGS = encode_settings()


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A file of weights, and its sha256."""
    network = S3D(space_to_depth=True)
    randomize(network, 5)
    path = tmp_path_factory.mktemp("weights") / "s3d.pth"
    torch.save(network.state_dict(), path)
    return path, sha256_of_file(path)


def test_a_weights_file_is_known_by_its_sha256(released):
    path, digest = released
    for wanted in (None, digest, digest.upper()):
        settings = dataclasses.replace(SETTINGS, weights=str(path), weights_sha256=wanted)
        assert load_encoder(settings, "cpu").weights_sha256 == digest


def test_weights_with_another_sha256_are_refused_with_both_named(released):
    path, digest = released
    for weights, found in ((str(path), digest), ("random", "")):
        settings = dataclasses.replace(SETTINGS, weights=weights, weights_sha256="ab" * 32)
        with pytest.raises(ValueError, match=f"{found}.*{'ab' * 32}"):
            load_encoder(settings, "cpu")


def test_the_sha256_is_checked_before_the_file_is_opened(tmp_path):
    path = tmp_path / "page.pth"
    path.write_text("<html>")
    settings = dataclasses.replace(SETTINGS, weights=str(path), weights_sha256="ab" * 32)
    with pytest.raises(ValueError, match="has sha256"):
        load_encoder(settings, "cpu")


def test_missing_weights_say_where_to_look(tmp_path):
    settings = dataclasses.replace(SETTINGS, weights=str(tmp_path / "none.pth"))
    with pytest.raises(FileNotFoundError, match=r"none\.pth is no file: config/README\.md"):
        load_encoder(settings, "cpu")


SETTINGS = encode_settings()


def test_an_encoder_that_is_neither_ours_nor_a_factory_is_refused():
    with pytest.raises(ValueError, match="encoder is 'clip', allowed: s3d, c3d, torchvision:NAME"):
        dataclasses.replace(SETTINGS, encoder="clip")
