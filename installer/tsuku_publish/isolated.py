"""The part of bubblewrap's arguments that every command of another person's code gets."""

ISOLATED = (
    "--unshare-all",
    # Explicit, because --unshare-all goes on without a user namespace where there can be none.
    *("--unshare-user", "--uid", "65534", "--gid", "65534"),
    # bubblewrap, started by root, keeps root's capabilities otherwise.
    *("--cap-drop", "ALL"),
    # Without a terminal, so that no process can type into ours.
    "--new-session",
    "--die-with-parent",
)
"""No network, no capability, not root, no terminal and no process of the host."""
