"""Publish a user's builds in a folder: signed, and installed like any other release.

    python -m ci.gpulab.publisher FOLDER TOOLKIT CAPABILITY CUDA-TREE VULKAN-TREE

Run it with the Python that has the program, with the tests' support on its path. It prints the
places of the repository's first root, the repository and the archives.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from support.builds import pack_tar
from support.folder_shop import FolderShop

TAG = "b1"


def main() -> None:
    """Pack the trees and sign one release of three variants."""
    folder, toolkit, capability, cuda_tree, vulkan_tree = sys.argv[1:]
    shop = FolderShop(Path(folder))
    archives = Path(folder) / "archives"
    cuda = pack_tar(Path(cuda_tree), archives / "cuda.tar.gz", root="cuda")
    vulkan = pack_tar(Path(vulkan_tree), archives / "vulkan.tar.gz", root="vulkan")
    needed = {"cuda": {"toolkit": toolkit, "sass": [capability], "ptx": []}}
    variants = {
        f"cuda-{toolkit}": shop.variant(cuda, backend="cuda", requires=needed),
        "vulkan": shop.variant(vulkan, backend="vulkan", requires={"vulkan": "1.2"}),
        "cpu": shop.variant(cuda, backend="cpu", arguments=["--device", "none"]),
    }
    shop.publish(TAG, variants)
    root = Path(folder) / "root.json"
    root.write_bytes(shop.simulator.pinned_root)
    print(json.dumps({"root": str(root), "url": shop.simulator.url, "mirror": shop.mirror}))


if __name__ == "__main__":
    main()
