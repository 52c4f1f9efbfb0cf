"""The commands of the release tool, by what they work on."""
