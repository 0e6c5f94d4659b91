"""How `make test` deals the tests out to processes side by side: each has a core of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

ONE_SERVER = ("tests/dashboard/", "tests/e2e/", "tests/gateway/storage/")
"""Folders whose tests share a server for the whole run: a gateway with a browser, the real model, PostgreSQL."""


class ByServer(LoadFileScheduling):
    """Gives a process file after file, in the order of collection, and of a folder with one server all files."""

    def _split_scope(self, nodeid: str) -> str:
        folder = next(filter(nodeid.startswith, ONE_SERVER), None)
        return folder or super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByServer:
    return ByServer(config, log)


def pytest_configure() -> None:
    """Keep a process of several, and all that it starts, on one core.

    Threads that wait for one another at each barrier of a model's step would else wait for the neighbours: six files of
    engine tests took 62 s in one process, 47 in two, and 26 in two with a core each.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})


@pytest.fixture(scope="module")
def all_cores() -> Iterator[None]:
    """For tests of what threads do together, of which there are as many as cores."""
    if "PYTEST_XDIST_WORKER" not in os.environ or not hasattr(os, "sched_setaffinity"):
        yield
        return
    import torch

    own, num_threads = os.sched_getaffinity(0), torch.get_num_threads()
    cores = os.sched_getaffinity(os.getppid())
    os.sched_setaffinity(0, cores)
    torch.set_num_threads(len(cores))
    yield
    os.sched_setaffinity(0, own)
    torch.set_num_threads(num_threads)
