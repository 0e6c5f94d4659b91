from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator

import httpx
import hypothesis
import pytest

from gateway.app import create_app
from gateway.model_files import ModelFiles
from gateway.settings import Settings
from gateway.tokenizer import Tokenizer
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.support.tiny_model import EOS_ID, write_model

# Cores are slow and shared; a deadline would measure them.
hypothesis.settings.register_profile("gateway", deadline=None)
hypothesis.settings.load_profile("gateway")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("PREFIXGATE_"):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def model_files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tokenizer(model_files: ModelFiles) -> Tokenizer:
    return Tokenizer(model_files.tokenizer_file)


@pytest.fixture
def backend(tokenizer: Tokenizer) -> FakeBackend:
    return FakeBackend(reply=[*tokenizer.encode("hello world, over the lazy dog").tolist(), EOS_ID])


@pytest.fixture
async def client(backend: FakeBackend, model_files: ModelFiles) -> AsyncIterator[httpx.AsyncClient]:
    async with open_client(backend, model_files) as client:
        yield client


@contextlib.asynccontextmanager
async def open_client(backend: FakeBackend, files: ModelFiles, **settings: object) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(Settings(**settings), backend, files)  # type: ignore[arg-type]
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        yield client
