"""Methods for blobs and for the usage of quotas."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial

from skillery.backends import Identity
from skillery.contents.blob_rows import BlobContent, DeletedBlob, NewBlob
from skillery.formats.names import parse_namespace
from skillery.formats.texts import decode_content, parse_identity
from skillery.identity import access, usage
from skillery.identity.usage import IdentityUse
from skillery.method import or_none
from skillery.methods import params
from skillery.methods.core import Core


async def create_blob(core: Core, identity: Identity, asked: params.CreateBlob) -> NewBlob:
    content = await asyncio.to_thread(decode_content, asked.content, asked.encoding, "content")
    ttl = or_none(asked.ttl)
    return await core.blobs.create_blob(identity, content, asked.kind, timedelta(seconds=ttl) if ttl else None)


async def read_blob(core: Core, identity: Identity, asked: params.ReadBlob) -> BlobContent:
    return await core.blobs.read_blob(identity, asked.blob_id, asked.mode, or_none(asked.max_bytes))


async def delete_blob(core: Core, identity: Identity, asked: params.DeleteBlob) -> DeletedBlob:
    deleted = await core.blobs.delete_blob(identity, asked.blob_id)
    return DeletedBlob(deleted.id, deleted.size_bytes)


async def get_usage(core: Core, identity: Identity, asked: params.GetUsage) -> IdentityUse:
    whose = parse_identity(asked.identity) if asked.identity else identity.name
    if whose != identity.name:
        access.require(identity, "admin")
    namespaces = [grant.removesuffix(".*") for grant in identity.namespaces if grant != "*"]
    if asked.namespace:
        namespaces = [parse_namespace(asked.namespace.removesuffix(".*"))]
        if not access.covers(identity, f"{namespaces[0]}.x"):
            access.require(identity, "admin")
    elif whose != identity.name:
        namespaces = []
    sees = partial(access.covers_all, identity)
    work = partial(usage.get_usage, quotas=core.quotas, identity=whose, namespaces=namespaces, sees=sees)
    return await core.registry.read_page(work)
