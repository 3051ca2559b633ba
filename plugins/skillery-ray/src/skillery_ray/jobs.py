"""Jobs as a server sends them, with the digests of trees in place of folders and files, and failed outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from skillery.backends import (
    BlobMount,
    Call,
    Failure,
    FailureType,
    InputFile,
    Job,
    KeptFile,
    Limits,
    Outcome,
    SkillMount,
    Workspace,
)
from skillery_ray.cache import Cache
from skillery_ray.trees import Tree, Trees


class SentSkill(msgspec.Struct, frozen=True):
    """A SkillMount, with the digest of its tree in place of its folder."""

    name: str
    tree: str
    entrypoint: str | None
    stub: bool


class SentBlob(msgspec.Struct, frozen=True):
    """A BlobMount, with the digest of its tree."""

    blob_id: str
    tree: str


class SentFile(msgspec.Struct, frozen=True):
    """An InputFile, with the digest of its tree."""

    path: str
    tree: str
    size_bytes: int
    executable: bool


class SentPackages(msgspec.Struct, frozen=True):
    """A PackageMount, with the digest of its tree."""

    lock: str
    tree: str


class SentWorkspace(msgspec.Struct, frozen=True):
    """A Workspace. Its contents are sent when the node requests them."""

    files: tuple[KeptFile, ...]
    saves: bool


class SentJob(msgspec.Struct, frozen=True):
    """A `Job` without its args, which are the payload of the frame."""

    run_id: str
    call: Call
    limits: Limits
    skills: tuple[SentSkill, ...] = ()
    blobs: tuple[SentBlob, ...] = ()
    environment: dict[str, str] = {}
    network: tuple[str, ...] = ()
    packages: tuple[SentPackages, ...] = ()
    preload: tuple[str, ...] = ()
    private_network: bool = False
    identity: str = ""
    files: tuple[SentFile, ...] = ()
    outputs: tuple[str, ...] = ()
    workspace: SentWorkspace | None = None

    def trees(self) -> list[str]:
        """Return the digests of all trees of the job, each once."""
        mounts = (self.skills, self.blobs, self.packages, self.files)
        return list(dict.fromkeys(mount.tree for mounts_of_kind in mounts for mount in mounts_of_kind))


class Packed(msgspec.Struct, frozen=True):
    """A job that is ready to be sent, and its trees by digest."""

    job: SentJob
    trees: dict[str, Tree]


class FileGone(Exception):
    """Raised if an input file is no longer there. The message is for the caller."""


async def pack(job: Job, trees: Trees) -> Packed:
    """Return the job with digests. Raise FileGone or OSError if a folder or a file cannot be read."""
    mounts = job.skills or job.blobs or job.packages or job.files
    return await asyncio.to_thread(_pack, job, trees) if mounts else _pack(job, trees)


def _pack(job: Job, trees: Trees) -> Packed:
    """See `pack`. Blocking."""
    by_digest: dict[str, Tree] = {}

    def known(tree: Tree) -> str:
        by_digest[tree.digest] = tree
        return tree.digest

    workspace = job.workspace
    sent = SentJob(
        run_id=job.run_id,
        call=job.call,
        limits=job.limits,
        skills=tuple(
            SentSkill(skill.name, known(trees.of_folder(skill.folder)), skill.entrypoint, skill.stub)
            for skill in job.skills
        ),
        blobs=tuple(SentBlob(blob.blob_id, known(trees.of_file(blob.path))) for blob in job.blobs),
        environment=dict(job.environment),
        network=job.network,
        packages=tuple(
            SentPackages(package.lock, known(trees.of_folder(package.folder, package.lock))) for package in job.packages
        ),
        preload=job.preload,
        private_network=job.private_network,
        identity=job.identity,
        files=tuple(
            SentFile(file.path, known(_input(trees, file)), file.size_bytes, file.executable) for file in job.files
        ),
        outputs=job.outputs,
        workspace=SentWorkspace(workspace.files, workspace.saves) if workspace is not None else None,
    )
    return Packed(sent, by_digest)


def _input(trees: Trees, file: InputFile) -> Tree:
    try:
        return trees.of_file(file.source)
    except OSError:
        raise FileGone(f"the content of the input file '{file.path}' is no longer there; upload it again") from None


def unpack(header: dict[str, Any]) -> SentJob:
    """Return the job in a header. Raise msgspec.ValidationError if it is not valid."""
    return msgspec.convert(header, SentJob)


def local_job(sent: SentJob, args: bytes, cache: Cache, contents: Callable[[], AsyncIterator[bytes]]) -> Job:
    """Return the job with the folders and files of this node. All its trees must be in the cache.

    `contents` yields the contents of the workspace.
    """
    workspace = sent.workspace
    return Job(
        run_id=sent.run_id,
        call=sent.call,
        args=args,
        skills=tuple(
            SkillMount(skill.name, cache.folder(skill.tree), skill.entrypoint, skill.stub) for skill in sent.skills
        ),
        blobs=tuple(BlobMount(blob.blob_id, cache.file(blob.tree)) for blob in sent.blobs),
        limits=sent.limits,
        environment=sent.environment,
        network=sent.network,
        packages=tuple(cache.packages(package.lock, package.tree) for package in sent.packages),
        preload=sent.preload,
        private_network=sent.private_network,
        identity=sent.identity,
        files=tuple(
            InputFile(file.path, cache.file(file.tree), file.size_bytes, file.executable) for file in sent.files
        ),
        outputs=sent.outputs,
        workspace=Workspace(workspace.files, contents, workspace.saves) if workspace is not None else None,
    )


def failed(message: str) -> Outcome:
    """Return the outcome of a job that a node or this server could not finish. The message is for the caller."""
    return Outcome(failure=Failure(FailureType.SANDBOX_ERROR, message))
