"""The keys that mean the same in every document. A key of one of these names has this type."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

Id = Annotated[
    str,
    Meta(
        description="An installed build: release, variant and the start of a digest, such as "
        "b11429-vulkan-0123456789ab."
    ),
]
Tag = Annotated[
    str, Meta(description="A release, by the tag that upstream gave it, such as b11429.")
]
Number = Annotated[
    str,
    Meta(
        description="The version number of what the object describes, as its maker gives it: of a "
        "release 0.6.0, null if upstream gives it none. Never a tag, and never an id."
    ),
]
VariantName = Annotated[
    str,
    Meta(description="A build of a release, such as vulkan or cuda-13.4."),
]
Backend = Annotated[str, Meta(description="What a build computes with, such as vulkan or cpu.")]
Channel = Annotated[str, Meta(description="A series of releases, such as stable or index.")]
Publisher = Annotated[str, Meta(description="Who built a release, in the publisher's own words.")]
RepositoryName = Annotated[
    str, Meta(description="The signed repository, by the name that this machine gives it.")
]
Unattested = Annotated[
    str, Meta(description="Why it was not verified who built the release; null if it was.")
]
Device = Annotated[str, Meta(description="A GPU, by the name that its driver gives it.")]
Requested = Annotated[
    str, Meta(description="The backend, variant or vendor that was asked for, or auto.")
]
Bytes = Annotated[int, Meta(ge=0, description="Bytes.")]
Moment = Annotated[
    str, Meta(description="A time in UTC, to the second, such as 2026-11-22T12:00:00Z.")
]
Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$", description="A SHA-256, in hexadecimal.")]
File = Annotated[str, Meta(description="The absolute path of a file or folder.")]

KEYS: dict[str, Any] = {
    "id": Id,
    "release": Tag,
    "version": Number,
    "variant": VariantName,
    "backend": Backend,
    "channel": Channel,
    "publisher": Publisher,
    "repository": RepositoryName,
    "unattested": Unattested,
    "requested": Requested,
    "device": Device,
}
"""The keys with one meaning each, in any document; a value may also be null."""
