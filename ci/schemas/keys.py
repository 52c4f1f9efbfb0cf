"""The keys that mean the same in every document. A key of one of these names has this type.

The text of each is its description in the published schemas.
"""

from __future__ import annotations

from typing import Annotated, Any

Id = Annotated[
    str,
    "An installed build: release, variant and the start of a digest, such as "
    "b11429-vulkan-0123456789ab.",
]
Tag = Annotated[str, "A release, by the tag that upstream gave it, such as b11429."]
Number = Annotated[
    str,
    "The version number of what the object describes, as its maker gives it: of a "
    "release 0.6.0, null if upstream gives it none. Never a tag, and never an id.",
]
VariantName = Annotated[
    str,
    "A build of a release, such as vulkan or cuda-13.4.",
]
Backend = Annotated[str, "What a build computes with, such as vulkan or cpu."]
Channel = Annotated[str, "A series of releases, such as stable or index."]
Publisher = Annotated[str, "Who built a release, in the publisher's own words."]
RepositoryName = Annotated[str, "The signed repository, by the name that this machine gives it."]
Unattested = Annotated[str, "Why it was not verified who built the release; null if it was."]
Unmeasured = Annotated[str, "Why the archives of the release were not measured; null if they were."]
Unsigned = Annotated[
    str,
    "The path from which an unsigned build was installed; null for a signed build.",
]
Device = Annotated[str, "A GPU, by the name that its driver gives it."]
PageUrl = Annotated[
    str,
    "The web page of a server that is ready, for a browser on this machine; null if it has none, "
    "or listens at a Unix socket.",
]
BaseUrl = Annotated[
    str,
    "The base URL of the OpenAI API of a server that is ready, for a client on this machine; null "
    "at a Unix socket.",
]
Requested = Annotated[str, "The backend, variant or vendor that was asked for, or auto."]
Bytes = Annotated[int, "Bytes."]
Moment = Annotated[str, "A time in UTC, to the second, such as 2026-11-22T12:00:00Z."]
Sha256 = Annotated[str, "A SHA-256, in hexadecimal."]
File = Annotated[str, "The absolute path of a file or folder."]

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
    "unmeasured": Unmeasured,
    "requested": Requested,
    "device": Device,
    "page_url": PageUrl,
    "base_url": BaseUrl,
}
"""The keys with one meaning each, in any document; a value may also be null."""
