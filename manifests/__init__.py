"""The signed manifest repository, as published: static TUF metadata and targets."""
